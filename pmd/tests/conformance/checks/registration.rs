//! Memory registered from a send queue, remote operations on it, and its return.

use std::time::Duration;

use pmd::hca::{
    Backend, Control, Done, DoneBurst, Fence, KeyRights, MemoryKey, MemoryWork, Outcome as Result_, QpFault,
    QpState, QpTransition, Queues, Registration, RemoteAccess, RemoteMemory, Source, WcStatus,
};
use pmd::mem::Mbuf;
use pmd::mem::key::{FreeKey, Memory, PageList, RegisteredKey};

use super::Check;
use crate::bench::{Bench, How, Link, pattern};
use crate::lab::{Failure, Lab, Need, Outcome, hold, same, wrong};

/// Default number of rounds of the cycle check.
const CYCLES: u32 = 500;
/// Length of a piece in bytes, that of a buffer.
const PIECE: usize = 3000;
/// More than the number of tags of a key.
const _: () = assert!(CYCLES > 256);

pub(super) fn checks<L: Lab>() -> Vec<Check<L>> {
    vec![
        Check::new("a peer writes and reads registered memory", used),
        Check::new("register, use, invalidate, and again with the next tag", cycles),
        Check::new("several registrations are outstanding at once", pipeline),
        Check::new("a list longer than an entry", long),
        Check::new("a page list is not returned before the device has read it", kept),
        Check::new("an old key is rejected and ends the connection", stale),
        Check::new("access beyond either end is rejected", bounds),
        Check::new("access without the right is rejected", rights),
        Check::new("access that the connection does not permit is rejected", permitted),
        Check::new("a peer's SEND invalidates a key and reports it", remote_invalidate),
        Check::new("a peer's SEND does not invalidate a free key", remote_invalidate_nothing),
        Check::new("invalidated in use: no write happens afterwards", in_use),
        Check::new("an error returns all outstanding registrations", error),
    ]
}

const ALL: RemoteAccess = RemoteAccess { write: true, read: true, atomic: false, answered: 4, asked: 4 };

/// Creates a connection whose ends permit all operations. Another can be created next to it.
fn link<L: Lab>(b: &mut Bench<'_, L>, slot: u16) -> Outcome<Link> {
    if b.ends.iter().any(|end| end.hca.device().fast_registration.is_none()) {
        let why = "its driver does not register keys from a send queue";
        return Err(Failure::Lacks(Need::FastRegistration, why));
    }
    if slot == 0 {
        b.start()?;
    }
    b.connect(slot, How { passive: false, remote: ALL, ..How::default() })
}

fn pieces<L: Lab>(b: &Bench<'_, L>) -> usize {
    b.ends[1].hca.device().fast_registration.map_or(1, |device| device.max_pieces.min(3) as usize)
}

fn done<L: Lab>(b: &mut Bench<'_, L>, at: usize) -> Outcome<Done> {
    b.until(&format!("work done at end {at}"), |b| !b.ends[at].done.is_empty())?;
    Ok(b.ends[at].done.remove(0))
}

/// Returns the next finished work, which must have succeeded.
fn well<L: Lab>(b: &mut Bench<'_, L>, at: usize, ticket: u32) -> Outcome<Result_> {
    let done = done(b, at)?;
    same!((done.ticket, done.status), (ticket, WcStatus::Success), "work at end {at}");
    Ok(done.what)
}

fn registration(key: FreeKey, memory: Mbuf, rights: KeyRights) -> Registration {
    Registration { key, list: PageList::new(52), memory: Memory::Chain(memory), start: 0, len: None, rights }
}

/// Registers memory with these bytes at end 1.
fn register<L: Lab>(
    b: &mut Bench<'_, L>,
    link: &Link,
    bytes: &[u8],
    rights: KeyRights,
) -> Outcome<RegisteredKey> {
    let count = pieces(b);
    let key = b.ends[1].hca.create_key(count as u32)?;
    register_again(b, link, key, bytes, rights)
}

fn register_again<L: Lab>(
    b: &mut Bench<'_, L>,
    link: &Link,
    key: FreeKey,
    bytes: &[u8],
    rights: KeyRights,
) -> Outcome<RegisteredKey> {
    let memory = b.ends[1].chain(bytes, bytes.len().div_ceil(pieces(b)))?;
    let posted = b.ends[1].queues.register(link.slot, 1, registration(key, memory, rights));
    let name = posted.map_err(|returned| Failure::Wrong(format!("a registration: {}", returned.error)))?;
    match well(b, 1, 1)? {
        Result_::Registered(key, list) if list.count() == 0 => {
            same!((key.key(), key.len()), (name, bytes.len() as u64), "the registered key");
            Ok(key)
        }
        other => wrong(format!("a registration returned as {other:?}")),
    }
}

