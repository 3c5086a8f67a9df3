//! Connections that are made and closed again and again: their table entries, timers and memory are freed.

use std::time::Instant;

use super::fabric::{Fabric, ms, secs};
use crate::link::{Mode, WorkerNote};

/// Number of connections, if `CONNECTION_CYCLES` does not set more (`scripts/soak connections`).
const FEW: u64 = 2000;
/// Allowed growth of memory after the first tenth, KiB: by then tables have their size, and the remaining
/// growth is the allocator's noise.
pub(super) const NOISE: u64 = 2048;

/// Private memory of this process, KiB.
pub(super) fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Closes the connections between both nodes, in one of the ways in which connections close.
fn end(f: &mut Fabric, how: u64) {
    let (now, ender) = (f.now, (how / 4 % 2) as usize);
    match how % 4 {
        0 => f.nodes[ender].link.set_mode(now, Mode::Datagram),
        // All of a node's connections fail at once.
        1 => {
            let all: Vec<_> = f.nodes[ender].qps.keys().copied().collect();
            for qpn in all {
                f.nodes[ender].link.handle_note(now, qpn, WorkerNote::Fault);
            }
        }
        // The other end closes its own as well.
        2 => (0..2).for_each(|n| f.nodes[n].link.set_mode(now, Mode::Datagram)),
        _ => {
            f.change_port(ender, |facts| facts.state = hca::PortState::Down);
            f.run(ms(100));
            f.change_port(ender, |facts| facts.state = hca::PortState::Active);
        }
    }
    f.run(secs(3));
    let now = f.now;
    (0..2).for_each(|n| f.nodes[n].link.set_mode(now, Mode::Datagram));
    f.run(secs(40));
    // The flags of the other node are those of the mode by which it was known.
    let (now, ips) = (f.now, [f.nodes[0].ip, f.nodes[1].ip]);
    (0..2).for_each(|n| f.nodes[n].link.forget_neighbour(now, ips[1 - n]));
    f.run(ms(10));
}

#[test]
fn connections_made_and_ended_again_and_again_leave_nothing() {
    let wanted = std::env::var("CONNECTION_CYCLES").map_or(FEW, |n| n.parse().unwrap());
    let mut f = Fabric::new(7);
    f.add(1, |_| {});
    f.add(1, |_| {});
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(secs(1));
    let timers = {
        end(&mut f, 0);
        f.nodes.iter().map(|n| n.link.out.timers.len()).max().unwrap_or_default()
    };
    let (mut made, mut cycle, mut base, begin) = (0, 0, 0, Instant::now());
    while made < wanted {
        let now = f.now;
        (0..2).for_each(|n| f.nodes[n].link.set_mode(now, Mode::Connected));
        for (from, to) in [(0, 1), (1, 0)] {
            f.resolve(from, to);
            f.run(ms(200));
            f.use_by(from, 0, to);
            f.run(ms(300));
        }
        let live: usize = (0..2).map(|n| f.nodes[n].live(false)).sum();
        assert_eq!(live, 2, "cycle {cycle}");
        made += live as u64;
        end(&mut f, cycle);
        for n in 0..2 {
            f.assert_clean(n);
            let link = &f.nodes[n].link;
            assert!(link.conns.map.is_empty() && link.conns.dials.is_empty(), "cycle {cycle}");
            assert!(link.conns.by_qpn.is_empty() && link.conns.retiring.is_empty(), "cycle {cycle}");
            assert!(link.out.timers.len() <= timers + 4, "cycle {cycle}: {} timers", link.out.timers.len());
            f.nodes[n].created.clear();
            f.nodes[n].destroyed.clear();
        }
        f.forget_past();
        f.cm_mads.clear();
        cycle += 1;
        if base == 0 && made >= wanted / 10 {
            base = memory();
        }
        if cycle % 25_000 == 0 {
            println!("{made} connections, {} KiB, {:.0} s", memory(), begin.elapsed().as_secs_f64());
        }
    }
    let after = memory();
    println!(
        "figure: {made} connections made and ended in {:.0} s, memory {base} KiB then {after} KiB",
        begin.elapsed().as_secs_f64()
    );
    assert!(after <= base + NOISE, "{base} KiB, then {after} KiB");
}
