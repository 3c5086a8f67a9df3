//! Chains with more segments than a send supports, sent as one segment under a key.

use pmd::hca::{
    Backend, ChainSend, Control, MemoryWork, Outcome as Result_, QpFault, QpTransition, Queues, RegisteredBy,
    WcStatus,
};
use pmd::mem::key::{FreeKey, PageList};

use super::Check;
use crate::bench::{Bench, How, Link, pattern};
use crate::lab::{Failure, Lab, Need, Outcome, hold, same, wrong};

/// Segments of a chain, more than any send supports.
const SEGMENTS: usize = 50;
/// Length of a segment in bytes.
const PIECE: usize = 1000;
/// More than the number of tags of a key.
const ROUNDS: usize = 300;

pub(super) fn checks<L: Lab>() -> Vec<Check<L>> {
    vec![
        Check::new("more segments than a send supports arrive as one message, in order", as_one),
        Check::new("an error returns all outstanding chains", error),
        Check::sized("a rejected chain reports the reason", |s| s.srq_message = 4096, refused),
    ]
}

fn link<L: Lab>(b: &mut Bench<'_, L>) -> Outcome<(Link, FreeKey, PageList)> {
    let lacks = || Failure::Lacks(Need::LongLists, "its driver supports one piece per key, or no keys");
    let fast = b.ends[0].hca.device().fast_registration.filter(|fast| fast.by == RegisteredBy::Umr);
    fast.ok_or_else(lacks)?;
    b.start()?;
    let link = b.connect(0, How { depth: 256, ..How::default() })?;
    let key = b.ends[0].hca.create_key(SEGMENTS as u32)?;
    Ok((link, key, PageList::new(SEGMENTS)))
}

fn post<L: Lab>(
    b: &mut Bench<'_, L>,
    link: &Link,
    (key, list): (FreeKey, PageList),
    bytes: &[u8],
) -> Outcome {
    let work = ChainSend { key, list, buf: b.ends[0].chain(bytes, PIECE)? };
    let posted = b.ends[0].queues.send_chain(link.slot, 5, work);
    posted.map_err(|returned| Failure::Wrong(format!("a chain: {}", returned.error)))
}

fn as_one<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let (link, mut key, mut list) = link(b)?;
    let bytes = pattern(SEGMENTS * PIECE, 7);
    let long = b.ends[0].chain(&bytes, PIECE)?;
    hold!(b.ends[0].queues.send_rc(link.slot, long).is_err(), "a send supports {SEGMENTS} segments");
    for round in 0..ROUNDS {
        b.send_rc(0, &link, b"before")?;
        post(b, &link, (key, list), &bytes)?;
        b.send_rc(0, &link, b"behind")?;
        let came = b.messages(1, 3)?;
        let came: Vec<&[u8]> = came.iter().map(|message| message.bytes.as_slice()).collect();
        hold!(came == [b"before".as_slice(), &bytes, b"behind"], "round {round}: wrong bytes or wrong order");
        b.until("the chain's completion", |b| !b.ends[0].done.is_empty())?;
        let done = b.ends[0].done.remove(0);
        same!((done.ticket, done.status), (5, WcStatus::Success), "round {round}");
        (key, list) = match done.what {
            Result_::ChainSent(ChainSend { key, list, buf }) if list.count() == 0 => {
                same!(buf.len(), bytes.len(), "the returned buffer");
                (key, list)
            }
            other => return wrong(format!("a chain returned as {other:?}")),
        };
    }
    // Destroying the key succeeds only if it is free.
    b.ends[0].hca.destroy_key(key)?;
    Ok(())
}

fn refused<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let (link, key, list) = link(b)?;
    // The second of the chain's three entries fails: the peer has no room for its message.
    post(b, &link, (key, list), &pattern(SEGMENTS * PIECE, 3))?;
    let key = b.ends[0].hca.create_key(SEGMENTS as u32)?;
    post(b, &link, (key, PageList::new(SEGMENTS)), &[2; 2 * PIECE])?;
    b.until("both chains returned", |b| b.ends[0].done.len() >= 2)?;
    let statuses: Vec<_> = b.ends[0].done.iter().map(|done| done.status).collect();
    same!(statuses[1], WcStatus::Flushed, "the next chain");
    hold!(
        ![WcStatus::Flushed, WcStatus::Success].contains(&statuses[0]),
        "the rejected chain: {:?}",
        statuses[0]
    );
    if b.has(Need::LengthStatus) {
        same!(statuses[0], WcStatus::RemoteInvalidRequest, "the rejected chain");
    }
    for done in std::mem::take(&mut b.ends[0].done) {
        let Result_::ChainNotSent(key, _) = done.what else {
            return wrong(format!("a chain returned as {:?}", done.what));
        };
        let (key, memory) = b.ends[0].hca.renew_key(key)?;
        hold!(memory.is_some(), "the chain");
        b.ends[0].hca.destroy_key(key)?;
    }
    Ok(())
}

fn error<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let (link, key, list) = link(b)?;
    // The device sees all of it at once, in the error state.
    b.ends[0].hca.modify_qp(link.qpn[0], &QpTransition::ToError)?;
    post(b, &link, (key, list), &[1; SEGMENTS * PIECE])?;
    for _ in 0..3 {
        let key = b.ends[0].hca.create_key(SEGMENTS as u32)?;
        post(b, &link, (key, PageList::new(SEGMENTS)), &[2; 2 * PIECE])?;
    }
    b.until("everything returned", |b| b.ends[0].done.len() >= 4)?;
    b.until("the flush", |b| b.ends[0].faults_of(link.qpn[0]).contains(&QpFault::Flushed))?;
    for done in std::mem::take(&mut b.ends[0].done) {
        same!(done.status, WcStatus::Flushed, "a chain of a connection in error");
        let Result_::ChainNotSent(key, list) = done.what else {
            return wrong(format!("a chain returned as {:?}", done.what));
        };
        same!(list.count(), 0, "the list");
        let (key, memory) = b.ends[0].hca.renew_key(key)?;
        hold!(memory.is_some(), "the chain");
        // The key can be destroyed.
        b.ends[0].hca.destroy_key(key)?;
    }
    Ok(())
}
