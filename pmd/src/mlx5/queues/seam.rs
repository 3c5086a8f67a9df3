//! The queues as the device seam wants them, with DPDK's packet buffers.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use arrayvec::ArrayVec;
use ib_wire::Qpn;

use super::MlxQueues;
use crate::hca::{BURST, PostError, QpEvent, Queues, QueuesId, RcSlot, Refused, RxBurst, UdSlot};
use crate::mem::{HEADROOM, Mbuf, Pool};
use crate::mlx5::av::Destination;
use crate::mlx5::bus::Bus;
use crate::mlx5::packet::{Packet, PacketPool, Stash};
use crate::mlx5::rc::RcQp;
use crate::mlx5::ud::UdQp;

impl Packet for Mbuf {
    type Pool = Pool;

    fn segments(&self) -> usize {
        self.segment_count()
    }

    fn pieces(&self) -> impl Iterator<Item = (u64, u32)> {
        Self::segments(self).map(|s| (s.address(), s.bytes.len() as u32))
    }

    fn room(&self) -> (u64, u32) {
        let (address, length) = self.buffer();
        (address + HEADROOM as u64, length.saturating_sub(HEADROOM) as u32)
    }

    fn fill(&mut self, len: u32) {
        let fits = self.set_data(HEADROOM, len as usize);
        debug_assert!(fits, "a receive of {len} bytes in one buffer");
    }

    fn append(&mut self, tail: Self) {
        self.append_chain(tail);
    }

    fn byte_before_data(&self, distance: usize) -> u8 {
        self.before_data(distance).and_then(<[u8]>::first).copied().unwrap_or(0)
    }

    fn free_all(batch: &mut Stash<Self>) {
        Self::free_bulk(batch);
    }
}

impl PacketPool<Mbuf> for Pool {
    fn room(&self) -> u32 {
        self.data_room() as u32
    }

    fn take(&mut self, count: usize, into: &mut Stash<Mbuf>) -> bool {
        count <= into.remaining_capacity() && self.alloc_bulk(count, into)
    }
}

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

    #[inline]
    fn send_ud(&mut self, slot: UdSlot, to: &Destination, buf: Mbuf) -> Result<(), Refused> {
        self.post_ud(slot, to, buf).map_err(refused)
    }

    #[inline]
    fn send_rc(&mut self, slot: RcSlot, buf: Mbuf) -> Result<(), Refused> {
        self.post_rc(slot, buf).map_err(refused)
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

    fn remove_ud(&mut self, slot: UdSlot) -> Option<Self::Ud> {
        self.remove_datagrams(slot)
    }

    fn ud_qpn(&self, slot: UdSlot) -> Option<Qpn> {
        self.datagrams_qpn(slot)
    }

    fn receives_posted(&self) -> (u32, u32) {
        self.posted_receives()
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
