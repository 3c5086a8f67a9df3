//! Datagrams for the subnet manager behind port 0: subnet management apart from the rest, and with a share
//! for each port, so that a flood from one port loses only what came in by the same port.

use std::collections::VecDeque;

use ib_wire::mad::Mad;

/// Subnet management packets of one port that wait: several times what a subnet manager has out at once.
pub(super) const MAX_SMPS: usize = 64;
/// Other datagrams of one port that wait.
pub(super) const MAX_OTHERS: usize = 512;

/// A queue for each port, served round robin.
#[derive(Debug)]
struct Lane {
    queues: Vec<VecDeque<Mad>>,
    /// Datagrams in all of them.
    len: usize,
    /// The port that is served next.
    next: usize,
    /// Most that wait in one of them.
    share: usize,
}

impl Lane {
    fn new(ports: usize, share: usize) -> Self {
        Self { queues: vec![VecDeque::new(); ports], len: 0, next: 0, share }
    }

    fn push(&mut self, ingress: u8, mad: Mad) -> bool {
        let queue = self.queues.get_mut(usize::from(ingress)).filter(|queue| queue.len() < self.share);
        let Some(queue) = queue else { return false };
        queue.push_back(mad);
        self.len += 1;
        true
    }

    fn pop(&mut self) -> Option<Mad> {
        if self.len == 0 {
            return None;
        }
        for _ in 0..self.queues.len() {
            let at = self.next;
            self.next = (at + 1) % self.queues.len();
            if let Some(mad) = self.queues.get_mut(at).and_then(VecDeque::pop_front) {
                self.len -= 1;
                return Some(mad);
            }
        }
        None
    }
}

/// All that waits.
#[derive(Debug)]
pub(super) struct Inbox {
    smps: Lane,
    others: Lane,
    /// The queue that is served next.
    smps_next: bool,
}

impl Inbox {
    /// For datagrams that come in by ports 1 to `ports`, or from the switch itself, 0.
    pub(super) fn new(ports: u8) -> Self {
        let queues = usize::from(ports) + 1;
        Self { smps: Lane::new(queues, MAX_SMPS), others: Lane::new(queues, MAX_OTHERS), smps_next: true }
    }

    /// Adds a datagram that came in by a port; false if the port's share is used up.
    pub(super) fn push(&mut self, ingress: u8, is_smp: bool, mad: Mad) -> bool {
        if is_smp { self.smps.push(ingress, mad) } else { self.others.push(ingress, mad) }
    }

    /// Takes the next one: of both kinds in turn.
    pub(super) fn pop(&mut self) -> Option<Mad> {
        self.smps_next = !self.smps_next;
        let [first, second] = if self.smps_next {
            [&mut self.others, &mut self.smps]
        } else {
            [&mut self.smps, &mut self.others]
        };
        first.pop().or_else(|| second.pop())
    }

    /// Takes the next subnet management packet.
    pub(super) fn pop_smp(&mut self) -> Option<Mad> {
        self.smps.pop()
    }
}
