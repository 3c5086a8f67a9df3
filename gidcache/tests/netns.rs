//! In a network namespace with real interfaces driven by `ip`: after each step the table is what `ip -j addr` says it should be.
//!
//! Needs root, `ip` and `unshare`; kinds of interfaces that the kernel does not have are left out. Says so, where it skips.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gidcache::netlink::{Monitor, Turn};
use gidcache::rules::Binding;
use gidcache::{
    DeviceTable, Manager, NoProvider, PortKind, PortSetup, RoceTypes, Rules, VlanId, gid_of_address,
    link_local_gid,
};
use ib_wire::{Gid, PortNumber};
use serde_json::Value;

const INSIDE: &str = "GIDCACHE_TEST_INSIDE";
const PORTS: [(PortNumber, &str); 2] = [(PortNumber(1), "a0"), (PortNumber(2), "b0")];

/// Port, GID, interface, VLAN, default; the two types must agree.
type Row = (u8, Gid, u32, Option<u16>, bool);

#[test]
fn tables_follow_real_interfaces() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let possible = Command::new("unshare").args(["--net", "ip", "link", "show", "lo"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        println!("skipped: a network namespace cannot be made (root, unshare and ip are needed)");
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

fn ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split_whitespace()).output().unwrap().status.success()
}

fn state() -> Vec<Value> {
    let output = Command::new("ip").args(["-j", "-d", "addr"]).output().unwrap();
    let Value::Array(links) = serde_json::from_slice(&output.stdout).unwrap() else { panic!("not a list") };
    // `ip` leaves empty objects behind where it has nothing to say.
    links.into_iter().filter(|link| link["ifindex"].is_u64()).collect()
}

/// The table that this state calls for.
fn reference() -> BTreeSet<Row> {
    let links = state();
    let by_name: BTreeMap<&str, &Value> =
        links.iter().map(|link| (link["ifname"].as_str().unwrap(), link)).collect();
    let kind = |link: &Value| link["linkinfo"]["info_kind"].as_str().unwrap_or("").to_owned();
    let mac = |link: &Value| -> Option<[u8; 6]> {
        let bytes: Option<Vec<u8>> =
            link["address"].as_str()?.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        bytes?.try_into().ok().filter(|_| link["link_type"] == "ether")
    };
    let mut rows = BTreeSet::new();
    for (port, name) in PORTS {
        let Some(base) = by_name.get(name) else { continue };
        // Everything from which the way down leads to the port's interface.
        let mut ways: BTreeMap<&str, Option<u16>> = BTreeMap::from([(name, None)]);
        loop {
            let before = ways.len();
            for (&upper, link) in &by_name {
                if ways.contains_key(upper) {
                    continue;
                }
                let on_it = ["vlan", "macvlan"].contains(&kind(link).as_str());
                let lower = link["link"].as_str().filter(|_| on_it);
                let id = link["linkinfo"]["info_data"]["id"].as_u64().map(|id| id as u16);
                let bond = &link["linkinfo"]["info_data"];
                let through = |part: &&str| {
                    by_name[*part]["master"] == upper
                        && (kind(link) != "bond"
                            || bond["mode"] != "active-backup"
                            || bond["active_slave"] == **part)
                };
                let below = lower.filter(|lower| ways.contains_key(lower));
                let below = below.or_else(|| ways.keys().copied().find(|part| through(part)));
                if let Some(below) = below {
                    let vlan = if kind(link) == "vlan" { id } else { ways[below] };
                    ways.insert(upper, vlan);
                }
            }
            if ways.len() == before {
                break;
            }
        }
        let bond =
            base["master"].as_str().map(|master| by_name[master]).filter(|master| kind(master) == "bond");
        let own = match bond {
            Some(bond) => ways.contains_key(bond["ifname"].as_str().unwrap()).then_some(bond),
            None => Some(*base),
        };
        let own = own.map(|own| (own["ifindex"].as_u64().unwrap() as u32, link_local_gid(mac(own).unwrap())));
        rows.extend(own.map(|(index, gid)| (port.0, gid, index, None, true)));
        for (upper, vlan) in &ways {
            let link = by_name[upper];
            let index = link["ifindex"].as_u64().unwrap() as u32;
            for address in link["addr_info"].as_array().unwrap() {
                let flag = |name: &str| address[name] == true;
                let Some(local) = address["local"].as_str() else { continue };
                let unusable = flag("dadfailed") || flag("tentative") && !flag("optimistic");
                let gid = gid_of_address(local.parse().unwrap());
                if !unusable && own != Some((index, gid)) {
                    rows.insert((port.0, gid, index, *vlan, false));
                }
            }
        }
    }
    rows
}

struct Host {
    monitor: Monitor,
    manager: Manager,
}

