//! First configurations.

use config::EalArguments;

use super::*;
use crate::init::{InitError, Proposal};

/// The proposal as the gateway and EAL parse it.
fn read(machine: &Machine) -> (Config, EalArguments, Proposal) {
    let proposal = Proposal::of(machine);
    let config = Config::parse(Path::new("gateway.toml"), &proposal.configuration).unwrap();
    (config, eal(&proposal.environment), proposal)
}

fn eal(environment: &str) -> EalArguments {
    let words = environment.lines().find_map(|line| line.strip_prefix("EAL=\"")?.strip_suffix('"')).unwrap();
    EalArguments::parse(words.split(' ').map(str::to_owned).collect()).unwrap()
}

/// Asserts that no error prevents a start.
fn assert_starts(machine: &Machine, proposal: &Proposal) {
    let line = format!("p {}", eal(&proposal.environment).arguments.join(" "));
    let report = check(machine, &line, &proposal.configuration);
    assert_eq!(report.count(crate::finding::Severity::Error), 0, "{}", report.text(false));
}

#[test]
fn a_machine_with_everything_gets_its_ports_and_isolated_processors_of_their_node() {
    let machine = Tree::good().machine();
    let (config, eal, proposal) = read(&machine);
    assert_eq!(config.segments[0].ethernet.as_deref(), Some("0000:81:00.0"));
    assert_eq!(config.segments[0].device.as_deref(), Some("mlx5_0"));
    assert!(!config.infiniband.is_soft());
    assert_eq!(eal.arguments.join(" "), "-l 8-12 --in-memory -a 0000:81:00.0");
    let text = &proposal.configuration;
    assert!(text.contains("# - eth0: not taken: this host's default route uses it"), "{text}");
    assert!(text.contains("# - 0000:81:00.0: usable: a network card with a driver for programs"), "{text}");
    assert!(text.contains("#vlan = 100\n#pkey = 0x8001\n") && !text.contains("0x0002"), "{text}");
    assert_starts(&machine, &proposal);
}

#[test]
fn a_machine_without_adapter_and_card_gets_software_for_both() {
    let tree = Tree::new();
    tree.file("sys/devices/system/cpu/online", "0-1\n");
    tree.file("proc/self/status", "CapEff:\t000001ffffffffff\n");
    tree.interface("eth0", 1, "0x1003", None);
    tree.file("proc/net/route", "Iface\neth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0\n");
    tree.interface("ifb0", 1, "0x82", None);
    let (config, eal, proposal) = read(&tree.machine());
    assert_eq!(config.infiniband.soft[0].ports[0].link, "shm:/run/ibfab.sock");
    assert_eq!(config.segments[0].ethernet.as_deref(), Some("net_tap0"));
    assert_eq!(
        (eal.vdevs.as_slice(), eal.has("--no-huge")),
        (["net_tap0,iface=ipoib-gw0".to_owned()].as_slice(), true)
    );
    assert_eq!(eal.lcores.unwrap().to_string(), "0-1");
    assert!(
        proposal.configuration.contains("# - ifb0: not taken: it has no other end"),
        "{}",
        proposal.configuration
    );
    assert_starts(&tree.machine(), &proposal);
    // One processor, and no permission to create an interface.
    tree.file("sys/devices/system/cpu/online", "3\n");
    tree.file("proc/self/status", "CapEff:\t0000000000000000\n");
    let (config, eal, _) = read(&tree.machine());
    assert_eq!(config.segments[0].ethernet.as_deref(), Some("net_null0"));
    assert_eq!(
        (eal.lcores.unwrap().to_string(), eal.processors_of(1).to_string()),
        ("0-1".to_owned(), "3".to_owned())
    );
}

#[test]
fn interfaces_are_selected_by_kind_and_never_those_in_use() {
    let tree = Tree::good();
    std::fs::remove_file(tree.path().join("sys/bus/pci/devices/0000:81:00.0")).unwrap();
    let taken = |tree: &Tree| read(&tree.machine()).1.vdevs.first().cloned().unwrap_or_default();
    tree.interface("veth1", 1, "0x1003", None);
    assert_eq!(taken(&tree), "net_tap0,iface=ipoib-gw0", "no other end");
    tree.file("sys/class/net/veth1/iflink", "9\n");
    assert_eq!(taken(&tree), "net_af_packet0,iface=veth1,qpairs=4");
    tree.interface("ens5", 1, "0x1003", Some("0000:85:00.0"));
    assert_eq!(taken(&tree), "net_af_packet0,iface=ens5,qpairs=4");
    tree.file("sys/class/net/ens5/carrier", "0\n");
    assert_eq!(taken(&tree), "net_af_packet0,iface=veth1,qpairs=4");
    tree.link("sys/class/net/veth1/master", "../br0");
    assert_eq!(taken(&tree), "net_af_packet0,iface=ens5,qpairs=4");
    // An address of this host: a login may use it.
    tree.file("proc/net/route", "Iface\nens5 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n");
    let (_, _, proposal) = read(&tree.machine());
    assert!(
        proposal.configuration.contains("# - ens5: not taken: this host has an address on it"),
        "{}",
        proposal.configuration
    );
    assert_starts(&tree.machine(), &proposal);
    // An IPv6 address only; then no address, and a macvlan of another program.
    let zero = "0".repeat(32);
    tree.file("proc/net/route", "Iface\neth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0\n");
    assert_eq!(taken(&tree), "net_af_packet0,iface=ens5,qpairs=4");
    let route = format!("20010db8{:024} 40 {zero} 00 {zero} 00000100 1 0 00000001 ens5\n", 0);
    let file = tree.file("proc/net/ipv6_route", route);
    assert_eq!(taken(&tree), "net_tap0,iface=ipoib-gw0");
    std::fs::remove_file(file).unwrap();
    tree.interface("mac0", 1, "0x1003", None);
    tree.link("sys/class/net/mac0/lower_ens5", "../ens5");
    tree.link("sys/class/net/ens5/upper_mac0", "../mac0");
    let (_, eal, proposal) = read(&tree.machine());
    assert_eq!(eal.vdevs, ["net_tap0,iface=ipoib-gw0"]);
    assert!(
        proposal.configuration.contains("# - ens5: not taken: other interfaces are on it"),
        "{}",
        proposal.configuration
    );
}

