//! Receive buffers of the datagram queues and of the shared receive queue.

use std::sync::Arc;

use arrayvec::ArrayVec;
use verbs_sys as sys;

use super::super::object::SharedReceiveQueue;
use super::super::remedy;
use super::{Kind, tag};
use crate::hca::HcaError;
use crate::mem::packet::{self, top_up};
use crate::mem::{HEADROOM, Mbuf, Pool};
use crate::mlx5::mr::MrTable;

/// Bytes in front of a datagram's data that are reserved for its GRH.
pub(super) const GRH_AREA: usize = 40;
/// Maximum number of work requests in one library call.
const LIST: usize = 16;
/// Maximum number of segments of an entry.
const MAX_SEGMENTS: usize = 32;
/// Buffers held between pool and receive queues.
pub(super) type Stash = packet::Stash<Mbuf>;

/// Chains work requests and posts them with `post`. Returns the number of accepted ones.
fn post_list(
    requests: &mut [sys::ibv_recv_wr],
    post: impl FnOnce(*mut sys::ibv_recv_wr, &mut *mut sys::ibv_recv_wr) -> i32,
) -> usize {
    let first = requests.as_mut_ptr();
    for at in 1..requests.len() {
        // SAFETY: both lie within the array, which is borrowed exclusively and used only through `first` from
        // here on.
        unsafe { (*first.add(at - 1)).next = first.add(at) };
    }
    let mut bad = std::ptr::null_mut();
    if requests.is_empty() || post(first, &mut bad) == 0 {
        return requests.len();
    }
    let offset = (bad as usize).wrapping_sub(first as usize) / size_of::<sys::ibv_recv_wr>();
    if bad.is_null() { 0 } else { offset.min(requests.len()) }
}

/// Datagram receives with one buffer each.
#[derive(Debug)]
pub(super) struct DatagramReceives {
    buffers: Box<[Option<Mbuf>]>,
    free: Vec<u32>,
}

impl DatagramReceives {
    pub(super) fn new(depth: u32) -> Self {
        Self { buffers: (0..depth).map(|_| None).collect(), free: (0..depth).rev().collect() }
    }

    pub(super) fn posted(&self) -> u32 {
        (self.buffers.len() - self.free.len()) as u32
    }

    /// True if there are no slots, as after its destruction.
    fn is_gone(&self) -> bool {
        self.buffers.is_empty()
    }

    /// Leaks all buffers instead of returning them to the pool.
    pub(super) fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.buffers));
    }

    /// Takes the buffer of a slot that the device has completed.
    pub(super) fn take(&mut self, slot: u32) -> Option<Mbuf> {
        let buf = self.buffers.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(buf)
    }

    /// Posts receives with `post` until the queue is full or the pool is empty. Returns their number.
    pub(super) fn refill(
        &mut self,
        stash: &mut Stash,
        pool: &mut Pool,
        regions: &mut MrTable,
        post: impl Fn(*mut sys::ibv_recv_wr, &mut *mut sys::ibv_recv_wr) -> i32,
    ) -> usize {
        let mut posted = 0;
        while !self.free.is_empty() {
            let mut segments = [sys::ibv_sge::default(); LIST];
            let mut requests = [sys::ibv_recv_wr::default(); LIST];
            let mut slots: ArrayVec<u32, LIST> = ArrayVec::new();
            for (segment, request) in segments.iter_mut().zip(&mut requests) {
                if !top_up(stash, pool, 1) {
                    break;
                }
                let (Some(buf), Some(slot)) = (stash.pop(), self.free.pop()) else { break };
                let (address, len) = buf.buffer();
                let address = address + (HEADROOM - GRH_AREA) as u64;
                let length = len.saturating_sub(HEADROOM - GRH_AREA) as u32;
                let lkey = regions.lkey(address, length);
                if let Some(place) = self.buffers.get_mut(slot as usize) {
                    *place = Some(buf);
                }
                slots.push(slot);
                let Some(lkey) = lkey else { break };
                *segment = sys::ibv_sge { addr: address, length, lkey };
                request.wr_id = tag(Kind::Datagram, slot);
                request.sg_list = segment;
                request.num_sge = 1;
            }
            let count = slots.len();
            let complete =
                requests.get(..count).unwrap_or_default().iter().take_while(|r| r.num_sge > 0).count();
            // The buffers stay in `self.buffers` until they complete.
            let taken = post_list(requests.get_mut(..complete).unwrap_or_default(), &post);
            for slot in slots.drain(..).skip(taken) {
                drop(self.take(slot));
            }
            posted += taken;
            if taken < LIST {
                break;
            }
        }
        posted
    }
}

