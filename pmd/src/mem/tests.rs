use super::packet::{Packet as _, PacketPool as _, STASH, Stash, stow};
use super::*;
use ::hca::Checksum;
use arrayvec::ArrayVec;

fn pool(name: &str, count: u32) -> Pool {
    crate::eal::for_tests();
    Pool::create(name, &PoolConfig { count, data_room: 4096, cache: 0, socket: -1 }).unwrap()
}

#[test]
fn buffers_come_from_the_pool_and_go_home() {
    let pool = pool("home", 32);
    assert_eq!((pool.available(), pool.in_use()), (32, 0));
    let all: Vec<Mbuf> = std::iter::from_fn(|| pool.alloc()).collect();
    assert_eq!((all.len(), pool.in_use()), (32, 32));
    assert!(pool.alloc().is_none());
    drop(all);
    assert_eq!(pool.in_use(), 0);
    let mut some = ArrayVec::<Mbuf, 8>::new();
    assert!(pool.alloc_bulk(8, &mut some));
    assert_eq!(pool.in_use(), 8);
}

#[test]
fn what_is_stowed_is_taken_out_of_each_place_once_and_no_more_than_there_is_room_for() {
    let full = |count: usize| (0..count).map(|n| Some(Box::new(n))).collect::<Vec<_>>();
    let values = |stash: &Stash<Box<usize>>| stash.iter().map(|value| **value).collect::<Vec<_>>();
    let mut stash = Stash::new();
    let mut places = full(5);
    places[1] = None;
    stow::<1, _, _>(&mut stash, &mut places, Option::take);
    stow::<1, _, _>(&mut stash, &mut places, Option::take);
    assert_eq!((values(&stash), places), (vec![0, 2, 3, 4], vec![const { None }; 5]));
    // Every second slot, the last of which has no neighbor.
    let mut places = full(5);
    stow::<2, _, _>(&mut stash, &mut places, Option::take);
    assert_eq!((values(&stash), places.iter().flatten().count()), (vec![0, 2, 3, 4, 0, 2, 4], 2));
    let mut places = full(STASH);
    stow::<1, _, _>(&mut stash, &mut places, Option::take);
    assert_eq!((stash.len(), places.iter().flatten().count()), (STASH, 7));
    stow::<2, _, _>(&mut stash, &mut places, Option::take);
    assert_eq!((stash.len(), places.iter().flatten().count()), (STASH, 7), "full");
    stow::<1, Option<Box<usize>>, _>(&mut stash, &mut [], Option::take);
    assert_eq!(stash.len(), STASH);
}

/// A pool that lies completely in one region, to the last byte, needs one key lookup.
#[test]
fn a_pool_lies_within_what_begins_before_it_and_ends_behind_it() {
    let pool = pool("within", 512);
    let zones = pool.zones();
    let (first, last) = (zones.first().unwrap(), zones.last().unwrap());
    let (start, end) = (first.address, last.address + last.length);
    let within = |start: u64, end: u64| pool.lies_within(start, end - start);
    assert!(within(start, end));
    assert!(within(start - 1, end) && within(start, end + 1) && within(start - 4096, end + 4096));
    assert!(!within(start + 1, end) && !within(start, end - 1));
    // Other ranges: before it, after it, inside it, empty, and one that wraps around the address space.
    assert!(!within(start - 4096, start) && !within(end, end + 4096));
    assert!(!within(start + 64, end - 64));
    assert!(!pool.lies_within(start, 0) && !pool.lies_within(0, 0));
    assert!(!pool.lies_within(end, u64::MAX) && !pool.lies_within(start + 1, u64::MAX));
    assert!(pool.lies_within(0, u64::MAX));
}

