//! Reading the state of a host.

use super::*;
use crate::machine::{Access, Occupant};

#[test]
fn everything_is_read() {
    let tree = Tree::good();
    tree.link("sys/class/net/eth0/master", "../br0");
    tree.interface("br0", 1, "0x1003", None);
    std::fs::create_dir_all(tree.path().join("sys/class/net/br0/bridge")).unwrap();
    tree.file("sys/module/ib_cm/refcnt", "1\n");
    let machine = tree.machine();
    let processors = &machine.processors;
    assert_eq!((processors.online.len(), processors.isolated.to_string().as_str()), (16, "9-13"));
    assert_eq!(processors.siblings[&5].to_string(), "4-5");
    assert_eq!(
        (processors.nodes[&7], processors.nodes[&8], processors.governors[&3].as_str()),
        (0, 1, "performance")
    );
    assert_eq!((machine.memory.free(None), machine.memory.free(Some(1))), (8 << 30, 4 << 30));
    assert_eq!(machine.memory.mounts, [Path::new("/dev/hugepages")]);
    let card = &machine.pci["0000:81:00.0"];
    assert_eq!(
        (card.driver.as_deref(), card.node, card.group, card.is_ethernet),
        (Some("vfio-pci"), Some(1), Some(7), true)
    );
    assert_eq!(card.translation.as_deref(), Some("identity"));
    assert_eq!((machine.iommu.groups, machine.iommu.is_bypassed), (3, false));
    let adapter = &machine.adapters["mlx5_0"];
    assert_eq!((adapter.pci.as_deref(), adapter.node), (Some("0000:82:00.0"), Some(1)));
    assert_eq!(
        (adapter.firmware.as_deref(), adapter.verbs.as_deref()),
        (Some("20.35.1012"), Some("uverbs0"))
    );
    assert_eq!(adapter.management[&1], "umad0");
    let port = &adapter.ports[&1];
    assert_eq!((port.is_infiniband, port.is_active, port.manager), (true, true, 1));
    assert_eq!(port.pkeys, [0xffff, 0x8001, 0x0002]);
    assert_eq!([0xffff, 0x8001, 0x8002].map(|pkey| port.is_member(pkey)), [true, true, false]);
    let link = &machine.links["eth0"];
    assert!(link.is_ethernet && link.is_up && link.has_carrier && link.has_default_route && link.has_routes);
    assert_eq!(
        (link.pci.as_deref(), link.master.as_deref(), link.mtu),
        (Some("0000:00:03.0"), Some("br0"), Some(1500))
    );
    assert!(machine.links["br0"].is_upper && !machine.links["lo"].is_ethernet);
    assert!(machine.modules.contains("ib_cm") && machine.process.may(21));
    assert_eq!((machine.process.memlock, machine.process.nofile), (None, Some(65536)));
}

#[test]
fn interfaces_below_a_bridge_or_a_vlan_inherit_its_default_route() {
    let tree = Tree::good();
    for name in ["br0", "eth1", "eth1.5"] {
        tree.interface(name, 1, "0x1003", None);
    }
    tree.link("sys/class/net/br0/lower_eth1.5", "../eth1.5");
    tree.link("sys/class/net/eth1.5/lower_eth1", "../eth1");
    tree.file("proc/net/route", "Iface\n");
    let zero = "0".repeat(32);
    tree.file("proc/net/ipv6_route", format!("{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 1 0 00000003 br0\n{zero} 00 {zero} 00 {zero} ffffffff 1 0 00200200 lo\n"));
    let machine = tree.machine();
    let has = |name: &str| machine.links[name].has_default_route;
    assert_eq!(["br0", "eth1.5", "eth1", "eth0", "lo"].map(has), [true, true, true, false, false]);
    assert!(machine.links["br0"].is_upper && machine.links["eth1.5"].is_upper);
}

