//! The library's objects, each owned once: dropping one destroys it, and it holds what it was made from.

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ib_wire::{Gid, Lid, Qpn};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use verbs_sys as sys;

use super::device::Context;
use super::remedy;
use crate::hca::HcaError;
use crate::mem::Zone;

/// Tells of an object without buffers that the device did not let go of.
fn complain(what: &str, rc: c_int) {
    if rc != 0 {
        tracing::warn!("destroying a {what}: {}", io::Error::from_raw_os_error(rc.abs()));
    }
}

macro_rules! threads {
    ($($object:ident)*) => { $(
        // SAFETY: the library locks what its objects share; posting to and polling one object from several threads is the
        // caller's to avoid, and the queues, which alone do it, are not `Sync`.
        unsafe impl Send for $object {}
        // SAFETY: as above.
        unsafe impl Sync for $object {}
    )* };
}

threads! { CompletionChannel ProtectionDomain MemoryRegion CompletionQueue SharedReceiveQueue QueuePair AddressHandle }

/// A protection domain.
#[derive(Debug)]
pub(super) struct ProtectionDomain {
    raw: NonNull<sys::ibv_pd>,
    context: Arc<Context>,
    /// Of one for a single thread: the thread domain, and the domain whose objects may be used within.
    within: Option<(NonNull<sys::ibv_td>, Arc<Self>)>,
}

impl ProtectionDomain {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, HcaError> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { sys::ibv_alloc_pd(context.raw()) })
            .ok_or_else(|| remedy::last("creating a protection domain"))?;
        Ok(Self { raw, context: Arc::clone(context), within: None })
    }

    /// A domain for queue pairs that one thread posts to, in which the memory of `whole` may be used.
    pub(super) fn for_thread(whole: &Arc<Self>) -> Result<Self, HcaError> {
        let context = &whole.context;
        // SAFETY: the context is open.
        let thread = NonNull::new(unsafe { sys::inline::alloc_td(context.raw()) })
            .ok_or_else(|| remedy::last("creating a thread domain"))?;
        // SAFETY: all three are live.
        let raw =
            unsafe { sys::inline::alloc_parent_domain(context.raw(), whole.raw.as_ptr(), thread.as_ptr()) };
        let Some(raw) = NonNull::new(raw) else {
            let error = remedy::last("creating a protection domain of one thread");
            // SAFETY: ours, and nothing is in it.
            complain("thread domain", unsafe { sys::inline::dealloc_td(thread.as_ptr()) });
            return Err(error);
        };
        Ok(Self { raw, context: Arc::clone(context), within: Some((thread, Arc::clone(whole))) })
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) const fn raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: ours, and nothing that was made from it is left.
        complain("protection domain", unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) });
        if let Some((thread, _)) = &self.within {
            // SAFETY: ours, and what was in it is gone.
            complain("thread domain", unsafe { sys::inline::dealloc_td(thread.as_ptr()) });
        }
    }
}

/// Registered memory.
#[derive(Debug)]
pub(super) struct MemoryRegion {
    raw: NonNull<sys::ibv_mr>,
    _domain: Arc<ProtectionDomain>,
}

impl MemoryRegion {
    /// Registers a zone of a pool for local access.
    ///
    /// # Safety
    ///
    /// The zone stays mapped while the region lives, and what is posted of it is the device's until it completes.
    pub(super) unsafe fn new(domain: &Arc<ProtectionDomain>, zone: &Zone) -> Result<Self, HcaError> {
        let access = sys::IBV_ACCESS_LOCAL_WRITE as c_int;
        // SAFETY: mapped memory, by the contract of this function.
        let raw =
            unsafe { sys::ibv_reg_mr(domain.raw(), zone.address as *mut _, zone.length as usize, access) };
        let raw =
            NonNull::new(raw).ok_or_else(|| remedy::registration(zone.length, io::Error::last_os_error()))?;
        Ok(Self { raw, _domain: Arc::clone(domain) })
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: a live region.
        unsafe { (*self.raw.as_ptr()).lkey }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: ours.
        complain("memory region", unsafe { sys::ibv_dereg_mr(self.raw.as_ptr()) });
    }
}

