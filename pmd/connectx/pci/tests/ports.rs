//! A device with two ports: the guest's view of each, queue pairs at each, and nonexistent ports.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod guest;

use connectx::cable::CableEnd;
use guest::*;
use ib_wire::mad::{MAD_LEN, Method};
use ib_wire::smp::{Attribute, NodeInfo, PKeyBlock, PortInfo, Smp};
use ib_wire::{Lid, Mtu, PKey, Tid};

const GOOD: u8 = 0;
const BAD_PARAMETER: u8 = 3;
const BAD_RESOURCE: u8 = 5;
const BAD_STATE: u8 = 0x10;
const NO_RESOURCES: u8 = 0x0f;
const SERVICE_SMI: u8 = 7;
const SERVICE_GSI: u8 = 8;
/// Commands on virtual ports: context, its change, GIDs, P_Keys.
const VPORT: [u16; 4] = [0x762, 0x763, 0x764, 0x765];
/// Registers of ports: MTU, width and speed, lanes.
const REGISTERS: [u16; 3] = [0x5003, 0x5004, 0x500f];

/// Connects port 1 to port 2.
fn joined() -> Guest {
    let mut g = Guest::with_two_ports();
    let (one, other) = CableEnd::pair().unwrap();
    let engine = g.hca.engine_mut();
    engine.set_cable(PORT, Some(one)).unwrap();
    engine.set_cable(SECOND, Some(other)).unwrap();
    g.settle();
    for (port, lid) in [(PORT, 7), (SECOND, 8)] {
        g.hca.engine_mut().activate(port, Lid(lid), Mtu::B4096).unwrap();
    }
    g
}

fn vport(opcode: u16, port: u8) -> Vec<u8> {
    let mut bytes = about(opcode, u32::from(port) << 16);
    bytes.resize(0x110, 0);
    bytes
}

fn register(id: u16, port: u8) -> Vec<u8> {
    let mut bytes = about(0x805, id.into());
    put16(&mut bytes, 6, 1);
    bytes.resize(0x50, 0);
    bytes[0x11] = port;
    bytes
}

/// MAD_IFC.
fn management(port: u8, mad: &[u8; MAD_LEN]) -> Vec<u8> {
    let mut bytes = about(0x50d, port.into());
    put16(&mut bytes, 6, 1);
    bytes.resize(0x10, 0);
    bytes.extend_from_slice(mad);
    bytes
}

fn ask<T: Attribute>(g: &mut Guest, port: u8) -> T {
    let mut mad = [0; MAD_LEN];
    Smp::lid_routed(Method::Get, Tid(3), T::ID, 0).write(&mut mad);
    let output = g.command(&management(port, &mad), 0x110).output;
    Smp::parse(output[0x10..0x110].try_into().unwrap()).attribute().unwrap()
}

/// Packets sent and received by a port (PortCountersExtended).
fn packets(g: &mut Guest, port: u8) -> [u64; 2] {
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, 4, 1, 1]);
    put16(&mut mad, 16, 0x1d);
    mad[0x41] = port;
    let output = g.command(&management(port, &mad), 0x110).output;
    [0x10 + 0x58, 0x10 + 0x60].map(|at| u64::from_be_bytes(output[at..at + 8].try_into().unwrap()))
}

/// The type, subtype and port of a port event.
fn port_event(g: &mut Guest, eq: &mut Events) -> Option<(u8, u8, u8)> {
    g.settle();
    g.next_event(eq).map(|(kind, what, data)| (kind, what, data[8] >> 4))
}

/// A datagram queue pair at a port, with a receive posted.
fn open_at(g: &mut Guest, cq: &Completions, service: u8, port: u8, into: [u8; 16]) -> QueuePair {
    let mut qp = g.create_qp(service, cq);
    for op in [0x502, 0x503, 0x504] {
        let bytes = g.transition(op, qp.number, port, None);
        g.command(&bytes, 16);
    }
    g.receive(&mut qp, into);
    qp
}

