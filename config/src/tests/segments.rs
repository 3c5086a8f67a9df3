use std::collections::HashSet;
use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;

const SOFT: &str = "[infiniband.soft]\nports = [{ link = \"shm:/a\" }]\n";

/// Returns the only segment of a file in the old format.
fn only(text: &str) -> Segment {
    let config = parse(text).unwrap();
    assert_eq!(config.segments.len(), 1);
    config.segments.into_iter().next().unwrap()
}

#[test]
fn without_segments_the_old_keys_make_one() {
    let default = only("");
    assert_eq!(default, Segment::default());
    assert_eq!((default.name.as_str(), default.vlan, default.pkey.value()), ("default", None, 0xffff));
    let old = only(
        "[gateway]\naddress = \"10.77.0.254/24\"\npriority = 7\n[ethernet]\nport = \"net_tap0\"\nmtu = 9000\n\
         [infiniband]\ndevice = \"mlx5_1\"\nport = 2\npkey = 0x8001\nscope = 5\nmode = \"datagram\"\n",
    );
    assert_eq!(
        old,
        Segment {
            ethernet: Some("net_tap0".into()),
            device: Some("mlx5_1".into()),
            port: 2,
            pkey: PKey::new(0x8001).unwrap(),
            scope: 5,
            mode: Mode::Datagram,
            mtu: 9000,
            address: Some(Interface { address: Ipv4Addr::new(10, 77, 0, 254), prefix_len: 24 }),
            priority: 7,
            ..Segment::default()
        }
    );
    assert_eq!(old.on_link().map(|p| p.to_string()).collect::<Vec<_>>(), ["10.77.0.0/24"]);
}

#[test]
fn segments_have_all_their_keys() {
    let config = parse(
        r#"
[infiniband]
mode = "datagram"
scope = 3
[infiniband.soft]
ports = [{ link = "shm:/a" }, { link = "shm:/b" }]
[[infiniband.soft-device]]
name = "soft1"
ports = [{ link = "shm:/c" }]
[ethernet]
mtu = 9000
[[segment]]
name = "storage"
ethernet = "net_pcap0"
vlan = 100
device = "soft0"
port = 2
pkey = 0x8064
scope = 2
mode = "connected"
mtu = 1500
address = "10.77.0.254/24"
subnets = ["10.78.0.0/16", "192.0.2.1/32"]
priority = 200
[[segment.route]]
to = "0.0.0.0/0"
via = "10.77.0.1"
[[segment.route]]
to = "10.80.0.0/16"
via = "192.0.2.1"
[[segment]]
ethernet = "net_pcap0"
subnets = ["10.77.0.0/24"]
[[segment]]
ethernet = "net_pcap1"
vlan = 100
device = "soft1"
"#,
    )
    .unwrap();
    let [storage, untagged, other] = config.segments.as_slice() else { panic!("{:?}", config.segments) };
    assert_eq!(storage.name.as_str(), "storage");
    assert_eq!((storage.vlan.unwrap().value(), storage.port, storage.pkey.value()), (100, 2, 0x8064));
    assert_eq!((storage.scope, storage.mode, storage.mtu, storage.priority), (2, Mode::Connected, 1500, 200));
    let routes: Vec<String> = storage.routes.iter().map(|r| format!("{} {}", r.to, r.via)).collect();
    assert_eq!(routes, ["0.0.0.0/0 10.77.0.1", "10.80.0.0/16 192.0.2.1"]);
    // Omitted keys are as in the other sections. Two segments may have the same subnet.
    assert_eq!((untagged.name.as_str(), untagged.vlan, untagged.mtu), ("pkeyffff", None, 9000));
    assert_eq!((untagged.scope, untagged.mode, untagged.priority), (3, Mode::Datagram, 100));
    assert_eq!((other.name.as_str(), other.device.as_deref()), ("vlan100", Some("soft1")));
    assert_eq!(config.ethernet_ports().collect::<Vec<_>>(), [Some("net_pcap0"), Some("net_pcap1")]);
    assert_eq!(
        config.infiniband_ports().collect::<Vec<_>>(),
        [(Some("soft0"), 2), (Some("soft0"), 1), (Some("soft1"), 1)]
    );
    assert_eq!(config.infiniband.soft_device(None).unwrap().ports.len(), 2);
    assert_eq!(config.infiniband.soft_device(Some("soft1")).unwrap().ports[0].link, "shm:/c");
}

