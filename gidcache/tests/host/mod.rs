//! The interfaces of a network namespace, changed and shown by `ip`, and the table that they require.
#![allow(dead_code, reason = "each test uses its part")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use gidcache::{gid_of_address, link_local_gid};
use ib_wire::{Gid, PortNumber};
use serde_json::Value;

/// Port, GID, interface, VLAN, default.
pub(crate) type Row = (u8, Gid, u32, Option<u16>, bool);

/// xorshift64 generator. The same seed yields the same numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Runs `ip`. Returns false on failure.
pub(crate) fn ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split_whitespace()).output().unwrap().status.success()
}

/// Runs `ip` once with many commands. Returns false if one fails.
pub(crate) fn ip_batch(commands: &str) -> bool {
    let mut child = Command::new("ip")
        .args(["-force", "-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    child.wait().unwrap().success()
}

/// Sets a kernel variable, if it exists.
pub(crate) fn sysctl(path: &str, value: &str) {
    let _ = std::fs::write(format!("/proc/sys/net/{path}"), value);
}

/// Makes IPv6 addresses of new interfaces usable immediately, and derives them from the MAC address.
pub(crate) fn plain_ipv6() {
    for conf in ["all", "default"] {
        sysctl(&format!("ipv6/conf/{conf}/accept_dad"), "0");
        sysctl(&format!("ipv6/conf/{conf}/addr_gen_mode"), "0");
    }
}

/// The interfaces and their addresses.
pub(crate) struct Links(Vec<Value>);

impl Links {
    /// Reads the current state from `ip`.
    pub(crate) fn now() -> Self {
        let output = Command::new("ip").args(["-j", "-d", "addr"]).output().unwrap();
        let Value::Array(links) = serde_json::from_slice(&output.stdout).unwrap() else {
            panic!("not a list")
        };
        // `ip` prints empty objects for interfaces without output.
        Self(links.into_iter().filter(|link| link["ifindex"].is_u64()).collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|link| link["ifname"] == name)
    }

    pub(crate) fn index(&self, name: &str) -> Option<u32> {
        self.get(name).map(index)
    }

    /// Returns the bond of a slave interface.
    pub(crate) fn bond_of(&self, name: &str) -> Option<&Value> {
        let master = self.get(self.get(name)?["master"].as_str()?)?;
        (kind(master) == "bond").then_some(master)
    }

    /// Returns the required table of ports on these interfaces.
    pub(crate) fn reference(&self, ports: &[(PortNumber, &str)]) -> BTreeSet<Row> {
        let by_name: BTreeMap<&str, &Value> =
            self.0.iter().map(|link| (link["ifname"].as_str().unwrap(), link)).collect();
        let mut rows = BTreeSet::new();
        for &(port, name) in ports {
            let Some(base) = by_name.get(name) else { continue };
            let ways = ways(&by_name, name);
            let own = match self.bond_of(name) {
                Some(bond) => ways.contains_key(bond["ifname"].as_str().unwrap()).then_some(bond),
                None => Some(*base),
            };
            let own = own.map(|own| (index(own), link_local_gid(mac(own).unwrap())));
            rows.extend(own.map(|(index, gid)| (port.0, gid, index, None, true)));
            for (upper, vlan) in &ways {
                let link = by_name[upper];
                for address in link["addr_info"].as_array().unwrap() {
                    let Some(local) = address["local"].as_str() else { continue };
                    let gid = gid_of_address(local.parse().unwrap());
                    if own != Some((index(link), gid)) {
                        rows.insert((port.0, gid, index(link), *vlan, false));
                    }
                }
            }
        }
        rows
    }
}

/// Returns all interfaces above the port's interface, with the VLAN of the path.
fn ways<'a>(by_name: &BTreeMap<&'a str, &'a Value>, name: &'a str) -> BTreeMap<&'a str, Option<u16>> {
    let mut ways: BTreeMap<&str, Option<u16>> = BTreeMap::from([(name, None)]);
    loop {
        let before = ways.len();
        for (&upper, link) in by_name {
            if ways.contains_key(upper) {
                continue;
            }
            let on_it = ["vlan", "macvlan"].contains(&kind(link));
            let lower = link["link"].as_str().filter(|_| on_it);
            let data = &link["linkinfo"]["info_data"];
            let active = data["active_slave"].as_str().filter(|_| kind(link) == "bond");
            let through =
                |part: &&str| by_name[*part]["master"] == upper && active.is_none_or(|active| active == name);
            let below = lower.filter(|lower| ways.contains_key(lower));
            if let Some(below) = below.or_else(|| ways.keys().copied().find(through)) {
                let id = data["id"].as_u64().map(|id| id as u16);
                let vlan = if kind(link) == "vlan" { id } else { ways[below] };
                ways.insert(upper, vlan);
            }
        }
        if ways.len() == before {
            return ways;
        }
    }
}

fn kind(link: &Value) -> &str {
    link["linkinfo"]["info_kind"].as_str().unwrap_or("")
}

pub(crate) fn index(link: &Value) -> u32 {
    link["ifindex"].as_u64().unwrap() as u32
}

fn mac(link: &Value) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> =
        link["address"].as_str()?.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes?.try_into().ok().filter(|_| link["link_type"] == "ether")
}
