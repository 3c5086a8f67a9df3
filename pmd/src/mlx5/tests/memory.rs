//! Memory work on a scripted device: posted entries, results, and ownership of buffers in between.

use zerocopy::FromBytes;

use super::device::{Buffer, Depths, Device, LKEY, ROOM, TestQueues};
use crate::hca::{
    ChainSend, Done, DoneBurst, Fence, KeyRights, MemoryKey, Outcome, PostError, RcSlot, Registration,
    RemoteMemory, WcStatus, WorkError,
};
use crate::mem::key::{FreeKey, Memory, PageList};
use crate::mem::packet::Packet;
use crate::mlx5::queues::Events;
use prm::{DataSegment, MkeyContext, SendOpcode, UmrControl, mkey_access, mkey_mask, umr_flags};

const DEPTHS: Depths =
    Depths { send: 64, ud_receive: 8, shared: 8, signal_every: 4, sends: 1024, buffers: 200 };
const RC: u32 = 0x41;
const SLOT: RcSlot = RcSlot(0);
const UMR: u8 = SendOpcode::Umr as u8;
const FLUSHED: u8 = 0x05;
const BIND: u8 = 0x06;
/// A key as the device creates it.
const KEY: u32 = 0x0018_0300;

fn connected() -> (Device, TestQueues) {
    let (mut device, mut queues) = Device::new(&DEPTHS);
    queues.insert(SLOT, device.rc(RC, 64, false, DEPTHS.signal_every)).unwrap();
    (device, queues)
}

pub(super) fn registration(device: &Device, bytes: usize) -> Registration<Buffer> {
    Registration {
        key: FreeKey::new(MemoryKey::new(KEY), 64),
        list: PageList::new(52),
        memory: Memory::Chain(device.buffers.chain(&vec![7; bytes]).unwrap()),
        start: 0x1_0000,
        len: None,
        rights: KeyRights::WRITE,
    }
}

fn done(queues: &mut TestQueues) -> Vec<Done<Buffer>> {
    let (mut burst, mut events) = (DoneBurst::new(), Events::new());
    queues.reap(&mut events);
    queues.finished(&mut burst);
    burst.into_iter().collect()
}

fn segment(unit: &[u8]) -> (u64, u32, u32) {
    let data = DataSegment::read_from_bytes(unit).unwrap();
    (data.address.get(), data.byte_count.get(), data.lkey.get())
}

/// Returns the UMR control, the key context and the segments after them.
fn umr(units: &[[u8; 16]]) -> (UmrControl, MkeyContext, Vec<(u64, u32, u32)>) {
    let all = units.concat();
    let control = UmrControl::read_from_bytes(&all[..48]).unwrap();
    let context = MkeyContext::read_from_bytes(&all[48..112]).unwrap();
    (control, context, all[112..].chunks(16).map(segment).collect())
}

