//! Each finding, on a host or configuration with its cause, and no finding without one.

use std::collections::BTreeSet;

use config::LcoreSet;

use super::*;
use crate::finding::{Code, Severity};
use crate::machine::{Access, Account, Adapter, DpdkProcess, Occupant, Pages, PathKind, PathState};

/// A change of the good host, and the one code that it causes.
type Case = (Code, &'static str, &'static str, fn(&mut Machine));

const VETH: &str = "p -l 8-10 --in-memory --no-pci --vdev net_af_packet0,iface=gw0";
/// The driver does not change the interface's MTU.
const PCAP: &str = "p -l 8-10 --in-memory --no-pci --vdev net_pcap0,iface=gw0";
const TOML: &str = "[gateway]\ncontrol-socket = \"\"\nidle = \"poll\"\n";

fn good() -> Machine {
    let tree = Tree::good();
    tree.interface("gw0", 1, "0x1003", None);
    tree.machine()
}

fn gw0(machine: &mut Machine) -> &mut crate::machine::Link {
    machine.links.get_mut("gw0").unwrap()
}

fn port(machine: &mut Machine) -> &mut crate::machine::AdapterPort {
    machine.adapters.get_mut("mlx5_0").unwrap().ports.get_mut(&1).unwrap()
}

fn list(text: &str) -> LcoreSet {
    LcoreSet::from_list(text).unwrap()
}

fn running(prefix: &str) -> DpdkProcess {
    DpdkProcess { prefix: prefix.to_owned(), pid: Some(77), name: Some("ipoib-fwd".to_owned()) }
}

const SOFT: &str = "[infiniband.soft]\nports = [{ link = \"shm:/s\" }]\n";

