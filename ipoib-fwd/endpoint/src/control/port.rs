//! What the port is, read from the device.

use std::time::Instant;

use pmd::hca::{Backend, HcaError};

use super::Endpoint;
use ipoib::link::PortFacts;

impl<B: Backend, C, N> Endpoint<B, C, N> {
    pub(super) fn facts(&self) -> PortFacts {
        let read = || -> Result<PortFacts, HcaError> {
            let port = self.hca.port(self.port)?;
            let mut pkey_index = None;
            for index in 0..port.pkey_table_len {
                let key = self.hca.pkey(self.port, index)?;
                // A full membership of the partition is better than a limited one.
                if key.base() == self.pkey.base() && (pkey_index.is_none() || key.is_full()) {
                    pkey_index = Some(index);
                    if key.is_full() {
                        break;
                    }
                }
            }
            Ok(PortFacts {
                state: port.state,
                lid: port.lid,
                gid: self.hca.gid(self.port, 0)?,
                sm_lid: port.sm_lid,
                sm_sl: port.sm_sl,
                mtu: port.active_mtu,
                pkey_index,
            })
        };
        // A port that cannot be asked is as good as none.
        read().unwrap_or(PortFacts::DOWN)
    }

    pub(super) fn read_port(&mut self, now: Instant) {
        self.port_read = now;
        let facts = self.facts();
        self.link.handle_port(now, facts);
    }
}
