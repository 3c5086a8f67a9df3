use super::*;

#[test]
fn empty_file_and_annotated_default_mean_the_default() {
    assert_eq!(parse("").unwrap(), Config::default());
    assert_eq!(parse(&Config::annotated_default()).unwrap(), Config::default());
}

#[test]
fn annotated_examples_are_legal_too() {
    // A comment sign directly before a key or a section marks an example. Explanations have a space or
    // another sign after it.
    let mut first = true;
    // The address of [gateway] is only for files without [[segment]].
    let text: String = Config::annotated_default()
        .lines()
        .filter(|line| *line != "# address = \"10.77.0.254/24\"" || !std::mem::take(&mut first))
        .map(|line| {
            let bare = line.trim_start_matches("# ");
            let is_key = bare
                .split_once(" = ")
                .is_some_and(|(k, _)| k.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
            format!("{}\n", if is_key || bare.starts_with('[') { bare } else { line })
        })
        .collect();
    // The name of hardware does not fit the software device of the other example.
    let config = parse(&text.replace("mlx5_0", "soft0")).unwrap();
    assert_eq!(config.segments[0].address.unwrap().prefix_len, 24);
    assert_eq!(config.segments[0].routes.len(), 1);
    assert_eq!(config.infiniband.soft[0].ports[0].link, "shm:/run/ibfab.sock");
}

#[test]
fn all_keys_are_read() {
    let config = parse(
        r#"
[gateway]
address = "10.77.0.254/24"
idle = "poll"
control-socket = ""
stats-seconds = 5
[ethernet]
port = "net_tap0"
mtu = 9000
promiscuous = true
[infiniband]
driver = "soft"
port = 2
pkey = 0x8001
mode = "datagram"
receive-mtu = 2044
srq-depth = 64
[infiniband.soft]
node-guid = "0002:c903:00a1:b2c3"
seed = 7
ports = [{ link = "shm:/tmp/a" }, { link = "udp:10.0.0.1:1-10.0.0.2:1", mtu = 2048, guid = 0x11, grh-required = true }]
[buffers]
count = 100000
"#,
    )
    .unwrap();
    assert_eq!(config.gateway.control_socket, None);
    assert_eq!(config.gateway.idle, Idle::Poll);
    let [segment] = config.segments.as_slice() else { panic!("{:?}", config.segments) };
    assert_eq!(segment.ethernet.as_deref(), Some("net_tap0"));
    assert_eq!((segment.name.as_str(), segment.vlan, segment.mtu), ("default", None, 9000));
    assert_eq!((segment.port, segment.pkey.value(), segment.mode), (2, 0x8001, Mode::Datagram));
    assert_eq!((config.infiniband.srq_depth, config.infiniband.srq_alarm()), (64, 16));
    assert_eq!(config.buffers.count.unwrap().get(), 100_000);
    let soft = &config.infiniband.soft[0];
    assert_eq!(soft.node_guid, Some(Guid(0x0002_c903_00a1_b2c3)));
    assert_eq!(
        soft.ports[1],
        SoftPort {
            link: "udp:10.0.0.1:1-10.0.0.2:1".into(),
            mtu: 2048,
            guid: Some(Guid(0x11)),
            grh_required: true,
        }
    );
}

#[test]
fn errors_name_place_fault_and_remedy() {
    for (text, place, words) in [
        ("[gateway]\nidel = \"poll\"\n", "2:1", "unknown key `idel`; did you mean `idle`?"),
        ("[ethernet]\nrx_descriptors = 1\n", "2:1", "did you mean `rx-descriptors`?"),
        ("[infinibnd]\n", "1:2", "did you mean `infiniband`?"),
        ("[gateway]\nzzzzzzzzzz = 1\n", "2:1", "known here: address, priority"),
        ("[ethernet]\nmtu = 70000\n", "2:7", "mtu = 70000 is out of range; write a number from 576 to 9700"),
        ("[ethernet]\nmtu = -1\n", "2:7", "from 576 to 9700"),
        ("[ethernet]\nmtu = \"1500\"\n", "2:7", "write a whole number without quotes"),
        ("[ethernet]\n  promiscuous = 1\n", "2:17", "write true or false"),
        ("[ethernet]\nmtu = 1500\nmtu = 9000\n", "3:1", "keep one of the two"),
        ("[gateway]\nidle = \"nap\"\n", "2:8", "`nap` is none of: poll, pause, sleep"),
        ("[gateway]\naddress = \"10.0.0.0/24\"\n", "2:11", "not the address of one host"),
        ("[gateway]\naddress = \"10.0.0.1\"\n", "2:11", "no prefix length"),
        ("[gateway]\naddress = \"224.0.0.1/4\"\n", "2:11", "for example \"10.77.0.254/24\""),
        ("[infiniband]\npkey = 0x8000\n", "2:8", "is not a valid partition"),
        ("[infiniband]\npkey = 0x7fff\n", "2:8", "write 0xffff"),
        ("[infiniband]\nsrq-depth = 64\nsrq-low = 64\n", "3:11", "from 0 to 63"),
        ("[infiniband]\ndriver = \"soft\"\n", "2:10", "add [infiniband.soft]"),
        ("[infiniband.soft]\nports = []\n", "2:9", "one or two ports, not 0"),
        ("[infiniband.soft]\nseed = 1\n", "1:1", "has no ports"),
        ("[infiniband.soft]\nports = [{ link = \"tcp:1\" }]\n", "2:19", "shm:/run/ibfab.sock"),
        (
            "[infiniband.soft]\nports = [{ mtu = 256 }]\n",
            "2:10",
            "write for example link = \"shm:/run/ibfab.sock\"",
        ),
        (
            "[infiniband.soft]\nports = [{ link = \"shm:/a\", mtu = 1500 }]\n",
            "2:35",
            "256, 512, 1024, 2048 or 4096",
        ),
        (
            "[infiniband.soft]\nname = \"lock\"\nports = [{ link = \"shm:/a\" }]\n",
            "2:8",
            "cannot be named `lock`",
        ),
        ("[infiniband.soft]\nname = \"new\"\nports = [{ link = \"shm:/a\" }]\n", "2:8", "name = \"soft0\""),
        ("[infiniband.soft]\nname = \"a/b\"\nports = [{ link = \"shm:/a\" }]\n", "2:8", "'/' is not allowed"),
        ("[infiniband.soft]\nname = \"..\"\nports = [{ link = \"shm:/a\" }]\n", "2:8", "'.' is not allowed"),
        ("[infiniband.soft]\nname = \"a.lock\"\nports = [{ link = \"shm:/a\" }]\n", "2:8", "letters, digits"),
        (
            "[infiniband.soft]\nname = \"a\\u0000\"\nports = [{ link = \"shm:/a\" }]\n",
            "2:8",
            "'\\0' is not allowed",
        ),
        ("[infiniband.soft]\nname = \"ä\"\nports = [{ link = \"shm:/a\" }]\n", "2:8", "'ä' is not allowed"),
        (
            "[infiniband]\ndevice = \"../x\"\n[infiniband.soft]\nports = [{ link = \"shm:/a\" }]\n",
            "2:10",
            "'.' is not allowed",
        ),
        (
            "[[infiniband.soft-device]]\nname = \"\"\nports = [{ link = \"shm:/a\" }]\n",
            "2:8",
            "add name = \"soft0\"",
        ),
        (
            "[infiniband.soft]\nports = [{ link = \"shm:/a\" }]\n[[infiniband.soft-device]]\nname = \"new\"\n\
             ports = [{ link = \"shm:/b\" }]\n",
            "4:8",
            "cannot be named `new`",
        ),
        ("[infiniband.soft]\nnode-guid = \"0x\"\n", "2:13", "is not a GUID"),
        ("[infiniband]\nport = 2\n[infiniband.soft]\nports = [{ link = \"shm:/a\" }]\n", "2:8", "no port 2"),
        ("[buffers]\ncount = 10\n", "2:9", "too few for these queues"),
        ("[buffers]\ndata-room = 4000\n", "2:13", "write 4032"),
        ("[gateway\n", "1:9", "[section]"),
    ] {
        let complaint = complaint(text);
        assert!(complaint.starts_with(&format!("gateway.toml:{place}: ")), "{complaint}");
        assert!(complaint.contains(words), "{complaint} does not say: {words}");
    }
}

#[test]
fn the_longest_name_of_a_software_device_is_as_long_as_the_kernels() {
    let named = |n| {
        let name = "s".repeat(n);
        format!("[infiniband.soft]\nname = \"{name}\"\nports = [{{ link = \"shm:/a\" }}]\n")
    };
    assert_eq!(parse(&named(63)).unwrap().infiniband.soft[0].name.len(), 63);
    assert!(
        complaint(&named(64)).starts_with("gateway.toml:2:8: the name of a software device has 64 bytes")
    );
    assert!(complaint(&named(100_000)).contains("write at most 63"));
}

#[test]
fn columns_count_characters() {
    assert!(
        complaint("gateway = { idle = \"sleep\", control-socket = \"/käse\", x = 1 }").contains(":1:55: ")
    );
}

#[test]
fn missing_file_is_named() {
    let error = Config::load(Path::new("/nonexistent/gateway.toml"), &Overrides::default()).unwrap_err();
    assert!(error.to_string().starts_with("/nonexistent/gateway.toml: cannot be read"));
}

#[test]
fn command_line_wins_over_the_file() {
    let overrides = Overrides {
        mode: Some(Mode::Datagram),
        idle: Some("pause".parse().unwrap()),
        driver: Some("mlx5".parse().unwrap()),
        control_socket: Some("".into()),
        stats_seconds: Some(3),
    };
    let file = std::env::temp_dir().join(format!("config-overrides-{}.toml", std::process::id()));
    std::fs::write(&file, "[infiniband]\n[[segment]]\nmode = \"connected\"\n").unwrap();
    let config = Config::load(&file, &overrides).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(config.segments[0].mode, Mode::Datagram);
    assert_eq!(Config::from_overrides(&overrides).segments[0].mode, Mode::Datagram);
    assert_eq!(config.gateway.idle, Idle::Pause);
    assert_eq!(config.infiniband.driver, Driver::Mlx5);
    assert_eq!(config.gateway.control_socket, None);
    assert_eq!(config.gateway.stats_seconds, 3);
}

#[test]
fn secrets_are_shown_nowhere() {
    let config = parse("[gateway]\npair-key = \"0f1e2d3c4b5a69788796a5b4c3d2e1f0\"\n").unwrap();
    let key = config.gateway.pair_key.unwrap();
    assert_eq!((key.bytes()[0], key.bytes()[15]), (0x0f, 0xf0));
    assert!(!format!("{config:?}").to_lowercase().contains("0f1e"));
    for bad in [
        "0f1e2d3c4b5a69788796a5b4c3d2e1f",
        "0f1e2d3c4b5a69788796a5b4c3d2e1fg",
        "+f1e2d3c4b5a69788796a5b4c3d2e1f0",
    ] {
        assert_eq!(
            complaint(&format!("[gateway]\npair-key = \"{bad}\"\n")),
            "gateway.toml:2:12: pair-key is not a key; write 32 hexadecimal digits, the same on all gateways of a segment: \
             openssl rand -hex 16"
        );
    }
}

/// The files used in the README.
#[test]
fn examples_are_legal() {
    let load = |name: &str| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name);
        Config::load(&file, &Overrides::default()).unwrap_or_else(|e| panic!("{e}"))
    };
    let one = load("gateway.toml");
    assert_eq!(one.segments.len(), 1);
    assert_eq!(one.segments[0].on_link().map(|p| p.to_string()).collect::<Vec<_>>(), ["10.77.0.0/24"]);
    assert!(one.infiniband.is_soft() && one.check(1).is_ok());
    let two = load("gateway-segments.toml");
    let facts: Vec<_> = two
        .segments
        .iter()
        .map(|s| (s.name.as_str(), s.vlan.map(VlanId::value), s.pkey.value(), s.routes.len()))
        .collect();
    assert_eq!(facts, [("office", None, 0xffff, 1), ("storage", Some(100), 0x8064, 0)]);
    assert!(two.check(1).is_ok());
    // A reload converts one into the other.
    let change = one.difference(&two).unwrap();
    assert_eq!((change.removed.len(), change.added.len()), (1, 2));
}