/// Invalidates a key at end 1. Returns the key and the contents of its memory.
fn invalidate<L: Lab>(b: &mut Bench<'_, L>, link: &Link, key: RegisteredKey) -> Outcome<(FreeKey, Vec<u8>)> {
    let posted = b.ends[1].queues.invalidate(link.slot, 2, key, Fence::Reads);
    posted.map_err(|returned| Failure::Wrong(format!("an invalidation: {}", returned.error)))?;
    match well(b, 1, 2)? {
        Result_::Invalidated(key, Some(memory)) => Ok((key, bytes_of(&memory))),
        other => wrong(format!("an invalidation returned as {other:?}")),
    }
}

fn bytes_of(buf: &Mbuf) -> Vec<u8> {
    let mut bytes = vec![0; buf.len()];
    buf.read(0, &mut bytes);
    bytes
}

/// Returns the memory of a key whose connection has ended, and recreates the key.
fn renew<L: Lab>(b: &mut Bench<'_, L>, at: usize, key: RegisteredKey) -> Outcome<Vec<u8>> {
    let (fresh, memory) = b.ends[at].hca.renew_key(key.abandon())?;
    b.ends[at].hca.destroy_key(fresh)?;
    memory.map_or_else(|| wrong("registered memory is missing"), |memory| Ok(bytes_of(&memory)))
}

fn write<L: Lab>(b: &mut Bench<'_, L>, link: &Link, to: (MemoryKey, u64), bytes: &[u8]) -> Outcome {
    let buf = b.ends[0].buffer(bytes)?;
    let to = RemoteMemory { address: to.1, rkey: to.0 };
    let posted = b.ends[0].queues.write(link.slot, 7, to, buf, None);
    posted.map_err(|returned| Failure::Wrong(format!("an RDMA WRITE: {}", returned.error)))
}

fn read<L: Lab>(b: &mut Bench<'_, L>, link: &Link, from: (MemoryKey, u64), len: usize) -> Outcome {
    let buf = b.ends[0].buffer(&vec![0xee; len])?;
    let from = RemoteMemory { address: from.1, rkey: from.0 };
    let posted = b.ends[0].queues.read(link.slot, 8, from, buf);
    posted.map_err(|returned| Failure::Wrong(format!("an RDMA READ: {}", returned.error)))
}

/// Checks that the next work of end 0 fails because the responder does not allow it, and that both queue
/// pairs fail.
fn refused<L: Lab>(b: &mut Bench<'_, L>, link: &Link, what: &str) -> Outcome {
    let done = done(b, 0)?;
    same!(done.status, WcStatus::RemoteAccess, "status of {what}");
    same!(b.ends[0].state(link.qpn[0])?, QpState::Err, "state of the requester after {what}");
    b.until("the responder's error", |b| b.ends[1].state(link.qpn[1]).is_ok_and(|s| s == QpState::Err))
}

fn used<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let link = link(b, 0)?;
    let all = pieces(b) * PIECE;
    let rights = KeyRights { remote_read: true, ..KeyRights::WRITE };
    let key = register(b, &link, &pattern(all, 1), rights)?;
    let mut expected = pattern(all, 1);
    let (third, half) = (all / 3, all / 2);
    for (at, len, seed) in
        [(0, 1, 2), (all - 1, 1, 3), (all / 7, half, 4), (0, third, 5), (half - 1, half, 6), (0, all, 7)]
    {
        let bytes = pattern(len, seed);
        write(b, &link, (key.key(), at as u64), &bytes)?;
        hold!(matches!(well(b, 0, 7)?, Result_::Transferred(_)), "an RDMA WRITE returned as something else");
        expected[at..at + len].copy_from_slice(&bytes);
        // Behind it on the same connection, and what is in between.
        read(b, &link, (key.key(), third as u64), half)?;
        let Result_::Transferred(buf) = well(b, 0, 8)? else {
            return wrong("an RDMA READ without its buffer");
        };
        hold!(bytes_of(&buf) == expected[third..third + half], "the data read after {at}, {len}");
    }
    // An RDMA WRITE of zero bytes needs no right (IBA 9.7.4.1.3).
    write(b, &link, (MemoryKey::new(0), 0), &[])?;
    well(b, 0, 7)?;
    let (key, bytes) = invalidate(b, &link, key)?;
    hold!(bytes == expected, "the final contents of the memory");
    Ok(b.ends[1].hca.destroy_key(key)?)
}

