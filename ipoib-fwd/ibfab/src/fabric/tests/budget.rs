//! Limits of the work for the requests of one iteration.

use ib_wire::sa::{PathMask, PathRecord};

use super::*;

#[test]
fn requests_that_have_much_examined_are_spread_over_turns() {
    const REQUESTS: u64 = 8;
    let mut bench = Bench::new(1, Faults::default());
    bench.run(|b| b.all_active());
    bench.fabric.examined_per_iteration = 1;
    let port = bench.adapters[0].port(PORT).unwrap();
    let peer = MadAddress::gsi(port.sm_lid, ServiceLevel::new(0));
    // Names neither end: all pairs are examined.
    let wanted = PathRecord { pkey: PKey(0x8123), ..PathRecord::default() };
    for tid in 1..=REQUESTS {
        let bytes = SaMad::request(Method::GetTable, Tid(tid), PathMask::PKEY.bits(), &wanted).to_bytes();
        bench.adapters[0].send_mad(PORT, &Mad { peer, bytes }).unwrap();
    }
    let requests = |b: &Bench| b.fabric.manager().unwrap().counters().sa_requests;
    let before = requests(&bench);
    for _ in 0..10 {
        bench.adapters[0].engine().lock().step(Instant::now());
    }
    let mut turns = Vec::new();
    bench.run(|b| {
        turns.push(requests(b));
        requests(b) == before + REQUESTS
    });
    assert!(turns.windows(2).all(|pair| pair[1] <= pair[0] + 1), "{turns:?}");
}

#[test]
fn subnet_management_goes_on_when_requests_have_had_their_work() {
    const COUNT: u64 = 8;
    let mut bench = Bench::new(1, Faults::default());
    let (near, mut outside) = CableEnd::pair().unwrap();
    bench.fabric.plug(Place { switch: 0, port: 3 }, "p3", near).unwrap();
    bench.run(|b| {
        outside.poll(Instant::now());
        let active = b.adapters[0].port(PORT).unwrap().state == PortState::Active;
        active && outside.is_up()
    });
    bench.fabric.examined_per_iteration = 1;
    let port = bench.adapters[0].port(PORT).unwrap();
    let peer = MadAddress::gsi(port.sm_lid, ServiceLevel::new(0));
    let wanted = PathRecord { pkey: PKey(0x8123), ..PathRecord::default() };
    for tid in 1..=COUNT {
        let bytes = SaMad::request(Method::GetTable, Tid(tid), PathMask::PKEY.bits(), &wanted).to_bytes();
        bench.adapters[0].send_mad(PORT, &Mad { peer, bytes }).unwrap();
    }
    for _ in 0..10 {
        bench.adapters[0].engine().lock().step(Instant::now());
    }
    let trap = Smp::lid_routed(Method::Trap, Tid(1), attribute::NOTICE, 0);
    for _ in 0..COUNT {
        send_smp(&mut outside, &trap, port.sm_lid);
    }
    let counted = |b: &Bench| {
        let counters = b.fabric.manager().unwrap().counters();
        (counters.sa_requests, counters.traps)
    };
    let before = counted(&bench);
    bench.fabric.step(Instant::now());
    assert_eq!(counted(&bench), (before.0 + 1, before.1 + COUNT));
}
