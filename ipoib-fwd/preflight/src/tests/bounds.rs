//! Limits that also refuse a start: of ports and of the configuration's paths, each with the location of its
//! key.

use super::*;
use crate::finding::{Code, Severity};
use crate::machine::{Occupant, PathKind, PathState};

/// The line of the key, the code, and the text.
fn refused(machine: &Machine, eal: &str, text: &str) -> Vec<(usize, Code, String)> {
    let report = check(machine, eal, text);
    let refusals = report.refusals().map(|finding| {
        let line = finding.at.as_ref().map_or(0, |at| at.line);
        (line, finding.code, format!("{}; {}", finding.what, finding.help))
    });
    refusals.collect()
}

fn machine() -> Machine {
    let tree = Tree::good();
    tree.interface("gw0", 1, "0x1003", None);
    let mut machine = tree.machine();
    machine.links.get_mut("gw0").unwrap().mtu = Some(9700);
    machine
}

#[test]
fn packets_fit_the_port() {
    let machine = machine();
    let cases = [
        // (vdev, data-room, the longest packet)
        ("net_tap0", 4096, 1504),
        ("net_null0", 4096, 4074),
        ("net_pcap0,iface=gw0", 4096, 4074),
        ("net_pcap0,iface=gw0", 9024, 9002),
        ("net_af_packet0,iface=gw0", 4096, 4008),
        ("net_af_packet0,iface=gw0", 8192, 8104),
        ("net_af_packet0,iface=gw0,framesz=2048", 4096, 1960),
    ];
    for (vdev, room, most) in cases {
        let eal = format!("p -l 8-10 --in-memory --no-pci --vdev {vdev}");
        let text = |mtu: u32| format!("[buffers]\ndata-room = {room}\n[ethernet]\nmtu = {mtu}\n");
        assert_eq!(refused(&machine, &eal, &text(most)), [], "{vdev}");
        let all = refused(&machine, &eal, &text(most + 1));
        let [(4, Code::EthernetMtu, said)] = all.as_slice() else { panic!("{vdev}: {all:?}") };
        assert!(
            said.contains(&format!("up to {most} bytes")) && said.contains(&format!("mtu = {most}")),
            "{said}"
        );
    }
    // A fix beyond the limits of its key is not proposed.
    let short = "p -l 8-10 --in-memory --no-pci --vdev net_af_packet0,iface=gw0,framesz=512";
    let all = refused(&machine, short, "[ethernet]\nmtu = 600\n");
    let [(2, Code::EthernetMtu, said)] = all.as_slice() else { panic!("{all:?}") };
    assert!(said.contains("data-room = 2048") && !said.contains("mtu = 424 in ["), "{said}");
    let kind = "p -l 8-10 --in-memory --no-pci --vdev net_pcap0,iface=lo";
    let mut loopback = machine.clone();
    loopback.links.insert("lo".into(), crate::machine::Link { is_up: true, ..Default::default() });
    assert_eq!(refused(&loopback, kind, ""), [], "EAL accepts it");
    // The members of a bond use the bond's MTU.
    let bond = "p -l 8-10 --in-memory --no-pci --vdev net_tap0 --vdev net_bonding0,member=net_tap0";
    assert_eq!(refused(&machine, bond, "[ethernet]\nmtu = 9000\n"), []);
}

#[test]
fn the_mtu_of_an_interface_is_raised_for_short_packets_and_required_for_long_ones() {
    let mut machine = machine();
    let eal = "p -l 8-10 --in-memory --no-pci --vdev net_af_packet0,iface=gw0";
    let severity = |machine: &Machine, mtu: u32| {
        let report = check(machine, eal, &format!("[ethernet]\nmtu = {mtu}\n"));
        let found =
            report.findings().iter().find(|f| matches!(f.code, Code::InterfaceMtu | Code::EthernetMtu));
        found.map(|found| (found.code, found.severity))
    };
    machine.links.get_mut("gw0").unwrap().mtu = Some(576);
    assert_eq!(severity(&machine, 576), None);
    assert_eq!(severity(&machine, 1500), Some((Code::InterfaceMtu, Severity::Note)));
    assert_eq!(severity(&machine, 1501), Some((Code::EthernetMtu, Severity::Error)));
    // The MTU of an interface on top of another is at most the other's.
    let below = crate::machine::Link {
        mtu: Some(1400),
        uppers: vec!["gw0".into()],
        ..crate::machine::Link::default()
    };
    machine.links.insert("below0".into(), below);
    assert_eq!(severity(&machine, 1500), Some((Code::InterfaceMtu, Severity::Warning)));
    assert_eq!(severity(&machine, 1400), Some((Code::InterfaceMtu, Severity::Note)));
}

#[test]
fn rings_fit_the_buffers() {
    let eal =
        |options: &str| format!("p -l 8-10 --in-memory --no-pci --vdev net_af_packet0,iface=gw0{options}");
    let said = refused(&machine(), &eal(",framesz=8192,blocksz=65536"), "");
    let [(0, Code::EalInvalid, said)] = said.as_slice() else { panic!("{said:?}") };
    assert!(said.contains("framesz=8192 do not fit") && said.contains("data-room = 8192"), "{said}");
    assert_eq!(refused(&machine(), &eal(",framesz=8192,blocksz=65536"), "[buffers]\ndata-room = 8192\n"), []);
}

