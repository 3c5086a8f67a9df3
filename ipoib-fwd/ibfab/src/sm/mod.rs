//! The embedded subnet manager with its subnet administration, without I/O: MADs in, MADs out, `now` as an argument.
//!
//! It sits behind port 0 of a switch, as in a managed switch. What it sends from QP0 with the permissive LID is a
//! directed-route SMP with hop pointer 0: the switch's SMI takes it from there, and answers itself if the hop count
//! is 0. SMPs travel on VL15. What it sends from QP1 is routed by LID.

mod config;

use std::collections::VecDeque;
use std::time::Instant;

use ib_wire::mad::Mad;

pub use config::{Members, Partition, SmConfig};

/// Subnet manager and subnet administration.
#[derive(Debug)]
pub struct SubnetManager {
    config: SmConfig,
    out: VecDeque<Mad>,
}

impl SubnetManager {
    /// Starts; the first sweep begins at once.
    #[must_use]
    pub fn new(_now: Instant, config: SmConfig) -> Self {
        Self { config, out: VecDeque::new() }
    }

    /// Takes a MAD that came for the subnet manager's port: SMPs (responses, traps) that the switch's own agent does
    /// not answer, and everything for QP1. `mad.peer` is the sender; QP0 or QP1 tells which queue pair it came to.
    pub fn handle_mad(&mut self, _now: Instant, mad: &Mad) {
        let _ = (&self.config, mad);
    }

    /// The next MAD to send; `peer.qpn` is 0 for SMPs (VL15, from QP0) and 1 for the rest (from QP1).
    pub fn poll_transmit(&mut self) -> Option<Mad> {
        self.out.pop_front()
    }

    /// When [`Self::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, _now: Instant) {}

    /// The switch at port 0 saw a port of its own change state; the same news as trap 128, without a MAD.
    pub fn handle_port_change(&mut self, _now: Instant) {}

    /// True once every port that was found is configured.
    #[must_use]
    pub fn is_up(&self) -> bool {
        false
    }
}