/// Where completion queues tell that there is something in them.
#[derive(Debug)]
pub(super) struct CompletionChannel {
    raw: NonNull<sys::ibv_comp_channel>,
    _context: Arc<Context>,
}

impl CompletionChannel {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, HcaError> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { sys::ibv_create_comp_channel(context.raw()) })
            .ok_or_else(|| remedy::last("creating a completion channel"))?;
        let channel = Self { raw, _context: Arc::clone(context) };
        let events = channel.events();
        fcntl_getfl(events).and_then(|flags| fcntl_setfl(events, flags | OFlags::NONBLOCK)).map_err(|e| {
            HcaError::Io { what: "setting a completion channel to not block".to_owned(), source: e.into() }
        })?;
        Ok(channel)
    }

    fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's own descriptor, open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }

    /// Waits for events, `at_most` that long, and takes all that there are. How many there were.
    pub(super) fn wait(&self, at_most: Duration) -> u32 {
        let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(self.events(), PollFlags::IN)];
        // An interrupted wait is a short one.
        if !poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0) {
            return 0;
        }
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut count = 0;
        // SAFETY: a live channel that does not block; what is answered goes to our variables.
        while unsafe { sys::ibv_get_cq_event(self.raw.as_ptr(), &mut cq, &mut context) } == 0 {
            count += 1;
            // SAFETY: the queue lives until its events are acknowledged, which is done here, once each.
            unsafe { sys::ibv_ack_cq_events(cq, 1) };
        }
        count
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: ours, and no completion queue on it is left.
        complain("completion channel", unsafe { sys::ibv_destroy_comp_channel(self.raw.as_ptr()) });
    }
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    raw: NonNull<sys::ibv_cq>,
    channel: Option<Arc<CompletionChannel>>,
    _context: Arc<Context>,
}

impl CompletionQueue {
    /// A queue that can be polled, and waited for if it has a channel.
    pub(super) fn new(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
    ) -> Result<Self, HcaError> {
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let to = channel.as_ref().map_or(std::ptr::null_mut(), |channel| channel.raw.as_ptr());
        // SAFETY: the context is open; the channel, if any, is held as long as the queue.
        let raw = unsafe { sys::ibv_create_cq(context.raw(), entries, std::ptr::null_mut(), to, 0) };
        let raw = NonNull::new(raw)
            .ok_or_else(|| remedy::last(format!("creating a completion queue of {entries} entries")))?;
        Ok(Self { raw, channel, _context: Arc::clone(context) })
    }

    /// How many completions it holds.
    pub(super) fn entries(&self) -> u32 {
        // SAFETY: live; the library sets it once, when the queue is made.
        u32::try_from(unsafe { (*self.raw()).cqe }).unwrap_or(u32::MAX)
    }

    /// Asks for an event when the next completion comes. False if there is no channel or the provider cannot.
    pub(super) fn arm(&self) -> bool {
        // SAFETY: live.
        self.channel.is_some() && unsafe { sys::inline::req_notify_cq(self.raw()) } == 0
    }

    /// Readable when the event that was asked for is there.
    pub(super) fn events(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(|channel| channel.events())
    }

    /// Waits for the event that was asked for, `at_most` that long. How many came.
    pub(super) fn wait(&self, at_most: Duration) -> u32 {
        match &self.channel {
            Some(channel) => channel.wait(at_most),
            None => {
                std::thread::sleep(at_most);
                0
            }
        }
    }

    pub(super) const fn raw(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: ours, and no queue pair on it is left.
        complain("completion queue", unsafe { sys::ibv_destroy_cq(self.raw()) });
    }
}

/// The answer to an attempt to destroy an object that holds buffers.
fn destroyed(what: &str, rc: c_int) -> Result<(), HcaError> {
    if rc == 0 {
        return Ok(());
    }
    Err(remedy::code(format!("destroying a {what}, whose buffers are kept until the process ends"), rc))
}

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct SharedReceiveQueue {
    raw: NonNull<sys::ibv_srq>,
    domain: Arc<ProtectionDomain>,
    ended: AtomicBool,
}

