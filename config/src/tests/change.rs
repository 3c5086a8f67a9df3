use super::*;

const OLD: &str = "[gateway]\nidle = \"sleep\"\n\
    [[segment]]\nname = \"a\"\nvlan = 1\npkey = 0x8001\naddress = \"10.1.0.254/24\"\n\
    [[segment]]\nname = \"b\"\nvlan = 2\npkey = 0x8002\n";

fn difference(old: &str, new: &str) -> Result<Change, Refused> {
    parse(old).unwrap().difference(&parse(new).unwrap())
}

fn names(segments: &[Segment]) -> Vec<&str> {
    segments.iter().map(|s| s.name.as_str()).collect()
}

#[test]
fn nothing_to_do_is_no_change() {
    assert!(difference(OLD, OLD).unwrap().is_empty());
    // The order of segments is irrelevant.
    let (head, b) = OLD.split_at(OLD.rfind("[[segment]]").unwrap());
    let (gateway, a) = head.split_at(head.find("[[segment]]").unwrap());
    assert!(difference(OLD, &format!("{gateway}{b}{a}")).unwrap().is_empty());
}

#[test]
fn segments_come_and_go_by_name() {
    let new = OLD.replace("name = \"b\"", "name = \"c\"");
    let change = difference(OLD, &new).unwrap();
    assert_eq!((change.removed.len(), names(&change.added)), (1, vec!["c"]));
    assert_eq!(change.removed[0].as_str(), "b");
    assert!(change.changed.is_empty() && change.keys.is_empty());
}

#[test]
fn what_a_segment_has_changes_while_it_runs() {
    for (key, text) in [
        ("address", OLD.replace("10.1.0.254/24", "10.1.0.253/24")),
        (
            "route",
            OLD.replace(
                "254/24\"\n",
                "254/24\"\n[[segment.route]]\nto = \"0.0.0.0/0\"\nvia = \"10.1.0.1\"\n",
            ),
        ),
        ("mode", OLD.replace("254/24\"\n", "254/24\"\nmode = \"datagram\"\n")),
        ("mtu", OLD.replace("254/24\"\n", "254/24\"\nmtu = 1400\n")),
        ("subnets", OLD.replace("254/24\"\n", "254/24\"\nsubnets = [\"10.2.0.0/16\"]\n")),
        ("priority", OLD.replace("254/24\"\n", "254/24\"\npriority = 1\n")),
    ] {
        let change = difference(OLD, &text).unwrap();
        assert_eq!(names(&change.changed), ["a"], "{key}");
        assert!(change.removed.is_empty() && change.added.is_empty() && change.keys.is_empty(), "{key}");
    }
    // A default of segments changes those that use it.
    let change = difference(OLD, &format!("{OLD}[infiniband]\nmode = \"datagram\"\n")).unwrap();
    assert_eq!(names(&change.changed), ["a", "b"]);
}

#[test]
fn what_a_segment_joins_makes_it_another() {
    for text in [
        OLD.replace("vlan = 1\n", "vlan = 3\n"),
        OLD.replace("vlan = 1\n", ""),
        OLD.replace("0x8001", "0x8003"),
        OLD.replace("vlan = 1\n", "vlan = 1\nscope = 5\n"),
    ] {
        let change = difference(OLD, &text).unwrap();
        assert_eq!((change.removed[0].as_str(), names(&change.added)), ("a", vec!["a"]), "{text}");
        assert!(change.changed.is_empty());
    }
}

#[test]
fn live_keys_are_named() {
    let new = OLD.replace("idle = \"sleep\"", "idle = \"poll\"\nlog = \"debug\"\nstats-seconds = 5");
    let new = format!("{new}[infiniband]\nreceive-mtu = 2044\nneighbour-idle-seconds = 5\n");
    let change = difference(OLD, &new).unwrap();
    assert_eq!(
        change.keys,
        [
            "gateway.idle",
            "gateway.log",
            "gateway.stats-seconds",
            "infiniband.receive-mtu",
            "infiniband.neighbour-idle-seconds"
        ]
    );
    assert!(change.has("gateway.log") && !change.has("gateway.gids"));
    assert!(change.removed.is_empty() && change.added.is_empty() && change.changed.is_empty());
}

