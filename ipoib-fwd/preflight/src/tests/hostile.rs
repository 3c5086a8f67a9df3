//! A `proc` and a `sys` that mean nobody well.

use std::process::Command;

use super::*;

/// Files that all rules look at.
const FILES: [&str; 14] = [
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/isolated",
    "sys/devices/system/cpu/cpu9/cpufreq/scaling_governor",
    "sys/devices/system/node/node1/cpulist",
    "sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages",
    "proc/self/mounts",
    "proc/self/limits",
    "proc/self/status",
    "proc/net/route",
    "sys/devices/pci/0000:81:00.0/numa_node",
    "sys/class/net/eth0/flags",
    "sys/class/infiniband/mlx5_0/fw_ver",
    "sys/class/infiniband/mlx5_0/ports/1/state",
    "sys/class/infiniband/mlx5_0/ports/1/pkeys/0",
];

/// Reads, checks and proposes; none of it may block or say much.
fn stand(tree: &Tree) -> Report {
    let machine = tree.machine();
    let report = check(&machine, EAL, CONFIGURATION);
    let proposal = crate::init::Proposal::of(&machine);
    Config::parse(Path::new("g.toml"), &proposal.configuration).unwrap();
    assert!(report.text(false).len() < 20_000);
    report
}

#[test]
fn nothing_at_all_is_a_machine_with_nothing() {
    let report = stand(&Tree::new());
    assert!(codes(&report).contains(&"hugepages-none") && codes(&report).contains(&"infiniband-none"));
}

#[test]
fn files_that_are_missing_empty_huge_or_no_text_are_unknown() {
    let tree = Tree::good();
    for file in FILES {
        let path = tree.path().join(file);
        let good = std::fs::read(&path).unwrap();
        for bad in [
            Vec::new(),
            vec![b'9'; 3 << 20],
            vec![0xff, 0xfe, 0, b'\n'],
            b"-1\n".to_vec(),
            b"0-99999999999\n".to_vec(),
        ] {
            std::fs::write(&path, bad).unwrap();
            stand(&tree);
        }
        std::fs::remove_file(&path).unwrap();
        stand(&tree);
        std::fs::create_dir(&path).unwrap();
        stand(&tree);
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, good).unwrap();
    }
    assert_eq!(codes(&stand(&tree)), ["firmware"]);
}

#[test]
fn fifos_and_loops_are_not_waited_for() {
    let tree = Tree::good();
    for file in FILES {
        let path = tree.path().join(file);
        std::fs::remove_file(&path).unwrap();
        if file.len() % 2 == 0 {
            assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        } else {
            std::os::unix::fs::symlink(&path, &path).unwrap();
        }
    }
    tree.link("sys/class/net/eth0/device", "device");
    tree.link("sys/class/infiniband/mlx5_0/device", "../mlx5_0/device");
    tree.link("sys/bus/pci/devices/0000:81:00.0", "0000:81:00.0");
    tree.link("sys/class/net/loop", "loop");
    tree.link("sys/class/infiniband/loop", "loop");
    tree.link("sys/class/net/eth0/lower_eth0", "../eth0");
    stand(&tree);
}

#[test]
fn names_that_would_be_more_than_names_are_not_written_into_files() {
    let tree = Tree::new();
    for name in ["x\"\nport = 7 #", "a,b=c", "e\u{1b}[31m"] {
        tree.interface(name, 1, "0x1003", None);
        tree.file(&format!("sys/class/net/{name}/iflink"), "9\n");
        tree.file(&format!("sys/class/infiniband/{name}/ports/1/link_layer"), "InfiniBand\n");
    }
    stand(&tree);
    let proposal = crate::init::Proposal::of(&tree.machine());
    assert!(proposal.configuration.contains("port = \"net_tap0\""), "{}", proposal.configuration);
    assert!(proposal.configuration.contains("[infiniband.soft]") && !proposal.configuration.contains('\x1b'));
}

#[test]
fn many_of_everything_is_bounded() {
    let tree = Tree::good();
    for number in 0..3000 {
        tree.file(&format!("sys/class/infiniband/mlx5_0/ports/1/pkeys/{number}"), "0x8001\n");
    }
    assert!(tree.machine().adapters["mlx5_0"].ports[&1].pkeys.len() <= 512);
    stand(&tree);
}
