//! The completion queue: entries that change owner by a bit which turns over with each lap.

use std::mem::offset_of;

use zerocopy::byteorder::big_endian::U32;

use super::barrier;
use super::rings::{CqRing, DoorbellRecord, RingMemory};
use crate::hca::WcStatus;
use prm::{
    ARM_SOLICITED, CQE_SIZE, Cqe, CqeOpcode, DBREC_ARM, DBREC_CONSUMER, ErrorCqe, Syndrome, cqe_flags,
    cqe_owner,
};

/// Where the words begin that tell of a message.
const MESSAGE_WORDS: usize = offset_of!(Cqe, byte_cnt);
const _: () = assert!(
    offset_of!(Cqe, sop_drop_qpn) == MESSAGE_WORDS + 12
        && offset_of!(Cqe, wqe_counter) == MESSAGE_WORDS + 16
        && CQE_SIZE == MESSAGE_WORDS + 20
);

/// What the completion of a message tells that came with nothing beside its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Message {
    /// The queue pair.
    pub(super) qpn: u32,
    /// Slot of the receive.
    pub(super) counter: u16,
    /// Bytes; a datagram's include the 40 of its GRH area.
    pub(super) byte_len: u32,
}

impl Message {
    #[inline(always)]
    fn of(entry: &RingMemory) -> Self {
        // Length, time (two words), queue pair, slot: the end of the entry.
        let [byte_len, _, _, qpn, counter]: [U32; 5] = entry.read(MESSAGE_WORDS);
        Self { qpn: qpn.get() & 0x00ff_ffff, counter: (counter.get() >> 16) as u16, byte_len: byte_len.get() }
    }
}

/// The messages in front of a completion queue that were sent with nothing beside their data. What is asked of each completion is a copy:
/// the queue's own would be loaded again behind every write to a buffer.
#[derive(Debug)]
pub(super) struct Messages<'q> {
    queue: &'q mut CompletionQueue,
    buf: RingMemory,
    slots: u32,
    consumer: u32,
}

impl Drop for Messages<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.consumer = self.consumer;
    }
}

impl Messages<'_> {
    /// The entry of the next completion, if it is there and of such a message.
    #[inline(always)]
    fn entry(&self) -> Option<RingMemory> {
        // Without slots there is no entry either.
        let at = (self.consumer & self.slots.wrapping_sub(1)) as usize * CQE_SIZE;
        let entry = self.buf.part(at, CQE_SIZE)?;
        let owner = entry.load_acquire(CQE_SIZE - 1);
        let lap = u8::from(self.consumer & self.slots != 0);
        if owner & !cqe_owner::SOLICITED != (CqeOpcode::ReceiveSend as u8) << cqe_owner::OPCODE_SHIFT | lap {
            return None;
        }
        barrier::udma_from_device();
        Some(entry)
    }

    /// What the next one tells of its message. The rest of it is not read. [`Messages::skip`] takes it.
    #[inline(always)]
    pub(super) fn next(&self) -> Option<Message> {
        Some(Message::of(&self.entry()?))
    }

    /// Takes the next completion, which was looked at.
    #[inline(always)]
    pub(super) const fn skip(&mut self) {
        self.consumer = self.consumer.wrapping_add(1);
    }

    /// What the completion tells of its message that was taken last, with the sender of a datagram: the device does not have it back yet.
    #[inline(always)]
    pub(super) fn taken(&self) -> Arrival {
        let at = (self.consumer.wrapping_sub(1) & self.slots.wrapping_sub(1)) as usize * CQE_SIZE;
        Arrival::of(&self.buf.read(at), Extra::None)
    }
}

/// What the completion of a send tells that has not failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    /// The queue pair.
    pub(super) qpn: u32,
    /// First WQEBB of the send.
    pub(super) counter: u16,
}

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    buf: RingMemory,
    slots: u32,
    dbrec: DoorbellRecord,
    cqn: u32,
    consumer: u32,
    published: u32,
}

