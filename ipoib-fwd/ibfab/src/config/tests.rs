use super::*;
use crate::subnet::{Member, Members, Membership};
use ib_wire::{QKey, Rate, ServiceLevel};

fn parse(text: &str) -> Result<FabricConfig, ConfigError> {
    FabricConfig::parse(Path::new("fab.toml"), text)
}

/// With different cables in the two examples, users of the README would never see a packet.
#[test]
fn the_examples_of_fabric_and_gateway_have_the_same_cable() {
    for (fabric, gateway) in [
        (include_str!("../../../../examples/fabric.toml"), include_str!("../../../../examples/gateway.toml")),
        (
            include_str!("../../../../examples/fabric-segments.toml"),
            include_str!("../../../../examples/gateway-segments.toml"),
        ),
    ] {
        parse(fabric).unwrap();
        let url = |text: &str, key: &str| {
            let (_, rest) = text.split_once(key).unwrap();
            rest.split('"').nth(1).unwrap().to_owned()
        };
        assert_eq!(url(fabric, "\nurl ="), url(gateway, "link ="));
    }
}

const HOST: &str = "[[host]]\nname = \"h\"\naddress = \"10.0.0.2/24\"\n";

#[test]
fn a_full_file() {
    let config = parse(
        r#"
        [fabric]
        mtu = 2048
        lmc = 3
        prefix = "fec0:0:0:7::/64"
        name = "lab"
        keep_crcs = true
        log = "warn"
        log_filter = "ibfab::host=debug"
        [[partition]]
        name = "storage"
        pkey = 0x0005
        ipoib = false
        qkey = 0x0b1c
        mtu = 1024
        rate = 2.5
        sl = 3
        members = ["0x0002c90000000001", "0002c90000000002=limited", "gateway=full", "host2=limited", "all=limited"]
        [[partition]]
        pkey = 0xffff
        [[link]]
        name = "gateway"
        url = "shm:/run/ibfab/gw.sock?loss=0.01&seed=7"
        [[host]]
        name = "host1"
        netns = "ib"
        tun = "ib7"
        address = "10.77.0.2/24"
        mtu = 2044
        mode = "datagram"
        pkey = 0x8005
        guid = "0002:c900:0000:0010"
        [[host]]
        name = "host2"
        address = "10.77.0.3/24"
        "#,
    )
    .unwrap();
    assert_eq!((config.mtu, config.prefix), (Mtu::B2048, 0xfec0_0000_0000_0007));
    assert!(config.keep_crcs);
    assert_eq!(config.lmc.get(), 3);
    assert_eq!((config.log, config.log_filter.as_str()), (LogLevel::Warn, "ibfab::host=debug"));
    let place = |port| Place { switch: 0, port };
    assert_eq!((config.switches[0].name.as_str(), config.switches[0].ports), ("lab", 3));
    let lab = config.switches[0].guid;
    let storage = Partition {
        name: "storage".to_owned(),
        pkey: PKey(5),
        ipoib: false,
        qkey: QKey(0xb1c),
        mtu: Mtu::B1024,
        rate: Rate::new(2),
        sl: ServiceLevel::new(3),
        members: Members {
            named: vec![
                (Member::Guid(Guid(0x0002_c900_0000_0001)), Membership::Full),
                (Member::Guid(Guid(0x0002_c900_0000_0002)), Membership::Limited),
                (Member::At((lab, 1)), Membership::Full),
                (Member::At((lab, 3)), Membership::Limited),
            ],
            others: Some(Membership::Limited),
        },
    };
    let default = Partition {
        name: "0xffff".to_owned(),
        mtu: Mtu::B2048,
        members: Members::ALL,
        ..Partition::default_ipoib()
    };
    assert_eq!(config.partitions, [storage, default]);
    assert!((config.links[0].url.faults.loss - 0.01).abs() < 1e-9);
    let [one, two] = &config.hosts[..] else { panic!("{:?}", config.hosts) };
    assert_eq!(one.guid, Guid(0x0002_c900_0000_0010));
    assert_eq!((config.links[0].place, one.place, two.place), (place(1), place(2), place(3)));
    assert_eq!(
        (one.netns.as_deref(), one.tun.as_str(), one.mtu, one.mode),
        (Some("ib"), "ib7", 2044, Mode::Datagram)
    );
    assert_eq!(
        (two.netns.as_deref(), two.tun.as_str(), two.mtu, two.mode),
        (None, "ib0", 65_520, Mode::Connected)
    );
    assert_eq!(two.pkey, PKey::DEFAULT);
    assert_eq!(two.guid.0 >> 56, 2, "locally administered");
}

#[test]
fn an_empty_file_is_a_switch_alone() {
    let config = parse("").unwrap();
    assert_eq!((config.mtu, config.prefix), (Mtu::B4096, 0xfe80_0000_0000_0000));
    assert!(!config.keep_crcs);
    assert!(config.links.is_empty() && config.hosts.is_empty());
    assert_eq!(config.switches, parse("").unwrap().switches, "the same at every start");
    assert_eq!(config.effective_partitions(), [Partition::default_ipoib()]);
}

