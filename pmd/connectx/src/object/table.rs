//! The table of queue pairs.

use std::collections::VecDeque;

use ib_wire::Qpn;

use super::qp::Qp;

/// Low bits of a queue pair number that are its slot in the table.
const SLOT_BITS: u32 = 13;
/// Most queue pairs.
pub const MAX_QPS: usize = 1 << SLOT_BITS;

/// All queue pairs, by the low bits of their numbers.
#[derive(Debug, Default)]
pub(crate) struct QpTable {
    slots: Vec<Option<Box<Qp>>>,
    free: VecDeque<u32>,
    /// Queue pairs 0 and 1 by port.
    special: Vec<[Option<u32>; 2]>,
}

impl QpTable {
    /// Creates an empty table for a device with this number of ports.
    pub(crate) fn new(ports: usize) -> Self {
        Self { special: vec![[None; 2]; ports], ..Self::default() }
    }

    /// All queue pairs.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Qp> {
        self.slots.iter().flatten().map(|qp| &**qp)
    }

    /// All queue pairs, mutable.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.slots.iter_mut().flatten().map(|qp| &mut **qp)
    }

    pub(crate) fn at(&mut self, slot: u32) -> Option<&mut Qp> {
        self.slots.get_mut(slot as usize)?.as_deref_mut()
    }

    /// Looks up by real number.
    pub(crate) fn real(&mut self, qpn: Qpn) -> Option<&mut Qp> {
        self.at(slot_of(qpn)).filter(|qp| qp.qpn == qpn)
    }

    /// Looks up by the number in a packet to `port`: 0 and 1 are the special queue pairs, whatever their real
    /// numbers.
    pub(crate) fn named(&mut self, port: u8, qpn: Qpn) -> Option<&mut Qp> {
        if qpn == Qpn::SMI || qpn == Qpn::GSI {
            let slot = (*self.special.get(usize::from(port))?.get(qpn.get() as usize)?)?;
            return self.at(slot);
        }
        self.real(qpn).filter(|qp| qp.port == port)
    }

    /// Looks up by real number, immutable.
    pub(crate) fn get(&self, qpn: Qpn) -> Option<&Qp> {
        self.slots.get(slot_of(qpn) as usize)?.as_deref().filter(|qp| qp.qpn == qpn)
    }

    /// The slot of the next queue pair; `None` if all are used. A free slot is reused as late as possible.
    pub(crate) fn next_slot(&self) -> Option<u32> {
        match self.free.front() {
            Some(&slot) if self.slots.len() >= MAX_QPS || self.free.len() > 64 => Some(slot),
            _ if self.slots.len() < MAX_QPS => Some(self.slots.len() as u32),
            first => first.copied(),
        }
    }

    /// A number for a slot, with new upper bits.
    pub(crate) fn number(slot: u32, dice: u32) -> Qpn {
        // They have the top bit set and differ from run to run, so that a restarted device is not taken for
        // the old one.
        Qpn::new((dice | 1 << (23 - SLOT_BITS)) << SLOT_BITS | slot)
    }

    /// Makes a queue pair number 0 or 1 of a port, and of no other port. False if another queue pair has that
    /// number.
    pub(crate) fn name(&mut self, port: u8, number: Qpn, slot: u32) -> bool {
        let place = self.special.get_mut(usize::from(port)).and_then(|s| s.get_mut(number.get() as usize));
        if place.is_none_or(|place| place.is_some_and(|other| other != slot)) {
            return false;
        }
        self.unname(slot);
        if let Some(place) =
            self.special.get_mut(usize::from(port)).and_then(|s| s.get_mut(number.get() as usize))
        {
            *place = Some(slot);
        }
        true
    }

    /// Removes a queue pair's external number 0 or 1.
    pub(crate) fn unname(&mut self, slot: u32) {
        for place in self.special.iter_mut().flatten().filter(|place| **place == Some(slot)) {
            *place = None;
        }
    }

    /// Inserts a new queue pair in the slot of its number.
    pub(crate) fn insert(&mut self, qp: Qp) {
        let slot = qp.slot;
        if self.slots.len() <= slot as usize {
            for skipped in self.slots.len() as u32..slot {
                self.free.push_back(skipped);
            }
            self.slots.resize_with(slot as usize + 1, || None);
        }
        self.free.retain(|&s| s != slot);
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = Some(Box::new(qp));
        }
    }

    /// Removes a queue pair.
    pub(crate) fn remove(&mut self, slot: u32) {
        self.unname(slot);
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = None;
        }
        self.free.push_back(slot);
    }
}

/// The slot that a number names.
pub(crate) const fn slot_of(qpn: Qpn) -> u32 {
    qpn.get() & (MAX_QPS as u32 - 1)
}