#[test]
fn paths_of_the_configuration_exist_and_the_user_has_access() {
    let state = |kind, is_writable| PathState { kind, is_writable };
    let said = |path: &str, state: PathState, text: &str| {
        let mut machine = machine();
        machine.paths.insert(path.into(), state);
        refused(&machine, "", text)
    };
    let one = |all: Vec<(usize, Code, String)>, line: usize, code: Code, words: &[&str]| {
        let [(at, is, said)] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((*at, *is), (line, code), "{said}");
        for word in words {
            assert!(said.contains(word), "{word}: {said}");
        }
    };
    let gids = "[gateway]\ngids = \"/g/gids\"\n";
    let missing = said("/g", state(PathKind::Missing, true), gids);
    one(missing, 2, Code::PathUnusable, &["gateway.gids: there is no directory /g", "mkdir -p /g"]);
    let directory = said("/g/gids", state(PathKind::Directory, true), gids);
    one(directory, 2, Code::PathUnusable, &["gateway.gids: /g/gids is a directory", "/g/gids/gids"]);
    assert_eq!(said("/g", state(PathKind::Directory, true), gids), []);

    let captures = "[gateway]\nuser = \"nobody\"\ncaptures = \"/c\"\n";
    let closed = said("/c", state(PathKind::Directory, false), captures);
    one(closed, 3, Code::PathUnusable, &["user nobody cannot write to /c", "chown nobody /c"]);
    // The directory may be created before a capture starts.
    assert_eq!(said("/c", state(PathKind::Missing, true), captures), []);
    let mut without = machine();
    without.paths.insert("/c".into(), state(PathKind::Missing, true));
    let report = check(&without, "", captures);
    let found = report.findings().iter().find(|finding| finding.code == Code::PathUnusable).unwrap();
    assert!(found.severity == Severity::Warning && found.help.contains("mkdir -p /c"), "{found}");
    one(said("/c", state(PathKind::Other, true), captures), 3, Code::PathUnusable, &["is not a directory"]);
    assert_eq!(said("/c", state(PathKind::Directory, true), captures), []);

    // Without a configured user, the gateway keeps the user that starts it.
    for (more, user) in [
        ("", "user starter cannot"),
        (
            "[infiniband]\ndriver = \"mlx5\"\n",
            "user starter without capabilities (privileges = \"drop\") cannot",
        ),
        ("privileges = \"keep\"\n[infiniband]\ndriver = \"mlx5\"\n", "user starter cannot"),
    ] {
        without.effective_user = "starter".into();
        without.paths.insert("/c".into(), state(PathKind::Directory, false));
        let all = refused(&without, "", &format!("[gateway]\ncaptures = \"/c\"\n{more}"));
        one(all, 2, Code::PathUnusable, &[user, "chown starter /c"]);
    }

    let mut in_use = machine();
    in_use.state_in_use = Some(("/s".into(), "process 612 (ipoib-fwd)".to_owned()));
    let all = refused(&in_use, "", "[gateway]\nstate-directory = \"/s\"\n");
    one(all, 2, Code::PathUnusable, &["process 612 (ipoib-fwd) uses /s", "its own state-directory"]);

    let soft = "[gateway]\nuser = \"nobody\"\n[infiniband.soft]\nports = [{ link = \"shm:/s?crc=keep\" }]\n";
    let closed = said("/s", state(PathKind::Other, false), soft);
    one(
        closed,
        4,
        Code::CableForbidden,
        &["user nobody cannot use the cable's socket /s", "permission denied"],
    );
    assert_eq!(said("/s", state(PathKind::Other, true), soft), []);
    // A fabric that starts later creates its socket.
    assert_eq!(said("/s", state(PathKind::Missing, false), soft), []);

    let mut machine = machine();
    machine.socket = Occupant::NoDirectory;
    let socket = refused(&machine, "", "[gateway]\ncontrol-socket = \"/no/such/sock\"\n");
    one(socket, 2, Code::PathUnusable, &["there is no directory /no/such", "mkdir -p /no/such"]);
}

#[test]
fn an_invalid_file_causes_no_errors_about_missing_parts() {
    let mut machine = machine();
    machine.adapters.clear();
    for text in ["[infiniband.soft\nports = 7\n", "[infiniband.soft]\nports = 7\n"] {
        assert_eq!(
            codes(&check(&machine, EAL, text)).iter().filter(|code| **code == "infiniband-none").count(),
            0
        );
    }
    assert!(codes(&check(&machine, EAL, "")).contains(&"infiniband-none"));
}

#[test]
fn devices_other_than_pci_and_ports_on_files_are_accepted() {
    let mut machine = machine();
    for device in
        ["auxiliary:mlx5_core.sf.2", "mlx5_core.sf.2", "pci:0000:81:00.0", "bus=pci,addr=0000:81:00.0"]
    {
        assert_eq!(refused(&machine, &format!("p -l 8-10 --in-memory -a {device}"), ""), [], "{device}");
    }
    let unknown = |name: &str| {
        let text = format!("[ethernet]\nport = \"{name}\"\n");
        codes(&check(&machine, EAL, &text)).contains(&"ethernet-unknown")
    };
    assert!(!unknown("0000:81:00.0_representor_vf0") && unknown("0000:81:00.01"));
    let missing = refused(&machine, "p -l 8-10 --in-memory -a pci:99:00.0", "");
    assert!(matches!(missing.as_slice(), [(0, Code::PciMissing, _)]), "{missing:?}");
    machine.process.capabilities = Some(0);
    let pcap = |options: &str| {
        refused(&machine, &format!("p -l 8-10 --in-memory --no-pci --vdev net_pcap0,{options}"), "")
    };
    assert_eq!(pcap("rx_pcap=in.pcap,tx_pcap=out.pcap"), []);
    for on in ["iface=gw0", "rx_iface=gw0", "rx_iface_in=gw0", "rx_pcap=in.pcap,tx_iface=gw0"] {
        assert!(matches!(pcap(on).as_slice(), [(0, Code::CapabilityMissing, _)]), "{on}: {:?}", pcap(on));
    }
}
