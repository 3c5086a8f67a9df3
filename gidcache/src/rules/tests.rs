use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use super::*;
use crate::entry::GidType;

const PORT: PortNumber = PortNumber(1);

fn index(number: u32) -> IfIndex {
    IfIndex::new(number).unwrap()
}

fn plain(number: u32) -> Interface {
    Interface {
        index: index(number),
        name: format!("if{number}"),
        mac: Some([2, 0, 0, 0, 0, number as u8]),
        kind: Kind::Other,
        master: None,
        lower: None,
    }
}

fn vlan(number: u32, lower: u32, id: u16) -> Interface {
    // A VLAN uses its lower interface's MAC address.
    let mac = plain(lower).mac;
    Interface { kind: Kind::Vlan(VlanId::new(id).unwrap()), lower: Some(index(lower)), mac, ..plain(number) }
}

fn bond(number: u32, bond: Bond) -> Interface {
    Interface { kind: Kind::Bond(bond), ..plain(number) }
}

fn slave(number: u32, master: u32) -> Interface {
    Interface { master: Some(index(master)), ..plain(number) }
}

fn ip(text: &str) -> Address {
    let local: IpAddr = text.parse().unwrap();
    Address { local, prefix: 24, peer: local }
}

fn own_ip(number: u32) -> Address {
    let local = Ipv6Addr::from(link_local_gid(plain(number).mac.unwrap()).0).into();
    Address { local, prefix: 64, peer: local }
}

/// Rules, and a table that applies all changes and rejects inconsistent ones.
struct Host {
    rules: Rules,
    entries: BTreeMap<(PortNumber, Key), (Option<VlanId>, bool)>,
}

impl Host {
    fn new(types: RoceTypes) -> Self {
        let mut rules = Rules::new();
        rules.bind(PORT, Binding::Index(index(1)), types);
        Self { rules, entries: BTreeMap::new() }
    }

    fn handle(&mut self, events: impl IntoIterator<Item = Event>) -> usize {
        for event in events {
            self.rules.handle_event(&event);
        }
        self.apply()
    }

    fn apply(&mut self) -> usize {
        let mut changes = 0;
        let mut adding = false;
        while let Some(change) = self.rules.poll_change() {
            changes += 1;
            match change {
                Change::Add { port, attributes, default } => {
                    adding = true;
                    let old = self.entries.insert((port, attributes.key), (attributes.vlan, default));
                    assert_eq!(old, None, "added twice");
                }
                Change::Delete { port, attributes: Attributes { key, vlan }, default } => {
                    assert!(!adding, "deletions come first");
                    let was = self.entries.remove(&(port, key)).expect("deleted twice");
                    assert_eq!(was, (vlan, default));
                }
            }
        }
        changes
    }

    /// Returns lines of the form `index address vlan`, with `*` for defaults. All types must agree and share
    /// one line.
    fn show(&self, port: PortNumber) -> Vec<String> {
        let of_type = |gid_type| {
            let entries =
                self.entries.iter().filter(|((at, key), _)| *at == port && key.gid_type == gid_type);
            let lines = entries.map(|((_, key), (vlan, default))| {
                let vlan = vlan.map_or(String::new(), |vlan| format!(" vlan {}", vlan.get()));
                let default = if *default { " *" } else { "" };
                format!("{} {}{vlan}{default}", key.ifindex.unwrap(), key.gid)
            });
            lines.collect::<BTreeSet<_>>()
        };
        let lines = of_type(GidType::RoceV2);
        assert_eq!(of_type(GidType::RoceV1), lines);
        lines.into_iter().collect()
    }
}

fn start() -> Host {
    let mut host = Host::new(RoceTypes::Both);
    host.handle([Event::Interface(plain(1))]);
    host
}

const OWN: &str = "1 fe80::ff:fe00:1 *";

#[test]
fn the_own_gid_is_there_without_any_address() {
    let host = start();
    assert_eq!(host.show(PORT), [OWN]);
    // One entry for each type.
    assert_eq!(host.entries.len(), 2);
}

#[test]
fn one_type_only() {
    let mut host = Host::new(RoceTypes::V2);
    host.handle([Event::Interface(plain(1)), Event::Address(index(1), ip("10.0.0.1"))]);
    assert_eq!(host.entries.len(), 2);
    assert!(host.entries.keys().all(|(_, key)| key.gid_type == GidType::RoceV2));
}