impl SharedReceiveQueue {
    pub(super) fn new(domain: &Arc<ProtectionDomain>, depth: u32, segments: u32) -> Result<Self, HcaError> {
        let mut init = sys::ibv_srq_init_attr {
            srq_context: std::ptr::null_mut(),
            attr: sys::ibv_srq_attr { max_wr: depth, max_sge: segments, srq_limit: 0 },
        };
        // SAFETY: the domain lives; the attributes are ours.
        let raw = NonNull::new(unsafe { sys::ibv_create_srq(domain.raw(), &mut init) })
            .ok_or_else(|| remedy::last(format!("creating a shared receive queue of {depth} entries")))?;
        Ok(Self { raw, domain: Arc::clone(domain), ended: AtomicBool::new(false) })
    }

    /// Destroys it, the first time. If that fails the device may still fill its buffers: then they are better lost than in two
    /// hands, and what it was made from stays.
    ///
    /// # Safety
    ///
    /// It is not used any more.
    pub(super) unsafe fn end(&self) -> Result<(), HcaError> {
        if self.ended.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // SAFETY: ours, and destroyed once; what uses it holds it.
        let result = destroyed("shared receive queue", unsafe { sys::ibv_destroy_srq(self.raw()) });
        if result.is_err() {
            std::mem::forget(Arc::clone(&self.domain));
        }
        result
    }

    /// Asks for an event when fewer receives than this are posted.
    pub(super) fn arm(&self, limit: u32) -> Result<(), HcaError> {
        let mut attr = sys::ibv_srq_attr { srq_limit: limit, ..Default::default() };
        // SAFETY: live; the attributes are ours.
        let rc = unsafe { sys::ibv_modify_srq(self.raw(), &mut attr, sys::IBV_SRQ_LIMIT as c_int) };
        if rc == 0 { Ok(()) } else { Err(remedy::code("setting the limit of a shared receive queue", rc)) }
    }

    pub(super) const fn raw(&self) -> *mut sys::ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: nobody has it any more.
        if let Err(e) = unsafe { self.end() } {
            tracing::warn!("{}", remedy::whole(&e));
        }
    }
}

/// What a queue pair is made with.
#[derive(Clone, Debug)]
pub(super) struct QueuePairParts {
    pub(super) kind: sys::ibv_qp_type,
    pub(super) send_cq: Arc<CompletionQueue>,
    pub(super) recv_cq: Arc<CompletionQueue>,
    pub(super) srq: Option<Arc<SharedReceiveQueue>>,
    pub(super) send_wr: u32,
    pub(super) send_sge: u32,
    pub(super) recv_wr: u32,
}

/// A queue pair. Once destroyed, the device has none of its buffers any more.
#[derive(Debug)]
pub(super) struct QueuePair {
    raw: NonNull<sys::ibv_qp>,
    send_cq: Arc<CompletionQueue>,
    recv_cq: Arc<CompletionQueue>,
    srq: Option<Arc<SharedReceiveQueue>>,
    domain: Arc<ProtectionDomain>,
    ended: AtomicBool,
    /// Attached, and not detached: a queue pair in a group is not destroyed.
    groups: Mutex<Vec<(Gid, Lid)>>,
}

impl QueuePairParts {
    const fn cap(&self) -> sys::ibv_qp_cap {
        sys::ibv_qp_cap {
            max_send_wr: self.send_wr,
            max_recv_wr: self.recv_wr,
            max_send_sge: self.send_sge,
            max_recv_sge: if self.recv_wr > 0 { 1 } else { 0 },
            max_inline_data: 0,
        }
    }

    fn raw_srq(&self) -> *mut sys::ibv_srq {
        self.srq.as_ref().map_or(std::ptr::null_mut(), |srq| srq.raw())
    }
}

impl QueuePair {
    /// A queue pair to be used by the library's calls.
    pub(super) fn new(domain: &Arc<ProtectionDomain>, parts: QueuePairParts) -> Result<Self, HcaError> {
        let mut init = sys::ibv_qp_init_attr {
            send_cq: parts.send_cq.raw(),
            recv_cq: parts.recv_cq.raw(),
            srq: parts.raw_srq(),
            cap: parts.cap(),
            qp_type: parts.kind,
            ..Default::default()
        };
        // SAFETY: the domain and what the attributes name live; the attributes are ours.
        let raw = unsafe { sys::ibv_create_qp(domain.raw(), &mut init) };
        Self::own(domain, parts, raw)
    }