#[test]
fn errors_name_line_and_remedy() {
    for (text, place, hint) in [
        ("[fabric]\nmtu = 1500", "fab.toml:2:7: ", "2048 or 4096"),
        ("[fabric]\nprefix = \"fe80::1\"", "fab.toml:2:10: ", "\"fe80::\""),
        ("[fabric]\nlmc = 8", "fab.toml:2:7: ", "0 to 7"),
        ("[fabric]\nguid = \"xyz\"", "fab.toml:2:8: ", "16 hexadecimal digits"),
        ("[fabric]\nlog = \"loud\"", "fab.toml:2:7: ", "error, warn, info, debug"),
        ("[fabric]\nlog_filter = \"debug\"", "fab.toml:2:14: ", "MODULE=LEVEL"),
        ("[[partition]]\npkey = 0x8000", "fab.toml:2:8: ", "0x7fff"),
        ("[[link]]\nname = \"a\"\nurl = \"tcp:x\"", "fab.toml:3:7: ", "shm:/path/to.sock"),
        ("[[link]]\nname = \"a\"\nurl = \"roce:eth1\"", "fab.toml:3:7: ", "Ethernet ports"),
        ("[[host]]\nname = \"h\"\naddress = \"10.0.0.2\"", "fab.toml:3:11: ", "10.77.0.2/24"),
        ("[[host]]\nname = \"h\"\naddress = \"10.0.0.2/24\"\nmtu = 70000", "fab.toml:4:7: ", "65520"),
        (
            "[[host]]\nname = \"h\"\naddress = \"10.0.0.2/24\"\nmode = \"ud\"",
            "fab.toml:4:8: ",
            "\"connected\"",
        ),
        ("[fabric]\nmtus = 1", "fab.toml:2:1: ", "unknown field `mtus`, expected one of `mtu`"),
        ("[fabric", "fab.toml:1:", "expected"),
    ] {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.starts_with(place) && error.contains(hint), "{text}: {error}");
    }
    for (second, hint) in [
        (HOST.to_owned(), "too close"),
        (HOST.replace("\"h\"", "\"g\""), "interface ib0"),
        (HOST.replace("\"h\"", "\"g\"\ntun = \"ib1\""), "is host h's address"),
    ] {
        let error = parse(&format!("{HOST}{second}")).expect_err(hint).to_string();
        assert!(error.contains(hint), "{error}");
    }
    let link = "[[link]]\nname = \"a\"\nurl = \"shm:/x/y\"\n";
    assert!(parse(&format!("{link}{link}")).unwrap_err().to_string().contains("by link a;"));
    let missing = FabricConfig::load(Path::new("/no/such/file.toml")).unwrap_err().to_string();
    assert!(missing.contains("/no/such/file.toml") && missing.contains("--config"), "{missing}");
}

#[test]
fn several_switches() {
    let switches = "[[switch]]\nname = \"s1\"\nports = 4\n[[switch]]\nname = \"s2\"\n";
    let trunk = "[[trunk]]\nbetween = [\"s1\", \"s2\"]\n";
    let host = HOST.replace("\"h\"", "\"h\"\nswitch = \"s2\"");
    let config = parse(&format!("{switches}{trunk}{trunk}up = false\n{host}")).unwrap();
    assert_eq!(config.switches.iter().map(|s| s.ports).collect::<Vec<_>>(), [4, 3]);
    let place = |switch, port| Place { switch, port };
    assert_eq!(config.hosts[0].place, place(1, 1));
    let ends: Vec<_> = config.trunks.iter().map(|t| (t.ends, t.up)).collect();
    assert_eq!(ends, [([place(0, 1), place(1, 2)], true), ([place(0, 2), place(1, 3)], false)]);
    for (text, hint) in [
        (switches.to_owned(), "no path from switch s1, which has the subnet manager, to s2"),
        (format!("{switches}{trunk}{}", host.replace("s2", "s3")), "no switch s3; there are: s1, s2"),
        (format!("{switches}{trunk}[[trunk]]\nbetween = [\"s1\", \"s1\"]"), "joins two switches"),
        (format!("{switches}[[trunk]]\nbetween = [\"s1\"]"), "two ends"),
        (format!("{switches}{}", trunk.repeat(5)), "5 ports of switch s1 are in use"),
        (format!("[fabric]\nname = \"x\"\n{switches}{trunk}"), "without [[switch]]"),
        (format!("{switches}{switches}{trunk}"), "a switch s1 already"),
    ] {
        let error = parse(&text).expect_err(hint).to_string();
        assert!(error.contains(hint), "{error}");
    }
}

