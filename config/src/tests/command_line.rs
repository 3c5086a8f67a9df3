use proptest::prelude::*;

use super::*;

fn command_line(words: &str) -> Result<CommandLine, ConfigError> {
    CommandLine::parse(words.split(' ').map(str::to_owned))
}

#[test]
fn command_line_is_split_and_eal_keeps_its_words() {
    let line = command_line("ipoib-fwd -l 0-2 -n 4 --vdev net_tap0,iface=x --no-pci -- --config g.toml -- x")
        .unwrap();
    assert_eq!(line.program, "ipoib-fwd");
    assert_eq!(line.eal.arguments.join(" "), "-l 0-2 -n 4 --vdev net_tap0,iface=x --no-pci");
    assert_eq!(line.own.join(" "), "--config g.toml -- x");
    assert_eq!(line.eal.vdevs, ["net_tap0,iface=x"]);
    assert!(line.eal.warnings().is_empty());
    let roles = line.eal.roles().unwrap().unwrap();
    assert_eq!((roles.main, roles.workers.to_string().as_str()), (0, "1-2"));
}

#[test]
fn every_form_of_naming_lcores() {
    for (words, main, workers) in [
        ("p -l0,2", 0, "2"),
        ("p -c 0x16", 1, "2,4"),
        ("p -c7", 0, "1-2"),
        ("p --lcores 0@1,1@1", 0, "1"),
        ("p --lcores=(0-2)@(4,6),9@3", 0, "1-2,9"),
        ("p -l 0-3 --main-lcore 3", 3, "0-2"),
        ("p --main-lcore=1 --lcores 0-1", 1, "0"),
    ] {
        let roles = command_line(words).unwrap().eal.roles().unwrap().unwrap();
        assert_eq!((roles.main, roles.workers.to_string().as_str()), (main, workers), "{words}");
    }
    assert_eq!(command_line("p -n 4").unwrap().eal.roles().unwrap(), None);
}

#[test]
fn command_line_errors_name_the_remedy() {
    for (words, said) in [
        ("p -l", "-l has no value"),
        ("p -l 0-1024", "no lcore 1024"),
        ("p -l 3-1", "runs backwards"),
        ("p -l x", "-l 0-2"),
        ("p -c 0xz", "-c 0x7"),
        ("p -c 0", "it contains no lcore"),
        ("p --lcores (0-1@2", "lacks its `)`"),
        ("p -l 0-1 -c 3", "both -l and -c name lcores"),
        ("p -l 0-1 --main-lcore 2", "add 2 to them"),
        ("p -l 0-1 --config g.toml", "put `--` before"),
    ] {
        let complaint = command_line(words).expect_err(words).to_string();
        assert!(complaint.contains(said), "{complaint} does not say: {said}");
    }
    let alone = command_line("p -l 0").unwrap().eal.roles().unwrap_err().to_string();
    assert!(alone.contains("for example -l 0,1"), "{alone}");
}

#[test]
fn grabbing_every_device_is_warned_of() {
    assert_eq!(command_line("p -l 0-1 --vdev net_null0").unwrap().eal.warnings(), [Warning::EveryPciDevice]);
    for words in ["p -a 0000:81:00.0", "p --allow=00:01.0", "p --no-pci", "p --no-pci -b 00:01.0"] {
        assert!(command_line(words).unwrap().eal.warnings().is_empty(), "{words}");
    }
    // All except one is nearly every device.
    for words in ["p -b00:01.0", "p --block 00:01.0", "p --block=0000:00:01.0"] {
        let eal = command_line(words).unwrap().eal;
        assert_eq!(
            (eal.pci_restricted, eal.blocked.as_slice()),
            (false, ["0000:00:01.0".to_owned()].as_slice())
        );
        assert_eq!(eal.warnings(), [Warning::EveryOtherPciDevice], "{words}");
    }
}

