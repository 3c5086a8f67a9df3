//! Ethernet ports: DPDK ethdevs, both physical devices and `--vdev`s.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fmt;
use std::sync::Arc;

use dpdk_sys as sys;
use parking_lot::Mutex;

use crate::eal::Hold;
use crate::mem::Pool;

mod bond;
mod descriptor;
mod kernel;
mod offload;
pub mod order;
mod queue;
mod setup;
mod wait;
mod waker;

pub use offload::EthOffloads;
pub use queue::{Burst, EthQueue};
pub use wait::{MOST_WAITED, Woken, wait};
pub use waker::WokenBy;

use setup::Setup;
use waker::{Interrupt, Waker};

/// A data room that AF_XDP supports on every machine.
const AF_XDP_ROOM: usize = 2048;

/// Reason why a port cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EthError {
    /// No port was given or found.
    #[error(
        "there is no Ethernet port: pass one to EAL (`-a PCI-ADDRESS` or `--vdev net_af_packet0,iface=DEVICE`), or load the \
         driver that binds it (vfio-pci); if EAL was given a port, run `ipoib-fwd --check` with the same arguments to see what is missing"
    )]
    None,
    /// No port is configured, and there are several.
    #[error("there are several Ethernet ports ({0}): select one with ethernet.port")]
    Several(String),
    /// No port has this name.
    #[error("there is no Ethernet port {name:?}; available: {known}; select one of these with ethernet.port")]
    Unknown {
        /// Requested name.
        name: String,
        /// Existing ports.
        known: String,
    },
    /// The driver returned an error.
    #[error("Ethernet port {port}: cannot {what}: {reason}")]
    Refused {
        /// The port.
        port: String,
        /// The failed step.
        what: &'static str,
        /// The driver's error text.
        reason: String,
    },
    /// The port has too few queues.
    #[error(
        "Ethernet port {port} has at most {most} queues, and {asked} workers need one each: use fewer lcores"
    )]
    Queues {
        /// The port.
        port: String,
        /// Queues of the port.
        most: u16,
        /// Requested queues.
        asked: u16,
    },
    /// The kernel's interface below the port was deleted, or moved to another network namespace.
    #[error("Ethernet port {0}: its interface is gone; restart the gateway once the interface exists again")]
    Gone(String),
}

/// Settings of a port.
#[derive(Clone, Copy, Debug)]
pub struct EthConfig {
    /// Number of queue pairs, one per worker.
    pub queues: u16,
    /// Receive descriptors of a queue, rounded to what the device supports.
    pub rx_descriptors: u16,
    /// Transmit descriptors of a queue.
    pub tx_descriptors: u16,
    /// Maximum frame payload in bytes.
    pub mtu: u16,
    /// Receive frames for all addresses.
    pub promiscuous: bool,
    /// Enable the [`EthOffloads`] that the port supports.
    pub offloads: bool,
}

/// An Ethernet MAC address.
pub type Mac = [u8; 6];

/// Packet and byte counters of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EthStats {
    /// Frames received.
    pub received: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Frames sent.
    pub sent: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Frames dropped because no descriptor was free, or because the ring of the driver's AF_PACKET socket
    /// was full. For a bond, the sum over its members.
    pub missed: u64,
    /// Frames received with an error.
    pub receive_errors: u64,
    /// Frames that failed to be sent.
    pub send_errors: u64,
    /// Receive attempts that failed because the pool was empty.
    pub no_buffer: u64,
}

/// Link state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EthLink {
    /// True if the link is up.
    pub up: bool,
    /// True if the kernel interface below the port no longer exists. The port then carries no traffic until
    /// the program restarts.
    pub gone: bool,
    /// Speed in Mbit/s, if known.
    pub mbps: Option<u32>,
}

