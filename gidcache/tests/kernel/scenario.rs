//! Scenarios that random sequences do not reach: storms, lost events, immediate reuse of indices and names,
//! full tables.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use gidcache::netlink::{Monitor, Turn};
use gidcache::rules::Binding;
use gidcache::{IfIndex, Manager, RoceTypes, Rules, TableError};
use ib_wire::{Gid, PortNumber};

use crate::difference::{OWN_LOST, OWN_TWICE, TWO_PREFIXES};
use crate::host::{Host, SLOTS, empty};
use crate::sequence::clean;
use crate::state::{Links, ip, ip_batch, plain_ipv6};
use crate::sysfs::Device;

const DUMMY: Device = Device { name: "rxd", port: PortNumber(1), netdev: "d0" };

pub(crate) fn run() {
    for (what, scenario) in [
        ("a storm with a small socket buffer", storm as fn()),
        ("immediate reuse of indices and names", reuse),
        ("a renamed interface", rename),
        ("a full table", full),
        ("lost and duplicate entries of the kernel", differences),
    ] {
        clean();
        plain_ipv6();
        assert!(ip("link add d0 type dummy") && ip("link set d0 up"));
        let start = Instant::now();
        scenario();
        println!("ok      {what}: {:.1} s", start.elapsed().as_secs_f64());
    }
    clean();
}

/// Thousands of unread changes, with a small socket buffer.
fn storm() {
    let mut host = Host::new(&[DUMMY]);
    host.monitor = Monitor::with_socket_buffer(Instant::now(), 4096).unwrap();
    host.looked_at = SLOTS;
    host.settle("start");
    for round in 0..3 {
        let mut commands = String::new();
        for number in 0..700 {
            let address = format!("10.{round}.{}.{}/24 dev d0", number / 250, number % 250 + 1);
            writeln!(commands, "addr add {address}").unwrap();
            if number % 3 > 0 {
                writeln!(commands, "addr del {address}\naddr add 2001:db8:{round}::{number}/64 dev d0")
                    .unwrap();
            }
            if number % 6 > 0 {
                writeln!(commands, "addr del 2001:db8:{round}::{number}/64 dev d0").unwrap();
            }
        }
        ip_batch(&commands);
        host.settle(&format!("storm {round}: ip link set d0 master nothing"));
    }
    let counters = host.monitor.counters();
    assert!(counters.overruns >= 3, "{counters:?}");
    println!("#       {counters:?}, {} entries", host.found.most);
}

/// A new interface with the same index and name, another kind and the same addresses, between two of our
/// updates.
fn reuse() {
    let mut host = Host::new(&[DUMMY]);
    host.settle("start");
    for round in 0..12 {
        let kind = ["dummy", "bridge", "veth peer name d1"][round % 3];
        let mut commands = format!("link del d0\nlink add d0 index 77 type {kind}\nlink set d0 up\n");
        if round % 4 == 1 {
            // Another interface takes the index, and the name moves to another index.
            commands += "link del d0\nlink add x0 index 77 type dummy\nlink add d0 index 78 type dummy\n";
            commands += "addr add 10.7.7.7/24 dev x0\n";
        }
        writeln!(commands, "addr add 10.0.0.1/24 dev d0\naddr add 10.0.{round}.9/24 dev d0").unwrap();
        ip_batch(&commands);
        host.settle(&format!("reuse {round}"));
        if ip("link del x0") {
            host.settle("link del");
        }
    }
    assert!(host.found.most >= 3);
}

/// Renaming the port's interface does not change its entries.
fn rename() {
    let device = Device { netdev: "d9", ..DUMMY };
    assert!(ip("addr add 10.0.0.1/24 dev d0") && ip("link set d0 down"));
    let mut host = Host::new(&[DUMMY]);
    host.settle("start");
    let index = IfIndex::new(Links::now().index("d0").unwrap()).unwrap();
    host.manager.rules().bind(DUMMY.port, Binding::Index(index), RoceTypes::V2);
    let before = host.manager.table().entries();
    assert!(before.len() > 1);
    assert!(ip("link set d0 name d9"));
    host.devices = vec![device];
    host.settle("renamed");
    assert_eq!(host.manager.table().entries(), before);
    assert!(ip("addr add 10.0.0.2/24 dev d9"));
    host.settle("addr add");
    ip("link del d9");
    host.settle("link del");
}