#[test]
fn an_address_on_a_vlan_or_of_ipv6_only_belongs_to_the_card_below() {
    let tree = Tree::good();
    for name in ["ens5", "ens5.7", "mac0", "ens6", "ens7"] {
        tree.interface(name, 1, "0x1003", None);
    }
    for (upper, lower) in [("ens5.7", "ens5"), ("mac0", "ens5.7")] {
        tree.link(&format!("sys/class/net/{upper}/lower_{lower}"), &format!("../{lower}"));
        tree.link(&format!("sys/class/net/{lower}/upper_{upper}"), &format!("../{upper}"));
    }
    tree.file("proc/net/route", "Iface\nmac0 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n");
    let zero = "0".repeat(32);
    let route = |to: &str, length: &str, flags: &str, name: &str| {
        format!("{to:0<32} {length} {zero} 00 {zero} 00000100 00000001 00000000 {flags} {name}\n")
    };
    tree.file(
        "proc/net/ipv6_route",
        route("20010db8", "40", "00000001", "ens6")
            + &route("20010db8", "40", "00000000", "veth9")
            + &route("fe80", "40", "00000001", "ens7")
            + &route("fe800000000000000123456789abcdef", "80", "80200001", "ens7")
            + &route("ff00", "08", "00000001", "ens7"),
    );
    let machine = tree.machine();
    let has = |name: &str| machine.links[name].has_routes;
    assert_eq!(["mac0", "ens5.7", "ens5", "ens6", "ens7"].map(has), [true, true, true, true, false]);
    assert_eq!(
        (machine.links["ens5"].uppers.as_slice(), machine.links["mac0"].uppers.len()),
        (["ens5.7".to_owned()].as_slice(), 0)
    );
}

#[test]
fn files_and_sockets_are_checked_and_not_changed() {
    let tree = Tree::new();
    let at = |name: &str| tree.path().join(name);
    let looked = |socket: &Path| {
        let text = format!(
            "[gateway]\ncontrol-socket = \"{}\"\n[infiniband.soft]\nports = [{{ link = \"shm:{}\" }}]\n",
            socket.display(),
            at("cable").display()
        );
        let config = Config::parse(Path::new("g.toml"), &text).unwrap();
        let mut machine = Machine::default();
        machine.look_at_files(&config);
        (machine.socket, machine.files[&at("cable")])
    };
    assert_eq!(looked(&at("a/b/new.sock")), (Occupant::NoDirectory, Access::Missing));
    let file = tree.file("cable", "");
    assert_eq!(looked(&file), (Occupant::Other, Access::Granted));
    assert_eq!(looked(&file.join("in-a-file")).0, Occupant::NoDirectory);
    assert_eq!(looked(&at("new.sock")).0, Occupant::Nobody);
    // A socket of another type, and one without a server.
    let other = std::os::unix::net::UnixListener::bind(at("stream.sock")).unwrap();
    assert_eq!(looked(&at("stream.sock")).0, Occupant::Other);
    drop(other);
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let served = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    bind(&served, &SocketAddrUnix::new(at("seq.sock")).unwrap()).unwrap();
    listen(&served, 4).unwrap();
    assert_eq!(looked(&at("seq.sock")).0, Occupant::Gateway);
    drop(served);
    assert_eq!(looked(&at("seq.sock")).0, Occupant::Nobody);
    assert!(at("seq.sock").exists() && !at("a").exists(), "nothing is changed");
}

#[test]
fn interfaces_of_another_network_namespace_are_ignored() {
    let tree = Tree::good();
    tree.interface("eth1", 1, "0x1003", None);
    let head = "Inter-|   Receive                                                |  Transmit\n face |bytes    packets\n";
    tree.file("proc/net/dev", format!("{head}    lo: 0 0\n  eth1: 0 0\n"));
    assert_eq!(tree.machine().links.keys().collect::<Vec<_>>(), ["eth1", "lo"]);
}

#[test]
fn the_effective_user_has_its_name_or_its_number() {
    let tree = Tree::new();
    let own = rustix::process::geteuid().as_raw();
    assert_eq!(tree.machine().effective_user, own.to_string());
    tree.file("etc/passwd", format!("other:x:{}:0::/:/bin/sh\nstarter:x:{own}:0::/:/bin/sh\n", own + 1));
    assert_eq!(tree.machine().effective_user, "starter");
}
