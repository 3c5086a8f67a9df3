//! Tests of the queues on a simulated provider, which sets the function pointers that a real provider would.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};

use ib_wire::{Lid, QKey, Qpn};
use verbs_sys as sys;

use super::*;
use crate::hca::{Checksum, PostError, QpFault, Queues, RcSlot, RxBurst, Source, UdSlot, WcStatus};
use crate::mem::PoolConfig;
use crate::mlx5::mr::Region;
use crate::verbs::address::VerbsDestination;
use crate::verbs::object::{ProtectionDomain, played};
use crate::verbs::window::Windows;

const UD: u32 = 0x11;
const RC: u32 = 0x22;
const LKEY: u32 = 0x77;
const UD_SLOT: UdSlot = UdSlot(0);
const RECEIVE_ENTRIES: c_int = 2 * BURST as c_int;

/// Posted requests, and completions to return.
#[derive(Default)]
struct Provider {
    sends: Vec<(u64, u32, Vec<sys::ibv_sge>)>,
    receives: Vec<(u64, Vec<sys::ibv_sge>)>,
    shared: Vec<(u64, Vec<sys::ibv_sge>)>,
    send_completions: VecDeque<sys::ibv_wc>,
    receive_completions: VecDeque<sys::ibv_wc>,
    /// Number of sends accepted before posting fails.
    takes: Option<usize>,
}

unsafe fn segments(list: *mut sys::ibv_sge, count: c_int) -> Vec<sys::ibv_sge> {
    if count == 0 {
        return Vec::new();
    }
    // SAFETY: the list of a valid work request.
    unsafe { std::slice::from_raw_parts(list, count as usize) }.to_vec()
}

unsafe extern "C" fn post_send(
    qp: *mut sys::ibv_qp,
    mut wr: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> c_int {
    // SAFETY: the test's queue pairs have the provider as their context, and lists are valid.
    unsafe {
        let provider = &mut *(*qp).qp_context.cast::<Provider>();
        while let Some(request) = wr.as_ref() {
            if let Some(left) = &mut provider.takes {
                if *left == 0 {
                    *bad = wr;
                    return libc::ENOMEM;
                }
                *left -= 1;
            }
            let list = segments(request.sg_list, request.num_sge);
            provider.sends.push((request.wr_id, request.send_flags, list));
            wr = request.next;
        }
    }
    0
}

unsafe extern "C" fn post_recv(
    qp: *mut sys::ibv_qp,
    mut wr: *mut sys::ibv_recv_wr,
    _bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let provider = &mut *(*qp).qp_context.cast::<Provider>();
        while let Some(request) = wr.as_ref() {
            provider.receives.push((request.wr_id, segments(request.sg_list, request.num_sge)));
            wr = request.next;
        }
    }
    0
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut sys::ibv_srq,
    mut wr: *mut sys::ibv_recv_wr,
    _bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let provider = &mut *(*srq).srq_context.cast::<Provider>();
        while let Some(request) = wr.as_ref() {
            provider.shared.push((request.wr_id, segments(request.sg_list, request.num_sge)));
            wr = request.next;
        }
    }
    0
}

unsafe extern "C" fn poll_cq(cq: *mut sys::ibv_cq, room: c_int, wc: *mut sys::ibv_wc) -> c_int {
    // SAFETY: the test's completion queues have the provider as their context; `cqe` selects one of the two
    // types.
    unsafe {
        let provider = &mut *(*cq).cq_context.cast::<Provider>();
        let queue =
            if (*cq).cqe == 0 { &mut provider.send_completions } else { &mut provider.receive_completions };
        let count = queue.len().min(room as usize);
        for (at, completion) in queue.drain(..count).enumerate() {
            wc.add(at).write(completion);
        }
        count as c_int
    }
}

fn wc(id: u64, qpn: u32, status: sys::ibv_wc_status, len: u32) -> sys::ibv_wc {
    sys::ibv_wc { wr_id: id, qp_num: qpn, status, byte_len: len, ..Default::default() }
}

struct Rig {
    queues: VerbsQueues,
    provider: *mut Provider,
    domain: Arc<ProtectionDomain>,
    context: *mut sys::ibv_context,
    cq: Arc<CompletionQueue>,
    pool: Pool,
    bytes: u64,
}

