//! An endpoint's state of one link: its tables with prepared destinations, and its workers' datagram queue
//! pairs.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

use dataplane::quiescence::Grace;
use ipoib::link::{Link, LinkState};

use super::datagrams::Datagrams;

/// Progress of a link's removal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Removal {
    /// None was requested.
    None,
    /// The link is shutting down, or workers may still read its tables.
    Stopping,
    /// Workers are returning its datagram queue pairs.
    Closing {
        /// Number that is still missing.
        left: usize,
    },
}

/// One link.
#[derive(Debug)]
pub(super) struct LinkEnd<D> {
    pub(super) state: Arc<LinkState>,
    pub(super) broadcast: Option<D>,
    pub(super) groups: Vec<(Ipv4Addr, D)>,
    /// Publications that not every worker has taken up, oldest first.
    pending: VecDeque<(u64, Grace)>,
    pub(super) removal: Removal,
    /// Its datagram queue pairs, by worker.
    pub(super) datagrams: Vec<Datagrams>,
    /// Why the device does not open one of these.
    refusal: Option<String>,
}

impl<D> LinkEnd<D> {
    pub(super) fn new(link: &Link) -> Self {
        let datagrams = link.settings().workers.iter().map(|w| Datagrams::new(w.ud_qpn)).collect();
        Self {
            state: Arc::clone(link.state()),
            broadcast: None,
            groups: Vec::new(),
            pending: VecDeque::new(),
            removal: Removal::None,
            datagrams,
            refusal: None,
        }
    }

    /// Notes that one of its datagram queue pairs was opened, or why it was refused.
    pub(super) fn note_refusal(&mut self, why: Option<String>) {
        let refused = self.datagrams.iter().any(|d| d.refusals() > 0);
        self.refusal = why.or_else(|| self.refusal.take()).filter(|_| refused);
    }

    /// Returns why the device does not open a datagram queue pair, and how often it has refused.
    pub(super) fn refusal(&self) -> Option<(&str, u32)> {
        let times = self.datagrams.iter().map(Datagrams::refusals).max()?;
        Some((self.refusal.as_deref()?, times))
    }

    /// Notes a publication.
    pub(super) fn published(&mut self, generation: u64, grace: Grace) {
        self.pending.push_back((generation, grace));
    }

    /// Returns the oldest publication, if all workers have taken it up.
    pub(super) fn passed(&mut self, has_passed: impl Fn(Grace) -> bool) -> Option<u64> {
        self.pending.pop_front_if(|(_, grace)| has_passed(*grace)).map(|(generation, _)| generation)
    }
}
