//! Limits of devices and ports, and keys without effect, with the location of the key.

use super::*;

const SOFT: &str = "[infiniband.soft]\nports = [{ link = \"shm:/a\" }]\n";

/// Returns all errors of a file for `workers` workers, and checks that startup reports the same.
fn wrong(text: &str, workers: u32) -> Vec<String> {
    let file = ConfigFile::of(text);
    let (_, errors) = file.examine(&Overrides::default(), Some(workers));
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let started = file.config(&Overrides::default()).and_then(|config| file.check(&config, workers));
    assert_eq!(started.is_err(), !errors.is_empty(), "{errors:?}");
    errors
}

#[test]
fn a_software_device_has_bounds_of_its_own() {
    for (key, most) in [("ud-send-depth", 16_384), ("ud-receive-depth", 32_767), ("srq-depth", 32_767)] {
        let text = |depth: u32, soft: &str| format!("[infiniband]\n{key} = {depth}\n{soft}");
        assert_eq!(wrong(&text(most, SOFT), 1), [""; 0]);
        let said = wrong(&text(32_768, SOFT), 1);
        let expected = format!(
            "gateway.toml:2:1: infiniband.{key}: 32768 exceeds the limit of {most} of a software ConnectX; write at most {most}"
        );
        assert_eq!(said, std::slice::from_ref(&expected));
        // Without EAL's arguments the number of workers is unknown, but the depth is still wrong.
        let (_, errors) = ConfigFile::of(&text(32_768, SOFT)).examine(&Overrides::default(), None);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
        // A hardware adapter reports its own limits.
        assert_eq!(wrong(&text(32_768, ""), 1), [""; 0]);
    }
}

#[test]
fn connections_of_a_worker_fit_the_queue_pairs_of_a_software_device() {
    let text = |most: u32| format!("[infiniband]\nmax-connections = {most}\n{SOFT}");
    // Each worker's queues fit, but all together may not.
    for (workers, most, together) in [(1, 8064, 8064), (2, 16_128, 8189), (8, 64_512, 8177)] {
        assert_eq!(wrong(&text(most), workers), [""; 0]);
        let workers_are = if workers == 1 { "worker" } else { "workers" };
        assert_eq!(
            wrong(&text(most + 1), workers),
            [format!(
                "gateway.toml:2:1: infiniband.max-connections: a software ConnectX has room for {together} connections \
                 with {workers} {workers_are}, and max-connections = {}; write at most {together}",
                most + 1
            )]
        );
    }
    assert_eq!(wrong("[infiniband]\nmax-connections = 65535\n", 1), [""; 0]);
    // The default with many workers.
    assert_eq!(wrong(SOFT, 33), [""; 0]);
}

#[test]
fn more_connections_than_queue_pairs_are_reported() {
    let over = |text: &str, workers| parse(text).unwrap().overcommitted_connections(workers);
    let text = |most: u32| format!("[infiniband]\nmax-connections = {most}\n{SOFT}");
    for (workers, most) in [(2, 8189), (33, 8119)] {
        assert_eq!(over(&text(most), workers), None);
        let expected = format!(
            "a software ConnectX has room for {most} connections with {workers} workers, and max-connections = {}",
            most + 1
        );
        let remedy = format!("write at most {most}");
        assert_eq!(over(&text(most + 1), workers), Some((expected, remedy)));
    }
    assert_eq!(over(SOFT, 64), None);
    // That is rejected.
    assert_eq!(over(&text(8065), 1), None);
    assert_eq!(over("[infiniband]\nmax-connections = 65535\n", 2), None, "an adapter reports its own limits");
    // Two segments on the one device, and one on each of two.
    let two = "[[segment]]\nvlan = 1\n[[segment]]\nvlan = 2\npkey = 0x8002\n";
    let (what, _) = over(&format!("{}{two}", text(9000)), 2).unwrap();
    assert!(what.contains("room for 8188 connections"), "{what}");
}

#[test]
fn frames_of_af_packet_ports_fit_buffers_and_blocks() {
    let faults = |options: &str| {
        let line = format!("p --no-pci --vdev=net_af_packet0,iface=a{options} --vdev net_null0,framesz=1");
        let eal = CommandLine::parse(line.split(' ').map(str::to_owned)).unwrap().eal;
        let faults: Vec<String> = eal.ring_faults(4096).iter().map(ToString::to_string).collect();
        faults
    };
    for good in [
        "",
        ",framesz=4096,blocksz=65536,framecnt=8192",
        ",framesz=4096,blocksz=65536",
        ",framesz=2048",
        ",framesz=4096",
        ",blocksz=8192",
    ] {
        assert_eq!(faults(good), [""; 0], "{good}");
    }
    for (bad, word) in [
        (",framesz=8192,blocksz=65536,framecnt=512", "framesz=8192 do not fit packet buffers"),
        (",framesz=32768,blocksz=65536", "data-room = 4096; write a smaller framesz"),
        (",framesz=3000,blocksz=65536", "framesz=3000 is not a multiple of 16"),
        (",framesz=x", "framesz=0"),
        (",framesz=2048,blocksz=5000", "blocksz=5000 is not a multiple of 4096"),
        (",framesz=4096,blocksz=2048", "blocksz=2048"),
        (",framesz=4080,blocksz=65536", "and of framesz=4080"),
        (",framesz=4096,blocksz=65536,framecnt=8", "framecnt=8 is not a multiple of the 16 frames"),
        (",framesz=4096,blocksz=65536,framecnt=0", "framecnt=0"),
    ] {
        let said = faults(bad);
        assert_eq!(said.len(), 1, "{bad}");
        assert!(
            said[0].starts_with("command line: --vdev net_af_packet0: ") && said[0].contains(word),
            "{said:?}"
        );
        assert!(said[0].contains("; write "), "{said:?}");
    }
}