/// The queue pairs that have received since the last call, in order.
fn received(g: &mut Guest, cq: &mut Completions) -> Vec<u32> {
    g.settle();
    let all: Vec<_> = std::iter::from_fn(|| g.poll(cq)).collect();
    assert!(all.iter().all(|cqe| matches!(cqe[63] >> 4, 0 | 2)), "{all:x?}");
    let number = |cqe: &Vec<u8>| u32::from_be_bytes([0, cqe[57], cqe[58], cqe[59]]);
    let mut numbers: Vec<_> = all.iter().filter(|cqe| cqe[63] >> 4 == 2).map(number).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn each_port_has_an_address_a_state_and_tables_of_its_own() {
    let mut g = Guest::with_two_ports();
    g.probe();
    let mut capabilities = input(0x100, 16);
    put16(&mut capabilities, 6, 1);
    assert_eq!(g.command(&capabilities, 0x1010).output[0x10 + 0x37], 2);
    g.hca.engine_mut().set_pkey(SECOND, 1, PKey(0x8005)).unwrap();
    g.hca.engine_mut().set_cable(PORT, None).unwrap();
    g.settle();
    for (port, physical, state, lid, second) in [(1u8, 2, 1, 7u8, 0u16), (2, 5, 4, 8, 0x8005)] {
        let shown = g.command(&vport(0x762, port), 0x210).output;
        assert_eq!(
            (shown[0x32] >> 4, shown[0x33] & 0xf, &shown[0x70..0x72]),
            (physical, state, &[0, lid][..])
        );
        // The system's, the port's, the node's.
        let guid = |at: usize| u64::from_be_bytes(shown[at..at + 8].try_into().unwrap());
        assert_eq!([guid(0x38), guid(0x40), guid(0x48)], [0x1000, 0x1000 + u64::from(port), 0x1000]);
        let gid = g.command(&vport(0x764, port), 0x20).output;
        assert_eq!(gid[16..], [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, port]);
        let mut keys = vport(0x765, port);
        put16(&mut keys, 14, 0xffff);
        let keys = g.command(&keys, 16 + 128 * 4).output;
        assert_eq!((&keys[18..20], &keys[22..24]), (&[0xff, 0xff][..], &second.to_be_bytes()[..]));
        for id in REGISTERS {
            assert_eq!(g.command(&register(id, port), 0x50).output[0x11], port, "{id:#x}");
        }
        let node: NodeInfo = ask(&mut g, port);
        assert_eq!((node.num_ports, node.local_port, node.port_guid.0), (2, port, 0x1000 + u64::from(port)));
        assert_eq!(ask::<PortInfo>(&mut g, port).lid, Lid(lid.into()));
        assert_eq!(ask::<PKeyBlock>(&mut g, port).keys[1], PKey(second));
    }
}

#[test]
fn a_change_at_one_port_does_not_affect_the_other() {
    let mut g = Guest::with_two_ports();
    g.probe();
    let sm = 2u32.to_be_bytes();
    let mut change = vport(0x763, 2);
    for at in [0x50, 0x54] {
        change[at..at + 4].copy_from_slice(&sm);
    }
    g.command(&change, 0x10);
    let is_sm = |g: &mut Guest, port| g.command(&vport(0x762, port), 0x210).output[0x53] & 2;
    assert_eq!([is_sm(&mut g, 1), is_sm(&mut g, 2)], [0, 2]);
}

#[test]
fn nonexistent_ports_are_refused() {
    for (mut g, others) in [(Guest::new(), &[2u8, 3, 255][..]), (Guest::with_two_ports(), &[3, 255][..])] {
        let eq = g.probe();
        let cq = g.create_cq(eq.number, 6);
        let lone = others.contains(&2);
        for port in [0].iter().chain(others).copied() {
            // Drivers of a device with one port do not name the port.
            let expected = if lone && port == 0 { GOOD } else { BAD_PARAMETER };
            for op in VPORT {
                // A number of four bits.
                assert_eq!(g.try_command(&vport(op, port & 0xf), 0x210).status, expected, "{op:#x} {port}");
            }
            for id in REGISTERS {
                assert_eq!(g.try_command(&register(id, port), 0x50).status, BAD_PARAMETER, "{id:#x} {port}");
            }
            let mut mad = [0; MAD_LEN];
            Smp::lid_routed(Method::Get, Tid(3), PortInfo::ID, 0).write(&mut mad);
            assert_eq!(g.try_command(&management(port, &mad), 0x110).status, BAD_PARAMETER, "{port}");
            for service in [SERVICE_RC, SERVICE_UD, SERVICE_SMI, SERVICE_GSI] {
                let qp = g.create_qp(service, &cq);
                let to_init = g.transition(0x502, qp.number, port, None);
                assert_eq!(g.try_command(&to_init, 16).status, BAD_RESOURCE, "{service} {port}");
                assert_eq!(g.state(qp.number), 0);
                // It cannot move there later, either.
                let to_init = g.transition(0x502, qp.number, 1, None);
                assert_eq!(g.try_command(&to_init, 16).status, GOOD, "{service}");
                let mut again = g.transition(0x50e, qp.number, 1, None);
                put32(&mut again, 0x10, 1 << 16);
                again[0x18 + 0x18 + 0x25] = port;
                assert_eq!(g.try_command(&again, 16).status, BAD_RESOURCE, "{service} {port}");
                if service == SERVICE_RC {
                    let to_receive = g.transition(0x503, qp.number, port, Some((7, 99)));
                    assert_eq!(g.try_command(&to_receive, 16).status, BAD_RESOURCE, "{port}");
                }
                assert_eq!(g.state(qp.number), 1);
                g.command(&about(0x501, qp.number), 16);
            }
        }
    }
}

#[test]
fn a_queue_pair_is_at_the_port_that_its_driver_says() {
    let mut g = joined();
    let eq = g.probe();
    let mut cq = g.create_cq(eq.number, 7);
    let (key, buffer) = (g.whole_key(0xa7), g.pages(2));
    let into = piece(2048, key, buffer + 4096);
    let mut one = open_at(&mut g, &cq, SERVICE_UD, 1, into);
    let two = open_at(&mut g, &cq, SERVICE_UD, 2, into);
    let shown =
        |g: &mut Guest, qp: &QueuePair| g.command(&about(0x50b, qp.number), 0x110).output[0x18 + 0x18 + 0x25];
    assert_eq!([shown(&mut g, &one), shown(&mut g, &two)], [1, 2]);
    let send = |g: &mut Guest, qp: &mut QueuePair, lid, to: u32| {
        g.post_send(qp, 10, &[&datagram(lid, to)[..], &piece(100, key, buffer)].concat());
    };
    // From port to port over the cable; the other port does not know the number.
    send(&mut g, &mut one, 8, two.number);
    assert_eq!(received(&mut g, &mut cq), [two.number]);
    assert_eq!([packets(&mut g, 1), packets(&mut g, 2)], [[1, 0], [0, 1]]);
    send(&mut g, &mut one, 7, two.number);
    assert_eq!(received(&mut g, &mut cq), [0; 0]);
    // Reset, set up at the other port, and moved to the first one before it is ready.
    g.command(&about(0x50a, two.number), 16);
    let mut two = two;
    for (op, port, option) in [(0x502, 2, 0), (0x50e, 1, 1 << 16), (0x503, 0, 0), (0x504, 0, 0)] {
        let mut bytes = g.transition(op, two.number, port, None);
        put32(&mut bytes, 0x10, option);
        bytes[0x18 + 0x18 + 0x25] = port;
        g.command(&bytes, 16);
    }
    assert_eq!(shown(&mut g, &two), 1);
    (two.posted, two.received) = (0, 0);
    g.put(two.record, &[0; 8]);
    g.receive(&mut two, into);
    send(&mut g, &mut one, 7, two.number);
    assert_eq!(received(&mut g, &mut cq), [two.number]);
    // Once it is ready its port is fixed.
    let mut again = g.transition(0x50e, two.number, 2, None);
    put32(&mut again, 0x10, 1 << 16);
    again[0x18 + 0x18 + 0x25] = 2;
    assert_eq!(g.try_command(&again, 16).status, BAD_STATE);
}

#[test]
fn a_connection_goes_from_port_to_port() {
    let mut g = joined();
    let eq = g.probe();
    let mut cq = g.create_cq(eq.number, 7);
    let (key, buffer) = (g.whole_key(0xa7), g.pages(2));
    let (mut a, mut b) = (g.create_qp(SERVICE_RC, &cq), g.create_qp(SERVICE_RC, &cq));
    for (qp, port, remote) in [(a.number, 1, (8, b.number)), (b.number, 2, (7, a.number))] {
        for op in [0x502, 0x503, 0x504] {
            let bytes = g.transition(op, qp, port, Some(remote));
            g.command(&bytes, 16);
        }
    }
    g.put(buffer, &[0x5a; 500]);
    g.receive(&mut b, piece(4096, key, buffer + 4096));
    g.post_send(&mut a, 10, &piece(500, key, buffer));
    assert_eq!(received(&mut g, &mut cq), [b.number]);
    assert_eq!(g.get(buffer + 4096, 500), [0x5a; 500]);
    // The message and its acknowledge.
    assert_eq!([packets(&mut g, 1), packets(&mut g, 2)], [[1, 1], [1, 1]]);
}

#[test]
fn a_group_is_heard_at_the_port_of_the_queue_pair() {
    let mut g = joined();
    let eq = g.probe();
    let mut cq = g.create_cq(eq.number, 7);
    let (key, buffer) = (g.whole_key(0xa7), g.pages(2));
    let group = [&[0xff, 0x12, 0x40, 0x1b][..], &[0; 11], &[9]].concat();
    let attach = |g: &mut Guest, qp: u32| {
        let mut bytes = about(0x806, qp);
        bytes.extend_from_slice(&group);
        g.command(&bytes, 16);
    };
    let into = piece(2048, key, buffer + 4096);
    // Attached before its port is set; another one at each port.
    let early = g.create_qp(SERVICE_UD, &cq);
    attach(&mut g, early.number);
    for op in [0x502, 0x503, 0x504] {
        let bytes = g.transition(op, early.number, 2, None);
        g.command(&bytes, 16);
    }
    let mut early = early;
    g.receive(&mut early, into);
    let one = open_at(&mut g, &cq, SERVICE_UD, 1, into);
    let two = open_at(&mut g, &cq, SERVICE_UD, 2, into);
    for qp in [one.number, two.number] {
        attach(&mut g, qp);
    }
    let mut sender = open_at(&mut g, &cq, SERVICE_UD, 1, into);
    let mut to = datagram(0xc005, 0xff_ffff);
    // With a GRH.
    to[0x1c] = 0x40;
    to[0x20..0x30].copy_from_slice(&group);
    g.post_send(&mut sender, 10, &[&to[..], &piece(100, key, buffer)].concat());
    // Each once: at the sender's port by loopback, at the other over the cable.
    let mut expected = vec![early.number, one.number, two.number];
    expected.sort_unstable();
    assert_eq!(received(&mut g, &mut cq), expected);
}

#[test]
fn each_port_has_a_queue_pair_0_and_1_of_its_own() {
    let mut g = joined();
    let eq = g.probe();
    let mut cq = g.create_cq(eq.number, 7);
    let (key, buffer) = (g.whole_key(0xa7), g.pages(2));
    let into = piece(2048, key, buffer + 4096);
    for service in [SERVICE_SMI, SERVICE_GSI] {
        let [mut one, two] = [1, 2].map(|port| open_at(&mut g, &cq, service, port, into));
        // A second one of a port is ordinary until it becomes that port's special one.
        let other = g.create_qp(service, &cq);
        for port in [1, 2] {
            let to_init = g.transition(0x502, other.number, port, None);
            assert_eq!(g.try_command(&to_init, 16).status, NO_RESOURCES);
        }
        if service == SERVICE_GSI {
            let mut to = datagram(8, 1);
            put32(&mut to, 0, 0x8001_0000);
            g.post_send(&mut one, 10, &[&to[..], &piece(256, key, buffer)].concat());
            assert_eq!(received(&mut g, &mut cq), [two.number]);
        }
        // One that is reset frees its role.
        g.command(&about(0x50a, two.number), 16);
        let to_init = g.transition(0x502, other.number, 2, None);
        g.command(&to_init, 16);
        let back = g.transition(0x502, two.number, 2, None);
        assert_eq!(g.try_command(&back, 16).status, NO_RESOURCES);
        g.command(&about(0x501, other.number), 16);
        g.command(&back, 16);
    }
}

#[test]
fn events_name_their_port_and_the_other_port_is_not_affected() {
    let mut g = joined();
    let mut eq = g.probe();
    assert_eq!(port_event(&mut g, &mut eq), None);
    let mut cq = g.create_cq(eq.number, 7);
    let (key, buffer) = (g.whole_key(0xa7), g.pages(2));
    let mut qp = open_at(&mut g, &cq, SERVICE_UD, 1, piece(2048, key, buffer + 4096));
    g.hca.engine_mut().set_cable(SECOND, None).unwrap();
    // Its peer is port 1, which is down as well.
    assert_eq!(port_event(&mut g, &mut eq), Some((9, 1, 2)));
    assert_eq!(port_event(&mut g, &mut eq), Some((9, 1, 1)));
    g.hca.engine_mut().activate(PORT, Lid(7), Mtu::B4096).unwrap();
    g.hca.engine_mut().set_cable(PORT, None).unwrap();
    g.hca.engine_mut().activate(PORT, Lid(7), Mtu::B4096).unwrap();
    for what in [4, 1, 4] {
        assert_eq!(port_event(&mut g, &mut eq), Some((9, what, 1)));
    }
    let to = datagram(7, qp.number);
    g.post_send(&mut qp, 10, &[&to[..], &piece(100, key, buffer)].concat());
    assert_eq!(received(&mut g, &mut cq), [qp.number]);
    g.hca.engine_mut().activate(SECOND, Lid(8), Mtu::B4096).unwrap();
    assert_eq!(port_event(&mut g, &mut eq), Some((9, 4, 2)));
    assert_eq!(port_event(&mut g, &mut eq), None);
}
