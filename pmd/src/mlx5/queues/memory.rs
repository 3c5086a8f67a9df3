//! Memory work on connections: see [`crate::hca::MemoryWork`].

use zerocopy::IntoBytes;

use super::{MlxQueues, data_segments};
use crate::bookkeeping::{Operation, Work};
use crate::hca::{
    DoneBurst, Fence, MemoryKey, PostError, RcSlot, Registration, RemoteMemory, Returned, WorkError,
};
use crate::mem::key::{GROUP, Memory, PageList, RegisteredKey};
use crate::mem::packet::Packet;
use crate::mlx5::bus::Bus;
use crate::mlx5::mr::MrTable;
use crate::mlx5::rc::MAX_SEND_SEGMENTS;
use crate::mlx5::registration::{INLINE_PIECES, KeyContents};
use crate::mlx5::send::Remote;
use crate::mlx5::sq::{Posted, Request, SendQueue};
use crate::mlx5::umr::FREE_UNITS;
use prm::{DataSegment, SendOpcode, fm_ce_se};

/// Completion flags of memory work. Every request is signaled.
pub(super) const fn flags(fence: Fence) -> u8 {
    fm_ce_se::CQ_UPDATE
        | match fence {
            Fence::None => 0,
            Fence::Reads => fm_ce_se::FENCE,
            Fence::All => fm_ce_se::STRONG_ORDERING,
        }
}

/// Returns a piece as a data segment with its region's key.
pub(super) fn named(regions: &mut MrTable, (address, bytes): (u64, u32)) -> Result<DataSegment, WorkError> {
    let lkey = regions.lkey(address, bytes).ok_or(PostError::NotRegistered)?;
    Ok(DataSegment::new(address, bytes, lkey))
}

/// Writes a list to the memory that the device reads, unless the list goes into the entry.
pub(super) fn lay_out<P: Packet>(
    list: &mut PageList<P>,
    regions: &mut MrTable,
) -> Result<Option<DataSegment>, WorkError> {
    let count = list.count();
    let mut at = 0;
    while at < count {
        let mut round = [DataSegment::default(); GROUP];
        for (entry, piece) in round.iter_mut().zip(list.pieces().get(at..).unwrap_or_default()) {
            *entry = named(regions, *piece)?;
        }
        if let Some(outside) = list.outside()
            && !outside.lay(at * size_of::<DataSegment>(), round.as_bytes())
        {
            return Err(WorkError::Pieces { asked: count, room: list.room() });
        }
        at += GROUP;
    }
    let Some(outside) = list.outside() else {
        let fits = count <= INLINE_PIECES;
        return if fits { Ok(None) } else { Err(WorkError::Pieces { asked: count, room: INLINE_PIECES }) };
    };
    let bytes = count.next_multiple_of(GROUP) * size_of::<DataSegment>();
    named(regions, (outside.address(), bytes as u32)).map(Some)
}

impl<B: Bus, P: Packet> MlxQueues<B, P> {
    /// Posts work of at most `units` units of 16 bytes and registers it for a result. If `post` fails,
    /// nothing is posted.
    fn post_work(
        &mut self,
        slot: RcSlot,
        units: usize,
        post: impl FnOnce(&mut SendQueue, &mut MrTable) -> Result<Posted, PostError>,
    ) -> Result<Posted, WorkError> {
        let Self { rcs, regions, credit, done, .. } = self;
        let rc = rcs.get_mut(slot.0).filter(|rc| !rc.passive && !rc.side.health.failed());
        let rc = rc.ok_or(PostError::NoConnection)?;
        if rc.sealed || !credit.admits(rc.side.outstanding()) {
            return Err(PostError::Full.into());
        }
        let was_dirty = rc.side.sq.is_dirty();
        let posted = rc.side.post_work(units, |sq| post(sq, regions))?;
        credit.take();
        // Reserve room for the result before posting.
        done.reserve(credit.outstanding() as usize);
        if !was_dirty {
            rcs.wait(slot.0);
        }
        Ok(posted)
    }

    pub(super) fn owe(&mut self, slot: RcSlot, posted: Posted, ticket: u32, operation: Operation<P>) {
        if let Some(rc) = self.rcs.get_mut(slot.0) {
            rc.side.owe(posted, Work { ticket, operation });
        }
    }