fn cycles<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let link = link(b, 0)?;
    let rounds = std::env::var("CONFORMANCE_CYCLES").ok().and_then(|n| n.parse().ok()).unwrap_or(CYCLES);
    let count = pieces(b) as u32;
    let mut free = b.ends[1].hca.create_key(count)?;
    let mut last = free.key();
    for round in 0..rounds {
        let key = register_again(b, &link, free, &[0; 64], KeyRights::WRITE)?;
        same!((key.key().index(), key.key() != last), (last.index(), true), "key of round {round}");
        last = key.key();
        let bytes = pattern(64, round.into());
        write(b, &link, (key.key(), 0), &bytes)?;
        well(b, 0, 7)?;
        let (key, memory) = invalidate(b, &link, key)?;
        hold!(memory == bytes, "round {round}");
        free = key;
    }
    Ok(b.ends[1].hca.destroy_key(free)?)
}

fn pipeline<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let link = link(b, 0)?;
    for _ in 0..3 {
        let mut names = Vec::new();
        for ticket in 0..8_u32 {
            let key = b.ends[1].hca.create_key(1)?;
            let memory = b.ends[1].buffer(&[ticket as u8; 100])?;
            let work = registration(key, memory, KeyRights::WRITE);
            let posted = b.ends[1].queues.register(link.slot, ticket, work);
            names.push(posted.map_err(|returned| Failure::Wrong(returned.error.to_string()))?);
        }
        let mut keys = Vec::new();
        for ticket in 0..8 {
            let Result_::Registered(key, _) = well(b, 1, ticket)? else { return wrong("no registration") };
            keys.push(key);
        }
        for ((ticket, name), key) in (0..8).zip(&names).zip(keys) {
            same!(key.key(), *name, "the key of registration {ticket}");
            write(b, &link, (key.key(), 50), &[0xcc; 50])?;
            well(b, 0, 7)?;
            let (key, bytes) = invalidate(b, &link, key)?;
            hold!(bytes == [[ticket as u8; 50], [0xcc; 50]].concat(), "the memory of registration {ticket}");
            b.ends[1].hca.destroy_key(key)?;
        }
    }
    Ok(())
}

/// Lists of pages and pieces that occur repeatedly: more than 4 GiB of addresses with little memory.
fn long<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let link = link(b, 0)?;
    let most = b.ends[1].hca.device().fast_registration.map_or(0, |device| device.max_pieces);
    if most < 124 {
        return Err(Failure::Lacks(Need::LongLists, "a memory window covers one piece"));
    }
    let memory = b.ends[1].buffer(&pattern(4096, 1))?;
    let address = memory.segments().next().map_or(0, |segment| segment.address());
    // The start of the list depends on the buffer's address. 124 pieces always fit.
    for count in [1, 4, 5, 52, 53, 54, 100, 124_usize] {
        let key = b.ends[1].hca.create_key(count as u32)?;
        let mut list = PageList::in_buffer(b.ends[1].buffer(&[])?);
        let bytes = 4096_u32;
        for _ in 0..count {
            // SAFETY: `memory` lives until the key is free again; only the peer writes there.
            let pushed = unsafe { list.push(address, bytes) };
            pushed.map_err(|full| Failure::Wrong(full.to_string()))?;
        }
        let start = 0x7_ffff_f000;
        let work = Registration {
            key,
            list,
            memory: Memory::Listed,
            start,
            len: Some(count as u64 * 4096 - 10),
            rights: KeyRights { remote_read: true, ..KeyRights::WRITE },
        };
        let posted = b.ends[1].queues.register(link.slot, 3, work);
        posted.map_err(|returned| Failure::Wrong(format!("{count}: {}", returned.error)))?;
        let Result_::Registered(key, _) = well(b, 1, 3)? else { return wrong("no registration") };
        let bytes = pattern(1000, count as u64);
        let at = start + (count as u64 - 1) * 4096 + 1000;
        write(b, &link, (key.key(), at), &bytes)?;
        well(b, 0, 7)?;
        // The same memory at its first address.
        read(b, &link, (key.key(), start + 900), 1200)?;
        let Result_::Transferred(buf) = well(b, 0, 8)? else { return wrong("no buffer") };
        hold!(bytes_of(&buf)[100..1100] == bytes, "a list of {count} pieces");
        let posted = b.ends[1].queues.invalidate(link.slot, 4, key, Fence::None);
        posted.map_err(|returned| Failure::Wrong(returned.error.to_string()))?;
        let Result_::Invalidated(key, None) = well(b, 1, 4)? else { return wrong("no invalidation") };
        b.ends[1].hca.destroy_key(key)?;
    }
    Ok(())
}

