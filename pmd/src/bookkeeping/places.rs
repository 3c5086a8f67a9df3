//! Slots of a worker's queue pairs, and the list of those that wait for their doorbell.

use crate::fetch::fetch_at;

/// Queue pairs of one kind.
#[derive(Debug)]
pub(crate) struct Places<Q> {
    places: Box<[Option<Q>]>,
    /// Queue pairs that wait for their doorbell, each at most once. The caller that posts to a queue pair
    /// that is not waiting adds it.
    waiting: Vec<u16>,
}

impl<Q> Places<Q> {
    /// Creates an empty table of `places` slots, at most 65,536.
    pub(crate) fn new(places: u32) -> Self {
        let places = places.min(1 << 16) as usize;
        Self { places: (0..places).map(|_| None).collect(), waiting: Vec::with_capacity(places) }
    }

    /// Inserts a queue pair. If the slot is in use or does not exist, the queue pair is returned.
    pub(crate) fn insert(&mut self, at: u16, qp: Q) -> Result<(), Q> {
        match self.places.get_mut(usize::from(at)) {
            Some(place @ None) => {
                *place = Some(qp);
                Ok(())
            }
            Some(Some(_)) | None => Err(qp),
        }
    }

    /// True if the slot exists and is free.
    pub(crate) fn is_free(&self, at: u16) -> bool {
        matches!(self.places.get(usize::from(at)), Some(None))
    }

    /// Removes a queue pair.
    pub(crate) fn remove(&mut self, at: u16) -> Option<Q> {
        let qp = self.places.get_mut(usize::from(at))?.take()?;
        self.rung(at);
        Some(qp)
    }

    /// Removes all queue pairs.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Q> + use<Q> {
        self.waiting.clear();
        std::mem::take(&mut self.places).into_iter().flatten()
    }

    /// Iterates over all queue pairs.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Q> {
        self.places.iter().flatten()
    }

    /// Iterates mutably over all queue pairs.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Q> {
        self.places.iter_mut().flatten()
    }

    /// Returns the queue pair in a slot.
    #[inline]
    pub(crate) fn get(&self, at: u16) -> Option<&Q> {
        self.places.get(usize::from(at))?.as_ref()
    }

    /// Returns the queue pair in a slot, mutably.
    #[inline]
    pub(crate) fn get_mut(&mut self, at: u16) -> Option<&mut Q> {
        self.places.get_mut(usize::from(at))?.as_mut()
    }

    /// Prefetches the first two cache lines of a queue pair.
    #[inline(always)]
    pub(crate) fn fetch(&self, at: u16) {
        if let Some(place) = self.places.get(usize::from(at)) {
            let first = (&raw const *place).cast::<[u8; 64]>();
            fetch_at(first);
            fetch_at(first.wrapping_add(1));
        }
    }

    /// Adds a queue pair to the waiting list. It must not be in the list.
    #[inline]
    pub(crate) fn wait(&mut self, at: u16) {
        self.waiting.push(at);
    }

    /// True if any queue pair waits for its doorbell.
    #[inline]
    pub(crate) const fn any_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Removes a queue pair whose doorbell was rung separately from the waiting list.
    pub(crate) fn rung(&mut self, at: u16) {
        self.waiting.retain(|other| *other != at);
    }

    /// Rings the doorbells of all waiting queue pairs.
    #[inline]
    pub(crate) fn ring(&mut self, mut ring: impl FnMut(u16, &mut Q)) {
        for at in self.waiting.drain(..) {
            if let Some(Some(qp)) = self.places.get_mut(usize::from(at)) {
                ring(at, qp);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_in_is_rung_and_taken_out_again() {
        let mut table = Places::new(2);
        assert_eq!(table.insert(1, 70), Ok(()));
        assert_eq!((table.insert(1, 71), table.insert(2, 72)), (Err(71), Err(72)));
        assert_eq!((table.is_free(0), table.is_free(1), table.is_free(2)), (true, false, false));
        table.insert(0, 73).unwrap();
        for at in [0, 1] {
            table.wait(at);
        }
        let mut rung = Vec::new();
        table.rung(0);
        table.ring(|at, qp| rung.push((at, *qp)));
        table.ring(|at, qp| rung.push((at, *qp)));
        assert_eq!(rung, [(1, 70)]);
        table.wait(1);
        assert_eq!(table.remove(1), Some(70));
        table.ring(|at, qp| rung.push((at, *qp)));
        assert_eq!((table.get(1), rung.len()), (None, 1));
    }
}