#[test]
fn changes_that_need_a_restart_are_rejected_as_a_whole() {
    let soft = |device: &str| format!("{OLD}[infiniband.soft]\n{device}");
    let (one, two) = ("ports = [{ link = \"shm:/a\" }]\n", "ports = [{ link = \"shm:/b\" }]\n");
    let queues = "it is only applied at startup";
    let devices = "devices are created at startup";
    for (old, new, key, why) in [
        (
            OLD.to_owned(),
            format!("{OLD}[ethernet]\nrx-descriptors = 64\n"),
            "ethernet.rx-descriptors",
            queues,
        ),
        (OLD.to_owned(), format!("{OLD}[infiniband]\ndriver = \"verbs\"\n"), "infiniband.driver", queues),
        (OLD.to_owned(), format!("{OLD}[infiniband]\nsrq-depth = 64\n"), "infiniband.srq-depth", queues),
        (OLD.to_owned(), format!("{OLD}[buffers]\ncache = 0\n"), "buffers.cache", queues),
        (
            OLD.to_owned(),
            OLD.replace("idle = \"sleep\"", "idle = \"poll\"\ncontrol-socket = \"\""),
            "gateway.control-socket",
            queues,
        ),
        (
            format!("{OLD}[infiniband]\nreceive-mtu = 2044\n"),
            OLD.to_owned(),
            "infiniband.receive-mtu",
            "it can only be reduced",
        ),
        (soft(one), soft(two), "infiniband.soft.ports", devices),
        (soft(one), soft(&format!("seed = 1\n{one}")), "infiniband.soft.seed", devices),
        (soft(one), OLD.to_owned(), "infiniband.soft-device", devices),
        (
            OLD.to_owned(),
            format!("{OLD}[ethernet]\nport = \"net_tap0\"\n"),
            "segment.ethernet",
            "`net_tap0` is not among those that are open (the only one)",
        ),
        (
            OLD.to_owned(),
            OLD.replace("vlan = 2\n", "vlan = 2\nport = 2\n"),
            "segment.port",
            "port 2 of the only one is not among those that are open (port 1 of the only one)",
        ),
        (OLD.to_owned(), format!("{OLD}[infiniband]\nsrq-low = 7\n"), "infiniband.srq-low", queues),
        (
            OLD.to_owned(),
            format!("{OLD}[infiniband]\nmax-connections = 100\n"),
            "infiniband.max-connections",
            queues,
        ),
        (
            format!("{OLD}[infiniband]\ndevice = \"mlx5_0\"\n"),
            format!("{OLD}[infiniband]\ndevice = \"mlx5_1\"\n"),
            "segment.device",
            "`mlx5_1` is not among those that are open (`mlx5_0`)",
        ),
    ] {
        assert_eq!(
            difference(&old, &new).unwrap_err().to_string(),
            format!(
                "{key} cannot change while the gateway runs: {why}; restart needed: put the old value back, or restart the gateway"
            )
        );
    }
}

/// Returns the result of a reload after the file changed to `new`.
fn refused(old: &str, new: &str) -> String {
    let (file, overrides) = (Path::new("g.toml"), Overrides::default());
    parse(old).unwrap().reload_text(file, new, &overrides, 1).unwrap_err().to_string()
}

#[test]
fn a_refused_reload_names_the_line() {
    let restart = "restart needed: put the old value back, or restart the gateway";
    let queues = "it is only applied at startup";
    for (old, new, said) in [
        (
            OLD.to_owned(),
            OLD.replace("idle = \"sleep\"", "idle = \"sleep\"\nhello-ms = 70"),
            format!("g.toml:3:1: gateway.hello-ms cannot change while the gateway runs: {queues}; {restart}"),
        ),
        (
            OLD.replace("idle = \"sleep\"", "idle = \"sleep\"\nhello-ms = 70"),
            OLD.to_owned(),
            format!(
                "g.toml:1:2: gateway.hello-ms cannot change while the gateway runs, not even to the default by leaving it \
                 out: {queues}; {restart}"
            ),
        ),
        (
            OLD.to_owned(),
            OLD.replace("vlan = 2\n", "vlan = 2\nport = 2\n"),
            format!(
                "g.toml:11:1: segment.port cannot change while the gateway runs: port 2 of the only one is not among those \
                 that are open (port 1 of the only one); {restart}"
            ),
        ),
        (
            format!("{OLD}[buffers]\ncount = 0\n"),
            format!("{OLD}[buffers]\ncount = 300_000\n"),
            format!("g.toml:13:1: buffers.count cannot change while the gateway runs: {queues}; {restart}"),
        ),
    ] {
        assert_eq!(refused(&old, &new), said);
    }
    let devices = "devices are created at startup";
    let port = |link| format!("ports = [{{ link = \"shm:/{link}\" }}]\n");
    let soft = |text: &str| format!("[infiniband]\ndriver = \"soft\"\n{text}");
    let more = |name, link| format!("[[infiniband.soft-device]]\nname = \"{name}\"\n{}", port(link));
    let one = format!("[infiniband.soft]\n{}", port("a"));
    for (old, new, said) in [
        // The second device, with or without [infiniband.soft].
        (
            soft(&(one.clone() + &more("x", "b"))),
            soft(&(one + &more("x", "c"))),
            format!("7:1: infiniband.soft-device.ports cannot change while the gateway runs: {devices}"),
        ),
        (
            soft(&(more("x", "a") + &more("y", "b"))),
            soft(&(more("x", "a") + &more("y", "b") + "seed = 3\n")),
            format!("9:1: infiniband.soft-device.seed cannot change while the gateway runs: {devices}"),
        ),
        (
            soft(&more("x", "a")),
            soft(&more("y", "a")),
            format!("4:1: infiniband.soft-device.name cannot change while the gateway runs: {devices}"),
        ),
        // Defaults of segments are in other sections.
        (
            OLD.to_owned(),
            format!("{OLD}[infiniband]\nport = 2\n"),
            "13:1: infiniband.port cannot change while the gateway runs: port 2 of the only one".to_owned(),
        ),
        (
            OLD.to_owned(),
            format!("{OLD}[ethernet]\nport = \"net_tap0\"\n"),
            "13:1: ethernet.port cannot change while the gateway runs: `net_tap0`".to_owned(),
        ),
        (
            "[infiniband]\ndevice = \"mlx5_0\"\n".to_owned(),
            "[infiniband]\ndevice = \"mlx5_1\"\n".to_owned(),
            "2:1: infiniband.device cannot change while the gateway runs: `mlx5_1`".to_owned(),
        ),
        (
            format!("{OLD}[infiniband]\nport = 2\n"),
            OLD.replace("vlan = 2\n", "vlan = 2\nport = 1\n") + "[infiniband]\nport = 2\n",
            "11:1: segment.port cannot change while the gateway runs: port 1 of the only one".to_owned(),
        ),
    ] {
        let got = refused(&old, &new);
        assert!(got.starts_with(&format!("g.toml:{said}")), "{got}");
    }
    // Errors in the file itself are reported as at startup.
    assert!(
        refused(OLD, &OLD.replace("\"b\"", "\"a\""))
            .starts_with("g.toml:9:8: two segments are called `a` (line 3)")
    );
    assert!(refused(OLD, "[gateway").starts_with("g.toml:1:"));
    // Limits are checked for the actual number of workers.
    let many = format!("{OLD}[buffers]\ncount = 6000\n");
    let (file, overrides) = (Path::new("g.toml"), Overrides::default());
    let tall = parse(&many.replace("6000", "60_000")).unwrap();
    let said =
        tall.reload_text(file, &many.replace("6000", "60_000"), &overrides, 200).unwrap_err().to_string();
    assert!(said.starts_with("g.toml:13:1: buffers.count: 60000 are too few for 200 worker(s)"), "{said}");
}

