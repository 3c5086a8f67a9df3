//! The table of a worker's connected queue pairs: by place, by number, and which of them wait for their doorbell.

use hashbrown::HashMap;
use ib_wire::Qpn;

use crate::hca::RcSlot;

/// Hot half of a connected queue pair.
pub(crate) trait Connected {
    /// Its number.
    fn number(&self) -> Qpn;
}

/// Connected queue pairs in their places.
#[derive(Debug)]
pub(crate) struct Connections<R> {
    places: Box<[Option<R>]>,
    by_qpn: HashMap<u32, u16, foldhash::fast::FixedState>,
    /// Each place at most once: who posts to one that was not waiting notes it.
    waiting: Vec<u16>,
}

impl<R: Connected> Connections<R> {
    /// An empty table of this many places, 65,536 at most.
    pub(crate) fn new(places: u32) -> Self {
        let places = places.min(1 << 16) as usize;
        Self {
            places: (0..places).map(|_| None).collect(),
            by_qpn: HashMap::with_capacity_and_hasher(2 * places, foldhash::fast::FixedState::default()),
            waiting: Vec::with_capacity(places),
        }
    }

    /// Takes one in; where the place is taken, or not there, it is handed back.
    pub(crate) fn insert(&mut self, slot: RcSlot, rc: R) -> Result<(), R> {
        match self.places.get_mut(usize::from(slot.0)) {
            Some(place @ None) => {
                self.by_qpn.insert(rc.number().get(), slot.0);
                *place = Some(rc);
                Ok(())
            }
            Some(Some(_)) | None => Err(rc),
        }
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, slot: RcSlot) -> Option<R> {
        let rc = self.places.get_mut(usize::from(slot.0))?.take()?;
        self.by_qpn.remove(&rc.number().get());
        self.rung(slot);
        Some(rc)
    }

    /// Takes all out.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = R> + use<R> {
        self.by_qpn.clear();
        self.waiting.clear();
        std::mem::take(&mut self.places).into_iter().flatten()
    }

    /// Places.
    pub(crate) const fn len(&self) -> usize {
        self.places.len()
    }

    /// The one in a place.
    pub(crate) fn get(&self, slot: RcSlot) -> Option<&R> {
        self.places.get(usize::from(slot.0))?.as_ref()
    }

    /// The one in a place.
    #[inline]
    pub(crate) fn get_mut(&mut self, slot: RcSlot) -> Option<&mut R> {
        self.places.get_mut(usize::from(slot.0))?.as_mut()
    }

    /// The one of this number.
    #[inline]
    pub(crate) fn of_qpn(&mut self, qpn: u32) -> Option<&mut R> {
        let slot = *self.by_qpn.get(&qpn)?;
        self.places.get_mut(usize::from(slot))?.as_mut()
    }

    /// Notes that one waits for its doorbell, which did not before.
    #[inline]
    pub(crate) fn wait(&mut self, slot: RcSlot) {
        self.waiting.push(slot.0);
    }

    /// One was rung for out of turn.
    pub(crate) fn rung(&mut self, slot: RcSlot) {
        self.waiting.retain(|other| *other != slot.0);
    }

    /// Rings for all that wait.
    #[inline]
    pub(crate) fn ring(&mut self, mut ring: impl FnMut(&mut R)) {
        for slot in self.waiting.drain(..) {
            if let Some(Some(rc)) = self.places.get_mut(usize::from(slot)) {
                ring(rc);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Connected for u32 {
        fn number(&self) -> Qpn {
            Qpn::new(*self)
        }
    }

    #[test]
    fn what_is_taken_in_is_found_rung_and_taken_out_again() {
        let mut table = Connections::new(2);
        assert_eq!(table.insert(RcSlot(1), 70), Ok(()));
        assert_eq!((table.insert(RcSlot(1), 71), table.insert(RcSlot(2), 72)), (Err(71), Err(72)));
        assert_eq!((table.of_qpn(70).copied(), table.of_qpn(71)), (Some(70), None));
        table.insert(RcSlot(0), 73).unwrap();
        for slot in [0, 1] {
            table.wait(RcSlot(slot));
        }
        let mut rung = Vec::new();
        table.rung(RcSlot(0));
        table.ring(|rc| rung.push(*rc));
        table.ring(|rc| rung.push(*rc));
        assert_eq!(rung, [70]);
        table.wait(RcSlot(1));
        assert_eq!(table.remove(RcSlot(1)), Some(70));
        table.ring(|rc| rung.push(*rc));
        assert_eq!((table.get(RcSlot(1)), rung.len()), (None, 1));
        assert_eq!(table.of_qpn(70), None);
    }
}