#[test]
fn a_chain_is_registered_and_comes_back() {
    let (mut device, mut queues) = connected();
    let work = registration(&device, 3 * ROOM + 5);
    let Memory::Chain(chain) = &work.memory else { unreachable!() };
    let pieces: Vec<_> = chain.pieces().map(|(address, len)| (address, len, LKEY)).collect();
    let out = device.buffers.out();
    let key = queues.register_key(SLOT, 11, work).unwrap();
    assert_eq!(key, MemoryKey::new(KEY + 1), "the next tag, known immediately");
    queues.ring_all();
    let taken = device.take_sends(1);
    assert_eq!((taken[0].opcode, taken[0].imm, taken[0].signalled), (UMR, KEY + 1, true));
    let (control, context, list) = umr(&taken[0].units);
    assert_eq!(control.flags, umr_flags::INLINE | umr_flags::CHECK_FREE);
    assert_eq!(control.klm_octowords.get(), 4);
    let fields = mkey_mask::FREE | mkey_mask::MKEY | mkey_mask::LEN | mkey_mask::START_ADDR;
    assert_eq!(control.mkey_mask.get() & fields, fields);
    let rights = mkey_access::LOCAL_READ | mkey_access::LOCAL_WRITE | mkey_access::REMOTE_WRITE;
    assert_eq!((context.access, context.free), (rights, 0));
    assert_eq!((context.start.get(), context.len.get()), (0x1_0000, 3 * ROOM as u64 + 5));
    assert_eq!(context.qpn_mkey.get(), MkeyContext::ANY_QP | 1);
    assert_eq!(list, pieces);

    assert!(done(&mut queues).is_empty());
    device.sent(1, taken[0].index);
    let mut all = done(&mut queues);
    let Some(Done { slot: SLOT, ticket: 11, status: WcStatus::Success, what }) = all.pop() else {
        panic!("{all:?}")
    };
    let Outcome::Registered(key, list) = what else { panic!("{what:?}") };
    assert_eq!((key.start(), key.len(), list.count()), (0x1_0000, 3 * ROOM as u64 + 5, 0));
    assert_eq!(device.buffers.out(), out, "the memory belongs to the key");

    queues.invalidate_key(SLOT, 12, key, Fence::Reads).unwrap();
    queues.ring_all();
    let taken = device.take_sends(1);
    assert_eq!((taken[0].opcode, taken[0].imm, taken[0].fence), (UMR, KEY + 1, 4));
    let (control, context, list) = umr(&taken[0].units);
    assert_eq!(
        (control.mkey_mask.get() & mkey_mask::FREE, context.free),
        (mkey_mask::FREE, MkeyContext::FREE)
    );
    assert!(list.is_empty());
    device.sent(1, taken[0].index);
    let mut all = done(&mut queues);
    let Some(Done { ticket: 12, what: Outcome::Invalidated(key, Some(memory)), .. }) = all.pop() else {
        panic!("{all:?}")
    };
    assert_eq!(memory.bytes(), vec![7; 3 * ROOM + 5]);
    // A freed key has tag 0, which is never used.
    let mut key = key;
    for round in 0..300_u32 {
        let work = Registration { key, ..registration(&device, 1) };
        let name = queues.register_key(SLOT, round, work).unwrap();
        assert_eq!((name.index(), name.tag() == 0), (KEY >> 8, false));
        queues.ring_all();
        let index = device.take_sends(1)[0].index;
        device.sent(1, index);
        let Some(Done { what: Outcome::Registered(registered, _), .. }) = done(&mut queues).pop() else {
            panic!()
        };
        key = registered.invalidated_by_peer(name).unwrap().0;
    }
    drop(memory);
    assert_eq!(device.buffers.out(), 0);
}

#[test]
fn a_list_that_is_too_long_for_the_entry_lies_in_a_buffer() {
    let (mut device, mut queues) = connected();
    for (pieces, room) in [(1_u32, 4), (4, 4), (3, 4)] {
        let list = PageList::in_buffer(device.buffers.chain(&[]).unwrap());
        assert_eq!(list.room(), room, "16 bytes each");
        let memory = Memory::Chain(device.buffers.chain(&vec![9; pieces as usize * ROOM]).unwrap());
        let Memory::Chain(chain) = &memory else { unreachable!() };
        let expected: Vec<_> = chain.pieces().map(|(address, len)| (address, len, LKEY)).collect();
        let work = Registration { list, memory, ..registration(&device, 0) };
        queues.register_key(SLOT, pieces, work).unwrap();
        queues.ring_all();
        let taken = device.take_sends(1);
        let (control, _, pointer) = umr(&taken[0].units);
        assert_eq!((control.flags, control.klm_octowords.get()), (umr_flags::CHECK_FREE, 4));
        let [(address, 64, LKEY)] = pointer[..] else { panic!("{pointer:?}") };
        let read: Vec<_> = device.buffers.get(address, 64).chunks(16).map(segment).collect();
        assert_eq!(read[..pieces as usize], expected);
        assert!(read[pieces as usize..].iter().all(|piece| piece.1 == 0), "padding is nothing");
        device.sent(1, taken[0].index);
        assert_eq!(done(&mut queues).len(), 1);
    }
}