    /// A queue pair whose rings are to be used. It is told that nothing but SEND is posted, so that an entry takes no more
    /// room than that needs, and that payload never lies in completions.
    pub(super) fn for_rings(domain: &Arc<ProtectionDomain>, parts: QueuePairParts) -> Result<Self, HcaError> {
        let mut init = sys::ibv_qp_init_attr_ex {
            send_cq: parts.send_cq.raw(),
            recv_cq: parts.recv_cq.raw(),
            srq: parts.raw_srq(),
            cap: parts.cap(),
            qp_type: parts.kind,
            comp_mask: sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: domain.raw(),
            send_ops_flags: u64::from(sys::IBV_QP_EX_WITH_SEND),
            ..Default::default()
        };
        let mut own = sys::mlx5dv_qp_init_attr {
            comp_mask: u64::from(sys::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS),
            create_flags: sys::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
            ..Default::default()
        };
        // SAFETY: as in `new`, and the device is libmlx5's: nothing else comes here.
        let raw = unsafe { sys::mlx5dv_create_qp(domain.context().raw(), &mut init, &mut own) };
        Self::own(domain, parts, raw)
    }

    fn own(
        domain: &Arc<ProtectionDomain>,
        parts: QueuePairParts,
        raw: *mut sys::ibv_qp,
    ) -> Result<Self, HcaError> {
        let raw = NonNull::new(raw)
            .ok_or_else(|| remedy::last(format!("creating a queue pair of {} sends", parts.send_wr)))?;
        Ok(Self {
            raw,
            send_cq: parts.send_cq,
            recv_cq: parts.recv_cq,
            srq: parts.srq,
            domain: Arc::clone(domain),
            ended: AtomicBool::new(false),
            groups: Mutex::default(),
        })
    }

    /// Destroys it, the first time. If that fails the device may still read and fill its buffers: then they are better lost
    /// than in two hands, and what it was made from stays.
    ///
    /// # Safety
    ///
    /// It is not used any more.
    pub(super) unsafe fn end(&self) -> Result<(), HcaError> {
        if self.ended.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // A device that is taken away is not waited for until its groups have been left. What has no such group any more says so.
        let groups = std::mem::take(&mut *self.groups.lock());
        for (mgid, mlid) in groups {
            drop(self.detach(mgid, mlid));
        }
        // SAFETY: ours, and destroyed once; what uses it holds it.
        let result = destroyed("queue pair", unsafe { sys::ibv_destroy_qp(self.raw()) });
        if result.is_err() {
            let (send, receive) = (Arc::clone(&self.send_cq), Arc::clone(&self.recv_cq));
            std::mem::forget((send, receive, self.srq.clone(), Arc::clone(&self.domain)));
        }
        result
    }

    pub(super) const fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    pub(super) fn number(&self) -> Qpn {
        // SAFETY: live; its number does not change.
        Qpn::new(unsafe { (*self.raw()).qp_num })
    }

    /// Changes attributes; an error number on failure.
    pub(super) fn modify(&self, attr: &mut sys::ibv_qp_attr, mask: u32) -> Result<(), i32> {
        // SAFETY: live; the attributes are ours.
        match unsafe { sys::ibv_modify_qp(self.raw(), attr, mask as c_int) } {
            0 => Ok(()),
            rc => Err(rc.abs()),
        }
    }

    pub(super) fn state(&self) -> Result<sys::ibv_qp_state, HcaError> {
        let (mut attr, mut init) = (sys::ibv_qp_attr::default(), sys::ibv_qp_init_attr::default());
        // SAFETY: live; the attributes are ours.
        let rc = unsafe { sys::ibv_query_qp(self.raw(), &mut attr, sys::IBV_QP_STATE as c_int, &mut init) };
        if rc == 0 { Ok(attr.qp_state) } else { Err(remedy::code("asking for a queue pair's state", rc)) }
    }