impl CompletionQueue {
    /// The queue on a new ring. Its length is a power of two; a description that does not hold this makes a queue in which
    /// nothing is ever found.
    #[must_use]
    pub fn new(ring: &CqRing) -> Self {
        let fits = ring.cqe_count.is_power_of_two()
            && ring.buf.len() >= ring.cqe_count as usize * CQE_SIZE
            && ring.dbrec.has(DBREC_ARM);
        debug_assert!(fits, "{ring:?}");
        Self {
            buf: ring.buf,
            slots: if fits { ring.cqe_count } else { 0 },
            dbrec: ring.dbrec,
            cqn: ring.cqn,
            consumer: 0,
            published: 0,
        }
    }

    /// Takes the next completion, if there is one.
    #[inline(always)]
    pub fn poll(&mut self) -> Option<Cqe> {
        if self.slots == 0 {
            return None;
        }
        let at = (self.consumer & (self.slots - 1)) as usize * CQE_SIZE;
        let owner = self.buf.load_acquire(at + CQE_SIZE - 1);
        let lap = u8::from(self.consumer & self.slots != 0);
        if owner >> cqe_owner::OPCODE_SHIFT == CqeOpcode::Invalid as u8 || owner & cqe_owner::OWNER != lap {
            return None;
        }
        barrier::udma_from_device();
        let cqe = self.buf.read(at);
        self.consumer = self.consumer.wrapping_add(1);
        Some(cqe)
    }

    /// The messages in front, one after the other.
    #[inline(always)]
    pub(super) const fn messages(&mut self) -> Messages<'_> {
        Messages { buf: self.buf, slots: self.slots, consumer: self.consumer, queue: self }
    }

    /// What the next completion tells, if it is there and of a send that has not failed. [`CompletionQueue::skip`] takes it.
    #[inline(always)]
    pub(super) fn sent(&self) -> Option<Sent> {
        if self.slots == 0 {
            return None;
        }
        let at = (self.consumer & (self.slots - 1)) as usize * CQE_SIZE;
        let entry = self.buf.part(at, CQE_SIZE)?;
        let owner = entry.load_acquire(CQE_SIZE - 1);
        let lap = u8::from(self.consumer & self.slots != 0);
        if owner != (CqeOpcode::Requester as u8) << cqe_owner::OPCODE_SHIFT | lap {
            return None;
        }
        barrier::udma_from_device();
        // Queue pair, slot: the end of the entry.
        let [qpn, counter]: [U32; 2] = entry.read(MESSAGE_WORDS + 12);
        Some(Sent { qpn: qpn.get() & 0x00ff_ffff, counter: (counter.get() >> 16) as u16 })
    }

    /// Takes the next completion, which was looked at.
    #[inline(always)]
    pub(super) const fn skip(&mut self) {
        self.consumer = self.consumer.wrapping_add(1);
    }

    /// Tells the device how far we are, so that it may use the slots again. Once per batch; where nothing was taken the
    /// record holds the right number already.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.consumer {
            self.published = self.consumer;
            self.dbrec.store(DBREC_CONSUMER, self.consumer & 0x00ff_ffff);
        }
    }

    /// Asks for an event at the next completion, or the next solicited one; `events` of this queue have been fetched so
    /// far. Returns what has to be written to the device's arm register.
    pub fn arm(&mut self, events: u32, solicited: bool) -> [u8; 8] {
        let word =
            ((events & 3) << 28) | if solicited { ARM_SOLICITED } else { 0 } | (self.consumer & 0x00ff_ffff);
        barrier::udma_to_device();
        self.dbrec.store(DBREC_ARM, word);
        let mut register = [0; 8];
        register[..4].copy_from_slice(&word.to_be_bytes());
        register[4..].copy_from_slice(&self.cqn.to_be_bytes());
        register
    }
}

/// What a completion tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The queue pair.
    pub qpn: u32,
    /// First WQEBB of a send, slot of a receive.
    pub counter: u16,
    /// The rest.
    pub what: What,
}

/// Which kind of completion it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A send is done, and all before it.
    Sent {
        /// Code of its opcode.
        opcode: u8,
    },
    /// A message has arrived.
    Received(Arrival),
    /// A send failed.
    SendFailed(Failure),
    /// A receive failed.
    ReceiveFailed(Failure),
    /// A code that the driver does not know.
    Unknown(u8),
}