    /// See [`crate::hca::MemoryWork::register`].
    pub fn register_key(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        mut work: Registration<P>,
    ) -> Result<MemoryKey, Returned<Registration<P>>> {
        match self.try_register(slot, &mut work) {
            Ok((posted, contents)) => {
                let Registration { key, mut list, memory, rights, .. } = work;
                list.clear();
                let memory = match memory {
                    Memory::Chain(chain) => Some(chain),
                    Memory::Listed => None,
                };
                let key = RegisteredKey {
                    key: MemoryKey::new(contents.mkey),
                    pieces: key.pieces(),
                    start: contents.start,
                    len: contents.len,
                    rights,
                    memory,
                };
                let name = key.key();
                self.owe(slot, posted, ticket, Operation::Register(key, list));
                Ok(name)
            }
            Err(error) => Err(Returned { work, error }),
        }
    }

    fn try_register(
        &mut self,
        slot: RcSlot,
        work: &mut Registration<P>,
    ) -> Result<(Posted, KeyContents), WorkError> {
        let (list, room) = (&mut work.list, work.key.pieces() as usize);
        if !work.rights.are_consistent() {
            return Err(WorkError::Rights);
        }
        if let Memory::Chain(chain) = &work.memory {
            let requested = chain.segments();
            list.fill(chain).map_err(|full| WorkError::Pieces { asked: requested, room: full.room })?;
        }
        let count = list.count();
        if count > room {
            return Err(WorkError::Pieces { asked: count, room });
        }
        let (start, listed) = (work.start, list.len());
        let len = work.len.unwrap_or(listed);
        if len == 0 || len > listed || start.checked_add(len - 1).is_none() {
            return Err(WorkError::Range { start, len, listed });
        }
        let outside = lay_out(list, &mut self.regions)?;
        let contents = KeyContents { mkey: work.key.key().next().get(), start, len, rights: work.rights };
        let units = SendQueue::registration_units(outside.is_none().then_some(count));
        let posted = self.post_work(slot, units, |sq, regions| {
            // All pieces were found above.
            let pieces = list.pieces().iter().filter_map(|piece| named(regions, *piece).ok());
            Ok(sq.post_registration(flags(Fence::None), &contents, count, outside, pieces)?)
        })?;
        Ok((posted, contents))
    }

    /// See [`crate::hca::MemoryWork::invalidate`].
    pub fn invalidate_key(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        key: RegisteredKey<P>,
        fence: Fence,
    ) -> Result<(), Returned<RegisteredKey<P>>> {
        let name = key.key().get();
        let posted =
            self.post_work(slot, FREE_UNITS, |sq, _| Ok(sq.post_local_invalidate(flags(fence), name)?));
        match posted {
            Ok(posted) => {
                self.owe(slot, posted, ticket, Operation::Invalidate(key));
                Ok(())
            }
            Err(error) => Err(Returned { work: key, error }),
        }
    }

    /// Posts a SEND, RDMA WRITE or RDMA READ of a buffer's data: see [`crate::hca::MemoryWork`].
    pub fn transfer(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        (opcode, imm): (SendOpcode, u32),
        remote: Option<RemoteMemory>,
        buf: P,
    ) -> Result<(), Returned<P>> {
        let segments = buf.segments();
        let posted = if segments > MAX_SEND_SEGMENTS {
            Err(PostError::TooManySegments.into())
        } else {
            self.post_work(slot, 1 + usize::from(remote.is_some()) + segments, |sq, regions| {
                let request = Request { opcode, flags: flags(Fence::None), imm };
                let data = data_segments(&buf, regions);
                match remote {
                    Some(RemoteMemory { address, rkey }) => {
                        sq.post_rdma(request, Remote { address, rkey: rkey.get() }, segments, data)
                    }
                    None => sq.post_send(request, segments, data),
                }
            })
        };
        match posted {
            Ok(posted) => {
                self.owe(slot, posted, ticket, Operation::Transfer(buf));
                Ok(())
            }
            Err(error) => Err(Returned { work: buf, error }),
        }
    }

    /// Number of WQEBBs posted on a connection so far, modulo 2^16.
    #[must_use]
    pub fn posted_wqebbs(&self, slot: RcSlot) -> Option<u16> {
        self.rcs.get(slot.0).map(|rc| rc.side.sq.posted())
    }

    /// Takes finished work, oldest first.
    pub fn finished(&mut self, done: &mut DoneBurst<P>) {
        let count = done.remaining_capacity().min(self.done.len());
        done.extend(self.done.drain(..count));
    }
}