#[test]
fn what_cannot_be_is_handed_back() {
    let (device, mut queues) = connected();
    let refused = |queues: &mut TestQueues, work: Registration<Buffer>| {
        let out = device.buffers.out();
        let returned = queues.register_key(SLOT, 0, work).unwrap_err();
        assert_eq!(device.buffers.out(), out);
        (returned.error, returned.work)
    };
    let good = registration(&device, 3 * ROOM);
    let rights = KeyRights { local_write: false, ..KeyRights::WRITE };
    let (error, work) = refused(&mut queues, Registration { rights, ..good });
    assert_eq!(error, WorkError::Rights);
    let few = Registration { rights: KeyRights::READ, list: PageList::new(2), ..work };
    let (error, work) = refused(&mut queues, few);
    assert_eq!(error, WorkError::Pieces { asked: 3, room: 2 });
    let small = Registration { list: PageList::new(52), key: FreeKey::new(MemoryKey::new(KEY), 2), ..work };
    let (error, work) = refused(&mut queues, small);
    assert_eq!(error, WorkError::Pieces { asked: 3, room: 2 });
    let work = Registration { key: FreeKey::new(MemoryKey::new(KEY), 64), ..work };
    let listed = 3 * ROOM as u64;
    let (error, work) = refused(&mut queues, Registration { len: Some(listed + 1), ..work });
    assert_eq!(error, WorkError::Range { start: 0x1_0000, len: listed + 1, listed });
    let (error, work) = refused(&mut queues, Registration { start: u64::MAX, len: None, ..work });
    assert!(matches!(error, WorkError::Range { .. }));
    // Unregistered memory, passed by a caller that claims it is valid.
    let mut list = PageList::new(52);
    // SAFETY: nothing is ever read or written there.
    unsafe { list.push(0x1000, 64).unwrap() };
    let foreign = Registration { list, memory: Memory::Listed, start: 0, ..work };
    let (error, work) = refused(&mut queues, foreign);
    assert_eq!(error, WorkError::Post(PostError::NotRegistered));
    let empty = Registration { list: PageList::new(1), ..work };
    assert!(matches!(refused(&mut queues, empty).0, WorkError::Range { len: 0, .. }));
    assert_eq!(queues.outstanding(SLOT), 0);
}

#[test]
fn a_full_queue_hands_work_back() {
    let (device, mut queues) = connected();
    let mut posted = 0;
    let error = loop {
        match queues.register_key(SLOT, posted, registration(&device, 1)) {
            Ok(_) => posted += 1,
            Err(returned) => break returned.error,
        }
    };
    // 8 units and 4 of a list are 3 WQEBBs; one is reserved.
    assert_eq!((posted, error), (21, WorkError::Post(PostError::Full)));
}

#[test]
fn the_dead_connection_gives_everything_back() {
    let (mut device, mut queues) = connected();
    let key = {
        queues.register_key(SLOT, 0, registration(&device, 10)).unwrap();
        queues.ring_all();
        let index = device.take_sends(1)[0].index;
        device.sent(1, index);
        let Some(Done { what: Outcome::Registered(key, _), .. }) = done(&mut queues).pop() else { panic!() };
        key
    };
    let remote = RemoteMemory { address: 0x5000, rkey: MemoryKey::new(0x77) };
    let buffer = |n: u8| device.buffers.chain(&[n; 10]).unwrap();
    let (a, b) = (buffer(1), buffer(2));
    queues.transfer(SLOT, 1, (SendOpcode::RdmaWrite, 0), Some(remote), a).unwrap();
    queues.register_key(SLOT, 2, registration(&device, 10)).unwrap();
    queues.invalidate_key(SLOT, 3, key, Fence::All).unwrap();
    queues.transfer(SLOT, 4, (SendOpcode::RdmaRead, 0), Some(remote), b).unwrap();
    queues.ring_all();
    let taken = device.take_sends(1);
    assert_eq!(
        taken.iter().map(|entry| entry.fence).collect::<Vec<_>>(),
        [1, 0, 3, 1],
        "what follows a key's change waits for it"
    );
    device.sent(1, taken[0].index);
    device.send_failed(1, taken[1].index, BIND);
    device.send_failed(1, taken[2].index, FLUSHED);
    device.send_failed(1, taken[3].index, FLUSHED);
    let all = done(&mut queues);
    let results: Vec<_> = all.iter().map(|done| (done.ticket, done.status)).collect();
    let bind = WcStatus::MemoryWindowBind;
    assert_eq!(results, [(1, WcStatus::Success), (2, bind), (3, WcStatus::Flushed), (4, WcStatus::Flushed)]);
    for (at, done) in all.into_iter().enumerate() {
        match (at, done.what) {
            (0 | 3, Outcome::Transferred(buf)) => assert_eq!(buf.bytes().len(), 10),
            (1, Outcome::NotRegistered(key, list)) => {
                assert_eq!((key.key().get(), list.count()), (KEY + 1, 0))
            }
            (2, Outcome::NotInvalidated(key)) => assert_eq!(key.pieces(), 64),
            (at, what) => panic!("{at}: {what:?}"),
        }
    }
    assert_eq!(device.buffers.out(), 2, "the memory of keys in an unknown state is not reused");
    let late = queues.transfer(
        SLOT,
        5,
        (SendOpcode::RdmaWrite, 0),
        Some(remote),
        device.buffers.chain(b"x").unwrap(),
    );
    assert_eq!(late.unwrap_err().error, WorkError::Post(PostError::NoConnection));
}

