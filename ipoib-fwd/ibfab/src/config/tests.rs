use super::*;

fn parse(text: &str) -> Result<FabricConfig, ConfigError> {
    FabricConfig::parse(Path::new("fab.toml"), text)
}

const HOST: &str = "[[host]]\nname = \"h\"\naddress = \"10.0.0.2/24\"\n";

#[test]
fn a_full_file() {
    let config = parse(
        r#"
        [fabric]
        mtu = 2048
        prefix = "fec0:0:0:7::/64"
        name = "lab"
        [[partition]]
        pkey = 0x8005
        qkey = 0x0b1b
        members = ["0x0002c90000000001", "0002c90000000002=limited"]
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
    assert_eq!((config.mtu, config.prefix, config.name.as_str()), (Mtu::B2048, 0xfec0_0000_0000_0007, "lab"));
    let partition = &config.partitions[0];
    assert_eq!((partition.pkey, partition.mtu), (PKey(0x8005), Mtu::B2048));
    let Members::Listed(members) = &partition.members else { panic!("{partition:?}") };
    assert_eq!(members[..], [(Guid(0x0002_c900_0000_0001), true), (Guid(0x0002_c900_0000_0002), false)]);
    assert!((config.links[0].url.faults.loss - 0.01).abs() < 1e-9);
    let [one, two] = &config.hosts[..] else { panic!("{:?}", config.hosts) };
    assert_eq!(one.guid, Guid(0x0002_c900_0000_0010));
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
    assert!(config.links.is_empty() && config.hosts.is_empty());
    assert_eq!(config.guid, parse("").unwrap().guid, "the same at every start");
}

#[test]
fn errors_name_line_and_remedy() {
    for (text, place, hint) in [
        ("[fabric]\nmtu = 1500", "fab.toml:2:7: ", "2048 or 4096"),
        ("[fabric]\nprefix = \"fe80::1\"", "fab.toml:2:10: ", "\"fe80::\""),
        ("[fabric]\nguid = \"xyz\"", "fab.toml:2:8: ", "16 hexadecimal digits"),
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
        (HOST.to_owned(), "too near"),
        (HOST.replace("\"h\"", "\"g\""), "interface ib0"),
        (HOST.replace("\"h\"", "\"g\"\ntun = \"ib1\""), "another host's address"),
    ] {
        let error = parse(&format!("{HOST}{second}")).expect_err(hint).to_string();
        assert!(error.contains(hint), "{error}");
    }
    let link = "[[link]]\nname = \"a\"\nurl = \"shm:/x/y\"\n";
    assert!(parse(&format!("{link}{link}")).unwrap_err().to_string().contains("link a's"));
    let missing = FabricConfig::load(Path::new("/no/such/file.toml")).unwrap_err().to_string();
    assert!(missing.contains("/no/such/file.toml") && missing.contains("--config"), "{missing}");
}