fn kept<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    const PIECES: usize = 60;
    let link = link(b, 0)?;
    let most = b.ends[1].hca.device().fast_registration.map_or(0, |device| device.max_pieces);
    if most < PIECES as u32 {
        return Err(Failure::Lacks(Need::LongLists, "a memory window covers one piece"));
    }
    let memory = b.ends[1].buffer(&pattern(4096, 1))?;
    let address = memory.segments().next().map_or(0, |segment| segment.address());
    let key = b.ends[1].hca.create_key(PIECES as u32)?;
    let mut list = PageList::in_buffer(b.ends[1].buffer(&[])?);
    for _ in 0..PIECES {
        // SAFETY: `memory` lives until the key is free again, and nobody else uses it.
        let pushed = unsafe { list.push(address, 64) };
        pushed.map_err(|full| Failure::Wrong(full.to_string()))?;
    }
    let rights = KeyRights::WRITE;
    let work = Registration { key, list, memory: Memory::Listed, start: 0, len: None, rights };
    let at_home = b.ends[1].pool.available();
    let end = &mut b.ends[1];
    let posted = end.queues.register(link.slot, 1, work);
    posted.map_err(|returned| Failure::Wrong(format!("a registration: {}", returned.error)))?;
    end.queues.ring();
    // The device has the list, and it is unknown whether it has read it.
    let Some(rc) = end.queues.remove_rc(link.slot) else { return wrong("the queue pair is missing") };
    let mut burst = DoneBurst::new();
    end.queues.take_done(&mut burst);
    let Some(Done { status, what: Result_::NotRegistered(key, mut list), .. }) = burst.pop() else {
        return wrong(format!("result of the registration: {burst:?}"));
    };
    same!((status, list.count(), list.room()), (WcStatus::Flushed, 0, 0), "result of the registration");
    // SAFETY: as above.
    let pushed = unsafe { list.push(address, 64) };
    hold!(pushed.is_err(), "a list is reused that the device may be reading");
    drop(list);
    same!(end.pool.available(), at_home, "free buffers while the device may read the list");
    end.hca.destroy_rc(rc)?;
    same!(end.pool.available(), at_home + 1, "free buffers afterwards");
    let (key, _) = end.hca.renew_key(key)?;
    Ok(end.hca.destroy_key(key)?)
}

fn stale<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let first = link(b, 0)?;
    let key = register(b, &first, &[1; 100], KeyRights::WRITE)?;
    let old = key.key();
    let (key, _) = invalidate(b, &first, key)?;
    write(b, &first, (old, 0), b"of old")?;
    refused(b, &first, "an RDMA WRITE to a free key")?;
    let second = link(b, 1)?;
    let key = register_again(b, &second, key, &[1; 100], KeyRights::WRITE)?;
    write(b, &second, (old, 0), b"of old")?;
    refused(b, &second, "an RDMA WRITE to a key with its previous tag")?;
    let bytes = renew(b, 1, key)?;
    hold!(bytes == [1; 100], "something was written under an old key");
    Ok(())
}

fn bounds<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.need(Need::KeyBounds)?;
    let cases = [(100_u64, 1_usize), (99, 2), (u64::MAX, 1), (0, 101), (1 << 40, 1)];
    for (slot, (at, len)) in cases.into_iter().enumerate() {
        let link = link(b, slot as u16)?;
        let key = register(b, &link, &[1; 100], KeyRights::WRITE)?;
        write(b, &link, (key.key(), at), &vec![9; len])?;
        refused(b, &link, &format!("an RDMA WRITE of {len} bytes to {at}"))?;
        hold!(renew(b, 1, key)? == [1; 100], "something was written");
    }
    Ok(())
}

