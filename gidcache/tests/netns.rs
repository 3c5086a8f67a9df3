//! Tests in a network namespace with real interfaces changed by `ip`. After each step the table must match
//! `ip -j addr`.
//!
//! They need root, `ip` and `unshare`. Kinds of interfaces that the kernel lacks are skipped. Skipped tests
//! print a message.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gidcache::netlink::{Monitor, Turn};
use gidcache::rules::Binding;
use gidcache::{DeviceTable, Manager, NoProvider, PortKind, PortSetup, RoceTypes, Rules, VlanId};
use ib_wire::PortNumber;

#[path = "host/mod.rs"]
mod state;

use state::{Links, Random, Row, ip, ip_batch, plain_ipv6};

const INSIDE: &str = "GIDCACHE_TEST_INSIDE";
/// Set if the kernel must support all kinds of interfaces (the test VM).
const ALL_KINDS: &str = "GIDCACHE_ALL_KINDS";
/// Number of sequences, if not 20.
const SEQUENCES: &str = "GIDCACHE_SEQUENCES";
const STEPS: usize = 20;
const PORTS: [(PortNumber, &str); 3] = [(PortNumber(1), "a0"), (PortNumber(2), "b0"), (PortNumber(3), "d0")];

#[test]
fn tables_follow_real_interfaces() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let possible = Command::new("unshare").args(["--net", "ip", "link", "show", "lo"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: a network namespace cannot be created (needs root, unshare and ip)");
        return;
    }
    let output = Command::new("unshare")
        .arg("--net")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "tables_follow_real_interfaces", "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("steps compared"), "the test ran inside");
}

struct Host {
    monitor: Monitor,
    manager: Manager,
}

impl Host {
    fn new(monitor: Monitor) -> Self {
        let mut rules = Rules::new();
        for (port, name) in PORTS {
            rules.bind(port, Binding::Name(name.into()), RoceTypes::Both);
        }
        let setups =
            PORTS.map(|(number, _)| PortSetup { number, len: 512, kind: PortKind::Roce(RoceTypes::Both) });
        let table = DeviceTable::new(&setups, NoProvider, 1).unwrap();
        Self { monitor, manager: Manager::new(Arc::new(table), rules) }
    }

    fn turn(&mut self) {
        while self.monitor.turn(Instant::now(), self.manager.rules()).unwrap() == Turn::More {}
        let applied = self.manager.apply();
        assert!(applied.failures.is_empty(), "{:?}", applied.failures);
    }

    fn rows(&self) -> BTreeSet<Row> {
        let mut rows: BTreeMap<Row, u8> = BTreeMap::new();
        for entry in self.manager.table().entries() {
            let key = entry.attributes.key;
            let vlan = entry.attributes.vlan.map(VlanId::get);
            *rows
                .entry((entry.port.0, key.gid, key.ifindex.unwrap().get(), vlan, entry.default))
                .or_default() += 1;
        }
        assert!(rows.values().all(|types| *types == 2), "once for each type");
        rows.into_keys().collect()
    }

