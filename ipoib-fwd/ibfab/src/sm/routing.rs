//! Forwarding tables: up*/down* for unicast, one spanning tree for multicast.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ib_wire::smp::{LFT_BLOCK_LEN, LFT_NO_PORT, MFT_BLOCK_LEN, MFT_PORTS};
use ib_wire::{Guid, Lid};

use crate::subnet::{Node, PortId, Subnet};

/// Blocks of a linear forwarding table.
pub(crate) type Linear = BTreeMap<u16, [u8; LFT_BLOCK_LEN]>;
/// Blocks of a multicast forwarding table, by block and position.
pub(crate) type Multicast = BTreeMap<(u16, u8), [u16; MFT_BLOCK_LEN]>;

/// Links of a switch to other switches: own port and the other switch. A switch that does not answer may still name a
/// link that the other end has lost.
fn trunks(subnet: &Subnet, switch: Guid) -> impl Iterator<Item = (u8, PortId)> + '_ {
    let ports = subnet.nodes.get(&switch).into_iter().flat_map(|n| n.ports.iter());
    ports.filter(|(n, _)| **n > 0).filter_map(move |(&number, port)| {
        let peer = port.peer?;
        let is_mutual = subnet.port(peer)?.peer == Some((switch, number));
        (is_mutual && subnet.nodes.get(&peer.0)?.is_switch()).then_some((number, peer))
    })
}

/// Hops from every switch to `target`.
fn distances(subnet: &Subnet, target: Guid) -> BTreeMap<Guid, u32> {
    let mut hops = BTreeMap::from([(target, 0)]);
    let mut queue = VecDeque::from([(target, 0)]);
    while let Some((at, d)) = queue.pop_front() {
        for (_, (next, _)) in trunks(subnet, at) {
            if let Entry::Vacant(entry) = hops.entry(next) {
                entry.insert(d + 1);
                queue.push_back((next, d + 1));
            }
        }
    }
    hops
}

/// The switches from a root downwards. Every trunk leads up at one end and down at the other. A way that goes up first and
/// then only down, and never up again, cannot be part of a circle of packets that wait for each other.
#[derive(Debug)]
struct Order {
    root: Option<Guid>,
    /// Hops to the root, then the GUID; less is higher up.
    place: BTreeMap<Guid, (u32, Guid)>,
}

impl Order {
    /// The root is the switch that is nearest to all others.
    fn new(subnet: &Subnet) -> Self {
        let switches = subnet.nodes.iter().filter(|(_, n)| n.is_switch()).map(|(&guid, _)| guid);
        let root = switches.min_by_key(|&guid| {
            let hops = distances(subnet, guid);
            (std::cmp::Reverse(hops.len()), hops.values().sum::<u32>(), guid)
        });
        let hops = root.map(|root| distances(subnet, root)).unwrap_or_default();
        Self { root, place: hops.into_iter().map(|(guid, d)| (guid, (d, guid))).collect() }
    }

    fn is_above(&self, a: Guid, b: Guid) -> bool {
        self.place.get(&a) < self.place.get(&b)
    }

    /// How far every switch is from `home` and how it gets there.
    fn ways(&self, subnet: &Subnet, home: Guid) -> BTreeMap<Guid, Way> {
        // All that get there by going down only: these must, since a packet may have come from above.
        let mut ways = BTreeMap::from([(home, Way::Down(0))]);
        let mut queue = VecDeque::from([(home, 0)]);
        while let Some((at, d)) = queue.pop_front() {
            for (_, (next, _)) in trunks(subnet, at) {
                if self.is_above(next, at)
                    && let Entry::Vacant(entry) = ways.entry(next)
                {
                    entry.insert(Way::Down(d + 1));
                    queue.push_back((next, d + 1));
                }
            }
        }
        // The others go up; those above them are looked at before them.
        let mut rest: Vec<Guid> =
            self.place.keys().copied().filter(|guid| !ways.contains_key(guid)).collect();
        rest.sort_by_key(|guid| self.place.get(guid));
        for at in rest {
            let above = trunks(subnet, at).map(|(_, (next, _))| next).filter(|&next| self.is_above(next, at));
            if let Some(hops) = above.filter_map(|next| ways.get(&next)).map(|way| way.hops()).min() {
                ways.insert(at, Way::Up(hops + 1));
            }
        }
        ways
    }
}

/// How a switch's packets get to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Downwards all the way.
    Down(u32),
    /// Upwards first.
    Up(u32),
}

impl Way {
    const fn hops(self) -> u32 {
        match self {
            Self::Down(hops) | Self::Up(hops) => hops,
        }
    }
}

