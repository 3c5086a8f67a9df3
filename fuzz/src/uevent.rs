//! Events of the kernel's devices (kobject_uevent), as the GID service takes them: whatever they say, they concern it or not, and only by a
//! variable of their own.

use gidcache::netlink::is_of_rdma;

const SUBSYSTEM: &[u8] = b"SUBSYSTEM=infiniband";

/// One input: an event.
pub fn run(event: &[u8]) {
    let concerned = is_of_rdma(event);
    // Said another way: at the beginning, or behind a zero.
    let at = |at: usize| at == 0 || event[at - 1] == 0;
    let starts = (0..event.len()).filter(|start| at(*start));
    assert_eq!(concerned, starts.into_iter().any(|start| event[start..].starts_with(SUBSYSTEM)));
    // Nor does any part of one that concerns nobody concern somebody.
    if !concerned {
        (0..event.len().min(64)).for_each(|end| assert!(!is_of_rdma(&event[..end])));
    }
    // Another variable changes nothing of what there is.
    let more = [event, b"\0SEQNUM=7"].concat();
    assert_eq!(is_of_rdma(&more), concerned);
}
