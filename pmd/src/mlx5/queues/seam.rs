//! Implementation of the device traits for these queues, with DPDK packet buffers.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use arrayvec::ArrayVec;
use ib_wire::Qpn;

use super::MlxQueues;
use crate::hca::{
    BURST, ChainSend, DoneBurst, Fence, MemoryKey, MemoryWork, PostError, QpEvent, Queues, QueuesId, RcSlot,
    Refused, Registration, RemoteMemory, Returned, RxBurst, UdSlot,
};
use crate::mem::key::RegisteredKey;
use crate::mem::{Mbuf, Single};
use crate::mlx5::av::Destination;
use crate::mlx5::bus::Bus;
use crate::mlx5::rc::RcQp;
use crate::mlx5::ud::UdQp;
use prm::SendOpcode;

/// Number of queue pairs, with their next entries, that the near caches are assumed to hold. Prefetching pays
/// off only for more queue pairs.
const NEAR: usize = 512;

fn refused((buf, error): (Mbuf, PostError)) -> Refused {
    Refused { buf, error }
}

impl<B: Bus + std::fmt::Debug> Queues for MlxQueues<B, Mbuf> {
    type Ud = UdQp<Mbuf>;
    type Rc = RcQp<Mbuf>;
    type Destination = Destination;

    fn id(&self) -> QueuesId {
        Self::id(self)
    }

    #[inline]
    fn turn(&mut self) -> bool {
        self.bus.turn()
    }

    #[inline(always)]
    fn send_ud(&mut self, slot: UdSlot, to: &Destination, buf: Mbuf) -> Result<(), Refused> {
        self.post_ud(slot, to, buf).map_err(refused)
    }

    #[inline(always)]
    fn send_rc(&mut self, slot: RcSlot, buf: Mbuf) -> Result<(), Refused> {
        self.post_rc(slot, buf).map_err(refused)
    }

    #[inline(always)]
    fn send_single_ud(&mut self, slot: UdSlot, to: &Destination, message: Single) -> Result<(), Refused> {
        let piece = message.piece();
        self.post_piece_ud(slot, to, message, piece, Single::into_sent)
            .or_else(|message| self.post_any_ud(slot, to, message.into()))
            .map_err(refused)
    }

    #[inline(always)]
    fn send_single_rc(&mut self, slot: RcSlot, message: Single) -> Result<(), Refused> {
        let piece = message.piece();
        self.post_piece_rc(slot, message, piece, Single::into_sent)
            .or_else(|message| self.post_looking_rc(slot, message.into()))
            .map_err(refused)
    }

    #[inline]
    fn are_many(&self) -> bool {
        self.numbers.len() > NEAR
    }

    #[inline(always)]
    fn fetch(&self, slot: RcSlot) {
        self.rcs.fetch(slot.0);
    }

    #[inline(always)]
    fn fetch_entry(&self, slot: RcSlot) {
        if let Some(rc) = self.rcs.get(slot.0) {
            rc.side.fetch_entry();
        }
    }

    #[inline]
    fn ring(&mut self) {
        self.ring_all();
    }

    #[inline]
    fn poll_receive(&mut self, burst: &mut RxBurst, events: &mut ArrayVec<QpEvent, BURST>) {
        let limit = burst.remaining_capacity();
        self.receive(limit, |received| burst.push(received), events);
    }

    #[inline]
    fn poll_send(&mut self, events: &mut ArrayVec<QpEvent, BURST>) -> usize {
        self.reap(events)
    }

    #[inline]
    fn arm(&mut self) -> bool {
        self.ask_for_event()
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.bus.events()
    }

    fn wait(&mut self, at_most: Duration) -> bool {
        self.wait_for_event(at_most)
    }

    fn refill(&mut self) -> usize {
        self.fill()
    }

    fn insert_ud(&mut self, slot: UdSlot, ud: Self::Ud) -> Result<(), Self::Ud> {
        self.insert_datagrams(slot, ud)
    }

    fn open_ud(&mut self, slot: UdSlot) {
        self.open_datagrams(slot);
    }

    fn close_ud(&mut self, slot: UdSlot) {
        self.close_datagrams(slot);
    }

    fn ud_outstanding(&self, slot: UdSlot) -> u32 {
        self.datagrams_outstanding(slot)
    }

    fn ud_sends(&self, slot: UdSlot) -> u32 {
        self.uds.get(slot.0.into()).map_or(0, |ud| ud.side.outstanding())
    }

    fn remove_ud(&mut self, slot: UdSlot) -> Option<Self::Ud> {
        self.remove_datagrams(slot)
    }

    fn ud_qpn(&self, slot: UdSlot) -> Option<Qpn> {
        self.datagrams_qpn(slot)
    }

    fn receives_posted(&self) -> (u32, u32) {
        self.posted_receives()
    }

    fn limit_send_segments(&mut self, most: usize) {
        self.max_segments = most;
    }

    fn insert_rc(&mut self, slot: RcSlot, rc: Self::Rc) -> Result<(), Self::Rc> {
        self.insert(slot, rc)
    }

    fn post_drain(&mut self, slot: RcSlot) -> Result<(), PostError> {
        self.drain(slot)
    }

    fn remove_rc(&mut self, slot: RcSlot) -> Option<Self::Rc> {
        self.remove(slot)
    }

    fn rc_outstanding(&self, slot: RcSlot) -> usize {
        self.outstanding(slot)
    }
}

impl<B: Bus + std::fmt::Debug> MemoryWork for MlxQueues<B, Mbuf> {
    fn register(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        work: Registration,
    ) -> Result<MemoryKey, Returned<Registration>> {
        self.register_key(slot, ticket, work)
    }

    fn invalidate(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        key: RegisteredKey,
        fence: Fence,
    ) -> Result<(), Returned<RegisteredKey>> {
        self.invalidate_key(slot, ticket, key, fence)
    }

    fn send_invalidating(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        rkey: MemoryKey,
        buf: Mbuf,
    ) -> Result<(), Returned<Mbuf>> {
        self.transfer(slot, ticket, (SendOpcode::SendInvalidate, rkey.get()), None, buf)
    }

    fn send_chain(&mut self, slot: RcSlot, ticket: u32, work: ChainSend) -> Result<(), Returned<ChainSend>> {
        self.post_chain(slot, ticket, work)
    }

    fn write(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        to: RemoteMemory,
        buf: Mbuf,
        immediate: Option<u32>,
    ) -> Result<(), Returned<Mbuf>> {
        let operation = immediate.map_or((SendOpcode::RdmaWrite, 0), |imm| (SendOpcode::RdmaWriteImm, imm));
        self.transfer(slot, ticket, operation, Some(to), buf)
    }

    fn read(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        from: RemoteMemory,
        into: Mbuf,
    ) -> Result<(), Returned<Mbuf>> {
        self.transfer(slot, ticket, (SendOpcode::RdmaRead, 0), Some(from), into)
    }

    fn take_done(&mut self, done: &mut DoneBurst) {
        self.finished(done);
    }
}
