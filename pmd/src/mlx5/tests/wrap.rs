//! Boundary cases of rings and of counters.

use super::device::{Buffers, EACH};
use super::{Arena, unwrapped};
use crate::mlx5::bus::Recorder;
use crate::mlx5::mr::{MrTable, Region};
use crate::mlx5::rq::ReceiveQueue;
use crate::mlx5::sq::{Full, Posted, Request, SendQueue};
use crate::mlx5::srq::SharedReceiveQueue;
use prm::{ControlSegment, DataSegment, SendOpcode};

const SEND: Request = Request { opcode: SendOpcode::Send, flags: 0, imm: 0 };

fn post(sq: &mut SendQueue, pieces: u64) -> Result<Posted, Full> {
    sq.post_send(SEND, pieces as usize, (0..pieces).map(|i| Ok(DataSegment::new(i, i as u32 + 1, 7))))
}

#[test]
fn a_long_entry_goes_around_the_end_at_every_place() {
    for start in 0..16 {
        let mut arena = Arena::new(16 * 64 + 4096);
        let rings = arena.qp(0x123, 16, 0, 16);
        let mut sq = SendQueue::new(&rings);
        for _ in 0..start {
            post(&mut sq, 0).unwrap();
        }
        sq.retire(sq.posted());
        let posted = post(&mut sq, 17).unwrap();
        assert_eq!(posted, Posted { index: start, wqebbs: 5 });
        let entry = unwrapped(&rings.sq_buf, 1024, usize::from(start) * 64, 18 * 16);
        let control: ControlSegment = zerocopy::FromBytes::read_from_bytes(&entry[..16]).unwrap();
        assert_eq!((control.ds(), control.index()), (18, start));
        for i in 0..17_u64 {
            let at = 16 + i as usize * 16;
            let data: DataSegment = zerocopy::FromBytes::read_from_bytes(&entry[at..at + 16]).unwrap();
            assert_eq!((data.address.get(), data.byte_count.get()), (i, i as u32 + 1), "start {start}");
        }
    }
}

#[test]
fn a_full_send_queue_takes_nothing_and_keeps_its_place() {
    let mut arena = Arena::new(8192);
    let rings = arena.qp(0x123, 8, 0, 16);
    let mut sq = SendQueue::new(&rings);
    for _ in 0..3 {
        // Three entries of two WQEBBs, then two of one: exactly full.
        post(&mut sq, 5).unwrap();
    }
    assert_eq!(post(&mut sq, 8), Err(Full), "three WQEBBs do not fit in two");
    assert_eq!(sq.posted(), 6);
    post(&mut sq, 1).unwrap();
    post(&mut sq, 1).unwrap();
    assert_eq!(post(&mut sq, 0), Err(Full));
    assert_eq!(sq.used(), 8);
    sq.retire(2);
    assert_eq!(post(&mut sq, 5).unwrap().index, 8);
    assert_eq!(post(&mut sq, 0), Err(Full));
}

#[test]
fn an_index_is_in_use_across_65536() {
    let mut arena = Arena::new(8192);
    let rings = arena.qp(0x123, 8, 0, 16);
    let mut sq = SendQueue::new(&rings);
    let mut bus = Recorder::default();
    for _ in 0..65_534 {
        post(&mut sq, 0).unwrap();
        sq.retire(sq.posted());
    }
    for _ in 0..4 {
        post(&mut sq, 0).unwrap();
    }
    sq.ring(&mut bus);
    assert_eq!(rings.dbrec.load(1), 2);
    let in_use: Vec<u16> =
        [65_533, 65_534, 65_535, 0, 1, 2].into_iter().filter(|i| sq.is_in_use(*i)).collect();
    assert_eq!(in_use, [65_534, 65_535, 0, 1]);
    sq.retire(3);
    assert_eq!(sq.used(), 4, "only posted WQEBBs are freed");
}

