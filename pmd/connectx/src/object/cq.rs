//! Completion queues.

use ib_wire::Qpn;
use zerocopy::IntoBytes;

use crate::memory::HostMemory;
use prm::{CQE_SIZE, Cqe, CqeOpcode, DBREC_CONSUMER, ErrorCqe, Syndrome, cqe_owner};

/// The ring is full: an entry was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Overrun;

/// A completion queue of 64-byte entries, CQE version 1.
#[derive(Debug)]
pub(crate) struct Cq {
    ring: HostMemory,
    dbrec: HostMemory,
    entries: u32,
    producer: u32,
    overrun: bool,
}

impl Cq {
    /// `None` if the ring is not a power of two of entries or the record too short.
    pub(crate) fn new(ring: HostMemory, dbrec: HostMemory) -> Option<Self> {
        let entries = u32::try_from(ring.len() / CQE_SIZE).ok()?;
        let fits = entries.is_power_of_two() && ring.len() == entries as usize * CQE_SIZE;
        (fits && entries <= 1 << 22 && dbrec.load(DBREC_CONSUMER * 4).is_some()).then_some(Self {
            ring,
            dbrec,
            entries,
            producer: 0,
            overrun: false,
        })
    }

    /// Writes an entry whose owner bit this sets. After an overrun nothing is written any more.
    fn push(&mut self, bytes: &[u8; CQE_SIZE]) -> Result<(), Overrun> {
        let consumer = self.dbrec.load(DBREC_CONSUMER * 4).unwrap_or(0);
        if self.overrun || self.producer.wrapping_sub(consumer) & 0xff_ffff >= self.entries {
            self.overrun = true;
            return Err(Overrun);
        }
        let at = (self.producer & (self.entries - 1)) as usize * CQE_SIZE;
        let owner = u8::from(self.producer & self.entries != 0);
        let slot = self.ring.part(at, CQE_SIZE).ok_or(Overrun)?;
        let (body, last) = bytes.split_at(CQE_SIZE - 1);
        slot.write(body);
        slot.publish(CQE_SIZE - 1, (last.first().copied().unwrap_or(0) & !cqe_owner::OWNER) | owner);
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }

    /// Writes a success; `cqe` has every field but opcode and owner.
    pub(crate) fn complete(
        &mut self,
        mut cqe: Cqe,
        opcode: CqeOpcode,
        solicited: bool,
    ) -> Result<(), Overrun> {
        cqe.op_own =
            (opcode as u8) << cqe_owner::OPCODE_SHIFT | if solicited { cqe_owner::SOLICITED } else { 0 };
        self.push(&zerocopy::transmute!(cqe))
    }

    /// Writes a failure. `wqe_opcode` is that of a send, 0 for a receive.
    pub(crate) fn fail(
        &mut self,
        opcode: CqeOpcode,
        qpn: Qpn,
        user_index: u32,
        wqe_opcode: u8,
        counter: u16,
        syndrome: Syndrome,
    ) -> Result<(), Overrun> {
        let mut cqe = ErrorCqe {
            syndrome: syndrome.code(),
            op_own: (opcode as u8) << cqe_owner::OPCODE_SHIFT,
            ..ErrorCqe::default()
        };
        cqe.srqn_uidx.set(user_index);
        cqe.opcode_qpn.set(u32::from(wqe_opcode) << 24 | qpn.get());
        cqe.wqe_counter.set(counter);
        let mut bytes = [0; CQE_SIZE];
        bytes.copy_from_slice(cqe.as_bytes());
        self.push(&bytes)
    }
}