fn rights<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    for (slot, (rights, writes)) in
        [(KeyRights::READ, true), (KeyRights::WRITE, false), (KeyRights::LOCAL, true)].into_iter().enumerate()
    {
        let link = link(b, slot as u16)?;
        let key = register(b, &link, &[1; 100], rights)?;
        if writes {
            write(b, &link, (key.key(), 0), b"written")?;
        } else {
            read(b, &link, (key.key(), 0), 10)?;
        }
        refused(b, &link, &format!("work beyond {rights:?}"))?;
        hold!(renew(b, 1, key)? == [1; 100], "something was written");
    }
    Ok(())
}

/// Operations that the rights allow but the queue pair does not.
fn permitted<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let _permitting = link(b, 0)?;
    for (slot, reads) in [(1, true), (2, false)] {
        let remote = RemoteAccess { write: false, read: false, ..ALL };
        let link = b.connect(slot, How { passive: false, remote, ..How::default() })?;
        let rights = KeyRights { remote_read: true, ..KeyRights::WRITE };
        let key = register(b, &link, &[1; 100], rights)?;
        if reads {
            read(b, &link, (key.key(), 0), 10)?;
        } else {
            write(b, &link, (key.key(), 0), b"written")?;
        }
        let status = done(b, 0)?.status;
        let refusals = [WcStatus::RemoteInvalidRequest, WcStatus::RemoteAccess];
        hold!(refusals.contains(&status), "an operation without permission: {status:?}");
        hold!(renew(b, 1, key)? == [1; 100], "something was written");
    }
    Ok(())
}

fn remote_invalidate<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.need(Need::RemoteInvalidate)?;
    let link = link(b, 0)?;
    let mut free = None;
    for round in 0..3_u8 {
        let bytes = [round; 100];
        let key = match free.take() {
            Some(key) => register_again(b, &link, key, &bytes, KeyRights::WRITE)?,
            None => register(b, &link, &bytes, KeyRights::WRITE)?,
        };
        let text = pattern(3000, round.into());
        let buf = b.ends[0].buffer(&text)?;
        let posted = b.ends[0].queues.send_invalidating(link.slot, 5, key.key(), buf);
        posted.map_err(|returned| Failure::Wrong(returned.error.to_string()))?;
        well(b, 0, 5)?;
        let got = b.messages(1, 1)?.remove(0);
        same!(got.source, Source::RcInvalidated(key.key()), "the message's source");
        hold!(got.bytes == text, "the message's contents");
        let (key, memory) = key
            .invalidated_by_peer(key_of(got.source))
            .map_err(|_| Failure::Wrong("the reported key is a different one".into()))?;
        hold!(memory.is_some_and(|memory| bytes_of(&memory) == bytes), "the memory");
        free = Some(key);
    }
    let Some(key) = free else { return Ok(()) };
    write(b, &link, (key.key(), 0), b"late")?;
    refused(b, &link, "an RDMA WRITE to a key invalidated by a peer")?;
    Ok(b.ends[1].hca.destroy_key(key)?)
}

fn key_of(source: Source) -> MemoryKey {
    match source {
        Source::RcInvalidated(key) => key,
        Source::Rc | Source::Ud(_) => MemoryKey::new(0),
    }
}

fn remote_invalidate_nothing<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.need(Need::RemoteInvalidate)?;
    let link = link(b, 0)?;
    let key = register(b, &link, &[1; 100], KeyRights::WRITE)?;
    let other = MemoryKey::new(key.key().get() ^ 0x80);
    let buf = b.ends[0].buffer(b"never")?;
    let posted = b.ends[0].queues.send_invalidating(link.slot, 5, other, buf);
    posted.map_err(|returned| Failure::Wrong(returned.error.to_string()))?;
    b.until("the responder's error", |b| b.ends[1].state(link.qpn[1]).is_ok_and(|s| s == QpState::Err))?;
    let status = done(b, 0)?.status;
    hold!(status != WcStatus::Success, "a SEND that invalidates another's tag");
    b.linger(Duration::from_millis(20));
    same!(b.ends[1].messages.len(), 0, "messages");
    hold!(renew(b, 1, key)? == [1; 100], "the memory");
    Ok(())
}

