//! Subnet management packets that await their answers: a window of them, retransmitted a limited number of
//! times.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ib_wire::Lid;
use ib_wire::mad::{Mad, Method};
use ib_wire::smp::Smp;

use crate::subnet::TransactionIds;

/// An outstanding packet.
#[derive(Debug)]
struct Outstanding<S> {
    step: S,
    smp: Smp,
    due: Instant,
    tries: u32,
}

/// Requests, each with the sweep step that it belongs to.
#[derive(Debug)]
pub(crate) struct Transactions<S> {
    waiting: VecDeque<(S, Smp)>,
    out: BTreeMap<u64, Outstanding<S>>,
    ids: TransactionIds,
    window: usize,
    timeout: Duration,
    tries: u32,
}

impl<S> Transactions<S> {
    pub(crate) fn new(window: usize, timeout: Duration, tries: u32, seed: u64, purpose: u64) -> Self {
        Self {
            waiting: VecDeque::new(),
            out: BTreeMap::new(),
            ids: TransactionIds::new(seed, purpose),
            window: window.max(1),
            timeout,
            tries: tries.max(1),
        }
    }

    /// Queues a request.
    pub(crate) fn push(&mut self, step: S, smp: Smp) {
        self.waiting.push_back((step, smp));
    }

    /// Abandons the steps selected by `which`. True if there were any.
    pub(crate) fn abandon(&mut self, which: impl Fn(&S) -> bool) -> bool {
        let before = self.waiting.len() + self.out.len();
        self.waiting.retain(|(step, _)| !which(step));
        self.out.retain(|_, out| !which(&out.step));
        self.waiting.len() + self.out.len() != before
    }

    /// True if no request waits or is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.out.is_empty()
    }

    /// Sends requests as the window allows.
    pub(crate) fn send(&mut self, now: Instant, to: &mut VecDeque<Mad>) {
        while self.out.len() < self.window {
            let Some((step, mut smp)) = self.waiting.pop_front() else { break };
            smp.header.tid = self.ids.next();
            to.push_back(smp.to_mad(Lid::PERMISSIVE));
            self.out.insert(smp.header.tid.0, Outstanding { step, smp, due: now + self.timeout, tries: 1 });
        }
    }

    /// Handles an answer. Returns its step and the number of retransmissions; `None` if no request matches.
    pub(crate) fn answer(&mut self, smp: &Smp) -> Option<(S, u32)> {
        let tid = smp.header.tid.0;
        let request = &self.out.get(&tid)?.smp;
        // The path identifies the sender: each of our switches checks that an answer came back by its path.
        let hops = usize::from(request.hop_count()) + 1;
        let fits = smp.header.method == Method::GetResp
            && smp.is_returning()
            && smp.header.class == request.header.class
            && smp.header.attribute == request.header.attribute
            && smp.header.modifier == request.header.modifier
            && smp.hop_count() == request.hop_count()
            && smp.initial_path.get(1..hops) == request.initial_path.get(1..hops);
        // A busy agent is queried again when the timeout is over (IBA 13.4.7).
        if !fits || smp.status().is_busy() {
            return None;
        }
        self.out.remove(&tid).map(|o| (o.step, o.tries - 1))
    }

    /// Returns when the next packet is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.out.values().map(|o| o.due).min()
    }

    /// Retransmits due packets; returns the steps that were given up.
    pub(crate) fn expire(&mut self, now: Instant, to: &mut VecDeque<Mad>) -> Vec<S> {
        let mut lost = Vec::new();
        for (tid, o) in &mut self.out {
            if o.due > now {
                continue;
            }
            if o.tries >= self.tries {
                lost.push(*tid);
                continue;
            }
            o.tries += 1;
            o.due = now + self.timeout;
            to.push_back(o.smp.to_mad(Lid::PERMISSIVE));
        }
        lost.into_iter().filter_map(|tid| self.out.remove(&tid)).map(|o| o.step).collect()
    }
}