impl Rig {
    fn new(name: &str) -> Self {
        crate::eal::for_tests();
        let pool =
            Pool::create(name, &PoolConfig { count: 256, data_room: 4096, cache: 0, socket: -1 }).unwrap();
        let provider = Box::into_raw(Box::new(Provider::default()));
        let mut context = Box::new(sys::ibv_context::default());
        context.ops.post_send = Some(post_send);
        context.ops.post_recv = Some(post_recv);
        context.ops.post_srq_recv = Some(post_srq_recv);
        context.ops.poll_cq = Some(poll_cq);
        let context = Box::into_raw(context);
        let domain = played::domain(context);
        let cq = |cqe| {
            let raw = sys::ibv_cq { context, cq_context: provider.cast(), cqe, ..Default::default() };
            played::cq(&domain, Box::into_raw(Box::new(raw)))
        };
        let (send_cq, recv_cq) = (cq(0), cq(RECEIVE_ENTRIES));
        let srq = sys::ibv_srq { context, srq_context: provider.cast(), ..Default::default() };
        let srq = played::srq(&domain, Box::into_raw(Box::new(srq)));
        let mut regions = MrTable::new();
        for zone in pool.zones() {
            regions.add(Region { start: zone.address, len: zone.length, lkey: LKEY }).unwrap();
        }
        let bytes = pool.zones().iter().map(|z| z.length).sum();
        let ud = Self::qp(&domain, &send_cq, context, provider.cast(), UD);
        // The provider cannot share receives among datagram queue pairs.
        let mut queues = VerbsQueues::new(Parts {
            id: QueuesId(0),
            send_cq: Arc::clone(&send_cq),
            recv_cq,
            datagrams: None,
            srq: Some((srq, 3)),
            srq_depth: 2,
            regions,
            memory: Vec::new(),
            windows: Windows::default(),
            pool: pool.clone(),
            max_ud: 2,
            max_rc: 8,
            max_sends: 64,
        });
        queues.insert_ud(UD_SLOT, VerbsUd::new(SendSide::new(ud, 8, 2, 4), 4)).unwrap();
        Self { queues, provider, domain, context, cq: send_cq, pool, bytes }
    }

    fn qp(
        domain: &Arc<ProtectionDomain>,
        cq: &Arc<CompletionQueue>,
        context: *mut sys::ibv_context,
        provider: *mut c_void,
        qp_num: u32,
    ) -> Arc<super::super::object::QueuePair> {
        let raw = sys::ibv_qp { context, qp_context: provider, qp_num, ..Default::default() };
        played::qp(domain, cq, Box::into_raw(Box::new(raw)))
    }

    fn provider(&mut self) -> &mut Provider {
        // SAFETY: leaked by `new`; the queues are not at work while the test looks.
        unsafe { &mut *self.provider }
    }

    fn to(&self) -> VerbsDestination {
        VerbsDestination { handle: played::handle(&self.domain), qpn: Qpn::MULTICAST, qkey: QKey(1) }
    }

    fn rc(&self, depth: u32, passive: bool) -> VerbsRc {
        self.rc_numbered(RC, depth, passive)
    }

    fn rc_numbered(&self, qpn: u32, depth: u32, passive: bool) -> VerbsRc {
        let qp = Self::qp(&self.domain, &self.cq, self.context, self.provider.cast(), qpn);
        VerbsRc::new(SendSide::new(qp, depth, 17, 4), passive, UD_SLOT)
    }

    fn received(&mut self) -> (RxBurst, ArrayVec<QpEvent, BURST>) {
        let (mut burst, mut events) = (RxBurst::new(), ArrayVec::new());
        self.queues.poll_receive(&mut burst, &mut events);
        (burst, events)
    }

    fn sent(&mut self) -> (usize, ArrayVec<QpEvent, BURST>) {
        let mut events = ArrayVec::new();
        (self.queues.poll_send(&mut events), events)
    }
}