/// A running port. It is stopped and closed when the port and all its queues have been dropped, so that no
/// worker polls a closed queue.
pub struct EthPort {
    running: Arc<Running>,
    name: String,
    /// Its driver, and the drivers of its members.
    drivers: Vec<String>,
    mac: Mac,
    offloads: EthOffloads,
    /// The kernel interface below the port, if the driver does not report the link state.
    interface: Option<kernel::Interface>,
    /// The members of a bond whose drivers do not report the link state to it.
    members: Option<bond::Members>,
    woken_by: WokenBy,
    ring_losses: kernel::RingLosses,
}

/// A running port. Exactly one instance exists for each port.
#[derive(Debug)]
struct Running {
    id: u16,
    started: bool,
    /// The receive queues allocate from it until the port is closed.
    _pool: Pool,
}

/// Ports in use. Two users of one queue would race.
static IN_USE: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

impl Running {
    fn claim(id: u16, pool: &Pool) -> Option<Self> {
        IN_USE.lock().insert(id).then(|| Self { id, started: false, _pool: pool.clone() })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.started {
            // SAFETY: the port runs; the port and its queues have been dropped, so that nobody polls it.
            unsafe {
                sys::rte_eth_dev_stop(self.id);
                sys::rte_eth_dev_close(self.id);
            }
        }
        IN_USE.lock().remove(&self.id);
    }
}

impl fmt::Debug for EthPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EthPort({})", self.name)
    }
}

fn name_of(id: u16) -> String {
    let mut name = [0; 256];
    // SAFETY: the buffer has RTE_ETH_NAME_MAX_LEN (64) bytes and more.
    let rc = unsafe { sys::rte_eth_dev_get_name_by_port(id, name.as_mut_ptr()) };
    if rc != 0 {
        return format!("{id}");
    }
    // SAFETY: DPDK wrote a C string into it.
    unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned()
}

/// Returns the driver's error text, with a remedy if one is known. `room` is the data room of a buffer in
/// bytes.
fn reason(driver: &str, rc: i32, room: usize) -> String {
    let answer = std::io::Error::from_raw_os_error(rc.abs()).to_string();
    // AF_XDP limits a buffer with its headers to one page, and reports only an invalid argument.
    if driver == "net_af_xdp" && rc == -libc::EINVAL && room > AF_XDP_ROOM {
        return format!(
            "{answer}: {driver} requires buffers of at most one page, but a buffer has {room} bytes of data plus headers: set \
             [buffers] data-room = {AF_XDP_ROOM}"
        );
    }
    // If the kernel denies permission, these drivers report an invalid argument.
    if ["net_af_packet", "net_af_xdp", "net_tap"].contains(&driver) && !may_administer_networks() {
        return format!(
            "{answer}: {driver} configures its interface, which requires CAP_NET_ADMIN: run as root, or grant the capability"
        );
    }
    answer
}

/// True if this process has CAP_NET_ADMIN, or if that is unknown.
fn may_administer_networks() -> bool {
    let own = rustix::thread::capabilities(None);
    own.map_or(true, |sets| sets.effective.contains(rustix::thread::CapabilitySet::NET_ADMIN))
}

/// Explains why frames of this length do not fit into buffers with `room` bytes, for drivers that use one
/// buffer per frame.
fn no_room(frame: u32, room: usize) -> String {
    let needed = frame.next_multiple_of(64);
    format!(
        "this driver uses one buffer per frame, and a buffer has {room} bytes: set [buffers] data-room = {needed}"
    )
}

/// Returns the numbers of all ports.
fn ports() -> Vec<u16> {
    let mut found = Vec::new();
    let Some(_hold) = Hold::take() else { return found };
    let mut at = 0u16;
    loop {
        // SAFETY: iterates over EAL's table of ports; owner 0 means no owner.
        let next = unsafe { sys::rte_eth_find_next_owned_by(at, 0) };
        let Ok(next) = u16::try_from(next) else { return found };
        if u32::from(next) >= sys::SHIM_MAX_ETHPORTS {
            return found;
        }
        found.push(next);
        at = next + 1;
    }
}

