//! What the port is, read from the device: once for all links, on its events, and now and then in case one got lost.

use std::time::Instant;

use hca::PortState;
use ib_wire::PKey;
use pmd::hca::{Backend, HcaError};

use super::Endpoint;
use ipoib::link::Waiting;
use ipoib::port::Facts;

impl<B: Backend, C, N> Endpoint<B, C, N> {
    pub(super) fn facts(&self) -> Facts {
        let read = || -> Result<Facts, HcaError> {
            let port = self.hca.port(self.number)?;
            let pkeys: Result<Vec<PKey>, HcaError> =
                (0..port.pkey_table_len).map(|index| self.hca.pkey(self.number, index)).collect();
            Ok(Facts {
                state: port.state,
                lid: port.lid,
                gid: self.hca.gid(self.number, 0)?,
                sm_lid: port.sm_lid,
                sm_sl: port.sm_sl,
                mtu: port.active_mtu,
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
        let active = self.port.facts().is_some_and(|facts| facts.state == PortState::Active);
        let for_key = |waiting| matches!(waiting, Waiting::PKey | Waiting::FullMembership);
        !active || self.port.links().any(|(_, link)| link.waits_for().is_some_and(for_key))
    }
}