#[test]
fn one_completion_frees_all_sends_before_it_and_no_tail_waits() {
    let mut rig = Rig::new("verbs-send");
    rig.queues.open_ud(UD_SLOT);
    let to = rig.to();
    for n in 0..8_u8 {
        rig.queues.send_ud(UD_SLOT, &to, rig.pool.copy_from_slice(&[n; 60]).unwrap()).unwrap();
    }
    let full = rig.queues.send_ud(UD_SLOT, &to, rig.pool.alloc().unwrap()).unwrap_err();
    assert_eq!(full.error, PostError::Full);
    assert!(rig.provider().sends.is_empty(), "nothing before the doorbell");
    rig.queues.ring();
    let flags: Vec<_> = rig.provider().sends.iter().map(|s| s.1 == sys::IBV_SEND_SIGNALED).collect();
    assert_eq!(flags, [false, false, false, true, false, false, false, true]);
    let last = rig.provider().sends[4].0;
    assert!(rig.provider().sends.iter().all(|s| s.2[0].length == 60 && s.2[0].lkey == LKEY));
    let out = rig.pool.in_use();
    rig.provider().send_completions.push_back(wc(last, UD, sys::IBV_WC_SUCCESS, 0));
    assert_eq!(rig.sent(), (5, ArrayVec::new()));
    assert_eq!(rig.pool.in_use(), out - 5);
    rig.provider().send_completions.push_back(wc(last, UD, sys::IBV_WC_SUCCESS, 0));
    assert_eq!(rig.sent().0, 0, "reported twice");
    assert_eq!(rig.queues.anomalies().unknown_entry, 1);
    // A single send is signaled.
    rig.queues.send_ud(UD_SLOT, &to, rig.pool.alloc().unwrap()).unwrap();
    rig.queues.ring();
    assert_eq!(rig.provider().sends.last().unwrap().1, sys::IBV_SEND_SIGNALED);
}

#[test]
fn own_receives_do_not_count_as_sends() {
    let mut rig = Rig::new("verbs-ud-sends");
    rig.queues.open_ud(UD_SLOT);
    rig.queues.refill();
    assert_eq!((rig.queues.ud_sends(UD_SLOT), rig.queues.ud_outstanding(UD_SLOT)), (0, 4));
    let to = rig.to();
    for _ in 0..2 {
        rig.queues.send_ud(UD_SLOT, &to, rig.pool.alloc().unwrap()).unwrap();
    }
    assert_eq!(rig.queues.ud_sends(UD_SLOT), 2, "before the doorbell");
    rig.queues.ring();
    assert_eq!((rig.queues.ud_sends(UD_SLOT), rig.queues.ud_outstanding(UD_SLOT)), (2, 6));
    let last = rig.provider().sends[1].0;
    rig.provider().send_completions.push_back(wc(last, UD, sys::IBV_WC_SUCCESS, 0));
    rig.sent();
    assert_eq!((rig.queues.ud_sends(UD_SLOT), rig.queues.ud_outstanding(UD_SLOT)), (0, 4));
    assert_eq!(rig.queues.ud_sends(UdSlot(1)), 0, "no queue pair");
}

#[test]
fn requests_that_the_library_rejects_are_dropped_and_reported() {
    let mut rig = Rig::new("verbs-refused");
    rig.queues.insert_rc(RcSlot(1), rig.rc(8, false)).unwrap();
    for _ in 0..3 {
        rig.queues.send_rc(RcSlot(1), rig.pool.alloc().unwrap()).unwrap();
    }
    rig.provider().takes = Some(1);
    let before = rig.pool.in_use();
    rig.queues.ring();
    assert_eq!(rig.pool.in_use(), before - 2);
    assert_eq!(rig.queues.rc_outstanding(RcSlot(1)), 1);
    let (_, events) = rig.sent();
    assert_eq!(events.as_slice(), [QpEvent { qpn: Qpn::new(RC), fault: QpFault::Send(WcStatus::General) }]);
    let refused = rig.queues.send_rc(RcSlot(1), rig.pool.alloc().unwrap()).unwrap_err();
    assert_eq!(refused.error, PostError::NoConnection);
    // The accepted one returns when the queue pair is flushed.
    let id = rig.provider().sends[0].0;
    rig.provider().send_completions.push_back(wc(id, RC, sys::IBV_WC_WR_FLUSH_ERR, 0));
    let (freed, events) = rig.sent();
    assert_eq!((freed, events[0].fault), (1, QpFault::Flushed));
    assert_eq!(rig.queues.rc_outstanding(RcSlot(1)), 0);
}

