//! Memory work through library calls. Keys are memory windows of type 2.

use std::sync::Arc;

use verbs_sys as sys;

use super::VerbsQueues;
use crate::bookkeeping::{Operation, Work};
use crate::hca::{
    ChainSend, DoneBurst, Fence, KeyRights, MemoryKey, MemoryWork, PostError, RcSlot, Registration,
    RemoteMemory, Returned, WorkError,
};
use crate::mem::Mbuf;
use crate::mem::key::{Memory, RegisteredKey};
use crate::verbs::object::{MemoryRegion, MemoryWindow};

/// Part of a work request other than its buffer's segments.
#[derive(Clone, Debug)]
pub(super) enum WorkRequest {
    Bind(Bind),
    Invalidate { rkey: MemoryKey, fence: Fence },
    SendInvalidating(MemoryKey),
    Write(RemoteMemory, Option<u32>),
    Read(RemoteMemory),
}

/// A window with its new contents.
#[derive(Clone, Debug)]
pub(super) struct Bind {
    window: Arc<MemoryWindow>,
    region: Arc<MemoryRegion>,
    /// Current key.
    old: MemoryKey,
    key: MemoryKey,
    address: u64,
    len: u64,
    access: u32,
}

/// Access flags of a window (`ibv_access_flags`). The owner's rights are those of the region.
const fn access(rights: KeyRights, zero_based: bool) -> u32 {
    (if rights.remote_write { sys::IBV_ACCESS_REMOTE_WRITE } else { 0 })
        | (if rights.remote_read { sys::IBV_ACCESS_REMOTE_READ } else { 0 })
        | (if rights.remote_atomic { sys::IBV_ACCESS_REMOTE_ATOMIC } else { 0 })
        | (if zero_based { sys::IBV_ACCESS_ZERO_BASED } else { 0 })
}

impl WorkRequest {
    /// Converts a SEND whose ID and segments are set to this request.
    pub(super) fn fill(&self, request: &mut sys::ibv_send_wr) {
        use sys::ibv_wr_opcode as code;
        request.send_flags = sys::IBV_SEND_SIGNALED;
        let rdma = |memory: &RemoteMemory| sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
            remote_addr: memory.address,
            rkey: memory.rkey.get(),
        };
        match self {
            Self::Bind(bind) => {
                let mw = bind.window.raw();
                // SAFETY: live: the work request holds it. The poster reports the current key to the library.
                unsafe { (*mw).rkey = bind.old.get() };
                request.opcode = code::IBV_WR_BIND_MW;
                request.__bindgen_anon_2.bind_mw = sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
                    mw,
                    rkey: bind.key.get(),
                    bind_info: sys::ibv_mw_bind_info {
                        mr: bind.region.raw(),
                        addr: bind.address,
                        length: bind.len,
                        mw_access_flags: bind.access,
                    },
                };
            }
            Self::Invalidate { rkey, fence } => {
                request.opcode = code::IBV_WR_LOCAL_INV;
                request.__bindgen_anon_1.invalidate_rkey = rkey.get();
                // The library has one fence, after RDMA READs. Other work of a connection completes in order.
                if *fence != Fence::None {
                    request.send_flags |= sys::IBV_SEND_FENCE;
                }
            }
            Self::SendInvalidating(rkey) => {
                request.opcode = code::IBV_WR_SEND_WITH_INV;
                request.__bindgen_anon_1.invalidate_rkey = rkey.get();
            }
            Self::Write(to, immediate) => {
                request.opcode = code::IBV_WR_RDMA_WRITE;
                request.wr.rdma = rdma(to);
                if let Some(immediate) = immediate {
                    request.opcode = code::IBV_WR_RDMA_WRITE_WITH_IMM;
                    request.__bindgen_anon_1.imm_data = immediate.to_be();
                }
            }
            Self::Read(from) => {
                request.opcode = code::IBV_WR_RDMA_READ;
                request.wr.rdma = rdma(from);
            }
        }
    }
}

impl VerbsQueues {
    /// Queues work on a connection and registers it for a result.
    #[expect(clippy::result_large_err, reason = "work that is not accepted is handed back")]
    fn queue_work(
        &mut self,
        slot: RcSlot,
        request: WorkRequest,
        work: Work<Mbuf>,
    ) -> Result<(), (Work<Mbuf>, WorkError)> {
        let rc = self.rcs.get_mut(slot.0).filter(|rc| !rc.passive && !rc.side.health.failed());
        let Some(rc) = rc else { return Err((work, PostError::NoConnection.into())) };
        if !self.credit.admits(rc.side.outstanding()) {
            return Err((work, PostError::Full.into()));
        }
        let was_dirty = rc.side.has_queued();
        rc.side.queue_work(request, work).map_err(|(work, error)| (work, error.into()))?;
        self.credit.take();
        // Reserve room for the result before posting.
        self.done.reserve(self.credit.outstanding() as usize);
        if !was_dirty {
            self.rcs.wait(slot.0);
        }
        Ok(())
    }

