//! Datagrams that wait for their destination's MAC address. They are held apart from their queue pairs, which
//! continue.

use std::collections::VecDeque;

use ib_wire::Gid;
use ib_wire::packet::{Bth, Extended};

use hca::AddressVector;

/// Most pending datagrams of a port.
const MOST: usize = 1024;
/// Most pending datagrams for one destination, which may never reply.
const MOST_EACH: usize = 256;

/// One datagram.
#[derive(Debug)]
pub(crate) struct ParkedDatagram {
    pub(crate) av: AddressVector,
    pub(crate) bth: Bth,
    pub(crate) extended: Extended,
    /// Flow label that keeps the packets of its sender in order.
    pub(crate) flow: u32,
    pub(crate) payload: Box<[u8]>,
}

impl ParkedDatagram {
    fn destination(&self) -> Option<Gid> {
        self.av.grh.map(|route| route.dgid)
    }
}

/// All pending datagrams of a port, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    list: VecDeque<ParkedDatagram>,
    /// Some could be sent when the cable has room.
    held_up: bool,
}

impl Parked {
    /// Queues a datagram; false if the queue is full.
    pub(crate) fn park(&mut self, datagram: ParkedDatagram) -> bool {
        let to = datagram.destination();
        let room = self.list.len() < MOST
            && self.list.iter().filter(|parked| parked.destination() == to).count() < MOST_EACH;
        if room {
            self.list.push_back(datagram);
        }
        room
    }

    /// Takes all datagrams to try them again. Those that must wait longer are returned by
    /// [`Parked::give_back`].
    pub(crate) fn take(&mut self) -> VecDeque<ParkedDatagram> {
        std::mem::take(&mut self.list)
    }

    /// Returns the datagrams that were not sent; `held_up` if the cable was full.
    pub(crate) fn give_back(&mut self, list: VecDeque<ParkedDatagram>, held_up: bool) {
        self.list = list;
        self.held_up = held_up;
    }

    /// True if the cable was full at the last try.
    pub(crate) const fn is_held_up(&self) -> bool {
        self.held_up
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}
