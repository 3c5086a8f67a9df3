//! Bounded single-producer single-consumer rings between a worker and the control lcore.

/// The sending side.
#[derive(Debug)]
pub struct Sender<T> {
    ring: rtrb::Producer<T>,
    refused: u64,
}

/// The receiving side.
#[derive(Debug)]
pub struct Receiver<T> {
    ring: rtrb::Consumer<T>,
}

/// Creates a ring for `capacity` items.
#[must_use]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (producer, consumer) = rtrb::RingBuffer::new(capacity);
    (Sender { ring: producer, refused: 0 }, Receiver { ring: consumer })
}

impl<T> Sender<T> {
    /// Sends one item. A full ring returns it and counts the rejection.
    pub fn send(&mut self, item: T) -> Result<(), T> {
        self.ring.push(item).map_err(|rtrb::PushError::Full(item)| {
            self.refused += 1;
            item
        })
    }

    /// Number of items that fit now, and more after the other side has received some.
    #[must_use]
    pub fn room(&self) -> usize {
        self.ring.slots()
    }

    /// Number of items rejected because the ring was full.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// True if the other side was dropped.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned()
    }
}

impl<T> Receiver<T> {
    /// Returns the oldest item, if any. Never waits.
    pub fn receive(&mut self) -> Option<T> {
        self.ring.pop().ok()
    }

    /// True if the other side was dropped. Remaining items can still be received.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// True if the ring is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn full_ring_hands_the_item_back_and_keeps_order() {
        let (mut tx, mut rx) = super::channel(2);
        assert!(tx.send(1).is_ok() && tx.send(2).is_ok());
        assert_eq!(tx.send(3), Err(3));
        assert_eq!(tx.refused(), 1);
        assert_eq!((rx.receive(), rx.receive(), rx.receive()), (Some(1), Some(2), None));
    }
}
