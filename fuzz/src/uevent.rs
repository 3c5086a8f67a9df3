//! Events of the kernel's devices (kobject_uevent) for the GID service. Only their own variables decide
//! whether they are relevant.

use gidcache::netlink::is_of_rdma;

const SUBSYSTEM: &[u8] = b"SUBSYSTEM=infiniband";

/// One input: an event.
pub fn run(event: &[u8]) {
    let concerned = is_of_rdma(event);
    // The same expressed differently: at the start, or after a zero.
    let at = |at: usize| at == 0 || event[at - 1] == 0;
    let starts = (0..event.len()).filter(|start| at(*start));
    assert_eq!(concerned, starts.into_iter().any(|start| event[start..].starts_with(SUBSYSTEM)));
    // No part of an irrelevant event is relevant.
    if !concerned {
        (0..event.len().min(64)).for_each(|end| assert!(!is_of_rdma(&event[..end])));
    }
    // An additional variable has no effect.
    let more = [event, b"\0SEQNUM=7"].concat();
    assert_eq!(is_of_rdma(&more), concerned);
}