/// Receive queue shared by all datagram queue pairs.
#[derive(Debug)]
pub(super) struct SharedDatagrams {
    queue: Arc<SharedReceiveQueue>,
    pub(super) receives: DatagramReceives,
}

impl SharedDatagrams {
    pub(super) fn new(queue: Arc<SharedReceiveQueue>, depth: u32) -> Self {
        Self { queue, receives: DatagramReceives::new(depth) }
    }

    pub(super) fn refill(&mut self, stash: &mut Stash, pool: &mut Pool, regions: &mut MrTable) -> usize {
        let queue = &self.queue;
        self.receives.refill(stash, pool, regions, |first, bad| {
            // SAFETY: the queue lives and only its one owner posts to it; the list and the buffers are valid.
            unsafe { sys::inline::post_srq_recv(queue.raw(), first, bad) }
        })
    }

    /// Destroys the queue. See [`SharedReceives::destroy`].
    pub(super) fn destroy(&mut self) -> Result<(), HcaError> {
        if self.receives.is_gone() {
            return Ok(());
        }
        let result = end(&self.queue);
        if result.is_err() {
            self.receives.forget();
        }
        self.receives = DatagramReceives::new(0);
        result
    }
}

impl Drop for SharedDatagrams {
    fn drop(&mut self) {
        if let Err(e) = self.destroy() {
            tracing::warn!("{}", remedy::whole(&e));
        }
    }
}

/// Destroys a shared receive queue that no queue pair uses any more.
fn end(queue: &Arc<SharedReceiveQueue>) -> Result<(), HcaError> {
    if Arc::strong_count(queue) > 1 {
        return Err(remedy::in_use("shared receive queue"));
    }
    // SAFETY: the only holder, which ends here.
    unsafe { queue.end() }
}

/// The shared receive queue with its buffers. Each entry has the buffers that the largest message needs. A
/// message takes the first ones; the rest stays for the next message.
#[derive(Debug)]
pub(super) struct SharedReceives {
    queue: Arc<SharedReceiveQueue>,
    per_entry: usize,
    buffers: Box<[Option<Mbuf>]>,
    free: Vec<u32>,
    entries: u32,
    room: usize,
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        if let Err(e) = self.destroy() {
            tracing::warn!("{}", remedy::whole(&e));
        }
    }
}

impl SharedReceives {
    pub(super) fn new(queue: Arc<SharedReceiveQueue>, entries: u32, per_entry: usize, room: usize) -> Self {
        let per_entry = per_entry.clamp(1, MAX_SEGMENTS);
        let buffers = (0..entries as usize * per_entry).map(|_| None).collect();
        Self { queue, per_entry, buffers, free: (0..entries).rev().collect(), entries, room }
    }

    /// Destroys the queue and returns its buffers to the pool. If the device may still fill them, for example
    /// for an existing queue pair, they are leaked.
    pub(super) fn destroy(&mut self) -> Result<(), HcaError> {
        let buffers = std::mem::take(&mut self.buffers);
        let result = if buffers.is_empty() { Ok(()) } else { end(&self.queue) };
        if result.is_err() {
            std::mem::forget(buffers);
        }
        result
    }