#[test]
fn partitions_are_checked() {
    for (text, hint) in [
        ("pkey = 1\nmembers = [\"nobody\"]", "`nobody` is not a link, a host"),
        ("pkey = 1\nmembers = [\"h\", \"h=limited\"]", "h is already a member"),
        ("pkey = 1\nmembers = [\"all\", \"all=limited\"]", "all is already a member"),
        ("pkey = 1\nmembers = [\"h=half\"]", "neither \"full\" nor \"limited\""),
        ("pkey = 1\nrate = 7", "2.5, 5, 10, 20, 30 or 40"),
        ("pkey = 1\nrate = 100", "2.5, 5, 10, 20, 30 or 40"),
        ("pkey = 1\nsl = 16", "0 to 15"),
        ("pkey = 1\n[[partition]]\npkey = 0x8001", "is that of partition 0x0001"),
        ("pkey = 1\nmtu = 4096\n[fabric]\nmtu = 2048", "more than the fabric's 2048"),
    ] {
        let error = parse(&format!("{HOST}[[partition]]\n{text}")).expect_err(hint).to_string();
        assert!(error.contains(hint), "{error}");
    }
    // Counts hosts that wait for their partition.
    let waiting = |text: &str| {
        let config = parse(&format!("{HOST}pkey = 0x8001\n{text}")).unwrap();
        config.hosts_without_partition().count()
    };
    assert_eq!(waiting(""), 1);
    assert_eq!(waiting("[[partition]]\npkey = 1\nmembers = [\"all\"]"), 0);
    assert_eq!(waiting("[[partition]]\npkey = 1\nmembers = [\"h=limited\"]"), 0);
    assert_eq!(waiting("[[partition]]\npkey = 1\nmembers = []"), 1);
    // The same address in two partitions belongs to two hosts.
    let two = HOST.replace("\"h\"", "\"g\"\ntun = \"ib1\"\npkey = 0x8001");
    assert_eq!(parse(&format!("{HOST}{two}")).unwrap().hosts.len(), 2);
    let called_all = parse(&HOST.replace("\"h\"", "\"all\"")).unwrap_err().to_string();
    assert!(called_all.contains("names all ports"), "{called_all}");
}

#[test]
fn only_some_keys_change_while_the_fabric_is_in_use() {
    let running = parse(HOST).unwrap();
    let same = format!("[fabric]\nprefix = \"fec0::\"\n{HOST}[[partition]]\npkey = 5");
    assert_eq!(parse(&same).unwrap().fixed_difference(&running), None);
    let link = format!("{HOST}[[link]]\nname = \"a\"\nurl = \"shm:/x/y\"\n");
    assert_eq!(parse(&link).unwrap().fixed_difference(&running), Some("switches or their ports"));
    let other = HOST.replace("10.0.0.2", "10.0.0.3");
    assert_eq!(parse(&other).unwrap().fixed_difference(&running), Some("hosts"));
}

#[test]
fn the_printed_configuration_shows_the_defaults() {
    let printed = print();
    let config = parse(&printed).unwrap();
    let empty = parse("").unwrap();
    assert_eq!((config.mtu, config.prefix, &config.switches), (empty.mtu, empty.prefix, &empty.switches));
    assert!(config.partitions.is_empty() && config.links.is_empty() && config.hosts.is_empty());
    // All keys are set, except for the two of a fabric without [[switch]].
    let keys = printed.lines().map(|line| match line.strip_prefix('#') {
        Some(key) if !key.starts_with(' ') => key,
        _ => line,
    });
    let all: String = keys.map(|line| line.to_owned() + "\n").collect();
    let (fabric, rest) = all.split_once("\n[[switch]]\n").unwrap();
    let fabric: String = fabric
        .lines()
        .filter(|l| !l.starts_with("name") && !l.starts_with("guid"))
        .map(|l| l.to_owned() + "\n")
        .collect();
    let config = parse(&format!("{fabric}\n[[switch]]\n{rest}[[switch]]\nname = \"s2\"")).unwrap();
    // The defaults shown are the actual defaults.
    let bare = "[[switch]]\nname = \"s1\"\nports = 36\nguid = \"0x0200000000000200\"\n[[switch]]\nname = \"s2\"\n\
        [[trunk]]\nbetween = [\"s1\", \"s2\"]\n[[partition]]\nname = \"storage\"\npkey = 0x8001\n\
        [[link]]\nname = \"gateway\"\nurl = \"shm:/run/ibfab.sock\"\n\
        [[host]]\nname = \"host1\"\nnetns = \"ib\"\naddress = \"10.77.0.2/24\"\ngateway = \"10.77.0.254\"\n\
        guid = \"0x0200000000000300\"\n";
    let bare = parse(bare).unwrap();
    assert_eq!(config.fixed_difference(&bare), None);
    assert_eq!(
        (config.prefix, config.partitions, config.trunks),
        (bare.prefix, bare.partitions, bare.trunks)
    );
}

#[test]
fn the_examples_can_be_used() {
    for (name, partitions, hosts) in [("fabric.toml", 1, 1), ("fabric-segments.toml", 2, 2)] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
        let config = FabricConfig::load(&file).unwrap();
        assert_eq!((config.partitions.len(), config.links.len(), config.hosts.len()), (partitions, 1, hosts));
        assert_eq!(config.hosts_without_partition().count(), 0);
    }
}
