//! Settings of a port by a guest's drivers, and requests to the device's agents by drivers and the subnet
//! manager.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use guest::*;
use ib_wire::Tid;
use ib_wire::mad::{MAD_LEN, Method};
use ib_wire::smp::{Attribute, Capabilities, NodeDescription, PortInfo, PortState, Smp};

/// Room for a command with a datagram, and for its output.
const MANAGEMENT: usize = 0x110;
/// The status of a datagram without a response.
const UNANSWERED: u8 = 0x30;

/// MAD_IFC: the response of the device's agent, and the command's status.
fn ask(g: &mut Guest, modifier: u16, smp: &Smp) -> (u8, Smp) {
    let mut input = about(0x50d, 1);
    input.resize(MANAGEMENT, 0);
    put16(&mut input, 6, modifier);
    let mut mad = [0; MAD_LEN];
    smp.write(&mut mad);
    input[0x10..].copy_from_slice(&mad);
    let done = g.try_command(&input, MANAGEMENT);
    (done.status, Smp::parse(done.output[0x10..MANAGEMENT].try_into().unwrap()))
}

fn request(method: Method, id: u16) -> Smp {
    Smp::lid_routed(method, Tid(3), id, 0)
}

fn port_info(g: &mut Guest) -> PortInfo {
    ask(g, 1, &request(Method::Get, PortInfo::ID)).1.attribute().unwrap()
}

#[test]
fn a_subnet_manager_in_the_guest_is_seen_in_the_ports_capabilities() {
    let mut g = Guest::new();
    g.probe();
    let shown = |g: &mut Guest| {
        let port = g.command(&about(0x762, 0), 0x210).output;
        Capabilities::from_bits_retain(u32::from_be_bytes(port[0x50..0x54].try_into().unwrap()))
    };
    let before = shown(&mut g);
    assert!(!before.contains(Capabilities::SM) && before.contains(Capabilities::CAPABILITY_NOTICE));
    let modify = |g: &mut Guest, value: u32, mask: u32| {
        let mut input = about(0x763, 0);
        input.resize(0x110, 0);
        input[0x50..0x54].copy_from_slice(&value.to_be_bytes());
        input[0x54..0x58].copy_from_slice(&mask.to_be_bytes());
        g.command(&input, 0x10);
    };
    modify(&mut g, u32::MAX, Capabilities::SM.bits());
    assert_eq!(shown(&mut g), before | Capabilities::SM);
    assert_eq!(port_info(&mut g).capabilities, before | Capabilities::SM);
    modify(&mut g, 0, Capabilities::SM.bits());
    assert_eq!(shown(&mut g), before);
}

#[test]
fn the_guest_gives_its_node_a_name() {
    let mut g = Guest::new();
    g.probe();
    let mut write = about(0x805, 0);
    write.resize(0x50, 0);
    put16(&mut write, 10, 0x6001);
    let name = NodeDescription::new("another name");
    write[0x10..].copy_from_slice(&name.text);
    g.command(&write, 0x50);
    let mut read = write.clone();
    put16(&mut read, 6, 1);
    read[0x10..].fill(0);
    for _ in 0..2 {
        assert_eq!(g.command(&read, 0x50).output[0x10..0x50], name.text);
    }
    let (_, answer) = ask(&mut g, 1, &request(Method::Get, NodeDescription::ID));
    assert_eq!(answer.attribute(), Some(name));
}

#[test]
fn a_guest_without_the_key_changes_nothing_and_its_driver_reads_all_the_same() {
    let mut g = Guest::new();
    g.probe();
    let info = PortInfo { state: PortState::NoChange, mkey: 5, lid: ib_wire::Lid(7), ..port_info(&mut g) };
    let set = request(Method::Set, PortInfo::ID).with(&info);
    assert_eq!(ask(&mut g, 0, &set).0, 0);
    // From now on a Set needs the key.
    assert_eq!(ask(&mut g, 0, &set).0, UNANSWERED);
    assert_eq!(ask(&mut g, 1, &set).0, UNANSWERED);
    assert_eq!(ask(&mut g, 1, &request(Method::Get, PortInfo::ID)).0, 0);
    assert_eq!(ask(&mut g, 0, &Smp { mkey: 5, ..set }).0, 0);
    // A MAD that is no request has no response, and breaks nothing.
    assert_eq!(ask(&mut g, 1, &request(Method::Trap, PortInfo::ID)).0, UNANSWERED);
    assert_eq!(port_info(&mut g).mkey, 5);
}