#[test]
fn a_port_without_segments_stays_open() {
    let (file, overrides) = (Path::new("g.toml"), Overrides::default());
    let on = |name: &str, vlan: u16, ports: &str| {
        format!("[[segment]]\nname = \"{name}\"\nvlan = {vlan}\npkey = {}\n{ports}", 0x8000 + vlan)
    };
    let first = on("a", 1, "ethernet = \"e0\"\ndevice = \"d0\"\nport = 1\n");
    let second = on("b", 2, "ethernet = \"e1\"\ndevice = \"d1\"\nport = 2\n");
    let both = format!("{first}{second}");
    let started = parse(&both).unwrap();
    let (share, budget) = (started.connection_share(2), started.budget(2));
    let (without, change) = started.reload_text(file, &first, &overrides, 2).unwrap();
    assert_eq!(change.removed.len(), 1);
    // Its queues were created for the initial shares and hold their buffers.
    assert_eq!(without.connection_share(2), share);
    assert_eq!(without.budget(2).receives, budget.receives);
    assert_eq!(without.infiniband_ports().collect::<Vec<_>>(), [(Some("d0"), 1), (Some("d1"), 2)]);
    // Another reload does not change that, and the segment may return.
    let (without, _) = without.reload_text(file, &first, &overrides, 2).unwrap();
    let (back, change) = without.reload_text(file, &both, &overrides, 2).unwrap();
    assert_eq!(names(&change.added), ["b"]);
    assert_eq!((back.connection_share(2), back.budget(2)), (share, budget));
    let third = on("c", 3, "ethernet = \"e0\"\ndevice = \"d1\"\nport = 1\n");
    let said = without.reload_text(file, &format!("{first}{third}"), &overrides, 2).unwrap_err().to_string();
    assert!(said.contains("port 1 of `d1` is not among those that are open"), "{said}");
}

#[test]
fn overrides_of_the_command_line_count_on_reload() {
    let file = Path::new("g.toml");
    let overrides = Overrides { idle: Some(Idle::Poll), mode: Some(Mode::Datagram), ..Overrides::default() };
    let old = Config::parse_with(file, OLD, &overrides).unwrap();
    let new = OLD.replace("idle = \"sleep\"", "idle = \"pause\"\nlog = \"debug\"");
    let (config, change) = old.reload_text(file, &new, &overrides, 1).unwrap();
    assert_eq!((config.gateway.idle, change.keys), (Idle::Poll, vec!["gateway.log".to_owned()]));
    assert!(config.segments.iter().all(|s| s.mode == Mode::Datagram));
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let old = parse(OLD).unwrap();
    let directory = std::env::temp_dir();
    let said = old.reload(&directory, &Overrides::default(), 1).unwrap_err().to_string();
    assert!(said.contains("cannot be read: not a regular file"), "{said}");
    let said =
        old.reload(&directory.join("there is none"), &Overrides::default(), 1).unwrap_err().to_string();
    assert!(said.contains("cannot be read") && said.contains("--config"), "{said}");
}
