//! Buffer chains sent as one memory segment: see [`crate::hca::MemoryWork::send_chain`].

use super::MlxQueues;
use super::memory::{flags, lay_out, named};
use crate::bookkeeping::Operation;
use crate::hca::{ChainSend, Fence, KeyRights, MemoryKey, PostError, RcSlot, Returned, WorkError};
use crate::mem::key::RegisteredKey;
use crate::mem::packet::Packet;
use crate::mlx5::bus::Bus;
use crate::mlx5::rc::CHAIN_ENTRIES;
use crate::mlx5::registration::KeyContents;
use crate::mlx5::sq::{Posted, Request, SendQueue};
use crate::mlx5::umr::FREE_UNITS;
use prm::{DS_UNIT, DataSegment, SendOpcode, WQEBB};

/// Size of a SEND of one segment, in units of 16 bytes.
const SEND_UNITS: usize = 2;
/// Maximum length of one segment in bytes (the length in an entry has 31 bits).
const LONGEST: u64 = (1 << 31) - 1;

impl<B: Bus, P: Packet> MlxQueues<B, P> {
    /// See [`crate::hca::MemoryWork::send_chain`].
    pub fn post_chain(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        mut work: ChainSend<P>,
    ) -> Result<(), Returned<ChainSend<P>>> {
        match self.try_chain(slot, &mut work) {
            Ok((posted, contents)) => {
                let ChainSend { key, mut list, buf } = work;
                list.clear();
                let key = RegisteredKey {
                    key: MemoryKey::new(contents.mkey),
                    pieces: key.pieces(),
                    start: contents.start,
                    len: contents.len,
                    rights: contents.rights,
                    memory: Some(buf),
                };
                self.owe(slot, posted, ticket, Operation::Chain(key, list));
                Ok(())
            }
            Err(error) => Err(Returned { work, error }),
        }
    }

    fn try_chain(
        &mut self,
        slot: RcSlot,
        work: &mut ChainSend<P>,
    ) -> Result<(Posted, KeyContents), WorkError> {
        let list = &mut work.list;
        let (requested, room) = (work.buf.segments(), work.key.pieces() as usize);
        list.fill(&work.buf).map_err(|full| WorkError::Pieces { asked: requested, room: full.room })?;
        let count = list.count();
        if count > room {
            return Err(WorkError::Pieces { asked: count, room });
        }
        let (start, len) = (0, list.len());
        if len == 0 || len > LONGEST {
            return Err(WorkError::Range { start, len, listed: len });
        }
        let outside = lay_out(list, &mut self.regions)?;
        let contents = KeyContents { mkey: work.key.key().next().get(), start, len, rights: KeyRights::SEND };
        let rc = self.rcs.get_mut(slot.0).filter(|rc| !rc.passive && !rc.side.health.failed());
        let rc = rc.ok_or(PostError::NoConnection)?;
        if rc.sealed || !self.credit.admits_all(rc.side.outstanding(), CHAIN_ENTRIES as u32) {
            return Err(PostError::Full.into());
        }
        let units =
            [SendQueue::registration_units(outside.is_none().then_some(count)), SEND_UNITS, FREE_UNITS];
        let wqebbs = units.map(|units| (units * DS_UNIT).div_ceil(WQEBB)).iter().sum();
        let was_dirty = rc.side.sq.is_dirty();
        let regions = &mut self.regions;
        let posted = rc.side.post_works(wqebbs, |sq| {
            // All pieces were found above.
            let pieces = list.pieces().iter().filter_map(|piece| named(regions, *piece).ok());
            let registered = sq.post_registration(0, &contents, count, outside, pieces)?;
            let request = Request { opcode: SendOpcode::Send, flags: 0, imm: 0 };
            let sent = sq.post_single(request, DataSegment::new(start, len as u32, contents.mkey))?;
            // The peer may request a retransmission of a message that it has not acknowledged.
            let freed = sq.post_local_invalidate(flags(Fence::All), contents.mkey)?;
            Ok([registered, sent, freed])
        })?;
        let posted = posted.ok_or(PostError::Full)?;
        for _ in 0..CHAIN_ENTRIES {
            self.credit.take();
        }
        // Reserve room for the result before posting.
        self.done.reserve(self.credit.outstanding() as usize);
        if !was_dirty {
            self.rcs.wait(slot.0);
        }
        Ok((posted, contents))
    }
}
