//! Two partitions over two switches with two trunks. Hosts have the same addresses in each, as full and
//! limited members. A trunk is pulled out, and partitions change while traffic runs. A capture shows that
//! every packet stays in its partition.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod lab;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use ib_wire::ipoib::IpoibGroup;
use ib_wire::packet::{Packet, VirtualLane};
use ib_wire::{Guid, Lid, PKey};
use ibfab::config::FabricConfig;
use ibfab::program::Options;
use ibfab::switch::DropReason;
use lab::{Namespaces, Running, is_silent, ping, pings, stream};

/// Name, last byte of the address, partition, switch.
const HOSTS: [(&str, u8, u16, &str); 5] = [
    ("a1", 1, 0x8001, "s1"),
    ("a2", 2, 0x8001, "s2"),
    ("b1", 1, 0x8002, "s1"),
    ("b2", 2, 0x8002, "s2"),
    ("b3", 3, 0x8002, "s1"),
];

/// Returns the configuration: `trunk` plugs in the first trunk, and `a2` makes host a2 a member of the office
/// partition.
fn config(namespaces: &Namespaces, trunk: bool, a2: bool) -> FabricConfig {
    let office = if a2 { "[\"a1\", \"a2\"]" } else { "[\"a1\"]" };
    let mut text = format!(
        "[[switch]]\nname = \"s1\"\n[[switch]]\nname = \"s2\"\n\
         [[trunk]]\nbetween = [\"s1\", \"s2\"]\nup = {trunk}\n[[trunk]]\nbetween = [\"s2\", \"s1\"]\n\
         [[partition]]\nname = \"office\"\npkey = 0x8001\nmembers = {office}\n\
         [[partition]]\nname = \"storage\"\npkey = 0x8002\nmembers = [\"b1\", \"b2=limited\", \"b3=limited\"]\n"
    );
    for (netns, (name, ip, pkey, switch)) in namespaces.0.iter().zip(HOSTS) {
        text += &format!(
            "[[host]]\nname = \"{name}\"\nnetns = \"{netns}\"\naddress = \"10.98.0.{ip}/24\"\npkey = {pkey}\n\
             switch = \"{switch}\"\n"
        );
    }
    FabricConfig::parse(Path::new("test.toml"), &text).unwrap()
}

/// Returns the packets of a capture, from LRH to VCRC.
fn captured(file: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).unwrap();
    let mut rest = &bytes[24..];
    let mut packets = Vec::new();
    while let Some((head, more)) = rest.split_at_checked(16) {
        let len = u32::from_ne_bytes(head[8..12].try_into().unwrap()) as usize;
        let (record, more) = more.split_at(len);
        // After the ERF header.
        packets.push(record[16..].to_vec());
        rest = more;
    }
    packets
}

/// Checks that every data packet has the P_Key of a partition of its sender and its receivers, and that
/// management datagrams in the default partition are to or from subnet administration.
fn assert_apart(
    packets: &[Vec<u8>],
    manager: Lid,
    members: &BTreeMap<Lid, u16>,
    groups: &BTreeMap<Lid, u16>,
) -> BTreeMap<u16, usize> {
    let mut seen: BTreeMap<u16, usize> = BTreeMap::new();
    for bytes in packets {
        let packet = Packet::parse(bytes).unwrap();
        if packet.lrh().vl == VirtualLane::MANAGEMENT {
            continue;
        }
        let (slid, dlid, base) = (packet.lrh().slid, packet.lrh().dlid, packet.bth().pkey.base());
        *seen.entry(base).or_default() += 1;
        if base == PKey::DEFAULT.base() {
            assert!(
                slid == manager || dlid == manager,
                "{slid} to {dlid} in the default partition: {packet:?}"
            );
            continue;
        }
        // A queue pair that lost its key: the switch refuses all its packets.
        if base == 0 {
            continue;
        }
        let receivers = if dlid.is_multicast() { groups } else { members };
        assert_eq!(members.get(&slid), Some(&base), "{slid} to {dlid} in {base:#06x}");
        assert_eq!(receivers.get(&dlid), Some(&base), "{slid} to {dlid} in {base:#06x}");
    }
    seen
}

/// Checks that a host is reachable again for good: connections that lost a packet in the meantime are
/// reestablished after their timeout.
fn comes_back(netns: &str, to: &str) {
    for size in ["1400", "65000"] {
        lab::comes_back(netns, to, size, 3);
    }
    ping(netns, to, "65000");
}