impl Host {
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

    /// The kernel tells of some things a moment later (addresses of IPv6, carriers).
    fn settle(&mut self, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let before = reference();
            self.turn();
            let rows = self.rows();
            if self.monitor.is_settled() && rows == before && reference() == before {
                return;
            }
            assert!(Instant::now() < deadline, "after `{what}`:\nhas   {rows:?}\nwants {before:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn inside() {
    for conf in ["all", "default"] {
        // Addresses are ours at once.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{conf}/accept_dad"), "0");
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{conf}/addr_gen_mode"), "0");
    }
    let mut missing = Vec::new();
    let mut have = BTreeSet::new();
    for (kind, make) in [
        ("vlan", "link add link pair name probe type vlan id 9"),
        ("macvlan", "link add link pair name probe type macvlan"),
        ("bridge", "link add probe type bridge"),
        ("bond", "link add probe type bond mode active-backup miimon 10"),
    ] {
        assert!(ip("link add pair type veth peer name pair1"), "veth is the least that is needed");
        if ip(make) {
            have.insert(kind);
        } else {
            missing.push(kind);
        }
        ip("link del probe");
        ip("link del pair");
    }
    println!("skipped for lack in this kernel: {missing:?}");

    let mut rules = Rules::new();
    for (port, name) in PORTS {
        rules.bind(port, Binding::Name(name.into()), RoceTypes::Both);
    }
    let setups =
        PORTS.map(|(number, _)| PortSetup { number, len: 512, kind: PortKind::Roce(RoceTypes::Both) });
    let table = DeviceTable::new(&setups, NoProvider, 1).unwrap();
    let mut host = Host {
        monitor: Monitor::new(Instant::now()).unwrap(),
        manager: Manager::new(Arc::new(table), rules),
    };

    let mut seed = 0x5eed_u64;
    let mut below = move |limit: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % limit as u64) as usize
    };
    let mut names = vec!["a0", "b0"];
    for (kind, of_kind) in
        [("vlan", "a0.7"), ("vlan", "b0.8"), ("macvlan", "m0"), ("bridge", "br0"), ("bond", "bond0")]
    {
        names.extend(have.contains(kind).then_some(of_kind));
    }
    let mut steps = 0;
    let mut done = 0;
    let mut most = 0;
    while steps < 150 {
        steps += 1;
        let port = ["a", "b"][below(2)];
        let name = names[below(names.len())];
        let step = match below(20) {
            0 => format!("link add {port}0 index {} type veth peer name {port}1", 100 + below(3)),
            1 if below(3) == 0 => format!("link del {name}"),
            2 if have.contains("vlan") => "link add link a0 name a0.7 type vlan id 7".to_owned(),
            3 if have.contains("vlan") => "link add link b0 name b0.8 type vlan id 8".to_owned(),
            4 if have.contains("macvlan") => format!("link add link {port}0 name m0 type macvlan"),
            5 if have.contains("bridge") => "link add br0 type bridge".to_owned(),
            6 if have.contains("bond") => "link add bond0 type bond mode active-backup miimon 10".to_owned(),
            7 if have.contains("bond") && have.contains("vlan") => {
                "link add link bond0 name bond0.9 type vlan id 9".to_owned()
            }
            8 => format!("link set {port}0 down"),
            9 if have.contains("bond") => format!("link set {port}0 master bond0"),
            9 | 10 => format!("link set {port}0 master br0"),
            11 => format!("link set {port}0 nomaster"),
            12 => format!("link set {name} address 02:00:00:00:00:{:02x}", below(16)),
            13 => format!("link set {name} up"),
            14 => format!("link set {port}1 {}", ["up", "up", "down"][below(3)]),
            15 => format!("addr del 10.0.0.{}/24 dev {name}", below(4)),
            16 => format!("addr del 2001:db8::{}/64 dev {name}", below(4)),
            17 => format!("addr add 2001:db8::{}/64 dev {name}", below(4)),
            _ => format!("addr add 10.0.0.{}/24 dev {name}", below(4)),
        };
        done += usize::from(ip(&step));
        host.settle(&step);
        most = most.max(host.rows().len());
        if below(25) == 0 {
            // Events lost on the way.
            ip(&format!("addr add 10.9.9.{}/32 dev {port}0", below(200)));
            host.monitor.rescan(Instant::now());
            host.settle("a new list");
        }
    }
    assert!(done > 50, "{done} of the commands succeeded");
    assert!(most >= 6, "there was something to compare: {most} entries at most");
    let counters = host.monitor.counters();
    assert_eq!(counters.malformed, 0);
    println!("{steps} steps compared, {done} commands done, at most {most} addresses, {counters:?}");
}
