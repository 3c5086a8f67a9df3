//! A sample of the packets, compared byte by byte with what should be there.
//!
//! Towards the device it is a send: its destination, and its message as a device would read it, by keys and addresses. Away from it the
//! device never sees what becomes of a message. But who forwards in place writes the new header into the room in front of it, and a buffer
//! that has gone home keeps its bytes until somebody takes it: they are looked at in the sink's next turn.

use std::fmt::Debug;
use std::sync::Arc;

use connectx::HostMemory;
use prm::{DataSegment, DatagramAddress};
use zerocopy::byteorder::big_endian::U32;

use crate::FIRST_LKEY;

/// One packet in so many of each way is looked at: a prime, so that all flows and connections have their turn.
pub const SAMPLE_EVERY: u32 = 1021;
/// Bytes in front of a message that are shown with it when it has been forwarded.
pub const ROOM_BEFORE: usize = 32;

/// A packet of the sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen<'a> {
    /// A send that was taken.
    Sent {
        /// The connection that it goes by, from 0; `None` for a datagram.
        connection: Option<u16>,
        /// Where a datagram goes.
        to: Option<&'a DatagramAddress>,
        /// All of its message.
        message: &'a [u8],
    },
    /// A message that was received in the last turn, and has been forwarded since.
    Forwarded {
        /// Which one of the sink's.
        message: usize,
        /// Where it was written, as it is now: [`ROOM_BEFORE`] bytes in front of it, then the message's own.
        place: &'a [u8],
    },
}

/// Knows what should be there.
pub trait Inspector: Debug + Send + Sync {
    /// True if a packet is what it should be.
    fn is_right(&self, seen: &Seen<'_>) -> bool;
}

/// A message that is looked at when it has been forwarded.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    message: usize,
    len: usize,
    data: DataSegment,
    front: usize,
}

/// Chooses packets, and has them looked at.
#[derive(Debug)]
pub(super) struct Sample {
    inspector: Option<Arc<dyn Inspector>>,
    sends: u32,
    messages: u32,
    waiting: Option<Waiting>,
    bytes: Vec<u8>,
    pub(super) compared: u64,
    pub(super) wrong: u64,
}

impl Sample {
    pub(super) fn new(inspector: Option<Arc<dyn Inspector>>) -> Self {
        let (sends, messages) = (SAMPLE_EVERY, SAMPLE_EVERY);
        Self { inspector, sends, messages, waiting: None, bytes: Vec::new(), compared: 0, wrong: 0 }
    }

    /// True if one of the next so many sends is of the sample.
    #[inline]
    pub(super) fn has_one_within(&self, sends: u16) -> bool {
        u32::from(sends) >= self.sends
    }

    /// So many sends are not, and were taken.
    #[inline]
    pub(super) const fn pass_sends(&mut self, sends: u32) {
        self.sends -= sends;
    }

    /// True if this send is one of the sample.
    #[inline]
    pub(super) const fn has_send(&mut self) -> bool {
        self.sends -= 1;
        if self.sends > 0 {
            return false;
        }
        self.sends = SAMPLE_EVERY;
        self.inspector.is_some()
    }

    /// One was not even a send.
    pub(super) const fn add_wrong(&mut self) {
        self.compared += 1;
        self.wrong += 1;
    }

    /// Compares a send with what it should be. `data` are its segments.
    #[cold]
    pub(super) fn look_at_send(
        &mut self,
        regions: &[HostMemory],
        connection: Option<u16>,
        to: Option<&DatagramAddress>,
        data: impl Iterator<Item = DataSegment>,
    ) {
        self.bytes.clear();
        let mut readable = true;
        for segment in data {
            let (begin, len) = (self.bytes.len(), segment.byte_count.get() as usize);
            let read = place(regions, &segment, 0, len).is_some_and(|place| {
                self.bytes.resize(begin + len, 0);
                place.read(self.bytes.get_mut(begin..).unwrap_or_default())
            });
            readable &= read;
        }
        let Some(inspector) = &self.inspector else { return };
        let seen = Seen::Sent { connection, to, message: &self.bytes };
        self.wrong += u64::from(!(readable && inspector.is_right(&seen)));
        self.compared += 1;
    }

    /// True if one of the next so many messages is of the sample.
    #[inline]
    pub(super) const fn has_message_within(&self, messages: usize) -> bool {
        self.messages as usize <= messages
    }

    /// So many messages were not, and have been written.
    #[inline]
    pub(super) const fn pass_messages(&mut self, messages: u64) {
        self.messages -= messages as u32;
    }

    /// A message was written behind `front` bytes of this segment.
    #[inline]
    pub(super) const fn received(&mut self, message: usize, len: usize, data: DataSegment, front: usize) {
        self.messages -= 1;
        if self.messages == 0 {
            self.messages = SAMPLE_EVERY;
            self.waiting = Some(Waiting { message, len, data, front });
        }
    }

    /// Whoever was to forward what the last turn brought has done so.
    #[inline]
    pub(super) fn turn(&mut self, regions: &[HostMemory]) {
        if let Some(waiting) = self.waiting.take() {
            self.look_at_forwarded(regions, waiting);
        }
    }

    #[cold]
    fn look_at_forwarded(&mut self, regions: &[HostMemory], waiting: Waiting) {
        let Some(inspector) = &self.inspector else { return };
        let Waiting { message, len, data, front } = waiting;
        self.bytes.resize(ROOM_BEFORE + len, 0);
        let read = place(regions, &data, front as isize - ROOM_BEFORE as isize, ROOM_BEFORE + len)
            .is_some_and(|place| place.read(&mut self.bytes));
        let seen = Seen::Forwarded { message, place: &self.bytes };
        self.wrong += u64::from(!(read && inspector.is_right(&seen)));
        self.compared += 1;
    }
}

/// `len` bytes of registered memory, `from` bytes behind the beginning of a segment, or before it; `None` beyond its region.
#[inline]
pub(super) fn place(
    regions: &[HostMemory],
    data: &DataSegment,
    from: isize,
    len: usize,
) -> Option<HostMemory> {
    let region = regions.get(data.lkey.get().checked_sub(FIRST_LKEY)? as usize)?;
    let offset = data.address.get().checked_sub(region.address())? as usize;
    region.part(offset.checked_add_signed(from)?, len)
}

/// Registered memory by key. Nearly all segments have the key of the one before.
pub(super) struct Regions<'r> {
    all: &'r [HostMemory],
    lkey: U32,
    last: HostMemory,
}

impl<'r> Regions<'r> {
    /// `None` if there is none.
    #[inline(always)]
    pub(super) fn new(all: &'r [HostMemory]) -> Option<Self> {
        Some(Self { all, lkey: U32::new(FIRST_LKEY), last: *all.first()? })
    }

    /// The memory of a whole segment; `None` beyond its region.
    #[inline(always)]
    pub(super) fn segment(&mut self, data: &DataSegment) -> Option<HostMemory> {
        if data.lkey != self.lkey {
            self.find(data.lkey)?;
        }
        let offset = data.address.get().checked_sub(self.last.address())? as usize;
        self.last.part(offset, data.byte_count.get() as usize)
    }

    #[cold]
    fn find(&mut self, lkey: U32) -> Option<()> {
        self.last = *self.all.get(lkey.get().checked_sub(FIRST_LKEY)? as usize)?;
        self.lkey = lkey;
        Some(())
    }
}