    pub(super) fn attach(&self, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        let gid = sys::ibv_gid { raw: mgid.0 };
        // SAFETY: live; the GID is ours.
        let rc = unsafe { sys::ibv_attach_mcast(self.raw(), &gid, mlid.0) };
        if rc != 0 {
            return Err(remedy::code(format!("attaching to the group {mgid}"), rc));
        }
        self.groups.lock().push((mgid, mlid));
        Ok(())
    }

    pub(super) fn detach(&self, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        self.groups.lock().retain(|group| *group != (mgid, mlid));
        let gid = sys::ibv_gid { raw: mgid.0 };
        // SAFETY: live; the GID is ours.
        let rc = unsafe { sys::ibv_detach_mcast(self.raw(), &gid, mlid.0) };
        if rc == 0 { Ok(()) } else { Err(remedy::code(format!("detaching from the group {mgid}"), rc)) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: nobody has it any more.
        if let Err(e) = unsafe { self.end() } {
            tracing::warn!("{}", remedy::whole(&e));
        }
    }
}

/// An address handle.
#[derive(Debug)]
pub(super) struct AddressHandle {
    raw: NonNull<sys::ibv_ah>,
    _domain: Arc<ProtectionDomain>,
}

impl AddressHandle {
    pub(super) fn new(domain: &Arc<ProtectionDomain>, attr: &mut sys::ibv_ah_attr) -> Result<Self, HcaError> {
        // SAFETY: the domain lives; the attributes are ours.
        let raw = NonNull::new(unsafe { sys::ibv_create_ah(domain.raw(), attr) })
            .ok_or_else(|| remedy::last(format!("creating an address handle to LID {}", attr.dlid)))?;
        Ok(Self { raw, _domain: Arc::clone(domain) })
    }

    pub(super) const fn raw(&self) -> *mut sys::ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: ours; entries that are outstanding hold it.
        complain("address handle", unsafe { sys::ibv_destroy_ah(self.raw()) });
    }
}

/// Objects of a provider that a test plays. They are never destroyed: the library does not know them.
#[cfg(test)]
pub(super) mod played {
    use super::*;

    fn keep<T>(object: T) -> Arc<T> {
        let object = Arc::new(object);
        std::mem::forget(Arc::clone(&object));
        object
    }

    pub(in crate::verbs) fn domain(context: *mut sys::ibv_context) -> Arc<ProtectionDomain> {
        let context = keep(Context::played(NonNull::new(context).unwrap()));
        keep(ProtectionDomain { raw: NonNull::dangling(), context, within: None })
    }

    pub(in crate::verbs) fn cq(domain: &ProtectionDomain, raw: *mut sys::ibv_cq) -> Arc<CompletionQueue> {
        keep(CompletionQueue {
            raw: NonNull::new(raw).unwrap(),
            channel: None,
            _context: Arc::clone(&domain.context),
        })
    }

    pub(in crate::verbs) fn srq(
        domain: &Arc<ProtectionDomain>,
        raw: *mut sys::ibv_srq,
    ) -> Arc<SharedReceiveQueue> {
        keep(SharedReceiveQueue {
            raw: NonNull::new(raw).unwrap(),
            domain: Arc::clone(domain),
            ended: AtomicBool::new(false),
        })
    }

    pub(in crate::verbs) fn qp(
        domain: &Arc<ProtectionDomain>,
        cq: &Arc<CompletionQueue>,
        raw: *mut sys::ibv_qp,
    ) -> Arc<QueuePair> {
        keep(QueuePair {
            raw: NonNull::new(raw).unwrap(),
            send_cq: Arc::clone(cq),
            recv_cq: Arc::clone(cq),
            srq: None,
            domain: Arc::clone(domain),
            ended: AtomicBool::new(false),
            groups: Mutex::default(),
        })
    }

    pub(in crate::verbs) fn handle(domain: &Arc<ProtectionDomain>) -> Arc<AddressHandle> {
        keep(AddressHandle { raw: NonNull::dangling(), _domain: Arc::clone(domain) })
    }
}