    /// The kernel reports some changes with a delay (IPv6 addresses, carriers).
    fn settle(&mut self, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            self.turn();
            let (wanted, rows) = (Links::now().reference(&PORTS), self.rows());
            if self.monitor.is_settled() && rows == wanted {
                return;
            }
            assert!(Instant::now() < deadline, "after `{what}`:\nhas   {rows:?}\nwants {wanted:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn inside() {
    plain_ipv6();
    let mut missing = Vec::new();
    let mut have = BTreeSet::new();
    for (kind, make) in [
        ("vlan", "link add link pair name probe type vlan id 9"),
        ("macvlan", "link add link pair name probe type macvlan"),
        ("bridge", "link add probe type bridge"),
        ("bond", "link add probe type bond mode active-backup miimon 10"),
        ("dummy", "link add probe type dummy"),
    ] {
        assert!(ip("link add pair type veth peer name pair1"), "veth is required");
        if ip(make) {
            have.insert(kind);
        } else {
            missing.push(kind);
        }
        ip("link del probe");
        ip("link del pair");
    }
    assert!(missing.is_empty() || std::env::var_os(ALL_KINDS).is_none(), "this kernel lacks {missing:?}");
    eprintln!("skipped for lack in this kernel: {missing:?}");
    let count = std::env::var(SEQUENCES).map_or(20, |count| count.parse().unwrap());
    storm();
    let (mut done, mut most) = (0, 0);
    for seed in 1..=count {
        let (done_here, most_here) = sequence(seed, &have);
        done += done_here;
        most = most.max(most_here);
    }
    assert!(done > count as usize * 3, "{done} commands succeeded");
    assert!(most >= 6, "there was something to compare: {most} entries at most");
    println!("{count} sequences, {done} steps compared, at most {most} addresses");
}

/// Thousands of unread changes, with a small socket buffer: lost events are recovered by a list.
fn storm() {
    assert!(ip("link add a0 type veth peer name a1"));
    let mut host = Host::new(Monitor::with_socket_buffer(Instant::now(), 4096).unwrap());
    host.settle("before the storm");
    for round in 0..3 {
        let mut commands = String::new();
        for number in 0..600 {
            writeln!(commands, "addr add 10.{round}.{}.{}/16 dev a0", number / 200, number % 200 + 1)
                .unwrap();
        }
        for number in (0..600).filter(|number| number % 10 > 0) {
            writeln!(commands, "addr del 10.{round}.{}.{}/16 dev a0", number / 200, number % 200 + 1)
                .unwrap();
        }
        assert!(ip_batch(&commands));
        host.settle("a storm");
        assert_eq!(host.rows().len(), 60 * (round + 1) + 1);
    }
    let counters = host.monitor.counters();
    assert!(counters.overruns >= 3, "{counters:?}");
    println!("after three storms: {counters:?}");
    ip("link del a0");
}

/// Returns the number of commands that succeeded and were compared, and the maximum number of addresses.
fn sequence(seed: u64, have: &BTreeSet<&str>) -> (usize, usize) {
    let mut host = Host::new(Monitor::new(Instant::now()).unwrap());
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut below = |limit: usize| random.below(limit);
    let mut names = vec!["a0", "b0"];
    for (kind, of_kind) in [
        ("vlan", "a0.7"),
        ("vlan", "b0.8"),
        ("macvlan", "m0"),
        ("bridge", "br0"),
        ("bond", "bond0"),
        ("bond", "bond0.9"),
        ("dummy", "d0"),
    ] {
        names.extend(have.contains(kind).then_some(of_kind));
    }
    for command in ["link add a0 type veth peer name a1", "link add b0 type veth peer name b1"] {
        assert!(ip(command));
    }
    let mut done = 0;
    let mut most = 0;
    for number in 0..STEPS {
        let port = ["a", "b"][below(2)];
        let part = if have.contains("dummy") { ["a0", "b0", "d0"][below(3)] } else { ["a0", "b0"][below(2)] };
        let name = names[below(names.len())];
        let step = match below(20) {
            0 => format!("link add {port}0 index {} type veth peer name {port}1", 100 + below(3)),
            1 if have.contains("dummy") && below(3) == 0 => {
                format!("link add d0 index {} type dummy", 100 + below(3))
            }
            1 if below(2) == 0 => format!("link del {name}"),
            2 if have.contains("vlan") => "link add link a0 name a0.7 type vlan id 7".to_owned(),
            3 if have.contains("vlan") => "link add link b0 name b0.8 type vlan id 8".to_owned(),
            4 if have.contains("macvlan") => format!("link add link {port}0 name m0 type macvlan"),
            5 if have.contains("bridge") => "link add br0 type bridge".to_owned(),
            6 if have.contains("bond") => "link add bond0 type bond mode active-backup miimon 10".to_owned(),
            7 if have.contains("bond") && have.contains("vlan") => {
                "link add link bond0 name bond0.9 type vlan id 9".to_owned()
            }
            8 => format!("link set {part} down"),
            9 if have.contains("bond") => format!("link set {part} master bond0"),
            9 | 10 => format!("link set {part} master br0"),
            11 => format!("link set {part} nomaster"),
            12 => format!("link set {name} address 02:00:00:00:00:{:02x}", below(16)),
            13 => format!("link set {name} up"),
            14 => format!("link set {port}1 {}", ["up", "up", "down"][below(3)]),
            15 => format!("addr del 10.0.0.{}/24 dev {name}", below(4)),
            16 => format!("addr del 2001:db8::{}/64 dev {name}", below(4)),
            17 => format!("addr add 2001:db8::{}/64 dev {name}", below(4)),
            _ => format!("addr add 10.0.0.{}/24 dev {name}", below(4)),
        };
        // A command that the kernel rejects changes nothing.
        if ip(&step) {
            done += 1;
            host.settle(&format!("seed {seed} step {number}: ip {step}"));
        }
        most = most.max(host.rows().len());
        if below(12) == 0 {
            // Simulate lost events.
            ip(&format!("addr add 10.9.9.{}/32 dev {port}0", below(200)));
            host.monitor.rescan(Instant::now());
            host.settle("a new list");
        }
    }
    for name in names.into_iter().rev() {
        ip(&format!("link del {name}"));
    }
    host.settle("the end");
    assert!(host.rows().is_empty());
    assert_eq!(host.monitor.counters().malformed, 0);
    (done, most)
}