#[test]
fn whatever_lies_one_behind_the_other_goes_to_its_own_pool() {
    let pools = [pool("bulk-a", 64), pool("bulk-b", 64)];
    let mut batch = ArrayVec::<Mbuf, 16>::new();
    // Runs of one pool, alone and between chains. Chains are also at the start and the end of the batch.
    for (of, len) in
        [(0, 9000), (0, 1), (0, 2), (1, 3), (1, 9000), (1, 9000), (1, 4), (0, 5), (0, 4096), (1, 5000)]
    {
        batch.push(pools[of].copy_from_slice(&vec![7; len]).unwrap());
    }
    assert_eq!((pools[0].in_use(), pools[1].in_use()), (7, 10));
    Mbuf::free_bulk(&mut batch);
    assert_eq!((batch.len(), pools[0].in_use(), pools[1].in_use()), (0, 0, 0));
    // Returned buffers are like new.
    for pool in &pools {
        let all: Vec<Mbuf> = std::iter::from_fn(|| pool.alloc()).collect();
        assert!(all.len() == 64 && all.iter().all(|m| m.segment_count() == 1 && m.is_empty()));
        let mut addresses: Vec<u64> = all.iter().map(|m| m.buffer().0).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 64, "each once");
    }
    Mbuf::free_bulk(&mut batch);
}

#[test]
#[cfg(debug_assertions)]
fn a_buffer_whose_data_lie_elsewhere_is_not_taken_for_one_of_its_pool() {
    let pool = pool("attached", 4);
    let mut batch = ArrayVec::<Mbuf, 1>::new();
    batch.push(pool.alloc().unwrap());
    let head = batch[0].head();
    mbuf::raw::set_ol_flags(head, dpdk_sys::SHIM_ATTACHED);
    let freed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Mbuf::free_bulk(&mut batch)));
    assert!(freed.is_err() && pool.in_use() == 1);
    mbuf::raw::set_ol_flags(head, 0);
    // SAFETY: owned here: the batch has released it, and it did not return to the pool. It is direct again.
    drop(unsafe { Mbuf::from_raw(std::ptr::NonNull::new(head).unwrap()) });
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn data_moves_in_front_and_behind_within_the_buffer() {
    let pool = pool("edges", 4);
    let mut m = pool.copy_from_slice(b"payload").unwrap();
    assert_eq!((m.headroom(), m.len()), (HEADROOM, 7));
    m.prepend(4).unwrap().copy_from_slice(b"head");
    assert_eq!(m.data(), b"headpayload");
    assert!(m.trim_front(4) && m.data() == b"payload");
    assert_eq!(m.before_data(4).unwrap(), b"head");
    assert!(!m.trim_front(8), "more than there is");
    assert!(m.prepend(HEADROOM + 1).is_none(), "more than the headroom");
    assert!(m.append(m.tailroom() + 1).is_none());
    assert!(m.truncate(3) && m.data() == b"pay" && !m.truncate(4));
    assert!(m.set_data(88, 4136) && !m.set_data(89, 4136), "the buffer ends at 4224");
}

#[test]
fn a_received_packet_has_no_wish_of_the_buffers_last_owner() {
    let mut pool = pool("wishes", 1);
    let mut received = |fill: fn(&mut Mbuf)| {
        pool.copy_from_slice(&[0; 64]).unwrap().wish_tag(100);
        let mut stash = Stash::new();
        assert!(pool.take(1, &mut stash));
        let mut m = stash.pop().unwrap();
        fill(&mut m);
        (m.wished_tag(), m.frame_facts() == FrameFacts::default(), m.len())
    };
    assert_eq!(received(|m| m.fill(60)), (None, true, 60));
    assert_eq!(received(|m| assert!(m.set_data(HEADROOM, 60))), (None, true, 60));
    assert_eq!(received(|m| assert!(m.lay(10, &[1; 50]))), (None, true, 60));
}