const CASES: &[Case] = &[
    (Code::ConfigInvalid, EAL, "[gateway]\ncontrol-socket = \"\"\nidle = 7\n", |_| {}),
    (Code::EalInvalid, "p -l zero", TOML, |_| {}),
    (Code::EalMissing, "", TOML, |_| {}),
    (Code::PciUnrestricted, "p -l 8-10 --in-memory", TOML, |_| {}),
    (Code::PciMissing, "p -l 8-10 --in-memory -a 81:00.0 -a 99:00.0", CONFIGURATION, |_| {}),
    (Code::PciKernelDriver, EAL, CONFIGURATION, |m| {
        m.pci.get_mut("0000:81:00.0").unwrap().driver = Some("ice".into());
    }),
    (Code::PciUnrestricted, "p -l 8-10 --in-memory -b 00:03.0", TOML, |_| {}),
    (Code::LoginInterface, VETH, TOML, |m| gw0(m).has_default_route = true),
    (Code::LoginInterface, VETH, TOML, |m| gw0(m).has_routes = true),
    (Code::LoginInterface, EAL, CONFIGURATION, |m| {
        let link = m.links.get_mut("gw0").unwrap();
        (link.pci, link.has_routes) = (Some("0000:81:00.0".into()), true);
    }),
    // With --no-pci, a list of blocked devices has no effect on ports.
    (Code::EthernetUnnamed, "p -l 8-10 --in-memory --no-pci -b 00:03.0", TOML, |_| {}),
    (Code::EthernetUnknown, VETH, CONFIGURATION, |_| {}),
    (Code::EthernetUnnamed, "p -l 8-10 --in-memory --no-pci", TOML, |_| {}),
    (Code::InterfaceMtu, PCAP, TOML, |m| gw0(m).mtu = Some(1400)),
    (
        Code::EthernetMtu,
        VETH,
        "[gateway]\ncontrol-socket = \"\"\nidle = \"poll\"\n[ethernet]\nmtu = 4000\n",
        |m| {
            gw0(m).mtu = Some(3999);
        },
    ),
    (
        Code::EalInvalid,
        "p -l 8-10 --in-memory --no-pci --vdev net_af_packet0,iface=gw0,framesz=3000",
        TOML,
        |_| {},
    ),
    (
        Code::KeyUnused,
        VETH,
        "[gateway]\ncontrol-socket = \"\"\nidle = \"poll\"\n[infiniband]\nlong-messages = \"key\"\n",
        |_| {},
    ),
    (Code::InterfaceMissing, VETH, TOML, |m| {
        m.links.remove("gw0");
    }),
    (Code::InterfaceKind, VETH, TOML, |m| gw0(m).is_ethernet = false),
    (Code::InterfaceDown, VETH, TOML, |m| gw0(m).is_up = false),
    (Code::InterfaceDown, VETH, TOML, |m| gw0(m).has_carrier = false),
    (Code::InterfaceMtu, VETH, TOML, |m| gw0(m).mtu = Some(1400)),
    (Code::InterfaceChecksums, VETH, TOML, |m| gw0(m).is_pair = true),
    (Code::InterfaceOffloads, VETH, TOML, |m| gw0(m).joins = vec!["gro"]),
    (Code::InterfaceMember, VETH, TOML, |m| gw0(m).master = Some("br0".into())),
    (Code::InterfaceMember, VETH, TOML, |m| gw0(m).uppers = vec!["gw0.5".into()]),
    (Code::WorkerMissing, "p -l 8 --in-memory -a 81:00.0", CONFIGURATION, |_| {}),
    (Code::WorkerMissing, "p --in-memory -a 81:00.0", CONFIGURATION, |m| m.processors.online = list("3")),
    (Code::LcoreOffline, "p --lcores 8,9@(9,40) --in-memory -a 81:00.0", CONFIGURATION, |m| {
        m.processors.isolated = list("9,40");
        m.processors.tickless = list("9,40");
    }),
    (Code::LcoresShared, "p --lcores 0@9,1@9 --in-memory -a 81:00.0", CONFIGURATION, |_| {}),
    (Code::LcoresSiblings, EAL, CONFIGURATION, |m| {
        m.processors.siblings.insert(9, list("9-10"));
    }),
    (Code::LcoreNotIsolated, EAL, CONFIGURATION, |m| m.processors.isolated = list("9")),
    (Code::LcoreTicks, EAL, CONFIGURATION, |m| m.processors.tickless = list("9")),
    (Code::Governor, EAL, CONFIGURATION, |m| {
        m.processors.governors.insert(10, "powersave".into());
    }),
    (Code::LcoresNodes, EAL, CONFIGURATION, |m| {
        m.processors.nodes.insert(10, 0);
    }),
    (Code::PortNode, EAL, CONFIGURATION, |m| m.pci.get_mut("0000:81:00.0").unwrap().node = Some(0)),
    (Code::PortNode, EAL, CONFIGURATION, |m| m.adapters.get_mut("mlx5_0").unwrap().node = Some(0)),
    (Code::EalInvalid, "p -l 8-10 --in-memroy -a 0000:81:00.0 --in-memory", CONFIGURATION, |_| {}),
    (Code::PrefixTaken, "p -l 8-10 -a 81:00.0", CONFIGURATION, |m| m.dpdk.push(running("rte"))),
    (Code::PrefixTaken, "p -l 8-10 -a 81:00.0 --file gw1", CONFIGURATION, |m| m.dpdk.push(running("gw1"))),
    (Code::HugepagesNone, EAL, CONFIGURATION, |m| m.memory.pages.clear()),
    (Code::HugepagesNone, EAL, CONFIGURATION, |m| m.memory.pages.iter_mut().for_each(|pages| pages.free = 0)),
    (Code::HugepagesTooFew, EAL, CONFIGURATION, |m| {
        for pages in &mut m.memory.pages {
            pages.free = 20;
        }
    }),
    (Code::HugepagesNode, EAL, CONFIGURATION, |m| m.memory.pages[1].free = 20),
    (Code::HugepagesNotMounted, "p -l 8-10 -a 81:00.0", CONFIGURATION, |m| m.memory.mounts.clear()),
    (Code::HugepagesNotMounted, "p -l 8-10 -a 81:00.0 --huge-dir /mnt", CONFIGURATION, |_| {}),
    (Code::IommuOff, EAL, CONFIGURATION, |m| m.iommu.groups = 0),
    (Code::IommuUnsafe, EAL, CONFIGURATION, |m| m.iommu.is_bypassed = true),
    (Code::IommuTranslates, EAL, CONFIGURATION, |m| {
        m.pci.get_mut("0000:82:00.0").unwrap().translation = Some("DMA-FQ".into());
    }),
    (Code::IbCmLoaded, EAL, CONFIGURATION, |m| {
        m.modules.insert("ib_cm".into());
    }),
    (Code::IbIpoibLoaded, EAL, CONFIGURATION, |m| {
        m.modules.insert("ib_ipoib".into());
    }),
    (Code::PortDown, EAL, CONFIGURATION, |m| (port(m).is_active, port(m).state) = (false, "INIT".into())),
    (Code::PortUnmanaged, EAL, CONFIGURATION, |m| port(m).manager = 0),
    (Code::PKeyMissing, EAL, CONFIGURATION, |m| port(m).pkeys = vec![0x8001]),
    (Code::PKeyLimited, EAL, CONFIGURATION, |m| port(m).pkeys = vec![0x7fff]),
    (Code::FirmwareOld, EAL, CONFIGURATION, |m| {
        m.adapters.get_mut("mlx5_0").unwrap().firmware = Some("20.26.4012".into());
    }),
    (Code::DeviceFileMissing, EAL, CONFIGURATION, |m| m.adapters.get_mut("mlx5_0").unwrap().verbs = None),
    (Code::DeviceFileMissing, EAL, CONFIGURATION, |m| {
        m.files.insert("/dev/vfio/7".into(), Access::Missing);
    }),
    (Code::DeviceFileForbidden, EAL, CONFIGURATION, |m| {
        m.files.insert("/dev/infiniband/umad0".into(), Access::Refused);
    }),
    (Code::CapabilityMissing, VETH, TOML, |m| m.process.capabilities = Some(1 << 14 | 1 << 13)),
    (Code::CapabilityMissing, VETH, TOML, |m| m.process.capabilities = Some(1 << 14 | 1 << 12)),
    // Room for the buffers, but not for rings of that many queues.
    (
        Code::LimitMemlock,
        "p -l 8-10 --in-memory --no-pci --vdev net_af_packet0,iface=gw0,qpairs=256",
        TOML,
        |m| {
            (m.process.memlock, m.process.capabilities) = (Some(4000 << 20), Some(1 << 13 | 1 << 12));
        },
    ),
    (Code::LimitMemlock, EAL, CONFIGURATION, |m| {
        (m.process.memlock, m.process.capabilities) = (Some(8 << 20), Some(0));
    }),
    (Code::LimitNofile, EAL, CONFIGURATION, |m| m.process.nofile = Some(64)),
];