#[test]
fn peers_that_take_nothing_stop_no_datagrams() {
    let mut rig = Rig::new("verbs-stalled");
    rig.queues.open_ud(UD_SLOT);
    let to = rig.to();
    let mut held = Vec::new();
    for n in 0..5 {
        rig.queues.insert_rc(RcSlot(n), rig.rc_numbered(RC + u32::from(n), 64, false)).unwrap();
        let sends = std::iter::repeat_with(|| rig.queues.send_rc(RcSlot(n), rig.pool.alloc().unwrap()));
        held.push(sends.take_while(Result::is_ok).count());
        rig.queues.ring();
    }
    // Beyond 16, none has more of 48 than it leaves; the last eighth is reserved.
    assert_eq!(held, [25, 16, 15, 0, 0]);
    for round in 0..10 {
        for _ in 0..8 {
            rig.queues.send_ud(UD_SLOT, &to, rig.pool.alloc().unwrap()).unwrap();
        }
        rig.queues.ring();
        let id = rig.provider().sends.last().unwrap().0;
        rig.provider().send_completions.push_back(wc(id, UD, sys::IBV_WC_SUCCESS, 0));
        assert_eq!(rig.sent().0, 8, "{round}");
    }
}

#[test]
fn foreign_memory_and_long_chains_are_refused_with_the_buffer() {
    let mut rig = Rig::new("verbs-limits");
    rig.queues.open_ud(UD_SLOT);
    let to = rig.to();
    let long = rig.pool.copy_from_slice(&[0; 3 * 4096]).unwrap();
    assert_eq!(rig.queues.send_ud(UD_SLOT, &to, long).unwrap_err().error, PostError::TooManySegments);
    let other =
        Pool::create("verbs-other", &PoolConfig { count: 4, data_room: 4096, cache: 0, socket: -1 }).unwrap();
    let refused = rig.queues.send_ud(UD_SLOT, &to, other.copy_from_slice(b"x").unwrap()).unwrap_err();
    assert_eq!(refused.error, PostError::NotRegistered);
    assert!(rig.bytes > 0);
}

#[test]
fn a_datagram_begins_behind_the_place_of_its_grh() {
    let mut rig = Rig::new("verbs-datagram");
    // Nothing is posted to a queue pair in RESET (IBA 10.3.1).
    assert_eq!((rig.queues.refill(), rig.queues.receives_posted()), (2, (0, 2)));
    assert!(rig.provider().receives.is_empty());
    let to = rig.to();
    let early = rig.queues.send_ud(UD_SLOT, &to, rig.pool.alloc().unwrap()).unwrap_err();
    assert_eq!(early.error, PostError::NoConnection);
    rig.queues.open_ud(UD_SLOT);
    assert_eq!(rig.queues.refill(), 4);
    assert_eq!(rig.queues.receives_posted(), (4, 2));
    let (id, list) = rig.provider().receives[2].clone();
    assert_eq!((list.len(), list[0].length), (1, 40 + 4096));
    // SAFETY: posted memory of the pool; the test is the device.
    unsafe {
        let at = list[0].addr as *mut u8;
        at.add(24).write(0xff);
        at.add(40).copy_from_nonoverlapping(b"hello".as_ptr(), 5);
    }
    let mut completion = wc(id, UD, sys::IBV_WC_SUCCESS, 45);
    completion.wc_flags = sys::IBV_WC_GRH | sys::IBV_WC_IP_CSUM_OK;
    completion.src_qp = 0x1234;
    completion.slid = 7;
    completion.dlid_path_bits = 5;
    let twice = completion;
    let short = wc(rig.provider().receives[0].0, UD, sys::IBV_WC_SUCCESS, 39);
    let foreign = wc(99, UD, sys::IBV_WC_SUCCESS, 45);
    rig.provider().receive_completions.extend([completion, twice, short, foreign]);
    let (burst, events) = rig.received();
    assert!(events.is_empty());
    let [received] = burst.as_slice() else { panic!("{burst:?}") };
    assert_eq!((received.buf.data(), received.checksum), (&b"hello"[..], Checksum::Good));
    let Source::Ud(source) = received.source else { panic!("{received:?}") };
    assert_eq!((source.qpn, source.slid, source.dlid_path_bits), (Qpn::new(0x1234), Lid(7), 5));
    assert!(source.has_grh && source.multicast);
    let anomalies = rig.queues.anomalies();
    assert_eq!((anomalies.unknown_entry, anomalies.bad_length), (2, 1));
    assert_eq!(rig.queues.refill(), 2, "the two that were consumed");
}