/// How a work request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Outcome.
    pub status: WcStatus,
    /// The vendor's word on it.
    pub vendor: u8,
}

/// A message that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Bytes; a datagram's include the 40 of its GRH area.
    pub byte_len: u32,
    /// Immediate or invalidated key.
    pub extra: Extra,
    /// Source queue pair of a datagram.
    pub src_qpn: u32,
    /// Source LID of a datagram.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
    /// Low bits of the LID that it was sent to.
    pub dlid_path_bits: u8,
    /// Index of the P_Key that matched; on queue pair 1 the P_Key itself; what an immediate leaves of it.
    pub pkey_index: u16,
    /// True if it had a GRH.
    pub grh: bool,
    /// True if the sender solicited an event.
    pub solicited: bool,
    /// True if the payload lies in the completion; the driver's queue pairs are made without this.
    pub inline: bool,
    /// True if the device found a right IPv4 header.
    pub ipv4_is_good: bool,
}

/// What came beside the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extra {
    /// Nothing.
    None,
    /// An immediate, as a number.
    Immediate(u32),
    /// A key of ours that the message invalidated.
    Invalidated(u32),
}

impl Completion {
    /// Reads an entry.
    // What goes through memory on the way, in other pieces than it is read in, stalls each message: 7 ns.
    #[inline(always)]
    #[must_use]
    pub fn of(cqe: &Cqe) -> Self {
        let code = cqe.op_own >> cqe_owner::OPCODE_SHIFT;
        let qpn_word = cqe.sop_drop_qpn.get();
        let imm = cqe.imm_inval_pkey.get();
        let what = match CqeOpcode::from_code(code) {
            Some(CqeOpcode::Requester) => What::Sent { opcode: (qpn_word >> 24) as u8 },
            Some(CqeOpcode::ReceiveSend) => What::Received(Arrival::of(cqe, Extra::None)),
            Some(CqeOpcode::ReceiveSendImm | CqeOpcode::ReceiveWriteImm) => {
                What::Received(Arrival::of(cqe, Extra::Immediate(imm)))
            }
            Some(CqeOpcode::ReceiveSendInvalidate) => {
                What::Received(Arrival::of(cqe, Extra::Invalidated(imm)))
            }
            Some(CqeOpcode::RequesterError) => What::SendFailed(Failure::of(cqe)),
            Some(CqeOpcode::ResponderError) => What::ReceiveFailed(Failure::of(cqe)),
            Some(CqeOpcode::Resize | CqeOpcode::Invalid) | None => What::Unknown(code),
        };
        Self { qpn: qpn_word & 0x00ff_ffff, counter: cqe.wqe_counter.get(), what }
    }
}

impl Arrival {
    /// True if an IPv4 header came with it. Only for Ethernet ports.
    #[inline]
    pub(super) const fn ipv4(&self) -> bool {
        (self.sl as u32) << cqe_flags::SL_SHIFT & cqe_flags::ROCE_IPV4 != 0
    }

    #[inline(always)]
    fn of(cqe: &Cqe, extra: Extra) -> Self {
        let flags = cqe.flags_rqpn.get();
        Self {
            byte_len: cqe.byte_cnt.get(),
            extra,
            src_qpn: flags & cqe_flags::QPN_MASK,
            slid: cqe.slid.get(),
            sl: (flags >> cqe_flags::SL_SHIFT) as u8 & 0xf,
            dlid_path_bits: cqe.ml_path & 0x7f,
            pkey_index: cqe.imm_inval_pkey.get() as u16,
            grh: flags & cqe_flags::GRH_MASK != 0,
            solicited: cqe.op_own & cqe_owner::SOLICITED != 0,
            inline: cqe.op_own & (cqe_owner::INLINE_32 | cqe_owner::INLINE_64) != 0,
            ipv4_is_good: cqe.ipv4_is_good(),
        }
    }
}

impl Failure {
    fn of(cqe: &Cqe) -> Self {
        let error: ErrorCqe = zerocopy::transmute!(*cqe);
        Self { status: Syndrome::outcome(error.syndrome), vendor: error.vendor_syndrome }
    }
}