#[test]
fn addresses_come_and_go() {
    let mut host = start();
    assert_eq!(host.handle([Event::Address(index(1), ip("10.0.0.1"))]), 2);
    host.handle([Event::Address(index(1), ip("2001:db8::1")), Event::Address(index(2), ip("10.0.0.9"))]);
    assert_eq!(host.show(PORT), ["1 2001:db8::1", "1 ::ffff:10.0.0.1", OWN]);
    // A repeated event changes nothing.
    assert_eq!(host.handle([Event::Address(index(1), ip("10.0.0.1")), Event::Interface(plain(1))]), 0);
    assert_eq!(host.handle([Event::AddressGone(index(1), ip("10.0.0.1"))]), 2);
    assert_eq!(host.handle([Event::AddressGone(index(1), ip("10.0.0.1"))]), 0);
    assert_eq!(host.show(PORT), ["1 2001:db8::1", OWN]);
    host.handle([Event::InterfaceGone(index(1))]);
    assert!(host.entries.is_empty());
}

#[test]
fn an_address_with_two_prefixes_stays_until_both_are_gone() {
    let mut host = start();
    let wide = Address { prefix: 16, ..ip("10.0.0.1") };
    host.handle([Event::Address(index(1), ip("10.0.0.1")), Event::Address(index(1), wide)]);
    assert_eq!(host.entries.len(), 4);
    assert_eq!(host.handle([Event::AddressGone(index(1), ip("10.0.0.1"))]), 0);
    assert_eq!(host.handle([Event::AddressGone(index(1), wide)]), 2);
}

#[test]
fn the_own_address_takes_only_the_reserved_slot() {
    let mut host = start();
    assert_eq!(host.handle([Event::Address(index(1), own_ip(1))]), 0);
    // After a change of the MAC address, the old GID belongs to an ordinary address.
    let other = Interface { mac: plain(7).mac, ..plain(1) };
    host.handle([Event::Interface(other)]);
    assert_eq!(host.show(PORT), ["1 fe80::ff:fe00:1", "1 fe80::ff:fe00:7 *"]);
    host.handle([Event::Interface(plain(1))]);
    assert_eq!(host.show(PORT), [OWN]);
    assert_eq!(host.handle([Event::AddressGone(index(1), own_ip(1))]), 0);
    assert_eq!(host.show(PORT), [OWN]);
}

#[test]
fn a_change_of_the_mac_address_moves_only_the_own_gid() {
    let mut host = start();
    host.handle([Event::Address(index(1), ip("10.0.0.1"))]);
    let other = Interface { mac: plain(7).mac, ..plain(1) };
    assert_eq!(host.handle([Event::Interface(other)]), 4);
    assert_eq!(host.show(PORT), ["1 ::ffff:10.0.0.1", "1 fe80::ff:fe00:7 *"]);
}

#[test]
fn addresses_without_sense_make_no_gids() {
    let mut host = start();
    host.handle([Event::Address(index(1), ip("::")), Event::Address(index(1), ip("ff02::1"))]);
    assert_eq!(host.show(PORT), [OWN]);
    // The kernel derives a port's own GID from any MAC address, including zeros, which a bridge without ports
    // has.
    host.handle([Event::Interface(Interface { mac: Some([0; 6]), ..plain(1) })]);
    assert_eq!(host.show(PORT), ["1 fe80::200:ff:fe00:0 *"]);
    // Not an Ethernet interface.
    host.handle([
        Event::Address(index(1), ip("10.0.0.1")),
        Event::Interface(Interface { mac: None, ..plain(1) }),
    ]);
    assert!(host.entries.is_empty());
}

#[test]
fn vlans_bring_their_addresses_and_ids() {
    let mut host = start();
    host.handle([
        Event::Address(index(5), ip("10.0.5.1")),
        Event::Address(index(5), own_ip(1)),
        Event::Interface(vlan(5, 1, 42)),
    ]);
    let of_vlan = ["5 ::ffff:10.0.5.1 vlan 42", "5 fe80::ff:fe00:1 vlan 42"];
    assert_eq!(host.show(PORT), [OWN, of_vlan[0], of_vlan[1]]);
    // A nested VLAN, whose own ID is used, and a macvlan on top of it.
    host.handle([Event::Interface(vlan(6, 5, 43)), Event::Address(index(6), ip("10.0.6.1"))]);
    host.handle([
        Event::Interface(Interface { lower: Some(index(6)), ..plain(7) }),
        Event::Address(index(7), ip("10.0.7.1")),
    ]);
    assert!(host.show(PORT).contains(&"6 ::ffff:10.0.6.1 vlan 43".to_owned()));
    assert!(host.show(PORT).contains(&"7 ::ffff:10.0.7.1 vlan 43".to_owned()));
    host.handle([Event::InterfaceGone(index(5))]);
    assert_eq!(host.show(PORT), [OWN]);
}

