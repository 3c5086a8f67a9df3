//! Chains of more segments than a send can name, sent as one piece under a key.

use pmd::hca::{
    Backend, ChainSend, Control, MemoryWork, Outcome as Result_, QpFault, QpTransition, Queues, RegisteredBy,
    WcStatus,
};
use pmd::mem::key::{FreeKey, PageList};

use super::Check;
use crate::bench::{Bench, How, Link, pattern};
use crate::lab::{Failure, Lab, Need, Outcome, hold, same, wrong};

/// Segments of a chain: no send names as many.
const SEGMENTS: usize = 50;
/// Bytes of each.
const PIECE: usize = 1000;
/// More than the tags of a key.
const ROUNDS: usize = 300;

pub(super) fn checks<L: Lab>() -> Vec<Check<L>> {
    vec![
        Check::new("more segments than a send can name arrive as one message, in their turn", as_one),
        Check::new("an error with chains under way gives all back", error),
        Check::sized("a chain that is refused says why", |s| s.srq_message = 4096, refused),
    ]
}

fn link<L: Lab>(b: &mut Bench<'_, L>) -> Outcome<(Link, FreeKey, PageList)> {
    let lacks = || Failure::Lacks(Need::LongLists, "what drives it names one piece with a key, if any");
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
    hold!(b.ends[0].queues.send_rc(link.slot, long).is_err(), "a send names {SEGMENTS} segments");
    for round in 0..ROUNDS {
        b.send_rc(0, &link, b"before")?;
        post(b, &link, (key, list), &bytes)?;
        b.send_rc(0, &link, b"behind")?;
        let came = b.messages(1, 3)?;
        let came: Vec<&[u8]> = came.iter().map(|message| message.bytes.as_slice()).collect();
        hold!(
            came == [b"before".as_slice(), &bytes, b"behind"],
            "round {round}: other bytes, or in another order"
        );
        b.until("the chain's completion", |b| !b.ends[0].done.is_empty())?;
        let done = b.ends[0].done.remove(0);
        same!((done.ticket, done.status), (5, WcStatus::Success), "round {round}");
        (key, list) = match done.what {
            Result_::ChainSent(ChainSend { key, list, buf }) if list.count() == 0 => {
                same!(buf.len(), bytes.len(), "what comes back");
                (key, list)
            }
            other => return wrong(format!("a chain came back as {other:?}")),
        };
    }
    // It is free, or this could not be.
    b.ends[0].hca.destroy_key(key)?;
    Ok(())
}

fn refused<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let (link, key, list) = link(b)?;
    // The second of the chain's three entries is the one that fails: the peer has no room for its message.
    post(b, &link, (key, list), &pattern(SEGMENTS * PIECE, 3))?;
    let key = b.ends[0].hca.create_key(SEGMENTS as u32)?;
    post(b, &link, (key, PageList::new(SEGMENTS)), &[2; 2 * PIECE])?;
    b.until("both of them back", |b| b.ends[0].done.len() >= 2)?;
    let told: Vec<_> = b.ends[0].done.iter().map(|done| done.status).collect();
    same!(told[1], WcStatus::Flushed, "the chain behind it");
    hold!(
        ![WcStatus::Flushed, WcStatus::Success].contains(&told[0]),
        "the chain that was refused: {:?}",
        told[0]
    );
    if b.has(Need::LengthStatus) {
        same!(told[0], WcStatus::RemoteInvalidRequest, "the chain that was refused");
    }
    for done in std::mem::take(&mut b.ends[0].done) {
        let Result_::ChainNotSent(key, _) = done.what else {
            return wrong(format!("a chain came back as {:?}", done.what));
        };
        let (key, memory) = b.ends[0].hca.renew_key(key)?;
        hold!(memory.is_some(), "the chain");
        b.ends[0].hca.destroy_key(key)?;
    }
    Ok(())
}

fn error<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let (link, key, list) = link(b)?;
    // The device sees all of it at once, in error.
    b.ends[0].hca.modify_qp(link.qpn[0], &QpTransition::ToError)?;
    post(b, &link, (key, list), &[1; SEGMENTS * PIECE])?;
    for _ in 0..3 {
        let key = b.ends[0].hca.create_key(SEGMENTS as u32)?;
        post(b, &link, (key, PageList::new(SEGMENTS)), &[2; 2 * PIECE])?;
    }
    b.until("all of it back", |b| b.ends[0].done.len() >= 4)?;
    b.until("the flush", |b| b.ends[0].faults_of(link.qpn[0]).contains(&QpFault::Flushed))?;
    for done in std::mem::take(&mut b.ends[0].done) {
        same!(done.status, WcStatus::Flushed, "a chain of a connection in error");
        let Result_::ChainNotSent(key, list) = done.what else {
            return wrong(format!("a chain came back as {:?}", done.what));
        };
        same!(list.count(), 0, "the list");
        let (key, memory) = b.ends[0].hca.renew_key(key)?;
        hold!(memory.is_some(), "the chain");
        // As good as new.
        b.ends[0].hca.destroy_key(key)?;
    }
    Ok(())
}