    pub(super) fn posted(&self) -> u32 {
        self.entries - self.free.len() as u32
    }

    fn entry(&mut self, slot: u32) -> &mut [Option<Mbuf>] {
        let start = slot as usize * self.per_entry;
        self.buffers.get_mut(start..start + self.per_entry).unwrap_or_default()
    }

    /// Takes an entry back from the device. Returns false if the device did not own it.
    fn give_back(&mut self, slot: u32) -> bool {
        // An entry that the device owns is complete. Any other lacks its first buffer or is free.
        let ours = self.entry(slot).first().is_none_or(Option::is_none);
        if !ours {
            self.free.push(slot);
        }
        !ours
    }

    /// Takes back a failed entry, whose buffers are posted again.
    pub(super) fn recycle(&mut self, slot: u32) -> bool {
        let known = self.give_back(slot);
        if known {
            // Without its first buffer it counts as taken back.
            drop(self.entry(slot).first_mut().and_then(Option::take));
        }
        known
    }

    /// Takes a message of `len` bytes out of an entry. The error is true if the device owned the entry.
    pub(super) fn message(&mut self, slot: u32, len: usize) -> Result<Mbuf, bool> {
        if !self.give_back(slot) {
            return Err(false);
        }
        let room = self.room as u32;
        let message = u32::try_from(len).ok().and_then(|len| {
            let (first, others) = self.entry(slot).split_first_mut()?;
            packet::message(first, others, len, room)
        });
        match message {
            Some((message, _)) => Ok(message),
            None => {
                // Without its first buffer the entry counts as taken back.
                drop(self.entry(slot).first_mut().and_then(Option::take));
                Err(true)
            }
        }
    }

    /// Posts entries until the queue is full or the pool is empty. Returns their number.
    pub(super) fn refill(&mut self, stash: &mut Stash, pool: &mut Pool, regions: &mut MrTable) -> usize {
        let mut posted = 0;
        while let Some(slot) = self.free.pop() {
            let mut segments = [sys::ibv_sge::default(); MAX_SEGMENTS];
            if !self.complete_entry(slot, stash, pool) || !self.describe(slot, &mut segments, regions) {
                self.withdraw(slot);
                break;
            }
            let mut request = [sys::ibv_recv_wr {
                wr_id: tag(Kind::Shared, slot),
                sg_list: segments.as_mut_ptr(),
                num_sge: self.per_entry as i32,
                ..Default::default()
            }];
            let taken = post_list(&mut request, |first, bad| {
                // SAFETY: the queue lives and only its one owner posts to it. The list is valid, and so are
                // the buffers, which `self.buffers` keeps until they complete.
                unsafe { sys::inline::post_srq_recv(self.queue.raw(), first, bad) }
            });
            if taken == 0 {
                self.withdraw(slot);
                break;
            }
            posted += 1;
        }
        posted
    }

    /// Marks an entry that could not be posted as taken back.
    fn withdraw(&mut self, slot: u32) {
        drop(self.entry(slot).first_mut().and_then(Option::take));
        self.free.push(slot);
    }

    fn complete_entry(&mut self, slot: u32, stash: &mut Stash, pool: &mut Pool) -> bool {
        let entry = self.entry(slot);
        let missing = entry.iter().filter(|place| place.is_none()).count();
        if !top_up(stash, pool, missing) {
            return false;
        }
        for place in entry.iter_mut().filter(|place| place.is_none()) {
            *place = stash.pop();
        }
        true
    }

    fn describe(&mut self, slot: u32, segments: &mut [sys::ibv_sge], regions: &mut MrTable) -> bool {
        let room = self.room as u32;
        for (place, segment) in self.entry(slot).iter().zip(segments) {
            let Some(buf) = place else { return false };
            let address = buf.buffer().0 + HEADROOM as u64;
            let Some(lkey) = regions.lkey(address, room) else { return false };
            *segment = sys::ibv_sge { addr: address, length: room, lkey };
        }
        true
    }
}
