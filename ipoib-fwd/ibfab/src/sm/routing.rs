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

/// Returns the links of a switch to other switches: own port and the other end. A switch that does not answer
/// may still report a link that the other end has lost.
fn trunks(subnet: &Subnet, switch: Guid) -> impl Iterator<Item = (u8, PortId)> + '_ {
    let ports = subnet.nodes.get(&switch).into_iter().flat_map(|n| n.ports.iter());
    ports.filter(|(n, _)| **n > 0).filter_map(move |(&number, port)| {
        let peer = port.peer?;
        let is_mutual = subnet.port(peer)?.peer == Some((switch, number));
        (is_mutual && subnet.nodes.get(&peer.0)?.is_switch()).then_some((number, peer))
    })
}

/// Returns the number of hops from every switch to `target`.
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

/// The switches in order from a root downwards. Every trunk leads up at one end and down at the other. A
/// route that goes up first and then only down cannot be part of a cycle of packets that wait for each other.
#[derive(Debug)]
struct Order {
    root: Option<Guid>,
    /// Hops to the root, then the GUID; the smallest is the root.
    rank: BTreeMap<Guid, (u32, Guid)>,
}

impl Order {
    /// Selects the switch with the fewest hops to all others as the root.
    fn new(subnet: &Subnet) -> Self {
        let switches = subnet.nodes.iter().filter(|(_, n)| n.is_switch()).map(|(&guid, _)| guid);
        let root = switches.min_by_key(|&guid| {
            let hops = distances(subnet, guid);
            (std::cmp::Reverse(hops.len()), hops.values().sum::<u32>(), guid)
        });
        let hops = root.map(|root| distances(subnet, root)).unwrap_or_default();
        Self { root, rank: hops.into_iter().map(|(guid, d)| (guid, (d, guid))).collect() }
    }

    fn is_above(&self, a: Guid, b: Guid) -> bool {
        self.rank.get(&a) < self.rank.get(&b)
    }

    /// Returns the route of every switch to `home`.
    fn routes(&self, subnet: &Subnet, home: Guid) -> BTreeMap<Guid, Route> {
        // First the switches with a route that only goes down. They must use it, since a packet may have come
        // from above.
        let mut routes = BTreeMap::from([(home, Route::Down(0))]);
        let mut queue = VecDeque::from([(home, 0)]);
        while let Some((at, d)) = queue.pop_front() {
            for (_, (next, _)) in trunks(subnet, at) {
                if self.is_above(next, at)
                    && let Entry::Vacant(entry) = routes.entry(next)
                {
                    entry.insert(Route::Down(d + 1));
                    queue.push_back((next, d + 1));
                }
            }
        }
        // The others go up; switches above them are handled first.
        let mut rest: Vec<Guid> =
            self.rank.keys().copied().filter(|guid| !routes.contains_key(guid)).collect();
        rest.sort_by_key(|guid| self.rank.get(guid));
        for at in rest {
            let above = trunks(subnet, at).map(|(_, (next, _))| next).filter(|&next| self.is_above(next, at));
            if let Some(hops) = above.filter_map(|next| routes.get(&next)).map(|route| route.hops()).min() {
                routes.insert(at, Route::Up(hops + 1));
            }
        }
        routes
    }
}

/// The route of a switch to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Route {
    /// Downwards only.
    Down(u32),
    /// Upwards first.
    Up(u32),
}

impl Route {
    const fn hops(self) -> u32 {
        match self {
            Self::Down(hops) | Self::Up(hops) => hops,
        }
    }
}

/// Computes the linear forwarding tables of all switches: the shortest of the routes that go up and then
/// down. LIDs are spread over equally short routes, including those of one port.
pub(crate) fn linear(subnet: &Subnet) -> BTreeMap<Guid, Linear> {
    let switches: Vec<Guid> = subnet.nodes.iter().filter(|(_, n)| n.is_switch()).map(|(&g, _)| g).collect();
    let last_block = subnet.last_lid().0 / LFT_BLOCK_LEN as u16;
    let empty: Linear = (0..=last_block).map(|b| (b, [LFT_NO_PORT; LFT_BLOCK_LEN])).collect();
    let mut tables: BTreeMap<Guid, Linear> = switches.iter().map(|&s| (s, empty.clone())).collect();
    let order = Order::new(subnet);
    let mut known: BTreeMap<Guid, BTreeMap<Guid, Vec<u8>>> = BTreeMap::new();
    for end in subnet.end_ports() {
        // The switch that the port is connected to, and that switch's port.
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

/// Returns the ports of every switch that lead to `home` on a shortest route.
fn exits(subnet: &Subnet, order: &Order, home: Guid) -> BTreeMap<Guid, Vec<u8>> {
    let routes = order.routes(subnet, home);
    let leads = |at: Guid, route: Route, next: Guid| match (route, routes.get(&next)) {
        (Route::Down(hops), Some(&Route::Down(left))) => order.is_above(at, next) && left + 1 == hops,
        (Route::Up(hops), Some(left)) => order.is_above(next, at) && left.hops() + 1 == hops,
        _ => false,
    };
    let ports = |at, route| {
        let on_the_route = trunks(subnet, at).filter(move |(_, (next, _))| leads(at, route, *next));
        on_the_route.map(|(port, _)| port).collect()
    };
    routes.iter().map(|(&at, &route)| (at, ports(at, route))).collect()
}

/// Computes the multicast forwarding tables of all switches; `groups` are the ports that receive each
/// multicast LID. Every group uses the same spanning tree, restricted to branches with a receiver behind
/// them, from any sender.
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
        // Leads every switch of the tree towards each receiver's switch.
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

/// Edges of the tree, in both directions: own port and the other switch.
type Tree = BTreeMap<Guid, Vec<(u8, Guid)>>;

/// Returns the switch ports that are part of the tree.
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

/// Returns, for every switch of the tree but `home`, the port that leads to `home`.
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
