//! Queue of datagrams for the subnet manager behind port 0. Subnet management is separate from the rest, and
//! each port has a share: a flood from one port loses only datagrams that arrived by that port.

use std::collections::VecDeque;

use ib_wire::mad::Mad;

/// Most waiting subnet management packets of one port: several times the window of a subnet manager.
pub(super) const MAX_SMPS: usize = 64;
/// Most other waiting datagrams of one port.
pub(super) const MAX_OTHERS: usize = 512;

/// A queue for each port, served round robin.
#[derive(Debug)]
struct Lane {
    queues: Vec<VecDeque<Mad>>,
    /// Number of datagrams in all queues.
    len: usize,
    /// The port that is served next.
    next: usize,
    /// Most datagrams in one queue.
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

/// All waiting datagrams.
#[derive(Debug)]
pub(super) struct Inbox {
    smps: Lane,
    others: Lane,
    /// The queue that is served next.
    smps_next: bool,
}

impl Inbox {
    /// Creates queues for datagrams that arrive by ports 1 to `ports`, or from the switch itself, 0.
    pub(super) fn new(ports: u8) -> Self {
        let queues = usize::from(ports) + 1;
        Self { smps: Lane::new(queues, MAX_SMPS), others: Lane::new(queues, MAX_OTHERS), smps_next: true }
    }

    /// Adds a datagram that arrived by a port; false if the port's share is used up.
    pub(super) fn push(&mut self, ingress: u8, is_smp: bool, mad: Mad) -> bool {
        if is_smp { self.smps.push(ingress, mad) } else { self.others.push(ingress, mad) }
    }

    /// Takes the next datagram, alternating between both kinds.
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
