//! The control lcore's end of the rings to a worker.

use std::collections::VecDeque;
use std::sync::Arc;

use dataplane::ring::{Receiver, Sender};
use dataplane::usage::Usage;
use ib_wire::Qpn;
use pmd::hca::Queues;

use super::RING;
use crate::long::Counters;
use crate::message::{Command, Note};

/// A worker as the control lcore sees it.
#[derive(Debug)]
pub(super) struct WorkerEnd<Q: Queues, C, N> {
    pub(super) commands: Sender<Command<Q, C>>,
    /// Commands that wait for room in the ring, oldest first: their order makes slots safe to reuse.
    ///
    /// Commands for queue pairs must not be lost; their number is bounded by the number of queue pairs.
    /// Packets are refused before too many wait.
    pub(super) waiting: VecDeque<Command<Q, C>>,
    pub(super) notes: Receiver<Note<Q, N>>,
    /// Connections on which messages arrived, by slot.
    pub(super) received: Usage<Qpn>,
    /// Counters of messages in more buffers than a send can name.
    pub(super) long: Arc<Counters>,
}

impl<Q: Queues, C, N> WorkerEnd<Q, C, N> {
    pub(super) fn send(&mut self, command: Command<Q, C>) {
        if !self.waiting.is_empty() {
            self.waiting.push_back(command);
        } else if let Err(command) = self.commands.send(command) {
            self.waiting.push_back(command);
        }
    }

    /// Sends a command that carries a packet. A worker that is far behind accepts no more of them.
    pub(super) fn offer(&mut self, command: Command<Q, C>) -> bool {
        let room = self.waiting.len() < RING;
        if room {
            self.send(command);
        }
        room
    }

    pub(super) fn flush(&mut self) {
        while let Some(command) = self.waiting.pop_front() {
            if let Err(command) = self.commands.send(command) {
                self.waiting.push_front(command);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dataplane::ring;
    use pmd::hca::Backend;
    use pmd::soft::SoftHca;

    use super::*;

    #[test]
    fn a_worker_that_is_far_behind_accepts_no_packets_but_every_order() {
        let (commands, mut inbox) = ring::channel(RING);
        let (_outbox, notes) = ring::channel(RING);
        let mut end: WorkerEnd<<SoftHca as Backend>::Queues, u32, ()> = WorkerEnd {
            commands,
            waiting: VecDeque::new(),
            notes,
            received: Usage::new(1, 1),
            long: Arc::default(),
        };
        let taken = (0..).take_while(|n| end.offer(Command::App(*n))).count();
        assert!(taken >= RING);
        // As `Endpoint::order` does.
        end.send(Command::App(u32::MAX));
        let mut orders = Vec::new();
        while let Some(command) = inbox.receive() {
            end.flush();
            orders.extend(if let Command::App(n) = command { Some(n) } else { None });
        }
        assert_eq!((orders.len(), orders.last()), (taken + 1, Some(&u32::MAX)));
    }
}