#[test]
fn active_infiniband_ports_are_preferred_with_one_of_their_partitions() {
    let tree = Tree::good();
    let file = |path: &str, text: &str| tree.file(&format!("sys/class/infiniband/{path}"), text);
    file("mlx5_0/ports/1/state", "1: DOWN\n");
    file("mlx5_1/ports/1/link_layer", "Ethernet\n");
    file("mlx5_1/ports/1/state", "4: ACTIVE\n");
    file("mlx5_1/ports/2/link_layer", "InfiniBand\n");
    file("mlx5_1/ports/2/state", "4: ACTIVE\n");
    file("mlx5_1/ports/2/pkeys/0", "0x7fff\n");
    file("mlx5_1/ports/2/pkeys/1", "0x8005\n");
    let (config, _, proposal) = read(&tree.machine());
    let segment = &config.segments[0];
    assert_eq!((segment.device.as_deref(), segment.port, segment.pkey.value()), (Some("mlx5_1"), 2, 0x8005));
    let text = &proposal.configuration;
    assert!(text.contains("# - mlx5_1 port 1: not taken: its link layer is Ethernet"), "{text}");
    assert!(text.contains("# - mlx5_0 port 1: usable: currently not active"), "{text}");
}

#[test]
fn no_file_is_overwritten_and_both_files_are_written_or_none() {
    let (machine, tree) = (Tree::good().machine(), Tree::new());
    let proposal = Proposal::of(&machine);
    let file = tree.path().join("site.toml");
    let environment = proposal.write(&file).unwrap();
    assert_eq!(environment, tree.path().join("site.env"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), proposal.configuration);
    assert!(matches!(proposal.write(&file), Err(InitError::There(there)) if there == file));
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&environment, "mine").unwrap();
    assert!(matches!(proposal.write(&file), Err(InitError::There(there)) if there == environment));
    assert!(!file.exists() && std::fs::read_to_string(&environment).unwrap() == "mine");
    let same = proposal.write(&tree.path().join("x.env")).unwrap_err();
    assert!(matches!(same, InitError::Same(_)) && !tree.path().join("x.env").exists());
    let same = same.to_string();
    assert!(!same.contains("there already") && same.contains("x.toml for instance"), "{same}");
    let nowhere = proposal.write(&tree.path().join("no/where.toml")).unwrap_err().to_string();
    assert!(nowhere.contains("cannot be written") && nowhere.contains("--output"), "{nowhere}");
    // A dangling symbolic link is not written through, either.
    tree.link("link.toml", "target.toml");
    assert!(
        proposal.write(&tree.path().join("link.toml")).is_err() && !tree.path().join("target.toml").exists()
    );
    // In the combined text, EAL's arguments are comments.
    let config = Config::parse(Path::new("gateway.toml"), &proposal.text()).unwrap();
    assert_eq!(config.segments[0].ethernet.as_deref(), Some("0000:81:00.0"));
    assert!(proposal.text().contains("# EAL=\"-l 8-12"), "{}", proposal.text());
}

/// The output directory, for a child process whose files may have at most one block.
const FULL: &str = "PREFLIGHT_FULL";

#[test]
fn incomplete_files_are_removed() {
    let name = "site.toml";
    if let Some(directory) = std::env::var_os(FULL) {
        let directory = Path::new(&directory);
        let error = Proposal::of(&Machine::default()).write(&directory.join(name)).unwrap_err();
        assert!(matches!(&error, InitError::Write { file, .. } if file.ends_with(name)), "{error}");
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
        return;
    }
    let tree = Tree::new();
    let done = std::process::Command::new("sh")
        .args([
            "-c",
            "trap '' XFSZ; ulimit -f 1; exec \"$0\" --exact tests::init::incomplete_files_are_removed",
        ])
        .arg(std::env::current_exe().unwrap())
        .env(FULL, tree.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(std::fs::read_dir(tree.path()).unwrap().count(), 0);
}

#[test]
fn each_configuration_has_a_separate_key_that_only_the_owner_can_read() {
    use std::os::unix::fs::PermissionsExt as _;

    let (machine, tree) = (Tree::good().machine(), Tree::new());
    let keys = [(); 2].map(|()| {
        let config = Config::parse(Path::new("gateway.toml"), &Proposal::of(&machine).text()).unwrap();
        config.gateway.pair_key.expect("a key").bytes()
    });
    assert_ne!(keys[0], keys[1]);
    let file = tree.path().join("site.toml");
    Proposal::of(&machine).write(&file).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}