/// Each named difference from the kernel's table occurs, and disappears when the device is recreated.
fn differences() {
    let over_bond = Device { name: "rxo", port: PortNumber(2), netdev: "bond0" };
    let mut host = Host::new(&[DUMMY, over_bond]);
    for commands in [
        &["addr add 10.0.0.1/24 dev d0"][..],
        &["addr add 10.0.0.1/16 dev d0"],
        &["addr del 10.0.0.1/16 dev d0"],
        &["link add bond0 type bond miimon 10 mode active-backup", "addr add 10.0.9.1/24 dev bond0"],
        &["link set d0 down", "link set d0 master bond0"],
        &["link set bond0 up"],
        &["link set d0 nomaster"],
        &[
            "link set d0 down",
            "link set d0 master bond0",
            "link set d0 up",
            "link set bond0 down",
            "link set bond0 up",
        ],
        &["link set d0 down"],
    ] {
        for command in commands {
            assert!(ip(command), "{command}");
        }
        host.settle(&format!("ip {}", commands.join("; ip ")));
    }
    let names: Vec<&str> = host.found.kernel_differs.keys().copied().collect();
    println!("#       {:?}", host.found);
    for name in [OWN_LOST, OWN_TWICE, TWO_PREFIXES] {
        assert!(names.contains(&name), "{name} did not occur: {names:?}");
    }
}

/// More addresses than slots: the table is full, and the remaining addresses are reported and added when
/// there is room.
fn full() {
    const ADDRESSES: usize = 1100;
    assert!(DUMMY.add());
    let mut rules = Rules::new();
    rules.bind(DUMMY.port, Binding::Name("d0".into()), RoceTypes::V2);
    let mut manager = Manager::new(Arc::new(empty(&[DUMMY])), rules);
    let mut monitor = Monitor::new(Instant::now()).unwrap();
    let mut reported = BTreeSet::new();
    let mut turn = |manager: &mut Manager, monitor: &mut Monitor| {
        let wanted = |manager: &mut Manager| manager.rules().wanted(DUMMY.port).count();
        while monitor.turn(Instant::now(), manager.rules()).unwrap() == Turn::More || !monitor.is_settled() {}
        for (change, error) in manager.apply().failures {
            assert!(matches!(error, TableError::Full(DUMMY_PORT)), "{error}");
            reported.insert(format!("{change:?}"));
        }
        let gids: BTreeSet<Gid> = manager.table().entries().iter().map(|entry| entry.gid()).collect();
        (gids, wanted(manager), reported.len())
    };
    // Returns the kernel's entries when it has at least `least`.
    let kernel = |least: usize| -> BTreeSet<Gid> {
        loop {
            let gids: BTreeSet<Gid> =
                DUMMY.table(SLOTS).into_iter().flatten().map(|(_, (gid, _))| gid).collect();
            if gids.len() == least {
                return gids;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    let addresses = |verb: &str, numbers: std::ops::Range<usize>| {
        let line = |number| format!("addr {verb} 10.0.{}.{}/16 dev d0\n", number / 250, number % 250 + 1);
        ip_batch(&numbers.map(line).collect::<String>());
    };
    turn(&mut manager, &mut monitor);
    addresses("add", 0..ADDRESSES);
    let (gids, wanted, reported) = turn(&mut manager, &mut monitor);
    // In addition to the port's own.
    assert_eq!(
        (gids.len(), wanted, reported),
        (SLOTS.into(), ADDRESSES + 1, ADDRESSES + 1 - usize::from(SLOTS))
    );
    assert_eq!(gids, kernel(SLOTS.into()), "the first ones have the slots");
    // There is room: the kernel has forgotten the addresses for which it had no slot; our table has not.
    addresses("del", 100..200);
    let (gids, wanted, _) = turn(&mut manager, &mut monitor);
    assert_eq!((gids.len(), wanted), (ADDRESSES + 1 - 100, ADDRESSES + 1 - 100));
    assert_eq!(manager.rules().failed(), 0);
    assert!(gids.is_superset(&kernel(usize::from(SLOTS) - 100)));
    assert!(DUMMY.delete());
    while DUMMY.exists() {}
    assert!(DUMMY.add());
    assert_eq!(gids, kernel(gids.len()));
}

const DUMMY_PORT: PortNumber = DUMMY.port;