#[test]
fn a_message_takes_the_segments_that_it_fills_and_the_rest_is_posted_again() {
    let mut rig = Rig::new("verbs-message");
    rig.queues.open_ud(UD_SLOT);
    rig.queues.refill();
    let (id, list) = rig.provider().shared[0].clone();
    assert_eq!(list.len(), 3);
    rig.provider().receive_completions.push_back(wc(id, RC, sys::IBV_WC_SUCCESS, 5000));
    let (burst, _) = rig.received();
    assert_eq!((burst[0].buf.len(), burst[0].buf.segment_count(), burst[0].source), (5000, 2, Source::Rc));
    assert_eq!(burst[0].checksum, Checksum::Unknown);
    rig.queues.refill();
    let again = rig.provider().shared.last().unwrap().clone();
    assert_eq!(again.0, id);
    assert_eq!(again.1[2].addr, list[2].addr, "the segment that was not filled");
    assert!(again.1[..2].iter().all(|s| s.addr != list[0].addr && s.addr != list[1].addr));
    // Twice too long, and once failed: counted and posted again.
    let long = wc(id, RC, sys::IBV_WC_SUCCESS, 3 * 4096 + 1);
    let failed = wc(rig.provider().shared[1].0, RC, sys::IBV_WC_LOC_LEN_ERR, 0);
    rig.provider().receive_completions.extend([long, long, failed]);
    let (burst, events) = rig.received();
    assert!(burst.is_empty());
    assert_eq!(events[0].fault, QpFault::Receive(WcStatus::LocalLength));
    let anomalies = rig.queues.anomalies();
    assert_eq!((anomalies.bad_length, anomalies.unknown_entry), (1, 1));
    assert_eq!(rig.queues.receives_posted().1, 0);
    rig.queues.refill();
    assert_eq!(rig.queues.receives_posted().1, 2);
}

#[test]
fn a_drain_request_completes_once_behind_the_receives() {
    let mut rig = Rig::new("verbs-drain");
    rig.queues.insert_rc(RcSlot(0), rig.rc(0, true)).unwrap();
    let data = rig.queues.send_rc(RcSlot(0), rig.pool.alloc().unwrap()).unwrap_err();
    assert_eq!(data.error, PostError::NoConnection, "a passive one sends no data");
    rig.queues.post_drain(RcSlot(0)).unwrap();
    assert_eq!(rig.queues.post_drain(RcSlot(0)), Err(PostError::Full), "one at a time");
    let (id, flags, list) = rig.provider().sends[0].clone();
    assert_eq!((flags, list.len()), (sys::IBV_SEND_SIGNALED, 0));
    let completion = wc(id, RC, sys::IBV_WC_WR_FLUSH_ERR, 0);
    rig.provider().receive_completions.extend([completion, completion]);
    let (_, events) = rig.received();
    let faults: Vec<_> = events.iter().map(|e| e.fault).collect();
    assert_eq!(faults, [QpFault::Drained, QpFault::Flushed]);
    assert_eq!(rig.queues.anomalies().unknown_entry, 1, "reported twice");
    assert!(rig.queues.remove_rc(RcSlot(0)).is_some());
    rig.provider().receive_completions.push_back(completion);
    rig.received();
    assert_eq!(rig.queues.anomalies().unknown_qp, 1);
}

#[test]
fn a_closed_queue_pair_is_given_back_while_others_keep_the_completion_queue_full() {
    let mut rig = Rig::new("verbs-close");
    rig.queues.open_ud(UD_SLOT);
    rig.queues.close_ud(UD_SLOT);
    let failed = wc(tag(Kind::Shared, 99), RC, sys::IBV_WC_LOC_LEN_ERR, 0);
    let mut taken = 0;
    while rig.queues.ud_outstanding(UD_SLOT) > 0 {
        rig.provider().receive_completions.resize(RECEIVE_ENTRIES as usize, failed);
        rig.received();
        assert!(!rig.provider().receive_completions.is_empty(), "a poll takes no more");
        taken += RECEIVE_ENTRIES as usize - rig.provider().receive_completions.len();
        assert!(taken < 3 * RECEIVE_ENTRIES as usize, "closed forever");
    }
    assert!(taken >= RECEIVE_ENTRIES as usize, "completions at that time may be unread");
    // A poll that returns less than it requests has emptied the queue.
    rig.queues.open_ud(UD_SLOT);
    rig.queues.close_ud(UD_SLOT);
    assert_eq!(rig.queues.ud_outstanding(UD_SLOT), 1);
    rig.provider().receive_completions.truncate(1);
    rig.received();
    assert_eq!(rig.queues.ud_outstanding(UD_SLOT), 0);
}
