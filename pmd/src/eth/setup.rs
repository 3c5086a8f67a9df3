//! Port setup: configures the port and all its queues and starts it.

use super::{EthConfig, EthError, kernel, reason};
use crate::mem::Pool;
use dpdk_sys as sys;

/// A stopped port with its requested settings.
#[derive(Debug)]
pub(super) struct Setup<'a> {
    pub(super) id: u16,
    pub(super) name: &'a str,
    pub(super) driver: &'a str,
    pub(super) config: &'a EthConfig,
    pub(super) pool: &'a Pool,
    /// True if the driver's MTU limit includes the requested one.
    pub(super) settable_mtu: bool,
}

impl Setup<'_> {
    /// Starts the port, with receive interrupts if possible. A driver without them may fail at any step; the
    /// setup is then repeated without interrupts.
    pub(super) fn start(&self, conf: &mut sys::rte_eth_conf) -> Result<(), EthError> {
        if kernel::may_interrupt(self.driver) {
            conf.intr_conf.set_rxq(1);
            if self.attempt(conf).is_ok() {
                return Ok(());
            }
            conf.intr_conf.set_rxq(0);
        }
        self.attempt(conf)
    }

    fn attempt(&self, conf: &sys::rte_eth_conf) -> Result<(), EthError> {
        let &Self { id, config, pool, .. } = self;
        // SAFETY: the port is stopped; `conf` is read during the call only.
        self.check("be configured", unsafe {
            sys::rte_eth_dev_configure(id, config.queues, config.queues, conf)
        })?;
        // Drivers without a settable MTU use the MTU of the underlying device.
        if self.settable_mtu {
            // SAFETY: the port is configured.
            let rc = unsafe { sys::rte_eth_dev_set_mtu(id, config.mtu) };
            if rc != -libc::ENOTSUP {
                self.check("set this ethernet.mtu", rc)?;
            }
        }
        let (mut rx, mut tx) = (config.rx_descriptors, config.tx_descriptors);
        // SAFETY: two numbers to be adjusted.
        self.check("use that number of descriptors", unsafe {
            sys::rte_eth_dev_adjust_nb_rx_tx_desc(id, &raw mut rx, &raw mut tx)
        })?;
        // SAFETY: the port exists.
        let socket = unsafe { sys::rte_eth_dev_socket_id(id) } as u32;
        for queue in 0..config.queues {
            // SAFETY: the pool outlives the port: `Running` holds a handle. NULL = the driver's defaults.
            self.check("set up a receive queue", unsafe {
                sys::rte_eth_rx_queue_setup(id, queue, rx, socket, std::ptr::null(), pool.as_ptr())
            })?;
            // SAFETY: as above.
            self.check("set up a transmit queue", unsafe {
                sys::rte_eth_tx_queue_setup(id, queue, tx, socket, std::ptr::null())
            })?;
        }
        // SAFETY: configured, with all queues.
        self.check("be started", unsafe { sys::rte_eth_dev_start(id) })
    }

    fn check(&self, what: &'static str, rc: i32) -> Result<(), EthError> {
        if rc >= 0 {
            return Ok(());
        }
        let reason = reason(self.driver, rc, self.pool.data_room());
        Err(EthError::Refused { port: self.name.to_owned(), what, reason })
    }
}