proptest! {
    #[test]
    fn lists_and_masks_are_the_same_sets(ids in prop::collection::btree_set(0..MAX_LCORE, 1..40)) {
        let set: LcoreSet = ids.iter().copied().collect();
        prop_assert_eq!(set.iter().collect::<Vec<_>>(), ids.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(LcoreSet::from_list(&set.to_string()).unwrap(), set);
        prop_assert_eq!(LcoreSet::from_mask(&set.to_mask()).unwrap(), set);
        let map = set.iter().map(|id| format!("{id}@0")).collect::<Vec<_>>().join(",");
        let eal = EalArguments::parse(vec!["--lcores".into(), map]).unwrap();
        prop_assert_eq!(eal.lcores, Some(set));
    }

    #[test]
    fn arbitrary_words_never_panic(words in prop::collection::vec("[-a-z0-9@(),=]{0,12}", 0..8)) {
        let _ = CommandLine::parse(words);
    }
}

#[test]
fn rings_of_af_packet_ports_are_locked_for_each_queue_both_ways() {
    for (given, mib) in [
        ("--vdev net_af_packet0,iface=a", 16),
        ("--vdev=eth_af_packet0,iface=a,qpairs=3 --vdev net_af_packet1,iface=b", 64),
        ("--vdev net_af_packet0,iface=a,framesz=16384,blocksz=65536,framecnt=64", 2),
        ("--vdev net_af_packet0,iface=a,framecnt=1024", 4),
        ("--vdev net_af_packet0,iface=a,framesz=x", 0),
        ("--vdev net_pcap0,iface=a", 0),
        ("-l 0,1", 0),
    ] {
        let words = given.split(' ').map(str::to_owned).collect();
        assert_eq!(EalArguments::parse(words).unwrap().locked_rings(), mib << 20, "{given}");
    }
}

#[test]
fn af_packet_ports_have_frames_as_long_as_a_buffer_and_rings_of_8_mib_unless_theirs_are_given() {
    let words = |text: &str, room| {
        let words = text.split(' ').map(str::to_owned).collect();
        EalArguments::parse(words).unwrap().with_rings(room).join(" ")
    };
    let long = "framesz=16384,blocksz=65536,framecnt=512";
    for (given, room, expected) in [
        ("--vdev net_af_packet0,iface=a", 16_384, format!("--vdev net_af_packet0,iface=a,{long}")),
        (
            "--vdev=net_af_packet1,iface=a -l 0,1",
            16_384,
            format!("--vdev=net_af_packet1,iface=a,{long} -l 0,1"),
        ),
        (
            "--vdev net_af_packet0,iface=a",
            5000,
            "--vdev net_af_packet0,iface=a,framesz=4096,blocksz=65536,framecnt=2048".to_owned(),
        ),
        ("--vdev eth_af_packet0,iface=a", 16_384, format!("--vdev eth_af_packet0,iface=a,{long}")),
        (
            "--vdev net_af_packet0,iface=a",
            2048,
            "--vdev net_af_packet0,iface=a,framesz=2048,blocksz=65536,framecnt=4096".to_owned(),
        ),
        // Unusual but valid arguments.
        (
            "--vdev net_af_packet0,iface=a,framesz=2048",
            16_384,
            "--vdev net_af_packet0,iface=a,framesz=2048".to_owned(),
        ),
        (
            "--vdev net_pcap0,iface=a --vdev net_tap0",
            16_384,
            "--vdev net_pcap0,iface=a --vdev net_tap0".to_owned(),
        ),
        ("--file-prefix net_af_packet0", 16_384, "--file-prefix net_af_packet0".to_owned()),
    ] {
        assert_eq!(words(given, room), expected);
    }
}

#[test]
fn cpus_and_devices_in_eal_arguments() {
    let eal = |text: &str| command_line(text).unwrap().eal;
    let map = eal(
        "p --lcores 0@4,(1-2)@(5,6),3,(7-8) -a 3B:00.0,rx=1 --allow=0000:81:00.1 -b 01:00.0 -m512 --no-huge",
    );
    let of = |lcore| map.processors_of(lcore).to_string();
    assert_eq!([0, 1, 2, 3, 7].map(of), ["4", "5-6", "5-6", "3", "7-8"]);
    assert_eq!(map.allowed, ["0000:3b:00.0", "0000:81:00.1"]);
    assert_eq!(
        (map.value_of("-m"), map.has("--no-huge"), map.has("--in-memory")),
        (Some("512"), true, false)
    );
    let other = eal("p --huge-dir /a --huge-dir=/b -m 1 -m 2");
    assert_eq!((other.value_of("--huge-dir"), other.value_of("-m")), (Some("/b"), Some("2")));
    assert_eq!(eal("p -l 0-1 --huge-dir").value_of("--huge-dir"), None);
    assert!(command_line("p -l 0-1 --check").unwrap_err().to_string().contains("--check is among EAL's"));
}

#[test]
fn a_word_that_is_no_option_is_refused() {
    for line in [
        "p stats",
        "p -l 0-1 stats",
        "p -l 0-1 --no-pci stats --no-huge",
        "p -l 0-1 -v links -- --config f",
        "p -l0-1 -m64 links",
    ] {
        let error = command_line(line).unwrap_err().to_string();
        assert!(error.contains("` is neither an option nor the value of one"), "{line}: {error}");
    }
    for line in [
        "p -l 0-1 --file-prefix a -n 4 -m 64 --log-level lib.eal:debug --proc-type primary --vdev net_null0 -a 81:00.0",
        "p -l 0-1 --huge-unlink=never --no-huge --in-memory --socket-mem 64,64 -d /usr/lib/x.so -- stats",
        "p -c 0x3 --iova-mode=va --no-telemetry --base-virtaddr 0x1000000 -r 2",
    ] {
        command_line(line).unwrap();
    }
}
