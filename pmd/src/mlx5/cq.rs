//! The completion queue. The owner bit of an entry flips with each lap of the ring.

use std::mem::offset_of;

use zerocopy::byteorder::big_endian::U32;

use super::barrier;
use super::rings::{CqRing, DoorbellRecord, RingMemory};
use crate::hca::WcStatus;
use prm::{
    ARM_SOLICITED, CQE_SIZE, Cqe, CqeOpcode, DBREC_ARM, DBREC_CONSUMER, ErrorCqe, Syndrome, cqe_flags,
    cqe_owner,
};

/// Offset of the fields that describe a received message.
const MESSAGE_WORDS: usize = offset_of!(Cqe, byte_cnt);
const _: () = assert!(
    offset_of!(Cqe, sop_drop_qpn) == MESSAGE_WORDS + 12
        && offset_of!(Cqe, wqe_counter) == MESSAGE_WORDS + 16
        && CQE_SIZE == MESSAGE_WORDS + 20
);

/// Completion of a message that carries only data: no immediate and no invalidated key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Message {
    /// The queue pair.
    pub(super) qpn: u32,
    /// Slot of the receive entry.
    pub(super) counter: u16,
    /// Length in bytes. For a datagram it includes the 40 bytes of the GRH area.
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

/// Iterates over data-only messages at the front of a completion queue.
///
/// The ring description is copied because the compiler would reload the queue's own fields after every write
/// to a buffer.
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
    /// Returns the next entry if the device has written it and it is a data-only message.
    #[inline(always)]
    fn entry(&self) -> Option<RingMemory> {
        // The arithmetic holds without slots too: `part` then finds no entry.
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

    /// Reads the next completion without consuming it; [`Messages::skip`] consumes it. Only the message
    /// fields are read.
    #[inline(always)]
    pub(super) fn next(&self) -> Option<Message> {
        Some(Message::of(&self.entry()?))
    }

    /// Consumes the completion that [`Messages::next`] returned.
    #[inline(always)]
    pub(super) const fn skip(&mut self) {
        self.consumer = self.consumer.wrapping_add(1);
    }

    /// Returns full details of the message consumed last, including a datagram's sender. The device does not
    /// own this entry again yet.
    #[inline(always)]
    pub(super) fn taken(&self) -> Arrival {
        let at = (self.consumer.wrapping_sub(1) & self.slots.wrapping_sub(1)) as usize * CQE_SIZE;
        Arrival::of(&self.buf.read(at), Extra::None)
    }
}

/// Completion of a successful send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    /// The queue pair.
    pub(super) qpn: u32,
    /// Index of the first WQEBB of the send.
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
    /// Creates the queue on a formatted ring. The length is a power of two; with any other description the
    /// queue stays empty.
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

    /// Consumes and returns the next completion, if there is one.
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

    /// Iterates over the data-only messages at the front.
    #[inline(always)]
    pub(super) const fn messages(&mut self) -> Messages<'_> {
        Messages { buf: self.buf, slots: self.slots, consumer: self.consumer, queue: self }
    }

    /// Reads the next completion if it is a successful send. [`CompletionQueue::skip`] consumes it.
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

    /// Consumes the completion that [`CompletionQueue::sent`] returned.
    #[inline(always)]
    pub(super) const fn skip(&mut self) {
        self.consumer = self.consumer.wrapping_add(1);
    }

    /// Publishes the consumer index so that the device may reuse the slots. Call it once per batch. It writes
    /// nothing if the index has not moved.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.consumer {
            self.published = self.consumer;
            self.dbrec.store(DBREC_CONSUMER, self.consumer & 0x00ff_ffff);
        }
    }

    /// Arms the queue for an event at the next completion, or at the next solicited one. `events` is the
    /// number of events fetched from this queue so far. Returns the value for the device's arm register.
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

/// A decoded completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The queue pair.
    pub qpn: u32,
    /// Index of a send's first WQEBB, or the slot of a receive.
    pub counter: u16,
    /// Kind and details.
    pub what: What,
}

/// Kind of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A send and all sends before it have completed.
    Sent {
        /// Opcode of the send.
        opcode: u8,
    },
    /// A message was received.
    Received(Arrival),
    /// A send failed.
    SendFailed(Failure),
    /// A receive failed.
    ReceiveFailed(Failure),
    /// An opcode that the driver does not know.
    Unknown(u8),
}

/// Status of a failed work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Completion status.
    pub status: WcStatus,
    /// Vendor error syndrome.
    pub vendor: u8,
}

/// A received message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Length in bytes. For a datagram it includes the 40 bytes of the GRH area.
    pub byte_len: u32,
    /// Immediate or invalidated key.
    pub extra: Extra,
    /// Source queue pair of a datagram.
    pub src_qpn: u32,
    /// Source LID of a datagram.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
    /// Low bits of the destination LID.
    pub dlid_path_bits: u8,
    /// Index of the matching P_Key. On queue pair 1 it is the P_Key itself, or what an immediate leaves of
    /// it.
    pub pkey_index: u16,
    /// True if the message had a GRH.
    pub grh: bool,
    /// True if the sender solicited an event.
    pub solicited: bool,
    /// True if the payload is inline in the completion. The driver creates its queue pairs without this
    /// feature.
    pub inline: bool,
    /// True if the device validated the IPv4 header.
    pub ipv4_is_good: bool,
}

/// Value carried in addition to the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extra {
    /// No additional value.
    None,
    /// Immediate value, in host byte order.
    Immediate(u32),
    /// A local key that the message invalidated.
    Invalidated(u32),
}

impl Completion {
    /// Decodes a completion queue entry.
    // Write and read memory in the same sizes here: a store-forwarding mismatch would stall each message.
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
    /// True if an IPv4 header carried the message. Valid only for Ethernet ports.
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