    fn transfer(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        request: WorkRequest,
        buf: Mbuf,
    ) -> Result<(), Returned<Mbuf>> {
        let most = self.rcs.get(slot.0).map_or(usize::MAX, |rc| rc.side.max_segments());
        if buf.segment_count() > most {
            return Err(Returned { work: buf, error: PostError::TooManySegments.into() });
        }
        let regions = &mut self.regions;
        if !buf.segments().all(|s| regions.lkey(s.address(), s.bytes.len() as u32).is_some()) {
            return Err(Returned { work: buf, error: PostError::NotRegistered.into() });
        }
        let work = Work { ticket, operation: Operation::Transfer(buf) };
        self.queue_work(slot, request, work).or_else(|(work, error)| match work.operation {
            Operation::Transfer(work) => Err(Returned { work, error }),
            Operation::Register(..) | Operation::Invalidate(_) | Operation::Chain(..) => Ok(()),
        })
    }

    /// Converts a registration to a bind request.
    fn bind(&mut self, work: &mut Registration) -> Result<Bind, WorkError> {
        if !work.rights.are_consistent() {
            return Err(WorkError::Rights);
        }
        if let Memory::Chain(chain) = &work.memory {
            let requested = chain.segment_count();
            work.list.fill(chain).map_err(|full| WorkError::Pieces { asked: requested, room: full.room })?;
        }
        let (start, listed) = (work.start, work.list.len());
        let len = work.len.unwrap_or(listed);
        let range = WorkError::Range { start, len, listed };
        let &[(address, bytes)] = work.list.pieces() else {
            let count = work.list.count();
            return Err(if count == 0 { range } else { WorkError::Pieces { asked: count, room: 1 } });
        };
        // A window starts at its memory's address or at 0.
        if len == 0 || len > listed || (start != 0 && start != address) {
            return Err(range);
        }
        let lkey = self.regions.lkey(address, bytes).ok_or(PostError::NotRegistered)?;
        let region = self.memory.iter().find(|region| region.lkey() == lkey);
        let window = self.windows.find(work.key.key()).ok_or(WorkError::NotSupported)?;
        Ok(Bind {
            window,
            region: Arc::clone(region.ok_or(PostError::NotRegistered)?),
            old: work.key.key(),
            key: work.key.key().next(),
            address,
            len,
            access: access(work.rights, start == 0 && address != 0),
        })
    }
}

impl MemoryWork for VerbsQueues {
    fn register(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        mut work: Registration,
    ) -> Result<MemoryKey, Returned<Registration>> {
        let bind = match self.bind(&mut work) {
            Ok(bind) => bind,
            Err(error) => return Err(Returned { work, error }),
        };
        let Registration { key, mut list, memory, start, len, rights } = work;
        list.clear();
        let memory = match memory {
            Memory::Chain(chain) => Some(chain),
            Memory::Listed => None,
        };
        let (name, requested) = (bind.key, len);
        let registered =
            RegisteredKey { key: name, pieces: key.pieces(), start, len: bind.len, rights, memory };
        let work = Work { ticket, operation: Operation::Register(registered, list) };
        let (work, error) = match self.queue_work(slot, WorkRequest::Bind(bind), work) {
            Ok(()) => return Ok(name),
            Err(refused) => refused,
        };
        let Operation::Register(registered, list) = work.operation else { return Ok(name) };
        // Unchanged: the tag is incremented only for a successful post.
        let (_, memory) = registered.freed();
        let memory = memory.map_or(Memory::Listed, Memory::Chain);
        Err(Returned { work: Registration { key, list, memory, start, len: requested, rights }, error })
    }

    fn invalidate(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        key: RegisteredKey,
        fence: Fence,
    ) -> Result<(), Returned<RegisteredKey>> {
        let request = WorkRequest::Invalidate { rkey: key.key(), fence };
        let work = Work { ticket, operation: Operation::Invalidate(key) };
        self.queue_work(slot, request, work).or_else(|(work, error)| match work.operation {
            Operation::Invalidate(work) => Err(Returned { work, error }),
            Operation::Register(..) | Operation::Transfer(_) | Operation::Chain(..) => Ok(()),
        })
    }

    fn send_invalidating(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        rkey: MemoryKey,
        buf: Mbuf,
    ) -> Result<(), Returned<Mbuf>> {
        self.transfer(slot, ticket, WorkRequest::SendInvalidating(rkey), buf)
    }

    // A window covers one piece and is only for peers.
    fn send_chain(&mut self, _: RcSlot, _: u32, work: ChainSend) -> Result<(), Returned<ChainSend>> {
        Err(Returned { work, error: WorkError::NotSupported })
    }

    fn write(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        to: RemoteMemory,
        buf: Mbuf,
        immediate: Option<u32>,
    ) -> Result<(), Returned<Mbuf>> {
        self.transfer(slot, ticket, WorkRequest::Write(to, immediate), buf)
    }

    fn read(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        from: RemoteMemory,
        into: Mbuf,
    ) -> Result<(), Returned<Mbuf>> {
        self.transfer(slot, ticket, WorkRequest::Read(from), into)
    }

    fn take_done(&mut self, done: &mut DoneBurst) {
        let count = done.remaining_capacity().min(self.done.len());
        done.extend(self.done.drain(..count));
    }
}