/// Cases with their own configuration: the code, EAL's arguments, the file, and the change of the good host.
const CONFIGURED: &[Case] = &[
    (Code::ConfigUnreadable, EAL, "", |_| {}),
    (
        Code::ConnectionsOvercommitted,
        EAL,
        "[infiniband]\nmax-connections = 9000\n[infiniband.soft]\nports = [{ link = \"shm:/s\" }]\n",
        |_| {},
    ),
    (Code::HugepagesUnused, "p -l 8-10 --no-huge -m 2000 -a 81:00.0", CONFIGURATION, |_| {}),
    (Code::MemoryTooSmall, "p -l 8-10 --no-huge -a 81:00.0", CONFIGURATION, |_| {}),
    (Code::DeviceNone, EAL, CONFIGURATION, |m| m.adapters.clear()),
    (Code::DeviceMissing, EAL, "[infiniband]\ndevice = \"mlx5_7\"\n", |_| {}),
    (Code::PortMissing, EAL, "[infiniband]\nport = 2\n", |_| {}),
    (Code::PortEthernet, EAL, CONFIGURATION, |m| port(m).is_infiniband = false),
    (Code::FabricMtu, EAL, "[infiniband]\nmode = \"datagram\"\n", |m| port(m).mtu = Some(1024)),
    (Code::DriverUnfit, EAL, "[infiniband]\ndriver = \"mlx5\"\n", |m| {
        let mut adapter = m.adapters.remove("mlx5_0").unwrap();
        adapter.pci = None;
        m.adapters.insert("qib0".into(), adapter);
    }),
    (Code::CableMissing, EAL, "[infiniband.soft]\nports = [{ link = \"shm:/no?crc=keep\" }]\n", |m| {
        m.files.insert("/no".into(), Access::Missing);
    }),
    (
        Code::FabricMtu,
        EAL,
        "[infiniband]\nmode = \"datagram\"\n[infiniband.soft]\nports = [{ link = \"shm:/x\", mtu = 512 }]\n",
        |_| {},
    ),
    (Code::PairKeyReadable, EAL, "[gateway]\npair-key = \"000102030405060708090a0b0c0d0e0f\"\n", |_| {}),
    (Code::AccountUnknown, EAL, "[gateway]\nuser = \"gw\"\n", |m| m.user = Account::Unknown("/etc/passwd")),
    (Code::AccountUnknown, EAL, "[gateway]\nuser = \"77\"\n", |m| m.user = Account::Groupless),
    (Code::AccountUnknown, EAL, "[gateway]\ngroup = \"gw\"\n", |m| {
        m.group = Account::Unreadable("cannot read /etc/group".into());
    }),
    (Code::CableForbidden, EAL, SOFT, |m| {
        m.paths.insert("/s".into(), PathState { kind: PathKind::Other, is_writable: false });
    }),
    (Code::PathUnusable, EAL, "[gateway]\ngids = \"/no/gids\"\n", |m| {
        m.paths.insert("/no".into(), PathState { kind: PathKind::Missing, is_writable: true });
    }),
    (Code::SocketOccupied, EAL, "", |m| m.socket = Occupant::Other),
    (Code::SocketForbidden, EAL, "", |m| m.socket = Occupant::Forbidden),
];

