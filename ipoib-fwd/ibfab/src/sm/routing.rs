//! Forwarding tables: shortest ways for unicast, one spanning tree for multicast.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ib_wire::smp::{LFT_BLOCK_LEN, LFT_NO_PORT, MFT_BLOCK_LEN, MFT_PORTS};
use ib_wire::{Guid, Lid};

use super::subnet::{PortId, Subnet};

/// Blocks of a linear forwarding table.
pub(crate) type Linear = BTreeMap<u16, [u8; LFT_BLOCK_LEN]>;
/// Blocks of a multicast forwarding table, by block and position.
pub(crate) type Multicast = BTreeMap<(u16, u8), [u16; MFT_BLOCK_LEN]>;

/// Links of a switch to other switches: own port and the other switch.
fn trunks(subnet: &Subnet, switch: Guid) -> impl Iterator<Item = (u8, PortId)> + '_ {
    let ports = subnet.nodes.get(&switch).into_iter().flat_map(|n| n.ports.iter());
    ports.filter(|(n, _)| **n > 0).filter_map(move |(&number, port)| {
        let peer = port.peer?;
        subnet.nodes.get(&peer.0)?.is_switch().then_some((number, peer))
    })
}

/// Hops from every switch to `target`.
fn distances(subnet: &Subnet, target: Guid) -> BTreeMap<Guid, u32> {
    let mut hops = BTreeMap::from([(target, 0)]);
    let mut queue = VecDeque::from([(target, 0)]);
    while let Some((at, d)) = queue.pop_front() {
        for (_, (next, _)) in trunks(subnet, at) {
            if let std::collections::btree_map::Entry::Vacant(entry) = hops.entry(next) {
                entry.insert(d + 1);
                queue.push_back((next, d + 1));
            }
        }
    }
    hops
}

/// The linear forwarding tables of all switches. Where several ways are equally short, LIDs are spread over them.
pub(crate) fn linear(subnet: &Subnet) -> BTreeMap<Guid, Linear> {
    let switches: Vec<Guid> = subnet.nodes.iter().filter(|(_, n)| n.is_switch()).map(|(&g, _)| g).collect();
    let last_block = subnet.last_lid().0 / LFT_BLOCK_LEN as u16;
    let empty: Linear = (0..=last_block).map(|b| (b, [LFT_NO_PORT; LFT_BLOCK_LEN])).collect();
    let mut tables: BTreeMap<Guid, Linear> = switches.iter().map(|&s| (s, empty.clone())).collect();
    let mut ways: BTreeMap<Guid, BTreeMap<Guid, u32>> = BTreeMap::new();
    for end in subnet.end_ports() {
        // The switch that the port hangs on, and that switch's port.
        let home = if end.node.is_switch() { Some((end.id.0, 0)) } else { end.port.peer };
        let Some((home, exit)) = home else { continue };
        let hops = ways.entry(home).or_insert_with(|| distances(subnet, home));
        let lid = end.port.lid;
        for &switch in &switches {
            let port = if switch == home {
                Some(exit)
            } else {
                let here = hops.get(&switch).copied();
                let nearer: Vec<u8> = trunks(subnet, switch)
                    .filter(|(_, (next, _))| hops.get(next).map(|d| d + 1) == here && here.is_some())
                    .map(|(port, _)| port)
                    .collect();
                nearer.get(usize::from(lid.0) % nearer.len().max(1)).copied()
            };
            let (block, at) = (lid.0 / LFT_BLOCK_LEN as u16, usize::from(lid.0) % LFT_BLOCK_LEN);
            let entry = tables.get_mut(&switch).and_then(|t| t.get_mut(&block)).and_then(|b| b.get_mut(at));
            if let (Some(entry), Some(port)) = (entry, port) {
                *entry = port;
            }
        }
    }
    tables
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
            let home = if subnet.nodes.get(&node).is_some_and(super::subnet::Node::is_switch) {
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

fn spanning_tree(subnet: &Subnet) -> Tree {
    let mut tree = Tree::new();
    let mut seen = BTreeSet::new();
    for (&root, node) in &subnet.nodes {
        if !node.is_switch() || !seen.insert(root) {
            continue;
        }
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