#[test]
fn an_index_used_again_is_another_interface() {
    let mut host = start();
    host.handle([Event::Interface(vlan(5, 1, 42)), Event::Address(index(5), ip("10.0.5.1"))]);
    host.handle([Event::InterfaceGone(index(5)), Event::Interface(vlan(5, 1, 43))]);
    assert_eq!(host.show(PORT), [OWN]);
    host.handle([Event::Address(index(5), ip("10.0.5.1"))]);
    assert_eq!(host.show(PORT), [OWN, "5 ::ffff:10.0.5.1 vlan 43"]);
    // Several events that together change only the ID.
    host.handle([
        Event::InterfaceGone(index(5)),
        Event::Interface(vlan(5, 1, 44)),
        Event::Address(index(5), ip("10.0.5.1")),
    ]);
    assert_eq!(host.show(PORT), [OWN, "5 ::ffff:10.0.5.1 vlan 44"]);
}

#[test]
fn a_bridge_brings_its_addresses() {
    let mut host = start();
    host.handle([Event::Interface(plain(8)), Event::Address(index(8), ip("10.0.8.1"))]);
    assert_eq!(host.show(PORT), [OWN]);
    host.handle([Event::Interface(slave(1, 8))]);
    assert_eq!(host.show(PORT), [OWN, "8 ::ffff:10.0.8.1"]);
    host.handle([Event::Interface(plain(1))]);
    assert_eq!(host.show(PORT), [OWN]);
}

#[test]
fn only_the_active_slave_has_the_bonds_gids() {
    let second = PortNumber(2);
    let mut host = Host::new(RoceTypes::Both);
    host.rules.bind(second, Binding::Name("if2".into()), RoceTypes::Both);
    host.handle([Event::Interface(plain(1)), Event::Interface(plain(2))]);
    assert_eq!(host.show(second), ["2 fe80::ff:fe00:2 *"]);
    host.handle([
        Event::Interface(bond(9, Bond::Active(Some(index(1))))),
        Event::Interface(slave(1, 9)),
        Event::Interface(slave(2, 9)),
        Event::Interface(vlan(10, 9, 5)),
        Event::Address(index(9), ip("10.0.9.1")),
        Event::Address(index(10), ip("10.0.10.1")),
        Event::Address(index(2), ip("10.0.2.1")),
    ]);
    let of_bond = ["10 ::ffff:10.0.10.1 vlan 5", "9 ::ffff:10.0.9.1", "9 fe80::ff:fe00:9 *"];
    let own = ["2 ::ffff:10.0.2.1"];
    assert_eq!(host.show(PORT), of_bond);
    assert_eq!(host.show(second), own);
    // Failover: all of the bond's entries move.
    host.handle([Event::Interface(bond(9, Bond::Active(Some(index(2)))))]);
    assert!(host.show(PORT).is_empty());
    assert_eq!(host.show(second), [of_bond[0], own[0], of_bond[1], of_bond[2]]);
    // No slave is usable, so all are equal.
    host.handle([Event::Interface(bond(9, Bond::Active(None)))]);
    assert_eq!(host.show(PORT), of_bond);
    assert_eq!(host.show(second), [of_bond[0], own[0], of_bond[1], of_bond[2]]);
    // Another mode uses all slaves.
    host.handle([Event::Interface(bond(9, Bond::AllSlaves))]);
    assert_eq!(host.show(PORT), of_bond);
    // Removed from the bond.
    host.handle([Event::Interface(plain(1))]);
    assert_eq!(host.show(PORT), [OWN]);
}

#[test]
fn a_name_follows_its_current_interface() {
    let mut host = Host::new(RoceTypes::Both);
    host.rules.bind(PORT, Binding::Name("roce".into()), RoceTypes::Both);
    host.handle([Event::Interface(plain(1)), Event::Address(index(2), ip("10.0.2.1"))]);
    assert!(host.entries.is_empty());
    let named = |number| Interface { name: "roce".into(), ..plain(number) };
    host.handle([Event::Interface(named(1))]);
    assert_eq!(host.show(PORT), [OWN]);
    // The name moves to another interface.
    host.handle([Event::Interface(plain(1)), Event::Interface(named(2))]);
    assert_eq!(host.show(PORT), ["2 ::ffff:10.0.2.1", "2 fe80::ff:fe00:2 *"]);
    host.handle([Event::InterfaceGone(index(2))]);
    assert!(host.entries.is_empty());
}