/// One test, since EAL can be initialized once in a process.
#[test]
fn partitions_keep_hosts_apart_over_switches_and_changes() {
    let namespaces = match Namespaces::new(HOSTS.len()) {
        Ok(namespaces) => namespaces,
        Err(reason) => {
            eprintln!("skipped: {reason}");
            return;
        }
    };
    // A full file is followed by another.
    let folder = std::env::temp_dir().join(format!("ibfab-partitions-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("pcap");
    let options = Options { capture: Some(file.clone()), ..Options::default() };
    let fabric = Running::start(config(&namespaces, true, true), options);
    let [a1, a2, b1, b2, b3] = &namespaces.0[..] else { panic!() };

    // Without any state, one packet each: full to full over a trunk, limited to full and back.
    assert!(pings(a1, "10.98.0.2", "56", 1));
    assert!(pings(b2, "10.98.0.1", "56", 1));
    assert!(pings(b1, "10.98.0.3", "56", 1));
    // The same addresses in both: each host reaches its own partition's, and a host of only the other
    // partition does not exist.
    assert!(pings(a2, "10.98.0.1", "65000", 2));
    assert!(is_silent(a1, "10.98.0.3"));
    // Limited members do not reach each other.
    assert!(is_silent(b2, "10.98.0.3") && is_silent(b3, "10.98.0.2"));
    let rate = stream(a1, a2, "10.98.0.2:5000", 4 << 20);
    println!("over a trunk: {:.2} Gbit/s", rate / 1e9);

    let (manager, members, groups) = fabric.ask(|program| {
        let ports: BTreeMap<Guid, Lid> =
            program.fabric().manager().unwrap().ports().map(|(lid, gid)| (gid.id(), lid)).collect();
        let of_host = |guid: Guid| ports[&Guid(guid.0 + 1)];
        let members: BTreeMap<Lid, u16> =
            program.hosts().iter().map(|h| (of_host(h.config().guid), h.config().pkey.base())).collect();
        let groups: BTreeMap<Lid, u16> = program
            .fabric()
            .manager()
            .unwrap()
            .groups()
            .map(|(mgid, mlid, _)| (mlid, IpoibGroup::link_of(mgid).0.base()))
            .collect();
        (program.fabric().switch().lid(), members, groups)
    });
    assert_eq!(members.len(), HOSTS.len());

    // A trunk is pulled out: the other one carries all traffic, in both directions, and the first comes back.
    for up in [false, true] {
        let next = config(&namespaces, up, true);
        fabric.ask(move |program| program.follow(Instant::now(), next));
        fabric.wait("routed anew", move |program| {
            let active =
                program.fabric().switches().flat_map(|s| s.ports()).filter(|p| p.name.starts_with("to "));
            let active = active.filter(|p| p.state == ib_wire::smp::PortState::Active).count();
            program.fabric().manager().unwrap().is_up() && active == if up { 4 } else { 2 }
        });
        comes_back(a1, "10.98.0.2");
        comes_back(b2, "10.98.0.1");
    }

    // Out of its partition and in again; the others are not affected.
    for in_office in [false, true] {
        let next = config(&namespaces, true, in_office);
        fabric.ask(move |program| program.follow(Instant::now(), next));
        fabric.wait("its link follows", move |program| program.hosts()[1].is_up() == in_office);
        if in_office {
            comes_back(a1, "10.98.0.2");
        } else {
            assert!(is_silent(a1, "10.98.0.2"));
        }
        ping(b1, "10.98.0.2", "56");
    }
    let ups: Vec<bool> = fabric.ask(|program| program.hosts().iter_mut().map(|h| h.is_up()).collect());
    assert_eq!(ups, [true; 5]);

    let refused = fabric.ask(|program| {
        let ports = program.fabric().switches().flat_map(|s| s.ports());
        ports.map(|p| p.switch.dropped(DropReason::PartitionIn)).sum::<u64>()
    });
    let outcome = fabric.stop();
    assert_eq!(outcome.lost_buffers, 0);
    let packets = captured(&file);
    std::fs::remove_dir_all(&folder).unwrap();
    let mut seen = assert_apart(&packets, manager, &members, &groups);
    println!("{seen:?}, {refused} refused");
    assert!(seen.remove(&0).unwrap_or(0) as u64 <= refused);
    let partitions: BTreeSet<u16> = seen.keys().copied().collect();
    assert_eq!(partitions, BTreeSet::from([1, 2, PKey::DEFAULT.base()]));
    assert!(seen[&1] > 1000 && seen[&2] > 50, "{seen:?}");
}
