//! Datagrams that wait for their destination's MAC address, apart from their queue pairs, which go on.

use std::collections::VecDeque;

use ib_wire::Gid;
use ib_wire::packet::{Bth, Extended};

use hca::AddressVector;

/// Most datagrams that wait at a port.
const MOST: usize = 1024;
/// Most that wait for one destination: it may be somebody who never answers.
const MOST_EACH: usize = 256;

/// One datagram.
#[derive(Debug)]
pub(crate) struct ParkedDatagram {
    pub(crate) av: AddressVector,
    pub(crate) bth: Bth,
    pub(crate) extended: Extended,
    /// What keeps the packets of its sender in order.
    pub(crate) flow: u32,
    pub(crate) payload: Box<[u8]>,
}

impl ParkedDatagram {
    fn destination(&self) -> Option<Gid> {
        self.av.grh.map(|route| route.dgid)
    }
}

/// All of a port's, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    list: VecDeque<ParkedDatagram>,
    /// Some could leave when the cable has room.
    held_up: bool,
}

impl Parked {
    /// Takes a datagram in; false if too many wait already.
    pub(crate) fn park(&mut self, datagram: ParkedDatagram) -> bool {
        let to = datagram.destination();
        let room = self.list.len() < MOST
            && self.list.iter().filter(|parked| parked.destination() == to).count() < MOST_EACH;
        if room {
            self.list.push_back(datagram);
        }
        room
    }

    /// Takes all of them out, to be tried again; those that still have to wait go back by [`Parked::give_back`].
    pub(crate) fn take(&mut self) -> VecDeque<ParkedDatagram> {
        std::mem::take(&mut self.list)
    }

    /// As they were, less those that have left; `held_up` if the cable was full.
    pub(crate) fn give_back(&mut self, list: VecDeque<ParkedDatagram>, held_up: bool) {
        self.list = list;
        self.held_up = held_up;
    }

    /// True if the cable was full when they were tried last.
    pub(crate) const fn is_held_up(&self) -> bool {
        self.held_up
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}
