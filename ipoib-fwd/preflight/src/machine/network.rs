//! Network interfaces as `/sys/class/net` has them.

use std::collections::{BTreeMap, BTreeSet};

use super::files::Root;

/// ARPHRD_ETHER
const ETHERNET: u16 = 1;
/// IFF_UP and IFF_LOOPBACK (netdevice(7)).
const UP: u32 = 1;
const LOOPBACK: u32 = 8;
/// RTF_UP (route(8)).
const ROUTE_UP: u32 = 1;

/// A network interface.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Link {
    /// Its number.
    pub index: Option<u32>,
    /// True if it is one of Ethernet.
    pub is_ethernet: bool,
    /// True if it is up.
    pub is_up: bool,
    /// True if there is a carrier; false while it is down.
    pub has_carrier: bool,
    /// Largest packet in a frame, bytes.
    pub mtu: Option<u32>,
    /// The bridge or bond that it is a member of.
    pub master: Option<String>,
    /// True for a bridge, a bond, a VLAN or another interface on top of others.
    pub is_upper: bool,
    /// The interfaces on top of it: a VLAN, a macvlan, its bridge or bond.
    pub uppers: Vec<String>,
    /// Its PCI device; `None` for an interface without hardware.
    pub pci: Option<String>,
    /// True if a default route of this machine leads through it, or through what is on it.
    pub has_default_route: bool,
    /// True if this machine has other routes through either: an address in a network.
    pub has_routes: bool,
    /// True if another interface is its other end, as of a veth.
    pub is_pair: bool,
    /// What joins packets to longer ones on their way in: `gro`, `lro`.
    pub joins: Vec<&'static str>,
}

impl Link {
    /// What the machine itself has it for, if anything.
    pub(crate) fn role(&self) -> Option<&'static str> {
        match self {
            Self { has_default_route: true, .. } => {
                Some("by which the default route of this machine leads, or which carries what it leads by")
            }
            Self { has_routes: true, .. } => {
                Some("on which this machine has an address, or on an interface that it carries")
            }
            Self { .. } => None,
        }
    }
}

pub(super) fn read(root: &Root) -> BTreeMap<String, Link> {
    let default = default_routes(root);
    let routed = routed(root);
    // `sys` may be that of another network namespace, whose interfaces nobody here can use; `proc` is of this one.
    let dev = root.text("proc/net/dev");
    let is_here = |name: &String| {
        let mut names = dev.iter().flat_map(|text| text.lines()).filter_map(|line| line.split_once(':'));
        dev.is_none() || names.any(|(here, _)| here.trim() == name)
    };
    let names = root.entries("sys/class/net").into_iter().filter(is_here);
    let all = names.filter(|name| root.exists(&format!("sys/class/net/{name}/type")));
    all.map(|name| {
        let link = Link { has_routes: routed.contains(&name), ..link(root, &name, &default) };
        (name, link)
    })
    .collect()
}

fn link(root: &Root, name: &str, default: &BTreeSet<String>) -> Link {
    let of = |path: &str| format!("sys/class/net/{name}/{path}");
    let flags = root.text(&of("flags")).unwrap_or_default();
    let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap_or(0);
    let entries = root.entries(&format!("sys/class/net/{name}"));
    let is_over = entries.iter().any(|entry| entry.starts_with("lower_"));
    let uppers = entries.iter().filter_map(|entry| entry.strip_prefix("upper_"));
    Link {
        index: root.number(&of("ifindex")),
        is_ethernet: root.number(&of("type")) == Some(ETHERNET) && flags & LOOPBACK == 0,
        is_up: flags & UP != 0,
        // Reading fails while it is down.
        has_carrier: root.number::<u8>(&of("carrier")) == Some(1),
        mtu: root.number(&of("mtu")),
        master: root.link(&of("master")),
        is_upper: is_over || ["bridge", "bonding"].iter().any(|kind| root.exists(&of(kind))),
        uppers: uppers.map(str::to_owned).collect(),
        pci: root.pci_address(&of("device")),
        has_default_route: default.contains(name),
        has_routes: false,
        is_pair: !is_over && root.number::<u32>(&of("iflink")) != root.number(&of("ifindex")),
        joins: Vec::new(),
    }
}

/// Most interfaces that are queried one by one.
const MOST_LINKS: usize = 4096;