/// The linear forwarding tables of all switches: the shortest of the ways that go up and then down. Where several are equally
/// short, LIDs are spread over them, also those of one port.
pub(crate) fn linear(subnet: &Subnet) -> BTreeMap<Guid, Linear> {
    let switches: Vec<Guid> = subnet.nodes.iter().filter(|(_, n)| n.is_switch()).map(|(&g, _)| g).collect();
    let last_block = subnet.last_lid().0 / LFT_BLOCK_LEN as u16;
    let empty: Linear = (0..=last_block).map(|b| (b, [LFT_NO_PORT; LFT_BLOCK_LEN])).collect();
    let mut tables: BTreeMap<Guid, Linear> = switches.iter().map(|&s| (s, empty.clone())).collect();
    let order = Order::new(subnet);
    let mut known: BTreeMap<Guid, BTreeMap<Guid, Vec<u8>>> = BTreeMap::new();
    for end in subnet.end_ports() {
        // The switch that the port hangs on, and that switch's port.
        let home = if end.node.is_switch() { Some((end.id.0, 0)) } else { end.port.peer };
        let Some((home, exit)) = home else { continue };
        let exits = known.entry(home).or_insert_with(|| exits(subnet, &order, home));
        for lid in end.port.lids().iter() {
            for &switch in &switches {
                let port = if switch == home {
                    Some(exit)
                } else {
                    let nearer = exits.get(&switch).map_or(&[][..], Vec::as_slice);
                    nearer.get(usize::from(lid.0) % nearer.len().max(1)).copied()
                };
                let (block, at) = (lid.0 / LFT_BLOCK_LEN as u16, usize::from(lid.0) % LFT_BLOCK_LEN);
                let entry =
                    tables.get_mut(&switch).and_then(|t| t.get_mut(&block)).and_then(|b| b.get_mut(at));
                if let (Some(entry), Some(port)) = (entry, port) {
                    *entry = port;
                }
            }
        }
    }
    tables
}

/// The ports of every switch that lead to `home` on the shortest way.
fn exits(subnet: &Subnet, order: &Order, home: Guid) -> BTreeMap<Guid, Vec<u8>> {
    let ways = order.ways(subnet, home);
    let leads = |at: Guid, way: Way, next: Guid| match (way, ways.get(&next)) {
        (Way::Down(hops), Some(&Way::Down(left))) => order.is_above(at, next) && left + 1 == hops,
        (Way::Up(hops), Some(left)) => order.is_above(next, at) && left.hops() + 1 == hops,
        _ => false,
    };
    let ports = |at, way| {
        let on_the_way = trunks(subnet, at).filter(move |(_, (next, _))| leads(at, way, *next));
        on_the_way.map(|(port, _)| port).collect()
    };
    ways.iter().map(|(&at, &way)| (at, ports(at, way))).collect()
}

/// The multicast forwarding tables of all switches; `groups` are the ports that receive each multicast LID. Every
/// group uses the same spanning tree; a branch is taken only where a receiver lies behind it, from any sender.
pub(crate) fn multicast(subnet: &Subnet, groups: &BTreeMap<Lid, Vec<PortId>>) -> BTreeMap<Guid, Multicast> {
    let tree = spanning_tree(subnet);
    let mut tables: BTreeMap<Guid, Multicast> =
        subnet.nodes.iter().filter(|(_, n)| n.is_switch()).map(|(&g, _)| (g, Multicast::new())).collect();
    for (&mlid, receivers) in groups {
        let mut exits: BTreeMap<Guid, BTreeSet<u8>> = BTreeMap::new();
        for &(node, number) in receivers {
            let home = if subnet.nodes.get(&node).is_some_and(Node::is_switch) {
                Some((node, number))
            } else {
                subnet.port((node, number)).and_then(|p| p.peer)
            };
            if let Some((switch, exit)) = home {
                exits.entry(switch).or_default().insert(exit);
            }
        }
        // Leads every switch of the tree towards each receiving one.
        let homes: Vec<Guid> = exits.keys().copied().collect();
        for home in homes {
            for (switch, port) in towards(&tree, home) {
                exits.entry(switch).or_default().insert(port);
            }
        }
        for (switch, ports) in exits {
            let Some(table) = tables.get_mut(&switch) else { continue };
            let index = usize::from(mlid.0.saturating_sub(Lid::FIRST_MULTICAST.0));
            let (block, at) = ((index / MFT_BLOCK_LEN) as u16, index % MFT_BLOCK_LEN);
            for port in ports {
                let position = port / MFT_PORTS as u8;
                let masks = table.entry((block, position)).or_insert([0; MFT_BLOCK_LEN]);
                if let Some(mask) = masks.get_mut(at) {
                    *mask |= 1 << (port % MFT_PORTS as u8);
                }
            }
        }
    }
    tables
}

/// Edges of the tree, both ways: own port and the other switch.
type Tree = BTreeMap<Guid, Vec<(u8, Guid)>>;

/// The switch ports that are part of the tree.
pub(crate) fn branches(subnet: &Subnet) -> BTreeSet<PortId> {
    let tree = spanning_tree(subnet);
    tree.iter().flat_map(|(&guid, edges)| edges.iter().map(move |&(port, _)| (guid, port))).collect()
}

fn spanning_tree(subnet: &Subnet) -> Tree {
    let mut tree = Tree::new();
    let Some(root) = Order::new(subnet).root else { return tree };
    let mut seen = BTreeSet::from([root]);
    let mut queue = VecDeque::from([root]);
    while let Some(at) = queue.pop_front() {
        for (port, (next, entry)) in trunks(subnet, at) {
            if seen.insert(next) {
                tree.entry(at).or_default().push((port, next));
                tree.entry(next).or_default().push((entry, at));
                queue.push_back(next);
            }
        }
    }
    tree
}

/// For every switch of the tree but `home`: the port that leads to `home`.
fn towards(tree: &Tree, home: Guid) -> Vec<(Guid, u8)> {
    let mut out = Vec::new();
    let mut seen = BTreeSet::from([home]);
    let mut queue = VecDeque::from([home]);
    while let Some(at) = queue.pop_front() {
        for &(_, next) in tree.get(&at).into_iter().flatten() {
            if !seen.insert(next) {
                continue;
            }
            let back = tree.get(&next).into_iter().flatten().find(|(_, to)| *to == at);
            if let Some(&(port, _)) = back {
                out.push((next, port));
            }
            queue.push_back(next);
        }
    }
    out
}