#[test]
fn a_failing_piece_posts_nothing() {
    #[derive(Debug, PartialEq)]
    enum Why {
        Full,
        Piece,
    }
    impl From<Full> for Why {
        fn from(_: Full) -> Self {
            Self::Full
        }
    }
    let mut arena = Arena::new(8192);
    let mut sq = SendQueue::new(&arena.qp(0x123, 8, 0, 16));
    let pieces = [Ok(DataSegment::new(1, 1, 1)), Err(Why::Piece)];
    assert_eq!(sq.post_send(SEND, 2, pieces), Err(Why::Piece));
    assert_eq!((sq.posted(), sq.is_dirty()), (0, false));
    let mut bus = Recorder::default();
    sq.ring(&mut bus);
    assert!(bus.rung.is_empty());
    assert_eq!(sq.post_send(SEND, 64, [Err(Why::Piece)]), Err(Why::Full), "DS has six bits");
}

#[test]
fn a_receive_queue_fills_to_its_last_slot() {
    let mut arena = Arena::new(8192);
    let mut rq = ReceiveQueue::new(&arena.qp(0x123, 8, 4, 16));
    for lap in 0..3 {
        for slot in 0..4 {
            assert_eq!(rq.post([DataSegment::new(1, 1, 1)]), Some(slot), "lap {lap}");
        }
        assert_eq!(rq.post([]), None);
        for slot in 0..4 {
            assert_eq!(rq.take(), Some(slot));
        }
        assert_eq!(rq.take(), None);
    }
}

#[test]
fn a_shared_queue_never_gives_a_slot_twice() {
    let mut arena = Arena::new(8192);
    let mut queue = SharedReceiveQueue::new(&arena.srq(8, 8, 32), 7);
    let mut posted = vec![];
    let mut state: u32 = 12_345;
    for _ in 0..10_000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if state >> 31 == 0 {
            match queue.post(&[], ()) {
                Some(slot) => {
                    assert!(!posted.contains(&slot));
                    posted.push(slot);
                }
                None => assert_eq!(posted.len(), 7, "one slot is reserved"),
            }
        } else if !posted.is_empty() {
            let slot = posted.swap_remove((state >> 8) as usize % posted.len());
            assert_eq!(queue.take(slot as u16), Some(()));
        }
        assert_eq!(queue.outstanding() as usize, posted.len());
    }
    assert_eq!(queue.take(8), None, "no such slot");
}

#[test]
fn keys_are_found_by_the_whole_range() {
    let mut table = MrTable::new();
    table.add(Region { start: 0x1000, len: 0x1000, lkey: 1 }).unwrap();
    table.add(Region { start: 0x2000, len: 0x800, lkey: 2 }).unwrap();
    assert_eq!(table.lkey(0x1fff, 1), Some(1));
    assert_eq!(table.lkey(0x1fff, 2), None, "two regions are not one");
    assert_eq!(table.lkey(0x2000, 0x800), Some(2));
    assert_eq!(table.lkey(0x2000, 0x801), None);
    assert_eq!(table.lkey(0xfff, 1), None);
    assert_eq!(table.lkey(u64::MAX, u32::MAX), None);
}

/// One key for a whole pool is used only if one region contains the whole pool.
#[test]
fn a_pool_has_one_key_if_one_region_holds_it() {
    let pool = Buffers::new(4);
    let (start, len) = (pool.base(), (4 * EACH) as u64);
    let key = |regions: &[(u64, u64)]| {
        let mut table = MrTable::new();
        for (lkey, (start, len)) in (1..).zip(regions) {
            table.add(Region { start: *start, len: *len, lkey }).unwrap();
        }
        table.of_pool(&pool)
    };
    assert_eq!(key(&[]), None);
    assert_eq!(key(&[(0x1000, 0x1000), (start, len)]), Some(2));
    assert_eq!(key(&[(start - 64, len + 128)]), Some(1));
    assert_eq!(key(&[(start, len - 1)]), None);
    assert_eq!(key(&[(start + 1, len)]), None);
    assert_eq!(key(&[(start, len / 2), (start + len / 2, len / 2)]), None, "two regions are not one");
}