#[test]
fn the_only_software_device_has_the_name_that_was_configured() {
    for (text, name) in [("", "soft0"), ("[infiniband]\ndevice = \"hca\"\n", "hca")] {
        let config = parse(&format!("{text}{SOFT}")).unwrap();
        assert_eq!(config.infiniband.soft[0].name, name);
        assert_eq!(config.infiniband_ports().collect::<Vec<_>>(), [(Some(name), 1)]);
    }
}

#[test]
fn bad_segments_are_refused_with_place_and_remedy() {
    let two = "[[segment]]\nname = \"a\"\nvlan = 100\npkey = 0x8001\n[[segment]]\n";
    let link = "[[segment]]\naddress = \"10.77.0.254/24\"\nsubnets = [\"10.78.0.0/31\"]\n[[segment.route]]\n";
    for (text, said) in [
        // A duplicate segment.
        (
            format!("{two}name = \"a\"\nvlan = 100\npkey = 0x8001\n"),
            "6:8: two segments are called `a` (line 1); give one of them another name",
        ),
        (
            "[[segment]]\nvlan = 7\nethernet = \"x\"\n[[segment]]\nvlan = 7\nethernet = \"y\"\npkey = 0x8001\n".into(),
            "4:1: two segments are called `vlan7` (line 1); give one of them another name",
        ),
        // Overlapping VLANs and partitions.
        (
            format!("{two}vlan = 100\npkey = 0x8002\n"),
            "6:8: VLAN 100 is `vlan100`'s, and already that of `a` (line 1); give one of them another vlan, or another \
             Ethernet port",
        ),
        (
            "[ethernet]\nport = \"net_tap0\"\n[[segment]]\nname = \"a\"\n[[segment]]\npkey = 0x8001\n".into(),
            "5:1: what has no tag of `net_tap0` is `pkey8001`'s, and already that of `a` (line 3); give one of them \
             another vlan, or another Ethernet port",
        ),
        (
            format!("{two}vlan = 101\npkey = 0x8001\n"),
            "7:8: P_Key 0x8001 on port 1 is `vlan101`'s, and already that of `a` (line 1); give one of them another \
             pkey, or another port",
        ),
        (
            format!("{SOFT}{two}vlan = 101\npkey = 0x8001\ndevice = \"soft0\"\n"),
            "9:8: P_Key 0x8001 on port 1 of `soft0` is `vlan101`'s, and already that of `a` (line 3); give one of them \
             another pkey, or another port",
        ),
        (
            format!("{two}vlan = 101\nethernet = \"net_tap0\"\n"),
            "1:1: segment `a` does not say which Ethernet port is its own, as others do; add ethernet = \"NAME\" to it, \
             or port = \"NAME\" to [ethernet]",
        ),
        (
            format!("{two}vlan = 101\ndevice = \"mlx5_0\"\n"),
            "1:1: segment `a` does not say which InfiniBand device is its own, as others do; add device = \"NAME\" to it, \
             or to [infiniband]",
        ),
        // Limits of 802.1Q and of partitions.
        (
            "[[segment]]\nvlan = 0\n".into(),
            "2:8: vlan = 0 is out of range; write a number from 1 to 4094, or leave it out for frames without a tag",
        ),
        (
            "[[segment]]\nvlan = 4095\n".into(),
            "2:8: vlan = 4095 is out of range; write a number from 1 to 4094, or leave it out for frames without a tag",
        ),
        (
            "[[segment]]\npkey = 0x64\n".into(),
            "2:8: P_Key 0x0064 is limited membership: its members hear full members only, so that half of the \
             partition's hosts would be out of reach; write 0x8064, and configure the port as a full \
             member in the subnet manager",
        ),
        (
            "[[segment]]\npkey = 0\n".into(),
            "2:8: P_Key 0x0000 is not a valid partition; write 0xffff for the default partition",
        ),
        (
            "[[segment]]\npkey = 65536\n".into(),
            "2:8: pkey = 65536 is out of range; write a number from 0x8001 to 0xffff",
        ),
        // Ports and devices that do not exist.
        (
            format!("{SOFT}[[segment]]\nport = 2\n"),
            "4:8: the software ConnectX `soft0` has 1 port(s), so there is no port 2; count from 1, or add a port to `soft0`",
        ),
        (
            format!("[infiniband]\nport = 2\n{SOFT}[[segment]]\nvlan = 1\n"),
            "2:8: the software ConnectX `soft0` has 1 port(s), so there is no port 2; count from 1, or add a port to `soft0`",
        ),
        (
            format!("{SOFT}[[segment]]\ndevice = \"soft2\"\n"),
            "4:10: there is no software ConnectX `soft2`; the devices are soft0; add others with \
             [[infiniband.soft-device]]",
        ),
        (
            format!("{SOFT}[[infiniband.soft-device]]\nname = \"soft0\"\nports = [{{ link = \"shm:/b\" }}]\n"),
            "4:8: two software devices are called `soft0`; give one of them another name",
        ),
        (
            format!("{SOFT}[[infiniband.soft-device]]\nports = [{{ link = \"shm:/b\" }}]\n"),
            "3:1: [[infiniband.soft-device]] has no name; add name = \"soft1\"",
        ),
        // Unreachable routers.
        (
            format!("{link}to = \"0.0.0.0/0\"\nvia = \"10.79.0.1\"\n"),
            "6:7: the route to 0.0.0.0/0 has an unreachable router: 10.79.0.1 is in no subnet of segment `pkeyffff`; use a \
             router in 10.77.0.0/24, 10.78.0.0/31, or add its network to subnets",
        ),
        (
            "[[segment]]\nname = \"x\"\n[[segment.route]]\nto = \"0.0.0.0/0\"\nvia = \"10.79.0.1\"\n".into(),
            "5:7: the route to 0.0.0.0/0 has an unreachable router: 10.79.0.1 is in no subnet of segment `x`; give the \
             segment an address or subnets that contain the router",
        ),
        (
            format!("{link}to = \"0.0.0.0/0\"\nvia = \"10.77.0.254\"\n"),
            "6:7: the route to 0.0.0.0/0 uses the gateway's own address 10.77.0.254; use the address of the router",
        ),
        (
            format!("{link}to = \"0.0.0.0/0\"\nvia = \"10.77.0.255\"\n"),
            "6:7: the route to 0.0.0.0/0 uses 10.77.0.255, which is not a host address in 10.77.0.0/24; use the address \
             of the router",
        ),
        (
            format!("{link}to = \"0.0.0.0/0\"\nvia = \"224.0.0.1\"\n"),
            "6:7: via = \"224.0.0.1\" is not the address of one host; write the address of a router of the segment, for \
             example \"10.77.0.1\"",
        ),
        (
            format!("{link}to = \"10.77.0.128/25\"\nvia = \"10.77.0.1\"\n"),
            "5:6: the route to 10.77.0.128/25 is never used: hosts of 10.77.0.0/24 are on the segment itself; remove \
             the route or the subnet",
        ),
        (
            format!("{link}to = \"10.80.0.1/16\"\nvia = \"10.77.0.1\"\n"),
            "5:6: to = \"10.80.0.1/16\" has host bits after its prefix; write \"10.80.0.0/16\"",
        ),
        (
            format!("{link}to = \"224.0.0.0/4\"\nvia = \"10.77.0.1\"\n"),
            "5:6: to = \"224.0.0.0/4\" is not a unicast network; write the network address with its prefix length, for \
             example \"10.78.0.0/16\"",
        ),
        (
            format!("{link}to = \"0.0.0.0/0\"\n"),
            "4:1: the route has no `via`; add the router's address, for example via = \"10.77.0.1\"",
        ),
        (
            format!("{link}via = \"10.77.0.1\"\n"),
            "4:1: the route has no `to`; add the destination network, for example to = \"0.0.0.0/0\"",
        ),
        (
            format!(
                "{link}to = \"10.80.0.0/16\"\nvia = \"10.77.0.1\"\n[[segment.route]]\nto = \"10.80.0.0/16\"\n\
                 via = \"10.77.0.2\"\n"
            ),
            "8:6: segment `pkeyffff` has two routes to 10.80.0.0/16; keep one of the two",
        ),
        // Other errors.
        (
            "[gateway]\naddress = \"10.77.0.254/24\"\n[[segment]]\n".into(),
            "2:11: the address of [gateway] only applies without [[segment]]; move it into its [[segment]]",
        ),
        (
            "[[segment]]\nmtu = 9000\n".into(),
            "2:7: mtu = 9000 is more than the 1500 of [ethernet]; write at most 1500, or a larger mtu into [ethernet]",
        ),
        (
            "[[segment]]\nname = \"a b\"\n".into(),
            "2:8: `a b` is not a valid segment name; write 1 to 32 letters, digits, `_` and `-`",
        ),
        (
            "[[segment]]\nsubnets = [\"10.78.0.0/16\", \"10.78.0.0/16\"]\n".into(),
            "2:28: subnets contains 10.78.0.0/16 twice; write it once",
        ),
        (
            "[[segment]]\nsubnets = [\"0.0.0.0/0\"]\n".into(),
            "2:12: subnets contains 0.0.0.0/0: not every network is on the link; list the link's networks, and add a \
             [[segment.route]] to 0.0.0.0/0 for all others",
        ),
        (
            "[[segment]]\nsubnets = \"10.78.0.0/16\"\n".into(),
            "2:11: invalid type: string \"10.78.0.0/16\", expected a sequence; write a list in brackets, for example \
             [\"10.78.0.0/16\"]",
        ),
        ("[[segment]]\nvlam = 1\n".into(), "2:1: unknown key `vlam`; did you mean `vlan`?"),
        (
            "[segment]\nvlan = 1\n".into(),
            "1:1: invalid type: map, expected a sequence; write the section name in double brackets, [[name]]: there can be several",
        ),
    ] {
        assert_eq!(complaint(&text), format!("gateway.toml:{said}"), "{text}");
    }
}

proptest! {
    /// Exactly those segments are rejected that use the same VLAN, or the same partition of a port.
    #[test]
    fn no_two_claim_the_same(claims in prop::collection::vec((0..6u16, 1..4u16, 1..3u8), 1..6)) {
        let mut text = String::new();
        for (at, (vlan, partition, port)) in claims.iter().enumerate() {
            let vlan = if *vlan == 0 { String::new() } else { format!("vlan = {vlan}\n") };
            let pkey = 0x8000 + partition;
            text += &format!("[[segment]]\nname = \"s{at}\"\n{vlan}pkey = {pkey}\nport = {port}\n");
        }
        let vlans: HashSet<_> = claims.iter().map(|c| c.0).collect();
        let partitions: HashSet<_> = claims.iter().map(|c| (c.1, c.2)).collect();
        let distinct = vlans.len() == claims.len() && partitions.len() == claims.len();
        prop_assert_eq!(parse(&text).is_ok(), distinct, "{}", text);
    }
}