#[test]
fn what_names_no_device_is_refused() {
    let parse =
        |words: &str| CommandLine::parse(words.split(' ').map(str::to_owned)).map_err(|e| e.to_string());
    for words in ["p --no-pci -a zz", "p -a zz", "p --allow=zz,a=b", "p -b 7", "p --block net"] {
        let said = parse(words).unwrap_err();
        assert!(said.contains(" is not a device; write a PCI address"), "{words}: {said}");
    }
    for (argument, name) in [
        ("81:00.0", "0000:81:00.0"),
        ("pci:0000:00:01.0", "0000:00:01.0"),
        ("pci:3B:00.0,x=1", "0000:3b:00.0"),
        ("bus=pci,addr=0000:81:00.0/class=eth", "0000:81:00.0"),
        ("net_null0", "net_null0"),
        ("auxiliary:mlx5_core.sf.2", "mlx5_core.sf.2"),
        ("mlx5_core.sf.2,x=1", "mlx5_core.sf.2"),
        ("F8615163-DA09-4C1A-A0B3-B2A8E0F7D1C2", "F8615163-DA09-4C1A-A0B3-B2A8E0F7D1C2"),
    ] {
        assert_eq!(parse(&format!("p -a {argument}")).unwrap().eal.allowed, [name], "{argument}");
    }
    assert_eq!(parse("p -b 0000:81:00.0,x=1").unwrap().eal.blocked, ["0000:81:00.0"]);
}

#[test]
fn two_software_devices_have_no_guid_in_common() {
    let text = |first: &str, second: &str| {
        format!(
            "[infiniband.soft]\n{first}\nports = [{{ link = \"shm:/a\" }}]\n\
             [[infiniband.soft-device]]\nname = \"b\"\n{second}\nports = [{{ link = \"shm:/b\" }}]\n"
        )
    };
    let node = "node-guid = \"0x0200000000000001\"";
    let said = complaint(&text(node, node));
    assert_eq!(
        said,
        "gateway.toml:6:13: the software devices `soft0` and `b` both have GUID 0x0200000000000001; give one of them \
         another, or omit it for a random one"
    );
    // A port's GUID defaults to its node's GUID plus one.
    assert!(complaint(&text(node, "node-guid = \"0x0200000000000002\"")).contains("0x0200000000000002"));
    assert!(parse(&text(node, "node-guid = \"0x0200000000000011\"")).is_ok());
    assert!(parse(&text("", "")).is_ok());
}

#[test]
fn keys_without_effect_are_named_with_their_place() {
    let unused = |text: &str| {
        let file = ConfigFile::of(text);
        let config = file.config(&Overrides::default()).unwrap();
        let unused = file.unused_keys(&config);
        unused.into_iter().map(|unused| (unused.key, unused.place.line)).collect::<Vec<_>>()
    };
    assert_eq!(
        unused("[infiniband]\nlong-messages = \"key\"\nsend-segments = 5\n"),
        [("infiniband.long-messages", 2), ("infiniband.send-segments", 3)]
    );
    // Frames of this length need five buffers.
    let long = "[ethernet]\nmtu = 9000\n[buffers]\ndata-room = 2048\n[infiniband]\nsend-segments = ";
    assert_eq!(unused(&format!("{long}4\nlong-messages = \"key\"\n")), []);
    assert_eq!(unused(&format!("{long}5\n")), [("infiniband.send-segments", 6)]);
    assert_eq!(unused(&format!("[infiniband]\ndevice = \"mlx5_0\"\n{SOFT}")), [("infiniband.device", 2)]);
    assert_eq!(
        unused(&format!("[infiniband]\ndriver = \"verbs\"\n{SOFT}")),
        [("infiniband.soft", 3)],
        "another driver is used"
    );
    let datagram = "[infiniband]\nmode = \"datagram\"\nretry-count = 1\nconnection-idle-seconds = 2\n";
    assert_eq!(unused(datagram), [("infiniband.retry-count", 3), ("infiniband.connection-idle-seconds", 4)]);
    assert_eq!(unused(&datagram.replace("datagram", "connected")), []);
    // These determine the number of packet buffers in every mode.
    for counted in ["receive-mtu = 2044", "max-connections = 2", "connection-send-depth = 16"] {
        assert_eq!(unused(&format!("[infiniband]\nmode = \"datagram\"\n{counted}\n")), [], "{counted}");
    }
    let file = ConfigFile::of(datagram);
    let config = file.config(&Overrides::default()).unwrap();
    assert_eq!(
        file.unused_keys(&config)[0].what,
        "infiniband.retry-count has no effect until `ctl mode connected`: every segment is in datagram mode"
    );
    let pkey = "[infiniband]\npkey = 0x8001\n[[segment]]\nvlan = 1\npkey = 0x8002\n[[segment]]\nvlan = 2\n";
    assert_eq!(unused(pkey), []);
    assert_eq!(unused(&format!("{pkey}pkey = 0x8003\n")), [("infiniband.pkey", 2)]);
    // Written default values have no intended effect.
    assert_eq!(unused(&Config::annotated_default()), []);
    assert_eq!(unused("[infiniband]\nmode = \"datagram\"\nretry-count = 0\nlong-messages = \"copy\"\n"), []);
}
