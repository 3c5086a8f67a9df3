//! Send queue entries for sends, datagrams, RDMA and atomic operations.

use super::sq::{Full, Posted, Request, SendQueue, inline_units};
use prm::{AtomicSegment, DS_UNIT, DataSegment, DatagramAddress, RemoteAddressSegment, SendOpcode};

/// Length of a control segment in units of 16 bytes.
pub(super) const CONTROL_UNITS: usize = 1;

/// Length of an address vector in units of 16 bytes.
pub(super) const ADDRESS_UNITS: usize = size_of::<DatagramAddress>() / DS_UNIT;

/// Remote memory.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// Address.
    pub address: u64,
    /// Remote key.
    pub rkey: u32,
}

impl Remote {
    fn segment(self) -> RemoteAddressSegment {
        let mut segment = RemoteAddressSegment::default();
        segment.address.set(self.address);
        segment.rkey.set(self.rkey);
        segment
    }
}

/// Data operations of a send queue. If an iterator yields an error, nothing is posted.
impl SendQueue {
    /// Posts a message on a connection, from at most `count` memory segments.
    #[inline]
    pub fn post_send<E: From<Full>>(
        &mut self,
        request: Request,
        count: usize,
        pieces: impl IntoIterator<Item = Result<DataSegment, E>>,
    ) -> Result<Posted, E> {
        self.post(request, CONTROL_UNITS + count, |writer| {
            for piece in pieces {
                writer.data(piece?);
            }
            Ok(())
        })
    }

    /// Posts a datagram, from at most `count` memory segments.
    #[inline]
    pub fn post_datagram<E: From<Full>>(
        &mut self,
        request: Request,
        to: &DatagramAddress,
        count: usize,
        pieces: impl IntoIterator<Item = Result<DataSegment, E>>,
    ) -> Result<Posted, E> {
        self.post(request, CONTROL_UNITS + ADDRESS_UNITS + count, |writer| {
            writer.segment(to);
            for piece in pieces {
                writer.data(piece?);
            }
            Ok(())
        })
    }

    /// Posts a message with inline data. With an address, it is a datagram.
    pub fn post_inline(
        &mut self,
        request: Request,
        to: Option<&DatagramAddress>,
        pieces: &[&[u8]],
    ) -> Result<Posted, Full> {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let address = if to.is_some() { ADDRESS_UNITS } else { 0 };
        self.post(request, CONTROL_UNITS + address + inline_units(len), |writer| {
            if let Some(to) = to {
                writer.segment(to);
            }
            writer.inline(pieces);
            Ok(())
        })
    }

    /// Posts an RDMA WRITE from, or an RDMA READ to, at most `count` memory segments.
    pub fn post_rdma<E: From<Full>>(
        &mut self,
        request: Request,
        remote: Remote,
        count: usize,
        pieces: impl IntoIterator<Item = Result<DataSegment, E>>,
    ) -> Result<Posted, E> {
        self.post(request, CONTROL_UNITS + 1 + count, |writer| {
            writer.segment(&remote.segment());
            for piece in pieces {
                writer.data(piece?);
            }
            Ok(())
        })
    }

    /// Posts an atomic operation. `swap_add` is the value to swap in or to add. The old value is written to
    /// `result`.
    pub fn post_atomic(
        &mut self,
        request: Request,
        remote: Remote,
        swap_add: u64,
        compare: u64,
        result: DataSegment,
    ) -> Result<Posted, Full> {
        let mut operands = AtomicSegment::default();
        operands.swap_add.set(swap_add);
        operands.compare.set(compare);
        self.post(request, CONTROL_UNITS + 3, |writer| {
            writer.segment(&remote.segment());
            writer.segment(&operands);
            writer.data(result);
            Ok(())
        })
    }

    /// Posts an entry without an operation, which completes in order.
    pub fn post_nop(&mut self, flags: u8) -> Result<Posted, Full> {
        self.post(Request { opcode: SendOpcode::Nop, flags, imm: 0 }, CONTROL_UNITS, |_| Ok(()))
    }
}
