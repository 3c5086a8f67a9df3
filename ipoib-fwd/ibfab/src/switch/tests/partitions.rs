//! Packets whose P_Key a port does not pass.

use super::*;

/// Returns the settings that a subnet manager writes to a port that enforces partitions.
fn guarded() -> PortInfo {
    let enforce = PortInfo { pkey_enforce_in: true, pkey_enforce_out: true, ..port_info() };
    PortInfo { filter_raw_in: true, filter_raw_out: true, ..enforce }
}

/// Returns [`data`] of another partition.
fn of_partition(pkey: u16, slid: u16, dlid: u16) -> Vec<u8> {
    let mut bytes = data(slid, dlid, 64);
    bytes[10..12].copy_from_slice(&pkey.to_be_bytes());
    seal(bytes)
}

/// Adds valid CRCs.
fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len();
    let icrc = ib_wire::crc::icrc(&bytes[..end - 6]);
    bytes[end - 6..end - 2].copy_from_slice(&icrc);
    let vcrc = ib_wire::crc::vcrc(&bytes[..end - 2]);
    bytes[end - 2..].copy_from_slice(&vcrc);
    bytes
}

#[test]
fn partitions_are_enforced_against_every_sender() {
    let mut bench = Bench::active(4);
    // Ports 1 and 2 in partition 5, 2 as a limited member; 3 in partition 6; 4 is not enforced and may forge
    // any key.
    for (port, keys) in [(1u8, [0x8005u16, 0]), (2, [0x0005, 0x8007]), (3, [0x8006, 0])] {
        let mut block = PKeyBlock::default();
        block.keys[3] = PKey(keys[0]);
        assert!(bench.set(PKeyBlock::modifier(0, port), &block).is_ok());
        block.keys = [PKey(0); 32];
        block.keys[0] = PKey(keys[1]);
        assert!(bench.set(PKeyBlock::modifier(3, port), &block).is_ok());
        assert_eq!(bench.get::<PKeyBlock>(attribute::PKEY_TABLE, PKeyBlock::modifier(3, port)), block);
        assert!(bench.set(port.into(), &guarded()).is_ok());
    }
    let beyond = PKeyBlock::default();
    assert_eq!(bench.set(PKeyBlock::modifier(4, 1), &beyond), Err(MadStatus::INVALID_FIELD));
    assert_eq!(bench.set(PKeyBlock::modifier(0, 9), &beyond), Err(MadStatus::INVALID_FIELD));
    let mut group = MulticastForwardingBlock::default();
    group.masks[5] = 0b11110;
    assert!(bench.set(MulticastForwardingBlock::modifier(0, 0), &group).is_ok());
    let (inn, out) = (Some(DropReason::PartitionIn), Some(DropReason::PartitionOut));
    let cases = [
        // From the full member to the limited one, and back by its own key.
        (0x8005, 1, 2, None),
        (0x0005, 2, 1, None),
        // A limited member's key reaches no limited member, and does not pass as a full one.
        (0x0005, 4, 2, out),
        (0x8005, 2, 1, inn),
        // Keys that the sender does not have, or that no port has.
        (0x8006, 1, 3, inn),
        (0xffff, 1, 2, inn),
        (0x0000, 1, 2, inn),
        (0x8000, 1, 2, inn),
        // Keys that the receiver does not have.
        (0x8005, 4, 3, out),
        (0x8007, 2, 1, out),
        (0x8007, 2, 4, None),
    ];
    for (pkey, from, to, reason) in cases {
        let before = reason.map(|reason| bench.dropped(from, reason));
        bench.send(from, &of_partition(pkey, 10 + from as u16, 10 + to as u16));
        assert_eq!(bench.received(to).len(), usize::from(reason.is_none()), "{pkey:#06x} {from} to {to}");
        let after = reason.map(|reason| bench.dropped(from, reason));
        assert_eq!(after, before.map(|n| n + 1), "{pkey:#06x} {from} to {to}");
    }
    // Multicast: only to the ports in the partition.
    for (pkey, from, receivers) in [
        (0x8005, 1, &[2, 4][..]),
        (0x0005, 2, &[1, 4]),
        (0x8006, 1, &[]),
        (0x8006, 3, &[4]),
        (0x8006, 4, &[3]),
        (0x8005, 4, &[1, 2]),
        (0x0005, 4, &[1]),
    ] {
        bench.send(from, &of_partition(pkey, 10 + from as u16, 0xc005));
        let got: Vec<usize> = (1..=4).filter(|&port| !bench.received(port).is_empty()).collect();
        assert_eq!(got, receivers, "{pkey:#06x} from {from}");
    }
    // Packets without a P_Key.
    for (lnh, from) in [(0, 1), (1, 1), (0, 4)] {
        let mut raw = data(10 + from as u16, 12, 64);
        raw[1] = raw[1] & 0xfc | lnh;
        bench.send(from, &seal(raw));
        assert!(bench.received(2).is_empty());
    }
    assert_eq!((bench.dropped(1, DropReason::Raw), bench.dropped(4, DropReason::Raw)), (2, 1));
    // The counter in PortInfo, cleared by writing it.
    let violations = |bench: &mut Bench| bench.get::<PortInfo>(attribute::PORT_INFO, 1).pkey_violations;
    assert!(violations(&mut bench) > 0);
    assert!(bench.set(1, &guarded()).is_ok());
    assert_eq!(violations(&mut bench), 0);
    // Management has a lane of its own; answers from port 0 are checked as well.
    let query = Smp::lid_routed(Method::Get, Tid(4), attribute::NODE_INFO, 0);
    bench.send(1, &smp(&query, Lid(11), Lid(1)));
    assert_eq!(bench.received(1).len(), 1);
    let mad = Mad { peer: MadAddress::gsi(Lid(11), ServiceLevel::new(0)), bytes: Box::new([3; 256]) };
    bench.switch.send_mad(&mad);
    assert!(bench.received(1).is_empty());
    assert_eq!(bench.switch.own_counters().dropped(DropReason::PartitionOut), 1);
    // Off again: everything passes.
    assert!(bench.set(1, &port_info()).is_ok());
    bench.send(1, &of_partition(0x8009, 11, 14));
    assert_eq!(bench.received(4).len(), 1);
}