#[test]
fn keys_of_a_connection_that_is_taken_out_are_not_lost_with_it() {
    let (device, mut queues) = connected();
    queues.register_key(SLOT, 1, registration(&device, 10)).unwrap();
    let remote = RemoteMemory { address: 0, rkey: MemoryKey::new(1) };
    let buf = device.buffers.chain(b"in flight").unwrap();
    queues.transfer(SLOT, 2, (SendOpcode::RdmaWriteImm, 9), Some(remote), buf).unwrap();
    let rc = queues.remove(SLOT).unwrap();
    let all = done(&mut queues);
    assert!(matches!(
        &all[..],
        [Done { ticket: 1, status: WcStatus::Flushed, what: Outcome::NotRegistered(..), .. }]
    ));
    assert_eq!(device.buffers.out(), 2);
    drop(rc);
    assert_eq!(device.buffers.out(), 1, "the buffer is freed with its queue pair");
}

#[test]
fn messages_and_work_share_a_queue() {
    let (mut device, mut queues) = connected();
    queues.post_rc(SLOT, device.buffers.chain(b"first").unwrap()).unwrap();
    queues.register_key(SLOT, 1, registration(&device, 10)).unwrap();
    queues.post_rc(SLOT, device.buffers.chain(b"second").unwrap()).unwrap();
    queues.ring_all();
    let taken = device.take_sends(1);
    assert_eq!(taken[2].fence, 1, "an entry that uses the key waits for it");
    // One completion also covers the message before it.
    device.sent(1, taken[1].index);
    let all = done(&mut queues);
    assert_eq!((all.len(), queues.outstanding(SLOT)), (1, 1));
    let Some(Done { what: Outcome::Registered(key, _), .. }) = all.into_iter().next() else { panic!() };
    let other = MemoryKey::new(key.key().get() + 1);
    let key = key.invalidated_by_peer(other).unwrap_err();
    let name = key.key();
    let (free, memory) = key.invalidated_by_peer(name).unwrap();
    assert_eq!((free.key(), memory.map(|chain| chain.bytes())), (name, Some(vec![7; 10])));
}

fn chain_send(device: &Device, segments: usize) -> ChainSend<Buffer> {
    ChainSend {
        key: FreeKey::new(MemoryKey::new(KEY), 64),
        list: PageList::new(52),
        buf: device.buffers.chain(&vec![5; segments * ROOM]).unwrap(),
    }
}

#[test]
fn a_chain_goes_as_one_piece_and_its_key_is_free_behind_it() {
    let (mut device, mut queues) = connected();
    let work = chain_send(&device, 40);
    let pieces: Vec<_> = work.buf.pieces().map(|(address, len)| (address, len, LKEY)).collect();
    queues.post_chain(SLOT, 3, work).unwrap();
    queues.ring_all();
    let taken = device.take_sends(1);
    assert_eq!(taken.iter().map(|entry| entry.signalled).collect::<Vec<_>>(), [false, false, true]);
    // The send waits for the key; the invalidation waits for all.
    assert_eq!(taken.iter().map(|entry| entry.fence).collect::<Vec<_>>(), [0, 1, 3]);
    let (_, context, list) = umr(&taken[0].units);
    assert_eq!((context.access, context.len.get()), (mkey_access::LOCAL_READ, 40 * ROOM as u64));
    assert_eq!(list, pieces);
    assert_eq!(taken[1].opcode, SendOpcode::Send as u8);
    assert_eq!(segment(&taken[1].units[0]), (0, 40 * ROOM as u32, KEY + 1));
    let (_, context, _) = umr(&taken[2].units);
    assert_eq!((taken[2].imm, context.free), (KEY + 1, MkeyContext::FREE));
    assert_eq!(queues.outstanding(SLOT), 3);
    device.sent(1, taken[2].index);
    let mut all = done(&mut queues);
    let Some(Done { ticket: 3, what: Outcome::ChainSent(sent), .. }) = all.pop() else { panic!("{all:?}") };
    assert_eq!((sent.key.key().get(), sent.list.count(), sent.buf.segments()), (KEY + 1, 0, 40));
    drop(sent);
    assert_eq!((queues.outstanding(SLOT), device.buffers.out()), (0, 0));
}

