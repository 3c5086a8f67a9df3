//! Hostile contents of `proc` and `sys`.

use std::process::Command;

use super::*;

/// Files that all rules read.
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

/// Reads, checks and proposes. None of these may block or produce much text.
fn examine(tree: &Tree) -> Report {
    let machine = tree.machine();
    let report = check(&machine, EAL, CONFIGURATION);
    let proposal = crate::init::Proposal::of(&machine);
    Config::parse(Path::new("g.toml"), &proposal.configuration).unwrap();
    assert!(report.text(false).len() < 20_000);
    report
}

#[test]
fn empty_directories_are_a_host_without_devices() {
    let report = examine(&Tree::new());
    assert!(codes(&report).contains(&"hugepages-none") && codes(&report).contains(&"infiniband-none"));
}

#[test]
fn missing_empty_huge_and_binary_files_are_unknown() {
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
            examine(&tree);
        }
        std::fs::remove_file(&path).unwrap();
        examine(&tree);
        std::fs::create_dir(&path).unwrap();
        examine(&tree);
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, good).unwrap();
    }
    assert_eq!(codes(&examine(&tree)), ["firmware"]);
}

#[test]
fn fifos_and_loops_do_not_block() {
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
    examine(&tree);
}

#[test]
fn names_with_special_characters_are_not_written_to_files() {
    let tree = Tree::new();
    for name in ["x\"\nport = 7 #", "a,b=c", "e\u{1b}[31m"] {
        tree.interface(name, 1, "0x1003", None);
        tree.file(&format!("sys/class/net/{name}/iflink"), "9\n");
        tree.file(&format!("sys/class/infiniband/{name}/ports/1/link_layer"), "InfiniBand\n");
    }
    examine(&tree);
    let proposal = crate::init::Proposal::of(&tree.machine());
    assert!(proposal.configuration.contains("port = \"net_tap0\""), "{}", proposal.configuration);
    assert!(proposal.configuration.contains("[infiniband.soft]") && !proposal.configuration.contains('\x1b'));
}

#[test]
fn the_number_of_entries_is_bounded() {
    let tree = Tree::good();
    for number in 0..3000 {
        tree.file(&format!("sys/class/infiniband/mlx5_0/ports/1/pkeys/{number}"), "0x8001\n");
    }
    assert!(tree.machine().adapters["mlx5_0"].ports[&1].pkeys.len() <= 512);
    examine(&tree);
}
