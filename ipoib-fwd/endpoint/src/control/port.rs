//! What the port is, read from the device: once for all links, on its events, and now and then in case one got lost.

use std::time::Instant;

use hca::PortState;
use ib_wire::PKey;
use pmd::hca::{Backend, HcaError};

use super::Endpoint;
use ipoib::link::Waiting;
use ipoib::port::Facts;

/// Whether the device can never be used again.
#[derive(Debug)]
pub(super) enum Gone {
    /// It can.
    No,
    /// It cannot, and the owner does not know why.
    Untold(HcaError),
    /// It cannot, and the owner knows.
    Told,
}

impl Gone {
    fn take(&mut self) -> Option<HcaError> {
        match std::mem::replace(self, Self::Told) {
            Self::Untold(why) => Some(why),
            before => {
                *self = before;
                None
            }
        }
    }
}

impl<B: Backend, C, N> Endpoint<B, C, N> {
    /// The device is gone: whatever its driver still says of the port, there is none.
    pub(super) fn lose_device(&mut self, now: Instant, why: HcaError) {
        if self.is_gone() {
            return;
        }
        self.gone = Gone::Untold(why);
        self.mads.clear();
        self.read_port(now);
    }

    /// True if the device is gone: its port stays down for good.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        !matches!(self.gone, Gone::No)
    }

    /// Why the device is gone, told once; then there is nothing to do but to close the endpoint.
    pub fn take_gone(&mut self) -> Option<HcaError> {
        self.gone.take()
    }

    pub(super) fn facts(&self) -> Facts {
        if self.is_gone() {
            return Facts::default();
        }
        let read = || -> Result<Facts, HcaError> {
            let port = self.hca.port(self.number)?;
            let pkeys: Result<Vec<PKey>, HcaError> =
                (0..port.pkey_table_len).map(|index| self.hca.pkey(self.number, index)).collect();
            Ok(Facts {
                state: port.state,
                lid: port.lid,
                lmc: port.lmc,
                gid: self.hca.gid(self.number, 0)?,
                sm_lid: port.sm_lid,
                sm_sl: port.sm_sl,
                mtu: port.active_mtu,
                grh_required: port.grh_required,
                pkeys: pkeys?,
            })
        };
        // A port that cannot be asked is as good as none.
        read().unwrap_or_default()
    }

    pub(super) fn read_port(&mut self, now: Instant) {
        self.port_read = now;
        let facts = self.facts();
        self.port.handle_port(now, facts);
    }

    /// True while a change of the port's state or of its P_Key table is what a link waits for.
    pub(super) fn waits_for_port(&self) -> bool {
        if self.is_gone() {
            return false;
        }
        let active = self.port.facts().is_some_and(|facts| facts.state == PortState::Active);
        let for_key = |waiting| matches!(waiting, Waiting::PKey | Waiting::FullMembership);
        !active || self.port.links().any(|(_, link)| link.waits_for().is_some_and(for_key))
    }
}