/// Returns the names of all ports.
#[must_use]
pub fn port_names() -> Vec<String> {
    ports().into_iter().map(name_of).collect()
}

fn find(name: Option<&str>) -> Result<u16, EthError> {
    let all = ports();
    let names = || all.iter().map(|&id| name_of(id)).collect::<Vec<_>>().join(", ");
    match (name, all.as_slice()) {
        (_, []) => Err(EthError::None),
        (None, [only]) => Ok(*only),
        (None, _) => Err(EthError::Several(names())),
        (Some(name), _) => {
            let unknown = || EthError::Unknown { name: name.to_owned(), known: names() };
            let c_name = CString::new(name).map_err(|_| unknown())?;
            let mut id = 0;
            // SAFETY: a valid C string and room for the result.
            let rc = unsafe { sys::rte_eth_dev_get_port_by_name(c_name.as_ptr(), &raw mut id) };
            if rc == 0 { Ok(id) } else { Err(unknown()) }
        }
    }
}

fn driver_of(info: &sys::rte_eth_dev_info) -> String {
    if info.driver_name.is_null() {
        return String::new();
    }
    // SAFETY: DPDK's own C string, which stays while the driver is loaded.
    unsafe { CStr::from_ptr(info.driver_name) }.to_string_lossy().into_owned()
}