#[test]
fn a_port_bound_again_goes_over() {
    let mut host = start();
    host.rules.bind(PORT, Binding::Index(index(2)), RoceTypes::Both);
    host.handle([Event::Interface(plain(2))]);
    assert_eq!(host.show(PORT), ["2 fe80::ff:fe00:2 *"]);
    host.rules.bind(PORT, Binding::Index(index(2)), RoceTypes::Both);
    assert_eq!(host.apply(), 0);
}

#[test]
fn what_flaps_unseen_changes_nothing() {
    let mut host = start();
    host.handle([Event::Address(index(1), ip("10.0.0.1"))]);
    for _ in 0..1000 {
        host.rules.handle_event(&Event::AddressGone(index(1), ip("10.0.0.1")));
        host.rules.handle_event(&Event::Address(index(1), ip("10.0.0.1")));
    }
    assert_eq!(host.apply(), 0);
}

#[test]
fn a_list_heals_what_was_missed() {
    let mut host = start();
    host.handle([Event::Address(index(1), ip("10.0.0.1")), Event::Interface(vlan(5, 1, 42))]);
    host.rules.begin_scan();
    host.rules.handle_scanned(&Event::Interface(plain(1)));
    host.rules.handle_scanned(&Event::Interface(vlan(6, 1, 43)));
    // An event during the list applies to the list too.
    host.rules.handle_event(&Event::Address(index(6), ip("10.0.6.1")));
    host.rules.handle_scanned(&Event::Address(index(1), ip("10.0.0.2")));
    assert_eq!(host.apply(), 0);
    host.rules.end_scan();
    assert_eq!(host.apply(), 6);
    assert_eq!(host.show(PORT), ["1 ::ffff:10.0.0.2", OWN, "6 ::ffff:10.0.6.1 vlan 43"]);
    // An aborted list changes nothing.
    host.rules.begin_scan();
    host.rules.abort_scan();
    host.rules.end_scan();
    assert_eq!(host.apply(), 0);
}

#[test]
fn circles_of_interfaces_end() {
    let mut host = start();
    host.handle([
        Event::Interface(Interface { lower: Some(index(6)), master: Some(index(1)), ..plain(5) }),
        Event::Interface(Interface { lower: Some(index(5)), ..plain(6) }),
        Event::Interface(Interface { lower: Some(index(6)), master: Some(index(5)), ..plain(1) }),
        Event::Address(index(6), ip("10.0.6.1")),
    ]);
    assert_eq!(host.show(PORT), [OWN, "6 ::ffff:10.0.6.1"]);
}

#[test]
fn what_failed_waits_for_the_next_try() {
    let mut host = start();
    host.rules.handle_event(&Event::Address(index(1), ip("10.0.0.1")));
    let add = host.rules.poll_change().unwrap();
    host.rules.handle_failure(&add);
    assert_eq!(host.apply(), 1);
    assert_eq!(host.rules.failed(), 1);
    host.rules.retry();
    assert_eq!(host.apply(), 1);
    assert_eq!(host.entries.len(), 4);
    // A deletion fails, and then the address returns: nothing is lost.
    host.rules.handle_event(&Event::AddressGone(index(1), ip("10.0.0.1")));
    let delete = host.rules.poll_change().unwrap();
    host.rules.handle_failure(&delete);
    assert_eq!(host.handle([Event::Address(index(1), ip("10.0.0.1"))]), 0);
    assert_eq!(host.rules.failed(), 0);
    assert_eq!(host.rules.wanted(PORT).count(), 4);
}

#[test]
fn more_interfaces_than_there_is_room_for_are_counted() {
    let mut host = start();
    for number in 2..=MAX_INTERFACES as u32 + 10 {
        host.rules.handle_event(&Event::Interface(plain(number)));
    }
    assert_eq!(host.rules.refused(), 10);
    assert_eq!(host.handle([Event::InterfaceGone(index(2)), Event::Interface(plain(100_000))]), 0);
    assert_eq!(host.rules.refused(), 10);
}