/// Adds the interfaces of this namespace that `sys`, where it is that of another one, does not have, or has another one by
/// that name in place of.
pub(super) fn complete(links: &mut BTreeMap<String, Link>) {
    let dev = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let names = dev.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
    for name in names.take(MOST_LINKS) {
        let Ok(index) = interface::index(&name) else { continue };
        if links.get(&name).is_none_or(|link| link.index != Some(index)) {
            links.insert(name.clone(), queried(&name, index));
        }
    }
}

/// Notes pairs whose other end has the same index in another namespace: `sys` shows them as interfaces without one.
pub(super) fn find_pairs(links: &mut BTreeMap<String, Link>) {
    for (name, link) in links {
        link.is_pair |= link.pci.is_none() && interface::driver(name).is_ok_and(|driver| driver == "veth");
    }
}

/// What the kernel answers about an interface of this namespace.
fn queried(name: &str, index: u32) -> Link {
    Link {
        index: Some(index),
        is_ethernet: name != "lo" && interface::mac(name).is_ok(),
        is_up: true,
        has_carrier: interface::is_running(index).unwrap_or(true),
        mtu: interface::mtu(name).ok().and_then(|mtu| u32::try_from(mtu).ok()),
        ..Link::default()
    }
}

/// The interfaces that default routes lead through, and what these are made of.
fn default_routes(root: &Root) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in root.text("proc/net/route").unwrap_or_default().lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Interface, destination, gateway, flags, …, and as the eighth the mask.
        if let [name, "00000000", _, flags, _, _, _, "00000000", ..] = fields.as_slice()
            && u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & ROUTE_UP != 0)
        {
            names.insert((*name).to_owned());
        }
    }
    for line in root.text("proc/net/ipv6_route").unwrap_or_default().lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Destination, its length, …, and at the end flags and interface.
        if let [to, "00", .., flags, name] = fields.as_slice()
            && to.bytes().all(|digit| digit == b'0')
            && *name != "lo"
            && u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & ROUTE_UP != 0)
        {
            names.insert((*name).to_owned());
        }
    }
    with_lower(root, names)
}

/// The interfaces that routes to networks lead through, and what these are made of.
fn routed(root: &Root) -> BTreeSet<String> {
    let routes = root.text("proc/net/route").unwrap_or_default();
    let routes = routes.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let mut names: BTreeSet<String> = routes.map(str::to_owned).collect();
    for line in root.text("proc/net/ipv6_route").unwrap_or_default().lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Every interface that is up has routes to fe80::/10 and ff00::/8.
        let is_everywhere = |to: &str| ["fe8", "fe9", "fea", "feb", "ff"].iter().any(|p| to.starts_with(p));
        if let [to, _, .., flags, name] = fields.as_slice()
            && !is_everywhere(to)
            && *name != "lo"
            && u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & ROUTE_UP != 0)
        {
            names.insert((*name).to_owned());
        }
    }
    with_lower(root, names)
}

/// What is below a bridge, a bond or a VLAN with a route carries it. A machine has few layers.
fn with_lower(root: &Root, mut names: BTreeSet<String>) -> BTreeSet<String> {
    for _ in 0..4 {
        let lower: Vec<String> = names
            .iter()
            .flat_map(|name| root.entries(&format!("sys/class/net/{name}")))
            .filter_map(|entry| entry.strip_prefix("lower_").map(str::to_owned))
            .collect();
        names.extend(lower);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sys_has_of_another_namespace_is_queried_in_this_one() {
        let index = interface::index("lo").unwrap();
        let other = Link { index: Some(index + 100), mtu: Some(7), is_ethernet: true, ..Link::default() };
        let mut links = BTreeMap::from([("lo".to_owned(), other)]);
        complete(&mut links);
        let own = &links["lo"];
        assert_eq!((own.index, own.is_ethernet), (Some(index), false));
        assert_eq!(own.mtu, interface::mtu("lo").ok().and_then(|mtu| u32::try_from(mtu).ok()));
        // What is this namespace's stays as sys has it.
        let same = Link { index: Some(index), mtu: Some(7), ..Link::default() };
        let mut links = BTreeMap::from([("lo".to_owned(), same.clone())]);
        complete(&mut links);
        assert_eq!(links["lo"], same);
    }
}