impl EthPort {
    /// Sets a port up and starts it. `name` is a DPDK name or PCI address; without it the only port is used.
    /// Each queue's receive buffers come from the pool.
    pub fn start(
        name: Option<&str>,
        config: &EthConfig,
        pool: &Pool,
    ) -> Result<(Self, Vec<EthQueue>), EthError> {
        let id = find(name)?;
        let name = name_of(id);
        let refused = |what, reason| Err(EthError::Refused { port: name.clone(), what, reason });
        let Some(mut running) = Running::claim(id, pool) else {
            return refused("be used", "it is already in use".to_owned());
        };
        let mut info = sys::rte_eth_dev_info::default();
        // SAFETY: the port exists; the structure is DPDK's own.
        let known = unsafe { sys::rte_eth_dev_info_get(id, &raw mut info) };
        let driver = driver_of(&info);
        let check = |what, rc: i32| {
            if rc >= 0 {
                return Ok(());
            }
            let reason = reason(&driver, rc, pool.data_room());
            Err(EthError::Refused { port: name.clone(), what, reason })
        };
        check("report its properties", known)?;
        if config.queues == 0 {
            return refused("be used", "the number of queues is 0".to_owned());
        }
        let most = info.max_rx_queues.min(info.max_tx_queues);
        if config.queues > most {
            return Err(EthError::Queues { port: name.clone(), most, asked: config.queues });
        }
        let mut conf = sys::rte_eth_conf::default();
        let multi_segment = info.tx_offload_capa & sys::SHIM_TX_OFFLOAD_MULTI_SEGS != 0;
        if multi_segment {
            conf.txmode.offloads |= sys::SHIM_TX_OFFLOAD_MULTI_SEGS;
        }
        let offloads =
            if config.offloads { EthOffloads::of(&info, &driver_of(&info)) } else { EthOffloads::default() };
        offloads.ask_for(&mut conf);
        // As in ethdev: frame length minus payload is reported by the driver, or is the Ethernet header and
        // CRC.
        let overhead = match info.max_mtu {
            u16::MAX => 18,
            mtu => info.max_rx_pktlen.checked_sub(mtu.into()).filter(|&o| o > 0).unwrap_or(18),
        };
        let most_mtu = info.max_rx_pktlen.saturating_sub(overhead).min(info.max_mtu.into());
        let beyond = u32::from(config.mtu) > most_mtu;
        if beyond {
            kernel::takes_mtu(id, &info, config.mtu, pool.data_room()).map_err(|reason| {
                let reason = reason.unwrap_or_else(|| format!("this driver supports at most {most_mtu}"));
                EthError::Refused { port: name.clone(), what: "set this ethernet.mtu", reason }
            })?;
        }
        if u32::from(config.mtu) + overhead > pool.data_room() as u32 {
            if !multi_segment {
                let reason = no_room(u32::from(config.mtu) + overhead, pool.data_room());
                return refused("send frames of this ethernet.mtu", reason);
            }
            if info.rx_offload_capa & sys::SHIM_RX_OFFLOAD_SCATTER == 0 {
                let reason = no_room(u32::from(config.mtu) + overhead, pool.data_room());
                return refused("receive frames of this ethernet.mtu", reason);
            }
            conf.rxmode.offloads |= sys::SHIM_RX_OFFLOAD_SCATTER;
        }
        if config.queues > 1 {
            conf.rxmode.mq_mode = sys::RTE_ETH_MQ_RX_RSS;
            conf.rx_adv_conf.rss_conf.rss_hf = info.flow_type_rss_offloads & sys::SHIM_RSS_IP_PORTS;
        }
        if bond::speaks_lacp(id, &driver)
            && let Err(why) = bond::memory_for_lacp(id, config)
        {
            return refused("speak LACP", why);
        }
        let sockets = kernel::Sockets::before(&driver);
        let setup = Setup { id, name: &name, driver: &driver, config, pool, settable_mtu: !beyond };
        setup.start(&mut conf)?;
        running.started = true;
        // Virtual ports support neither. They receive everything anyway.
        // SAFETY: the port runs.
        unsafe { sys::rte_eth_allmulticast_enable(id) };
        let speaks_lacp = bond::speaks_lacp(id, &driver);
        // SAFETY: the port runs.
        let hears_groups = unsafe { sys::rte_eth_allmulticast_get(id) } == 1;
        // A bond in LACP mode filters addresses itself. If no member can receive all groups, it would drop
        // broadcasts too.
        if config.promiscuous || speaks_lacp && !hears_groups {
            // SAFETY: the port runs.
            check("receive frames for all addresses", unsafe { sys::rte_eth_promiscuous_enable(id) })?;
        }
        let mut mac = sys::rte_ether_addr::default();
        // SAFETY: room for six bytes.
        check("report its address", unsafe { sys::rte_eth_macaddr_get(id, &raw mut mac) })?;
        let interface = kernel::Interface::below(id, &info);
        let members = bond::Members::of(id, &info);
        let drivers = bond::drivers(id, &info);
        let ring_losses = kernel::RingLosses::below(&bond::packet_interfaces(id, &info));
        let mut sockets = sockets.of(interface.as_ref(), config.queues).into_iter();
        let mut waker = |queue| match sockets.next() {
            Some(socket) => Some(Waker::Socket(socket)),
            None => Interrupt::of(id, queue, &driver).map(Waker::Interrupt),
        };
        let wakers: Vec<_> = (0..config.queues).map(&mut waker).collect();
        let woken_by = WokenBy::all(&wakers);
        let running = Arc::new(running);
        let queues = (0..config.queues)
            .zip(wakers)
            .map(|(queue, waker)| EthQueue {
                port: id,
                queue,
                _running: Arc::clone(&running),
                one_segment: !multi_segment,
                speaks_lacp,
                inserts_tags: offloads.insert_tags,
                waker,
                pool: pool.clone(),
            })
            .collect();
        Ok((
            Self {
                running,
                name,
                drivers,
                mac: mac.addr_bytes,
                offloads,
                interface,
                members,
                woken_by,
                ring_losses,
            },
            queues,
        ))
    }

    /// Returns its DPDK name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of its driver; for a bond, also those of its members.
    pub fn drivers(&self) -> impl Iterator<Item = &str> + Clone {
        self.drivers.iter().map(String::as_str)
    }

    /// Returns its MAC address.
    #[must_use]
    pub const fn mac(&self) -> Mac {
        self.mac
    }

    /// Returns the enabled offloads.
    #[must_use]
    pub const fn offloads(&self) -> EthOffloads {
        self.offloads
    }