#[test]
fn a_header_is_put_in_another_ones_place() {
    let pool = pool("reframe", 64);
    let reframed = |bytes: &[u8], off: usize, length: usize| {
        let mut m = pool.copy_from_slice(bytes).unwrap();
        *m.reframe(off, length)? = *b"head";
        let mut all = vec![0; m.len()];
        assert_eq!(m.read(0, &mut all), 4 + length);
        Some((all, m.segment_count()))
    };
    let framed = |rest: &[u8], segments| Some(([b"head", rest].concat(), segments));
    assert_eq!(reframed(b"fourteen bytespayload,padding", 14, 7), framed(b"payload", 1));
    assert_eq!(reframed(b"payload", 0, 7), framed(b"payload", 1));
    assert_eq!(reframed(b"payload", 7, 0), framed(b"", 1));
    assert_eq!(
        (reframed(b"payload", 8, 0), reframed(b"payload", 3, 5)),
        (None, None),
        "the packet is shorter"
    );
    let long: Vec<u8> = (0..9000u32).map(|i| (i * 7 % 251) as u8).collect();
    assert_eq!(reframed(&long, 18, 8900), framed(&long[18..8918], 3));
    assert_eq!(reframed(&long, 18, 100), framed(&long[18..118], 1));
    assert_eq!((reframed(&long, 5000, 100), reframed(&long, 18, 8983)), (None, None));
    // A single segment behaves the same if the header is not longer than the removed part.
    let single = |bytes: &[u8], off: usize, length: usize| {
        let one = pool.copy_from_slice(bytes).unwrap().single().ok()?;
        assert_eq!(one.data(), bytes);
        let m: Mbuf = one.reframe(off, length as u16, *b"head")?.into();
        assert_eq!((m.len(), m.data().len()), (4 + length, 4 + length));
        Some((m.data().to_vec(), m.segment_count()))
    };
    for (off, length) in [(14, 7), (4, 0), (4, 25), (18, 1), (29, 0)] {
        let bytes = b"fourteen bytespayload,padding";
        assert_eq!(single(bytes, off, length), reframed(bytes, off, length), "{off} {length}");
    }
    assert_eq!(
        (single(b"payload", 8, 0), single(b"payload", 4, 4), single(b"payload", 3, 1)),
        (None, None, None)
    );
    assert_eq!(single(&long, 18, 100), None, "it has several segments");
    let mut m = pool.copy_from_slice(b"payload").unwrap();
    assert!(m.reframe::<{ HEADROOM + 1 }>(0, 7).is_none(), "no room in front");
    drop(m);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_message_of_65524_bytes_is_a_chain_of_17_and_reads_as_one() {
    let pool = pool("chain", 64);
    let bytes: Vec<u8> = (0..65_524u32).map(|i| (i * 7 % 251) as u8).collect();
    let mut m = pool.copy_from_slice(&bytes).unwrap();
    assert_eq!((m.len(), m.segment_count(), pool.in_use()), (65_524, 16, 16));
    let mut back = vec![0; 70_000];
    assert_eq!(m.read(0, &mut back), 65_524);
    assert_eq!(back[..65_524], bytes[..]);
    assert_eq!(m.read(4090, &mut back[..20]), 20);
    assert_eq!(back[..20], bytes[4090..4110]);
    assert_eq!(m.segments().map(|s| s.bytes.len()).sum::<usize>(), 65_524);
    m.prepend(14).unwrap();
    assert!(m.trim_front(14));
    assert!(m.truncate(5000));
    assert_eq!((m.len(), m.segment_count(), pool.in_use()), (5000, 2, 2));
    m.append_chain(pool.copy_from_slice(b"tail").unwrap());
    assert_eq!((m.len(), m.segment_count()), (5004, 3));
    drop(m);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn zones_cover_every_buffer() {
    let pool = pool("zones", 256);
    let zones = pool.zones();
    let all: Vec<Mbuf> = std::iter::from_fn(|| pool.alloc()).collect();
    for m in &all {
        let (address, length) = m.buffer();
        assert!(
            zones.iter().any(|z| address >= z.address && address + length as u64 <= z.address + z.length),
            "{address:#x} is in no zone"
        );
    }
    assert!(zones.windows(2).all(|w| w[0].address + w[0].length < w[1].address));
}

#[test]
fn sizes_out_of_range_are_errors() {
    crate::eal::for_tests();
    let make = |count, data_room| {
        Pool::create("sizes", &PoolConfig { count, data_room, cache: 0, socket: -1 }).map(drop)
    };
    assert!(matches!(make(0, 2048), Err(PoolError::Size { .. })));
    assert!(matches!(make(8, 65_535), Err(PoolError::Size { .. })));
    let error = make(1 << 24, 4096).unwrap_err().to_string();
    assert!(error.contains("hugepages"), "{error}");
    assert!(matches!(
        Pool::create(
            "a name that is much too long to be one",
            &PoolConfig { count: 8, data_room: 64, cache: 0, socket: -1 }
        ),
        Err(PoolError::Name(_))
    ));
}

#[test]
fn a_chain_is_written_by_its_slices_and_each_byte_once() {
    let pool = pool("slices", 8);
    let mut m = pool.copy_from_slice(&[0; 9000]).unwrap();
    let lengths: Vec<usize> = m.io_slices_mut().map(|s| s.len()).collect();
    assert_eq!(lengths, [4096, 4096, 808]);
    // All slices at once, as for a system call.
    let mut slices: Vec<_> = m.io_slices_mut().collect();
    for (byte, n) in slices.iter_mut().flat_map(|s| s.iter_mut()).zip(0u32..) {
        *byte += (n % 251) as u8;
    }
    let mut back = vec![0; 9000];
    assert_eq!(m.read(0, &mut back), 9000);
    assert!(back.iter().zip(0u32..).all(|(&byte, at)| byte == (at % 251) as u8));
}

#[test]
fn a_port_s_flags_are_facts() {
    let pool = pool("facts", 8);
    let mut m = pool.copy_from_slice(&[1; 64]).unwrap();
    assert_eq!(m.frame_facts(), FrameFacts::default());
    let mut of = |flags: u64, kind, tci| {
        m.set_flags(flags, kind, tci);
        (m.frame_facts().tag, m.frame_facts().checksum)
    };
    // An IPv4 packet, and two encapsulated ones, numbered as in rte_mbuf_ptype.h.
    let (plain, vxlan, in_ip) = (0x10 | 0x1, 0x10 | 0x0030_3000, 0x10 | 0x0020_1000);
    // Bit numbers from rte_mbuf_core.h.
    let [vlan, bad, stripped, good, qinq_stripped, qinq] = [0, 4, 6, 7, 15, 20].map(|bit: u32| 1u64 << bit);
    for tunnel in [vxlan, in_ip] {
        for flags in [good, bad, good | bad] {
            assert_eq!(of(flags, tunnel, 0).1, Checksum::Unknown, "it may be the inner header's");
        }
    }
    let mut facts = |flags, tci| of(flags, plain, tci);
    assert_eq!(facts(vlan, 5), (FrameTag::InFrame, Checksum::Unknown), "the tag is still in the frame");
    assert_eq!(facts(vlan | stripped | good, 0x6005), (FrameTag::Taken(0x6005), Checksum::Good));
    assert_eq!(
        facts(bad, 0),
        (FrameTag::InFrame, Checksum::Unknown),
        "compute it: some drivers do not report tunnels"
    );
    let outer_bad = 1 << 5;
    assert_eq!(facts(good | outer_bad, 0).1, Checksum::Unknown, "the good checksum is the inner one");
    assert_eq!(facts(good | bad, 0), (FrameTag::InFrame, Checksum::Missing));
    for flags in [qinq | vlan, qinq | vlan | stripped | qinq_stripped] {
        assert_eq!(facts(flags, 5).0, FrameTag::Stacked);
    }
    assert_eq!(m.wished_tag(), None);
    m.wish_tag(100);
    assert_eq!((m.wished_tag(), m.len()), (Some(100), 64));
    // A reused buffer has no metadata.
    drop(m);
    let all: Vec<Mbuf> = std::iter::from_fn(|| pool.alloc()).collect();
    assert!(all.iter().all(|m| m.wished_tag().is_none() && m.frame_facts() == FrameFacts::default()));
}
