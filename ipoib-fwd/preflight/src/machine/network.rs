//! Network interfaces, from `/sys/class/net`.

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
    /// Its index.
    pub index: Option<u32>,
    /// True if it is an Ethernet interface.
    pub is_ethernet: bool,
    /// True if it is up.
    pub is_up: bool,
    /// True if there is a carrier; false while the interface is down.
    pub has_carrier: bool,
    /// Its MTU in bytes.
    pub mtu: Option<u32>,
    /// The bridge or bond that it belongs to.
    pub master: Option<String>,
    /// True for a bridge, a bond, a VLAN or another interface on top of others.
    pub is_upper: bool,
    /// The interfaces on top of it: a VLAN, a macvlan, its bridge or bond.
    pub uppers: Vec<String>,
    /// Its PCI device; `None` for an interface without hardware.
    pub pci: Option<String>,
    /// True if a default route of this host uses it, or an interface on top of it.
    pub has_default_route: bool,
    /// True if other routes of this host use either: it then has an address.
    pub has_routes: bool,
    /// True if it is one end of a pair, as a veth is.
    pub is_pair: bool,
    /// Offloads that merge received packets: `gro`, `lro`.
    pub joins: Vec<&'static str>,
}

impl Link {
    /// The host's own use of the interface, if any.
    pub(crate) fn role(&self) -> Option<&'static str> {
        match self {
            Self { has_default_route: true, .. } => {
                Some("which this host's default route uses, directly or through an interface on top of it")
            }
            Self { has_routes: true, .. } => {
                Some("which has an address of this host, or carries an interface that has")
            }
            Self { .. } => None,
        }
    }
}

pub(super) fn read(root: &Root) -> BTreeMap<String, Link> {
    let default = default_routes(root);
    let routed = routed(root);
    // `sys` may show another network namespace, whose interfaces are not usable here; `proc` shows this one.
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
        // The file cannot be read while the interface is down.
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

/// Maximum number of interfaces that are queried individually.
const MOST_LINKS: usize = 4096;

/// Adds interfaces of this namespace that `sys` does not have or shows wrongly, because it shows another
/// namespace.
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

/// Finds pairs whose other end has the same index in another namespace: `sys` shows them as interfaces
/// without a peer.
pub(super) fn find_pairs(links: &mut BTreeMap<String, Link>) {
    for (name, link) in links {
        link.is_pair |= link.pci.is_none() && interface::driver(name).is_ok_and(|driver| driver == "veth");
    }
}

/// Queries the kernel about an interface of this namespace.
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

/// The interfaces of default routes, and those below them.
fn default_routes(root: &Root) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in root.text("proc/net/route").unwrap_or_default().lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Interface, destination, gateway, flags, ..., and the mask as the eighth field.
        if let [name, "00000000", _, flags, _, _, _, "00000000", ..] = fields.as_slice()
            && u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & ROUTE_UP != 0)
        {
            names.insert((*name).to_owned());
        }
    }
    for line in root.text("proc/net/ipv6_route").unwrap_or_default().lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Destination, its prefix length, ..., and flags and interface at the end.
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

/// The interfaces of routes to networks, and those below them.
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

/// Adds the interfaces below a bridge, a bond or a VLAN, since they carry its route. A host has few layers.
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
    fn interfaces_that_sys_shows_of_another_namespace_are_queried() {
        let index = interface::index("lo").unwrap();
        let other = Link { index: Some(index + 100), mtu: Some(7), is_ethernet: true, ..Link::default() };
        let mut links = BTreeMap::from([("lo".to_owned(), other)]);
        complete(&mut links);
        let own = &links["lo"];
        assert_eq!((own.index, own.is_ethernet), (Some(index), false));
        assert_eq!(own.mtu, interface::mtu("lo").ok().and_then(|mtu| u32::try_from(mtu).ok()));
        // An interface of this namespace keeps the values from sys.
        let same = Link { index: Some(index), mtu: Some(7), ..Link::default() };
        let mut links = BTreeMap::from([("lo".to_owned(), same.clone())]);
        complete(&mut links);
        assert_eq!(links["lo"], same);
    }
}