    /// Returns the wakeup source of a worker that sleeps until a frame arrives.
    #[must_use]
    pub const fn woken_by(&self) -> WokenBy {
        self.woken_by
    }

    /// Returns the link state.
    ///
    /// - If the driver does not check the link, the state is that of the kernel interface below the port.
    /// - The same applies to drivers that check it by name (since DPDK 24.11): the name may belong to another
    ///   interface by now.
    /// - Otherwise it is the state that the driver reports.
    /// - A port without any known state counts as up.
    ///
    /// Makes system calls.
    #[must_use]
    pub fn link(&self) -> EthLink {
        let (mut mbps, mut up) = (0, 0);
        // SAFETY: room for both results.
        let rc = unsafe { sys::shim_eth_link(self.running.id, &raw mut mbps, &raw mut up) };
        let known = rc == 0 && mbps != 0 && mbps != u32::MAX;
        let reported = || rc != 0 || up != 0;
        let running = self.interface.as_ref().map_or_else(reported, kernel::Interface::is_running);
        let up = running && self.members.as_ref().is_none_or(bond::Members::is_running);
        EthLink { up, gone: self.is_gone(), mbps: known.then_some(mbps) }
    }

    /// True if [`Self::link`] found that the kernel interface below the port no longer exists. For a bond,
    /// true if no member's interface exists.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.interface.as_ref().is_some_and(kernel::Interface::is_gone)
            || self.members.as_ref().is_some_and(bond::Members::is_gone)
    }

    /// Switches a bond to a member whose link is up, if the drivers do not report the loss of the active
    /// member's link.
    ///
    /// Call it periodically. Returns the name of the new active member if it has changed. Makes system calls.
    pub fn mind_members(&self) -> Option<String> {
        self.members.as_ref()?.mind().map(name_of)
    }

    /// Returns the counters of the port, and the kernel's counters for it. They are zero if the driver does
    /// not count. Makes system calls.
    #[must_use]
    pub fn stats(&self) -> EthStats {
        let mut s = sys::rte_eth_stats::default();
        // SAFETY: room for the result.
        if unsafe { sys::rte_eth_stats_get(self.running.id, &raw mut s) } != 0 {
            return EthStats::default();
        }
        EthStats {
            received: s.ipackets,
            received_bytes: s.ibytes,
            sent: s.opackets,
            sent_bytes: s.obytes,
            missed: s.imissed + self.ring_losses.total(),
            receive_errors: s.ierrors,
            send_errors: s.oerrors,
            no_buffer: s.rx_nombuf,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::PoolConfig;

    #[test]
    fn a_driver_that_says_no_more_than_invalid_is_helped_out() {
        let text = reason("net_af_xdp", -libc::EINVAL, 4096);
        assert!(text.contains("4096 bytes") && text.contains("[buffers] data-room = 2048"), "{text}");
        for other in [reason("net_af_xdp", -libc::EINVAL, 2048), reason("net_tap", -libc::EINVAL, 4096)] {
            assert_eq!(other, "Invalid argument (os error 22)");
        }
    }

    #[test]
    fn a_frame_that_fits_no_buffer_is_refused_with_the_key_and_the_value_to_write() {
        let text = no_room(9018, 4096);
        assert!(text.contains("has 4096 bytes: set [buffers] data-room = 9024"), "{text}");
    }

    #[test]
    fn without_a_port_the_error_says_how_to_give_one() {
        crate::eal::for_tests();
        let pool =
            Pool::create("none", &PoolConfig { count: 64, data_room: 2048, cache: 0, socket: -1 }).unwrap();
        let config = EthConfig {
            queues: 1,
            rx_descriptors: 64,
            tx_descriptors: 64,
            mtu: 1500,
            promiscuous: false,
            offloads: true,
        };
        let error = EthPort::start(None, &config, &pool).unwrap_err().to_string();
        assert!(error.contains("--vdev"), "{error}");
    }
}
