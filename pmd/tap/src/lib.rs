//! Packet taps: copies of passing packets for a capture file.
//!
//! A tap never blocks and never allocates. It copies into a byte ring; if that is full, it counts and drops
//! the packet. The reader runs on the control side.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rtrb::{Consumer, Producer, RingBuffer};

/// Default size of a tap's ring in bytes: some thousand full packets.
pub const DEFAULT_TAP_BYTES: usize = 8 << 20;

/// Kind of a copied packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    /// LRH to VCRC.
    InfiniBand,
    /// Destination address to payload, without FCS.
    Ethernet,
}

/// Direction of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TapDirection {
    /// It arrived here.
    Received,
    /// It left here.
    Sent,
}

/// Metadata of a copied packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TapHeader {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Its kind.
    pub kind: FrameKind,
    /// Its direction.
    pub direction: TapDirection,
    /// Its length in bytes.
    pub len: u32,
}

const HEADER: usize = 16;

impl TapHeader {
    fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let (time, rest) = bytes.split_at_mut(8);
        time.copy_from_slice(&self.time.to_ne_bytes());
        let (len, rest) = rest.split_at_mut(4);
        len.copy_from_slice(&self.len.to_ne_bytes());
        let flags = [self.kind == FrameKind::Ethernet, self.direction == TapDirection::Sent];
        rest.iter_mut().zip(flags).for_each(|(byte, flag)| *byte = u8::from(flag));
        bytes
    }

    const fn from_bytes(bytes: [u8; HEADER]) -> Self {
        let [t0, t1, t2, t3, t4, t5, t6, t7, l0, l1, l2, l3, ethernet, sent, _, _] = bytes;
        Self {
            time: u64::from_ne_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            len: u32::from_ne_bytes([l0, l1, l2, l3]),
            kind: if ethernet == 0 { FrameKind::InfiniBand } else { FrameKind::Ethernet },
            direction: if sent == 0 { TapDirection::Received } else { TapDirection::Sent },
        }
    }
}

/// The producing end of a tap, on the packets' path.
#[derive(Debug)]
pub struct Tap {
    // Drop order: the reader takes the closed ring as proof that nothing of the tap is left, and frees the
    // rest.
    dropped: Arc<AtomicU64>,
    ring: Producer<u8>,
}

/// The consuming end of a tap.
#[derive(Debug)]
pub struct TapReader {
    ring: Consumer<u8>,
    next: Option<TapHeader>,
    dropped: Arc<AtomicU64>,
}

/// Loss counter of a tap, for others than its reader.
#[derive(Clone, Debug)]
pub struct TapLosses(Arc<AtomicU64>);

impl TapLosses {
    /// Packets lost because the ring was full.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Creates a tap with a ring of `bytes`.
#[must_use]
pub fn tap(bytes: usize) -> (Tap, TapReader) {
    let (producer, consumer) = RingBuffer::new(bytes);
    let dropped = Arc::new(AtomicU64::new(0));
    let reader = TapReader { ring: consumer, next: None, dropped: dropped.clone() };
    (Tap { ring: producer, dropped }, reader)
}

impl Tap {
    /// Copies a packet from one slice.
    pub fn offer(&mut self, kind: FrameKind, direction: TapDirection, packet: &[u8]) {
        self.offer_parts(kind, direction, std::iter::once(packet));
    }

    /// Copies a packet from several slices.
    pub fn offer_parts<'p>(
        &mut self,
        kind: FrameKind,
        direction: TapDirection,
        parts: impl Iterator<Item = &'p [u8]> + Clone,
    ) {
        if self.ring.is_abandoned() {
            return;
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos() as u64);
        self.put(TapHeader { time, kind, direction, len: 0 }, parts);
    }

    fn put<'p>(&mut self, header: TapHeader, parts: impl Iterator<Item = &'p [u8]> + Clone) {
        let len: usize = parts.clone().map(<[u8]>::len).sum();
        let Ok(len32) = u32::try_from(len) else { return };
        // The packet is published at once, because the reader must never see half of it.
        let Ok(mut chunk) = self.ring.write_chunk(HEADER.saturating_add(len)) else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let (mut first, mut second) = chunk.as_mut_slices();
        let mut copy = |mut from: &[u8]| {
            while !from.is_empty() {
                if first.is_empty() {
                    first = std::mem::take(&mut second);
                    if first.is_empty() {
                        return;
                    }
                }
                let n = from.len().min(first.len());
                let (now, later) = std::mem::take(&mut first).split_at_mut(n);
                now.copy_from_slice(from.get(..n).unwrap_or_default());
                first = later;
                from = from.get(n..).unwrap_or_default();
            }
        };
        copy(&TapHeader { len: len32, ..header }.to_bytes());
        parts.for_each(copy);
        chunk.commit_all();
    }
}

impl TapReader {
    /// The header of the next packet, if there is one.
    pub fn peek(&mut self) -> Option<TapHeader> {
        if self.next.is_none() {
            let mut bytes = [0; HEADER];
            self.ring.pop_entire_slice(&mut bytes).ok()?;
            self.next = Some(TapHeader::from_bytes(bytes));
        }
        self.next
    }

    /// Takes the next packet and writes its bytes to `into`.
    pub fn pop(&mut self, into: &mut Vec<u8>) -> Option<TapHeader> {
        let header = self.peek()?;
        into.resize(header.len as usize, 0);
        // Header and bytes were published together, so they are complete.
        self.ring.pop_entire_slice(into).ok()?;
        self.next = None;
        Some(header)
    }

    /// Packets lost because the ring was full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The loss counter, for observers other than the reader, also while nothing reads.
    #[must_use]
    pub fn losses(&self) -> TapLosses {
        TapLosses(Arc::clone(&self.dropped))
    }

    /// True if the tap itself is gone; remaining packets can still be read.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_unchanged_across_the_wrap() {
        let (mut tap, mut reader) = tap(1000);
        let mut bytes = Vec::new();
        for i in 0..100u8 {
            let packet: Vec<u8> = (0..i).collect();
            let (a, b) = packet.split_at(packet.len() / 3);
            tap.offer_parts(FrameKind::Ethernet, TapDirection::Sent, [a, b].into_iter());
            tap.offer(FrameKind::InfiniBand, TapDirection::Received, &[i]);
            let header = reader.peek().unwrap();
            assert_eq!(reader.pop(&mut bytes), Some(header));
            assert_eq!((header.kind, header.direction), (FrameKind::Ethernet, TapDirection::Sent));
            assert_eq!(bytes, packet);
            let second = reader.pop(&mut bytes).unwrap();
            assert_eq!((second.kind, second.direction), (FrameKind::InfiniBand, TapDirection::Received));
            assert_eq!(bytes, [i]);
            assert!(second.time >= header.time);
            assert_eq!(reader.pop(&mut bytes), None);
        }
        assert_eq!(reader.dropped(), 0);
    }

    #[test]
    fn overflow_is_counted_and_leaves_whole_packets() {
        let (mut tap, mut reader) = tap(100);
        for i in 0..10 {
            tap.offer(FrameKind::InfiniBand, TapDirection::Sent, &[i; 20]);
        }
        let mut bytes = Vec::new();
        let mut n = 0;
        while reader.pop(&mut bytes).is_some() {
            assert_eq!(bytes, [n; 20]);
            n += 1;
        }
        assert_eq!((n, reader.dropped()), (2, 8));
        let losses = reader.losses();
        drop(reader);
        assert_eq!(losses.packets(), 8);
    }
}
