//! A sample of the packets, compared byte by byte with their expected content.
//!
//! A sampled send is checked for its destination and its message, read by keys and addresses as a device
//! would. A device never sees the fate of a received message. But in-place forwarding writes the new header
//! to the room in front of the message, and a released buffer keeps its bytes until it is reused. Sampled
//! received messages are therefore checked in the sink's next iteration.

use std::fmt::Debug;
use std::sync::Arc;

use connectx::HostMemory;
use prm::{DataSegment, DatagramAddress};
use zerocopy::byteorder::big_endian::U32;

use crate::FIRST_LKEY;

/// Sampling interval in each direction, in packets: a prime, so that every flow and connection is sampled.
pub const SAMPLE_EVERY: u32 = 1021;
/// Bytes in front of a forwarded message that are checked with it.
pub const ROOM_BEFORE: usize = 32;

/// A packet of the sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen<'a> {
    /// A consumed send.
    Sent {
        /// The connection that it uses, from 0; `None` for a datagram.
        connection: Option<u16>,
        /// Destination of a datagram.
        to: Option<&'a DatagramAddress>,
        /// The complete message.
        message: &'a [u8],
    },
    /// A message received in the last iteration and forwarded since.
    Forwarded {
        /// Index of the message.
        message: usize,
        /// Its buffer now: [`ROOM_BEFORE`] bytes in front of it, then the message.
        place: &'a [u8],
    },
}

/// Knows the expected content of packets.
pub trait Inspector: Debug + Send + Sync {
    /// True if a packet has the expected content.
    fn is_right(&self, seen: &Seen<'_>) -> bool;
}

/// A message to check after it was forwarded.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    message: usize,
    len: usize,
    data: DataSegment,
    front: usize,
}

/// Selects packets for inspection.
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

    /// True if one of the next `sends` sends is in the sample.
    #[inline]
    pub(super) fn has_one_within(&self, sends: u16) -> bool {
        u32::from(sends) >= self.sends
    }

    /// Counts `sends` consumed sends that are not in the sample.
    #[inline]
    pub(super) const fn pass_sends(&mut self, sends: u32) {
        self.sends -= sends;
    }

    /// True if this send is in the sample.
    #[inline]
    pub(super) const fn has_send(&mut self) -> bool {
        self.sends -= 1;
        if self.sends > 0 {
            return false;
        }
        self.sends = SAMPLE_EVERY;
        self.inspector.is_some()
    }

    /// Counts an entry that is not a send.
    pub(super) const fn add_wrong(&mut self) {
        self.compared += 1;
        self.wrong += 1;
    }

    /// Compares a send with its expected content. `data` are its segments.
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

    /// True if one of the next `messages` messages is in the sample.
    #[inline]
    pub(super) const fn has_message_within(&self, messages: usize) -> bool {
        self.messages as usize <= messages
    }

    /// Counts `messages` written messages that are not in the sample.
    #[inline]
    pub(super) const fn pass_messages(&mut self, messages: u64) {
        self.messages -= messages as u32;
    }

    /// Records a message that was written behind `front` bytes of this segment.
    #[inline]
    pub(super) const fn received(&mut self, message: usize, len: usize, data: DataSegment, front: usize) {
        self.messages -= 1;
        if self.messages == 0 {
            self.messages = SAMPLE_EVERY;
            self.waiting = Some(Waiting { message, len, data, front });
        }
    }

    /// Checks the sampled message of the last iteration, which has been forwarded by now.
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

/// `len` bytes of registered memory, `from` bytes behind the start of a segment, or before it; `None` outside
/// its region.
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

/// Registered memory by key. Nearly all segments have the key of the previous one.
pub(super) struct Regions<'r> {
    all: &'r [HostMemory],
    lkey: U32,
    last: HostMemory,
}

impl<'r> Regions<'r> {
    /// `None` if there are no regions.
    #[inline(always)]
    pub(super) fn new(all: &'r [HostMemory]) -> Option<Self> {
        Some(Self { all, lkey: U32::new(FIRST_LKEY), last: *all.first()? })
    }

    /// The memory of a whole segment; `None` outside its region.
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
