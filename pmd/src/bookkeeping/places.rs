//! A worker's queue pairs in their places, and which of them wait for their doorbell.

use crate::fetch::fetch_at;

/// Queue pairs of one kind.
#[derive(Debug)]
pub(crate) struct Places<Q> {
    places: Box<[Option<Q>]>,
    /// Each place at most once: who posts to one that was not waiting notes it.
    waiting: Vec<u16>,
}

impl<Q> Places<Q> {
    /// An empty table of this many places, 65,536 at most.
    pub(crate) fn new(places: u32) -> Self {
        let places = places.min(1 << 16) as usize;
        Self { places: (0..places).map(|_| None).collect(), waiting: Vec::with_capacity(places) }
    }

    /// Takes one in; where the place is taken, or not there, it is handed back.
    pub(crate) fn insert(&mut self, at: u16, qp: Q) -> Result<(), Q> {
        match self.places.get_mut(usize::from(at)) {
            Some(place @ None) => {
                *place = Some(qp);
                Ok(())
            }
            Some(Some(_)) | None => Err(qp),
        }
    }

    /// True if one could be taken in there.
    pub(crate) fn is_free(&self, at: u16) -> bool {
        matches!(self.places.get(usize::from(at)), Some(None))
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, at: u16) -> Option<Q> {
        let qp = self.places.get_mut(usize::from(at))?.take()?;
        self.rung(at);
        Some(qp)
    }

    /// Takes all out.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Q> + use<Q> {
        self.waiting.clear();
        std::mem::take(&mut self.places).into_iter().flatten()
    }

    /// All that are there.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Q> {
        self.places.iter().flatten()
    }

    /// All that are there, to be changed.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Q> {
        self.places.iter_mut().flatten()
    }

    /// The one in a place.
    #[inline]
    pub(crate) fn get(&self, at: u16) -> Option<&Q> {
        self.places.get(usize::from(at))?.as_ref()
    }

    /// The one in a place.
    #[inline]
    pub(crate) fn get_mut(&mut self, at: u16) -> Option<&mut Q> {
        self.places.get_mut(usize::from(at))?.as_mut()
    }

    /// Has the processor fetch the two cache lines that one begins with.
    #[inline(always)]
    pub(crate) fn fetch(&self, at: u16) {
        if let Some(place) = self.places.get(usize::from(at)) {
            let first = (&raw const *place).cast::<[u8; 64]>();
            fetch_at(first);
            fetch_at(first.wrapping_add(1));
        }
    }

    /// Notes that one waits for its doorbell, which did not before.
    #[inline]
    pub(crate) fn wait(&mut self, at: u16) {
        self.waiting.push(at);
    }

    /// True if any waits for its doorbell.
    #[inline]
    pub(crate) const fn any_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// One was rung for out of turn.
    pub(crate) fn rung(&mut self, at: u16) {
        self.waiting.retain(|other| *other != at);
    }

    /// Rings for all that wait.
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