#[test]
fn a_chain_says_why_it_failed_whichever_of_its_entries_did() {
    const RETRY: u8 = 0x15;
    let statuses = [(BIND, WcStatus::MemoryWindowBind), (RETRY, WcStatus::RetryExceeded)];
    for (failing, (syndrome, status)) in [0, 1, 2].into_iter().flat_map(|n| statuses.map(|s| (n, s))) {
        let (mut device, mut queues) = connected();
        for ticket in 0..3 {
            queues.post_chain(SLOT, ticket, chain_send(&device, 2)).unwrap();
        }
        queues.ring_all();
        let taken = device.take_sends(1);
        // The first chain succeeds, an entry of the second fails, and the rest is flushed.
        let fails = 3 + failing;
        device.sent(1, taken[2].index);
        device.send_failed(1, taken[fails].index, syndrome);
        taken[fails + 1..].iter().for_each(|entry| device.send_failed(1, entry.index, FLUSHED));
        let results: Vec<_> = done(&mut queues).iter().map(|done| (done.ticket, done.status)).collect();
        assert_eq!(results, [(0, WcStatus::Success), (1, status), (2, WcStatus::Flushed)], "entry {failing}");
    }
}

#[test]
fn what_fails_before_a_chain_is_not_its_failure() {
    let (mut device, mut queues) = connected();
    queues.post_rc(SLOT, device.buffers.chain(b"before").unwrap()).unwrap();
    queues.post_chain(SLOT, 1, chain_send(&device, 2)).unwrap();
    queues.ring_all();
    let taken = device.take_sends(1);
    device.send_failed(1, taken[0].index, BIND);
    taken[1..].iter().for_each(|entry| device.send_failed(1, entry.index, FLUSHED));
    let results: Vec<_> = done(&mut queues).iter().map(|done| done.status).collect();
    assert_eq!(results, [WcStatus::Flushed]);
}

#[test]
fn a_list_stays_with_its_queue_pair_while_the_device_may_read_it() {
    let (device, mut queues) = connected();
    let list = PageList::in_buffer(device.buffers.chain(&[]).unwrap());
    queues.register_key(SLOT, 1, Registration { list, ..registration(&device, 10) }).unwrap();
    let list = PageList::in_buffer(device.buffers.chain(&[]).unwrap());
    queues.post_chain(SLOT, 2, ChainSend { list, ..chain_send(&device, 2) }).unwrap();
    let rc = queues.remove(SLOT).unwrap();
    let lists: Vec<_> = done(&mut queues)
        .into_iter()
        .map(|done| match done.what {
            Outcome::NotRegistered(_, list) | Outcome::ChainNotSent(_, list) => list,
            what => panic!("{what:?}"),
        })
        .collect();
    assert_eq!(lists.iter().map(PageList::room).collect::<Vec<_>>(), [0, 0]);
    drop(lists);
    // One piece of memory and two of a chain, whose keys are in an unknown state, and the lists.
    assert_eq!(device.buffers.out(), 3 + 2);
    drop(rc);
    assert_eq!(device.buffers.out(), 3);
}

#[test]
fn a_chain_that_cannot_go_is_handed_back() {
    let (device, mut queues) = connected();
    let refused = |queues: &mut TestQueues, work| queues.post_chain(SLOT, 0, work).unwrap_err().error;
    let work = ChainSend { list: PageList::new(4), ..chain_send(&device, 5) };
    assert_eq!(refused(&mut queues, work), WorkError::Pieces { asked: 5, room: 4 });
    let work = ChainSend { key: FreeKey::new(MemoryKey::new(KEY), 4), ..chain_send(&device, 5) };
    assert_eq!(refused(&mut queues, work), WorkError::Pieces { asked: 5, room: 4 });
    let work = ChainSend { buf: device.buffers.chain(&[]).unwrap(), ..chain_send(&device, 1) };
    assert!(matches!(refused(&mut queues, work), WorkError::Range { len: 0, .. }));
    // 28, 2 and 8 units are 10 WQEBBs in total; one of 64 is reserved.
    let mut posted = 0;
    while queues.post_chain(SLOT, posted, chain_send(&device, 18)).is_ok() {
        posted += 1;
    }
    assert_eq!((posted, queues.outstanding(SLOT)), (6, 18));
    let error = refused(&mut queues, chain_send(&device, 18));
    assert_eq!(error, WorkError::Post(PostError::Full), "nothing was posted");
    assert_eq!(queues.outstanding(SLOT), 18);
    // On removal it returns keys and lists, and the chains with the keys.
    let rc = queues.remove(SLOT).unwrap();
    let all = done(&mut queues);
    assert_eq!(all.len(), 6);
    for done in all {
        let Outcome::ChainNotSent(key, list) = done.what else { panic!("{:?}", done.what) };
        assert_eq!((done.status, list.count(), key.pieces()), (WcStatus::Flushed, 0, 64));
    }
    assert_eq!(device.buffers.out(), 6 * 18, "the memory is not reused until the keys are recreated");
    drop(rc);
}