fn in_use<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    for slot in 0..4 {
        let link = link(b, slot)?;
        let len = pieces(b) * PIECE;
        let key = register(b, &link, &vec![1; len], KeyRights::WRITE)?;
        let (name, new) = (key.key(), vec![2; len]);
        for _ in 0..8 {
            let buf = b.ends[0].chain(&new, PIECE)?;
            let to = RemoteMemory { address: 0, rkey: name };
            let posted = b.ends[0].queues.write(link.slot, 7, to, buf, None);
            posted.map_err(|returned| Failure::Wrong(returned.error.to_string()))?;
        }
        for _ in 0..slot {
            b.turn();
        }
        let posted = b.ends[1].queues.invalidate(link.slot, 2, key, Fence::None);
        posted.map_err(|returned| Failure::Wrong(returned.error.to_string()))?;
        let done = done(b, 1)?;
        let (before, key) = match done.what {
            Result_::Invalidated(key, Some(memory)) => {
                let before = bytes_of(&memory);
                // Later writes must not change the memory.
                b.linger(Duration::from_millis(20));
                hold!(bytes_of(&memory) == before, "written after the invalidation");
                (before, key)
            }
            // A write was rejected before the completion was seen.
            Result_::NotInvalidated(key) => {
                let (key, memory) = b.ends[1].hca.renew_key(key)?;
                (memory.map(|memory| bytes_of(&memory)).unwrap_or_default(), key)
            }
            other => return wrong(format!("an invalidation returned as {other:?}")),
        };
        hold!(before.iter().all(|byte| [1, 2].contains(byte)), "unexpected bytes");
        b.until("all writes returned", |b| b.ends[0].done.len() >= 8)?;
        let statuses: Vec<_> = b.ends[0].done.drain(..).map(|done| done.status).collect();
        let done = statuses.iter().take_while(|status| **status == WcStatus::Success).count();
        let end = statuses.get(done).is_none_or(|status| *status == WcStatus::RemoteAccess);
        let rest = statuses.iter().skip(done + 1).all(|status| *status == WcStatus::Flushed);
        hold!(end && rest, "statuses of the writes: {statuses:?}");
        b.ends[1].hca.destroy_key(key)?;
    }
    Ok(())
}

fn error<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let link = link(b, 0)?;
    let held = register(b, &link, &[1; 100], KeyRights::WRITE)?;
    let rkey = held.key();
    // The device sees all of it at once, in the error state.
    b.ends[1].hca.modify_qp(link.qpn[1], &QpTransition::ToError)?;
    for ticket in 10..14 {
        let key = b.ends[1].hca.create_key(1)?;
        let memory = b.ends[1].buffer(&[3; 100])?;
        let posted =
            b.ends[1].queues.register(link.slot, ticket, registration(key, memory, KeyRights::WRITE));
        posted.map_err(|returned| Failure::Wrong(returned.error.to_string()))?;
    }
    let posted = b.ends[1].queues.invalidate(link.slot, 14, held, Fence::All);
    posted.map_err(|returned| Failure::Wrong(returned.error.to_string()))?;
    let buf = b.ends[1].buffer(b"never")?;
    let to = RemoteMemory { address: 0, rkey };
    let posted = b.ends[1].queues.write(link.slot, 15, to, buf, None);
    posted.map_err(|returned| Failure::Wrong(returned.error.to_string()))?;
    let mut doubtful = Vec::new();
    for ticket in 10..16 {
        let done = done(b, 1)?;
        same!((done.ticket, done.status), (ticket, WcStatus::Flushed), "work of a connection in error");
        match done.what {
            Result_::NotRegistered(key, list) if list.count() == 0 => doubtful.push(key),
            Result_::NotInvalidated(key) => doubtful.push(key),
            Result_::Transferred(_) => same!(ticket, 15, "the transfer"),
            other => return wrong(format!("{other:?} of a connection in error")),
        }
    }
    same!(doubtful.len(), 5, "keys in an unknown state");
    b.until("the flush", |b| b.ends[1].faults_of(link.qpn[1]).contains(&QpFault::Flushed))?;
    for key in doubtful {
        let (key, memory) = b.ends[1].hca.renew_key(key)?;
        hold!(memory.is_some_and(|memory| memory.len() == 100), "the memory of a key in an unknown state");
        b.ends[1].hca.destroy_key(key)?;
    }
    Ok(())
}
