//! The data path of `infiniband/verbs.h`: inline functions in C, calls through the context's function
//! pointers here. Errors are errno values; a missing operation returns `ENOSYS`.

use std::ffi::c_int;
use std::mem::offset_of;

use crate::{
    ibv_context, ibv_cq, ibv_mw, ibv_mw_type, ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_qp,
    ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_td, ibv_td_init_attr, ibv_wc, verbs_context,
};

/// `ENOSYS` of Linux.
const NOT_SUPPORTED: c_int = 38;

/// Polls up to `wc.len()` completions. Returns their number, or a negative value on an error.
///
/// # Safety
///
/// `cq` is a live completion queue that no other thread polls.
#[inline]
pub unsafe fn poll_cq(cq: *mut ibv_cq, wc: &mut [ibv_wc]) -> c_int {
    let room = c_int::try_from(wc.len()).unwrap_or(c_int::MAX);
    // SAFETY: a live queue has a live context; the array has room for `room` completions.
    unsafe {
        match (*(*cq).context).ops.poll_cq {
            Some(poll) => poll(cq, room, wc.as_mut_ptr()),
            None => -NOT_SUPPORTED,
        }
    }
}

/// Arms an event on the queue's channel for the next completion.
///
/// # Safety
///
/// `cq` is a live completion queue.
pub unsafe fn req_notify_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: a live queue has a live context.
    unsafe {
        match (*(*cq).context).ops.req_notify_cq {
            Some(request) => request(cq, 0),
            None => NOT_SUPPORTED,
        }
    }
}

/// Posts a list of sends. On an error `bad` is the first one that was not accepted.
///
/// # Safety
///
/// `qp` is a live queue pair that no other thread posts sends to; the list and what it points to are valid.
#[inline]
pub unsafe fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: &mut *mut ibv_send_wr) -> c_int {
    // SAFETY: a live queue pair has a live context; the rest is the caller's.
    unsafe {
        match (*(*qp).context).ops.post_send {
            Some(post) => post(qp, wr, bad),
            None => NOT_SUPPORTED,
        }
    }
}

/// Posts a list of receives. On an error `bad` is the first one that was not accepted.
///
/// # Safety
///
/// As [`post_send`], for receives.
#[inline]
pub unsafe fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: a live queue pair has a live context; the rest is the caller's.
    unsafe {
        match (*(*qp).context).ops.post_recv {
            Some(post) => post(qp, wr, bad),
            None => NOT_SUPPORTED,
        }
    }
}

/// Posts a list of receives to a shared receive queue. On an error `bad` is the first one that was not
/// accepted.
///
/// # Safety
///
/// `srq` is a live shared receive queue that no other thread posts to; the list and its targets are valid.
#[inline]
pub unsafe fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: a live shared receive queue has a live context; the rest is the caller's.
    unsafe {
        match (*(*srq).context).ops.post_srq_recv {
            Some(post) => post(srq, wr, bad),
            None => NOT_SUPPORTED,
        }
    }
}

/// Returns a context's table of extended operations, if it includes the member at `offset`.
///
/// # Safety
///
/// `context` is open.
unsafe fn extended<'a>(context: *mut ibv_context, offset: usize) -> Option<&'a verbs_context> {
    // SAFETY: the context is open. A context whose `abi_compat` is all ones is the last member of a
    // `verbs_context`, whose `sz` gives the number of valid bytes, counted from the end.
    unsafe {
        if (*context).abi_compat.addr() != usize::MAX {
            return None;
        }
        let table = context.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
        if (*table).sz < size_of::<verbs_context>() - offset {
            return None;
        }
        table.as_ref()
    }
}

/// Allocates a memory window. Returns null on an error or without support by the provider.
///
/// # Safety
///
/// `pd` is live.
pub unsafe fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: a live domain has a live context. The provider's function requires that the caller fills in the
    // first three members.
    unsafe {
        let context = (*pd).context;
        let Some(alloc) = (*context).ops.alloc_mw else { return std::ptr::null_mut() };
        let window = alloc(pd, kind);
        if let Some(window) = window.as_mut() {
            window.context = context;
            window.pd = pd;
            window.type_ = kind;
        }
        window
    }
}

/// Deallocates a memory window.
///
/// # Safety
///
/// `mw` is live, and nothing that is outstanding names it.
pub unsafe fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: a live window has a live context.
    unsafe {
        match (*(*mw).context).ops.dealloc_mw {
            Some(dealloc) => dealloc(mw),
            None => NOT_SUPPORTED,
        }
    }
}

/// Queries a port's attributes. The function that the library exports under this name only knows the first
/// version of the structure, without the link layer.
///
/// # Safety
///
/// `context` is open.
pub unsafe fn query_port(context: *mut ibv_context, port: u8, attr: &mut ibv_port_attr) -> c_int {
    *attr = ibv_port_attr::default();
    // SAFETY: the context is open.
    unsafe {
        match extended(context, offset_of!(verbs_context, query_port)).and_then(|table| table.query_port) {
            Some(query) => query(context, port, attr, size_of::<ibv_port_attr>()),
            None => crate::ibv_query_port(context, port, std::ptr::from_mut(attr).cast()),
        }
    }
}

/// Allocates a thread domain, whose objects are used by one thread at a time. Returns null without support by
/// the provider.
///
/// # Safety
///
/// `context` is open.
pub unsafe fn alloc_td(context: *mut ibv_context) -> *mut ibv_td {
    let mut attr = ibv_td_init_attr::default();
    // SAFETY: the context is open; the attributes are a local variable.
    unsafe {
        match extended(context, offset_of!(verbs_context, alloc_td)).and_then(|table| table.alloc_td) {
            Some(alloc) => alloc(context, &mut attr),
            None => std::ptr::null_mut(),
        }
    }
}

/// Deallocates a thread domain.
///
/// # Safety
///
/// `td` is live and no object in it is left.
pub unsafe fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: a live thread domain has an open context; the rest is the caller's.
    unsafe {
        match extended((*td).context, offset_of!(verbs_context, dealloc_td))
            .and_then(|table| table.dealloc_td)
        {
            Some(dealloc) => dealloc(td),
            None => NOT_SUPPORTED,
        }
    }
}

/// Allocates a protection domain for objects of both `pd` and the thread domain `td`. Returns null on an
/// error.
///
/// # Safety
///
/// All three are live and of this context.
pub unsafe fn alloc_parent_domain(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    td: *mut ibv_td,
) -> *mut ibv_pd {
    let mut attr = ibv_parent_domain_init_attr { pd, td, ..Default::default() };
    // SAFETY: the context is open; the attributes are a local variable.
    unsafe {
        match extended(context, offset_of!(verbs_context, alloc_parent_domain))
            .and_then(|table| table.alloc_parent_domain)
        {
            Some(alloc) => alloc(context, &mut attr),
            None => std::ptr::null_mut(),
        }
    }
}