#[test]
fn a_good_host_has_only_the_note_about_firmware() {
    assert_eq!(codes(&check(&good(), EAL, CONFIGURATION)), ["firmware"]);
    assert_eq!(codes(&check(&good(), VETH, TOML)), ["firmware"]);
    let firmware = &check(&good(), EAL, CONFIGURATION).findings()[0].what.clone();
    assert_eq!(firmware, "mlx5_0 has firmware 20.35.1012, board MT_0000000224");
}

#[test]
fn old_firmware_is_a_warning_with_a_fix() {
    let tree = Tree::good();
    tree.file("sys/class/infiniband/mlx5_0/fw_ver", "20.26.4012\n");
    let report = check(&tree.machine(), EAL, CONFIGURATION);
    let text = report.text(false);
    assert!(
        text.contains(
            "warning[firmware-old]: mlx5_0, a ConnectX-6, has firmware 20.26.4012: the vendor's drivers support 20.27.0090 and later"
        ) && text.contains("mlxfwmanager -d 0000:82:00.0 --online -u")
            && text.contains("board MT_0000000224"),
        "{text}"
    );
    assert_eq!(report.exit_code(), 3);
    // Devices other than a ConnectX have different version numbers.
    tree.file("sys/class/infiniband/rxe0/fw_ver", "16.1.1\n");
    tree.file("sys/class/infiniband/rxe0/ports/1/link_layer", "InfiniBand\n");
    let text = format!("{CONFIGURATION}[infiniband]\ndevice = \"rxe0\"\n");
    assert!(!codes(&check(&tree.machine(), EAL, &text)).contains(&"firmware-old"));
}

#[test]
fn each_cause_has_one_finding() {
    for (number, (code, eal, text, change)) in CASES.iter().enumerate() {
        let mut machine = good();
        change(&mut machine);
        let found = codes(&check(&machine, eal, text));
        let mut expected = vec![code.word()];
        // The port's name belongs to another configuration.
        if *code == Code::ConfigInvalid {
            assert!(found.contains(&code.word()), "{found:?}");
            continue;
        }
        expected.push("firmware");
        let is = |word: &&str| found.iter().filter(|other| *other == word).count() == 1;
        assert!(
            found.len() == expected.len() && expected.iter().all(is),
            "case {number}, {code:?}: {found:?}"
        );
    }
}

#[test]
fn every_code_occurs_and_all_but_one_have_a_fix() {
    let mut seen = BTreeSet::new();
    let mut note = |report: &Report| {
        for finding in report.findings() {
            seen.insert(finding.code.word());
            assert!(!finding.what.is_empty() && finding.what.lines().count() == 1, "{finding}");
            assert!(!finding.help.is_empty() || finding.code == Code::Firmware, "{finding}");
        }
    };
    for (code, eal, text, change) in CASES.iter().chain(CONFIGURED) {
        let mut machine = good();
        change(&mut machine);
        let report = match code {
            Code::ConfigUnreadable => check_file(&machine, eal, Path::new("/nosuch")),
            _ => check(&machine, eal, text),
        };
        assert!(codes(&report).contains(&code.word()), "{code:?}: {:?}", codes(&report));
        note(&report);
    }
    let config = Config::default();
    note(&Subject { machine: &good(), config: &config, file: None, eal: None, errors: &[] }.check());
    let all: BTreeSet<&str> = Code::ALL.iter().map(|code| code.word()).collect();
    assert_eq!(all.len(), Code::ALL.len(), "words are unique");
    assert!(all.iter().all(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-')));
    assert_eq!(all.difference(&seen).collect::<Vec<_>>(), [&""; 0], "never found");
}

#[test]
fn findings_have_the_name_of_their_subject() {
    let said = |eal: &str, text: &str, change: fn(&mut Machine)| {
        let mut machine = good();
        change(&mut machine);
        check(&machine, eal, text).text(false)
    };
    let text = said("p -l 8-10 --in-memory", TOML, |_| {});
    assert!(text.contains("including the one that connects this host (eth0, 0000:00:03.0)"), "{text}");
    let text =
        said("p -l 8-10 --in-memory --no-pci --vdev net_null0", "[ethernet]\nport = \"net_nul0\"\n", |_| {});
    assert!(
        text.contains("2 | port = \"net_nul0\"\n") && text.contains("did you mean net_null0? "),
        "{text}"
    );
    let text = said(EAL, CONFIGURATION, |m| m.adapters.get_mut("mlx5_0").unwrap().node = Some(0));
    assert!(
        text.contains("mlx5_0 is on NUMA node 0, and the workers on 1")
            && text.contains("lcores of node 0: 0-7"),
        "{text}"
    );
    let segments = "[[segment]]\nethernet = \"0000:81:00.0\"\n[[segment]]\nethernet = \"0000:81:00.0\"\nvlan = 2\npkey = 0x8002\n";
    let text = said(EAL, segments, |_| {});
    assert!(
        text.contains("6 | pkey = 0x8002\n")
            && text.contains("limited member of the partition of segment vlan2"),
        "{text}"
    );
    let text = said(EAL, CONFIGURATION, |m| {
        m.modules.extend(["ib_cm", "rdma_cm", "ib_ipoib"].map(str::to_owned));
    });
    assert!(text.contains("modprobe -r ib_ipoib rdma_cm ib_cm"), "{text}");
}

#[test]
fn a_worker_that_sleeps_needs_no_isolation() {
    let mut machine = good();
    machine.processors.isolated = LcoreSet::EMPTY;
    let report = check(&machine, EAL, &CONFIGURATION.replace("poll", "sleep"));
    assert_eq!((report.exit_code(), codes(&report).contains(&"lcore-not-isolated")), (0, true));
    assert_eq!(check(&machine, EAL, CONFIGURATION).exit_code(), 3);
}

#[test]
fn all_errors_of_a_file_are_reported_with_those_of_the_host() {
    let mut machine = good();
    machine.memory.pages.clear();
    let report = check(
        &machine,
        EAL,
        "[gateway]\nhello-ms = 1\nlog = \"loud\"\n[ethernet]\nmtu = 1\nport = \"0000:81:00.0\"\n",
    );
    assert_eq!(
        codes(&report),
        ["config-invalid", "config-invalid", "config-invalid", "hugepages-none", "firmware"]
    );
    let lines: Vec<usize> =
        report.findings().iter().filter_map(|f| f.at.as_ref()).map(|at| at.line).collect();
    assert_eq!(lines, [2, 3, 5]);
}

#[test]
fn cards_that_connect_the_host_are_reported_unless_blocked() {
    let mut machine = good();
    (gw0(&mut machine).pci, gw0(&mut machine).has_routes) = (Some("0000:81:00.0".into()), true);
    // A network within the host has no card that EAL could take.
    let within = crate::machine::Link { has_routes: true, ..Default::default() };
    machine.links.insert("docker0".into(), within);
    let said = |blocked: &str| {
        let report = check(&machine, &format!("p -l 8-10 --in-memory {blocked}"), TOML);
        let found = report.findings().iter().find(|finding| finding.code == Code::PciUnrestricted);
        found.unwrap().what.clone()
    };
    let all = said("-b 82:00.0");
    assert!(
        all.contains("supports except 0000:82:00.0, including the one")
            && all.contains("(eth0, 0000:00:03.0, gw0, 0000:81:00.0)"),
        "{all}"
    );
    let one = said("-b 00:03.0");
    assert!(one.contains("connects this host (gw0, 0000:81:00.0)"), "{one}");
    let none = said("-b 00:03.0 --block=0000:81:00.0");
    assert_eq!(none, "EAL may take every network card that it supports except 0000:00:03.0, 0000:81:00.0");
}

/// A killed gateway can be restarted, although its pages are in use until then.
#[test]
fn hugepages_that_eal_reclaims_are_no_error() {
    let severity = |line: &str, left: &[&str], taken: bool| {
        let tree = Tree::good();
        for file in left {
            tree.file(&format!("dev/hugepages/{file}"), "");
        }
        let mut machine = tree.machine();
        for pages in &mut machine.memory.pages {
            pages.free = 20;
            pages.reserved = if taken { pages.reserved } else { 20 };
        }
        let report = check(&machine, line, CONFIGURATION);
        report.findings().iter().find(|f| f.code == Code::HugepagesTooFew).map(|f| f.severity)
    };
    let with_files = "p -l 8-10 -a 81:00.0";
    assert_eq!(severity(with_files, &["rtemap_0"], true), Some(Severity::Warning));
    assert_eq!(severity(with_files, &["gw1map_3", "other"], true), Some(Severity::Warning));
    assert_eq!(severity(with_files, &["other", "gw/rtemap_0"], true), Some(Severity::Warning));
    for (line, left, taken) in
        [(with_files, &["other"][..], true), (with_files, &["rtemap_0"], false), (EAL, &["rtemap_0"], true)]
    {
        assert_eq!(severity(line, left, taken), Some(Severity::Error), "{line} {left:?}");
    }
}

#[test]
fn advice_on_hugepages_includes_those_in_use_and_uses_the_smallest_size() {
    // 2,048 pages of 2 MiB on each node, of which 20 are free. The other size is that of vm.nr_hugepages.
    let help = |change: fn(&mut Machine)| {
        let mut machine = good();
        let other = Pages { size: 1 << 30, node: Some(0), reserved: 0, free: 0 };
        machine.memory.pages.insert(0, other);
        change(&mut machine);
        let report = check(&machine, EAL, CONFIGURATION);
        report.findings().iter().find(|f| f.code.word().starts_with("hugepages-")).unwrap().help.clone()
    };
    let wanted = crate::rules::hugepages::needed(&Config::default(), 2).div_ceil(2 << 20);
    let few = help(|m| m.memory.pages.iter_mut().skip(1).for_each(|pages| pages.free = 20));
    let count = 2 * (2048 - 20) + wanted;
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    assert!(few.starts_with(&format!("echo {count} > {path} (pages of 2 MiB")), "{few}");
    let near = help(|m| m.memory.pages[2].free = 20);
    let path = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";
    assert_eq!(near, format!("echo {} > {path}", 2048 - 20 + wanted));
    let none = help(|m| m.memory.pages.truncate(1));
    assert!(none.starts_with("echo 1 > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"), "{none}");
    // More free pages than exist, and a sum that overflows.
    let much =
        help(|m| m.memory.pages = vec![Pages { size: 1 << 30, node: None, reserved: u64::MAX, free: 0 }]);
    assert!(much.starts_with(&format!("echo {} > ", u64::MAX)), "{much}");
    let odd = help(|m| m.memory.pages = vec![Pages { size: 2 << 20, node: None, reserved: 1, free: 2 }]);
    assert!(odd.starts_with(&format!("echo {wanted} > ")), "{odd}");
}

#[test]
fn without_a_device_name_the_selected_device_is_checked() {
    let mut machine = good();
    // Two adapters come before it: one with an Ethernet port, on another node and without device files; and
    // one with a different port number.
    let ethernet = crate::machine::AdapterPort::default();
    let of =
        |number| Adapter { node: Some(0), ports: [(number, ethernet.clone())].into(), ..Adapter::default() };
    machine.adapters.insert("mlx4_0".into(), of(1));
    let mut other = of(2);
    other.ports.get_mut(&2).unwrap().is_infiniband = true;
    machine.adapters.insert("mlx4_1".into(), other);
    let report = check(&machine, EAL, CONFIGURATION);
    assert_eq!(codes(&report), ["firmware"], "{}", report.text(false));
    // No adapter has such a port: the findings are about the first one.
    machine.adapters.remove("mlx5_0");
    let text = check(&machine, EAL, CONFIGURATION).text(false);
    assert!(
        text.contains("port 1 of mlx4_0 is an Ethernet port") && text.contains("mlx4_0 is on NUMA node 0"),
        "{text}"
    );
}

#[test]
fn unknown_users_and_groups_are_reported_with_a_fix() {
    let said = |text: &str| {
        let mut machine = good();
        let config = Config::parse(Path::new("g.toml"), text).unwrap();
        machine.look_at_files(&config);
        machine.files.clear();
        check(&machine, EAL, text).text(false)
    };
    let text = said("[gateway]\ncontrol-socket = \"\"\nuser = \"no-such-one\"\ngroup = \"nor-this\"\n");
    for part in [
        "error[account-unknown]: there is no user \"no-such-one\" in /etc/passwd\n",
        "3 | user = \"no-such-one\"\n",
        "create it (adduser --system --group no-such-one) or use its number\n",
        "there is no group \"nor-this\" in /etc/group\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = said("[gateway]\ncontrol-socket = \"\"\nuser = \"3999999999\"\n");
    assert!(
        text.contains("with the group of user 3999999999\n") && text.contains("set group in [gateway]"),
        "{text}"
    );
    for good in ["user = \"3999999999\"\ngroup = \"7\"", "user = \"root\"\ngroup = \"root\"", "user = \"\""] {
        let text = said(&format!("[gateway]\ncontrol-socket = \"\"\n{good}\n"));
        assert!(!text.contains("account-unknown"), "{good}: {text}");
    }
}

#[test]
fn a_prefix_matters_only_where_files_are_shared() {
    let mut machine = good();
    machine.dpdk = vec![running("rte"), running("gw1")];
    let count = |line: &str| {
        let report = check(&machine, line, CONFIGURATION);
        report.findings().iter().filter(|finding| finding.code == Code::PrefixTaken).count()
    };
    for other in ["--file-prefix gw2", "--no-shconf", "--in-memory", "--in-memory --file-prefix gw1"] {
        assert_eq!(count(&format!("p -l 8-10 -a 81:00.0 {other}")), 0, "{other}");
    }
    assert_eq!(count("p -l 8-10 -a 81:00.0 --file-prefix=gw1"), 1);
    let text = check(&machine, "p -l 8-10 -a 81:00.0", CONFIGURATION).text(false);
    assert!(text.contains("process 77 (ipoib-fwd) runs DPDK with --file-prefix rte (the default)"), "{text}");
}

/// Without free hugepages a start is refused with the words of `--check`.
#[test]
fn what_refuses_a_start_before_eal_is_said_as_by_check() {
    let refused = |line: &str, change: fn(&mut Machine)| {
        let mut machine = good();
        change(&mut machine);
        let report = check(&machine, line, CONFIGURATION);
        report.refusals().map(|finding| finding.code).collect::<Vec<_>>()
    };
    let none_free = |m: &mut Machine| m.memory.pages.iter_mut().for_each(|pages| pages.free = 0);
    let with_files = "p -l 8-10 -a 81:00.0";
    assert_eq!(refused(EAL, none_free), [Code::HugepagesNone]);
    assert_eq!(refused(EAL, |m| m.memory.pages.clear()), [Code::HugepagesNone]);
    assert_eq!(refused(with_files, |m| m.memory.mounts.clear()), [Code::HugepagesNotMounted]);
    for directory in ["/dev/hugepages", "/dev/hugepages/", "/dev/hugepages/gw"] {
        assert_eq!(refused(&format!("{with_files} --huge-dir {directory}"), |_| {}), [], "{directory}");
    }
    for directory in ["/dev/hugepages1", "/dev"] {
        let codes = refused(&format!("{with_files} --huge-dir {directory}"), |_| {});
        assert_eq!(codes, [Code::HugepagesNotMounted], "{directory}");
    }
    assert_eq!(refused("p -l 8-10 --no-huge -a 81:00.0", none_free), []);
    // A gateway that was killed has left its files: EAL takes their pages back.
    let left = |m: &mut Machine| {
        m.memory.pages.iter_mut().for_each(|pages| pages.free = 0);
        m.memory.has_files = true;
    };
    assert_eq!(refused(with_files, left), []);
    assert_eq!(refused("p -l 8-10 -a 81:00.0 --no-hugee", |_| {}), [Code::EalInvalid]);
}
