//! A directory with the `proc` and `sys` of a simulated host.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::machine::Machine;

/// The directory, which is removed on drop.
pub(super) struct Tree(PathBuf);

impl Tree {
    pub(super) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("preflight-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn file(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(super) fn link(&self, path: &str, target: &str) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(&path);
        symlink(target, path).unwrap();
    }

    pub(super) fn machine(&self) -> Machine {
        Machine::read(&self.0)
    }

    /// A host for a gateway. It has two NUMA nodes with eight processors each: on node 0 two threads per
    /// core, on node 1 one. Processors 9 to 13 are isolated. It has hugepages, a network card for vfio and a
    /// ConnectX on node 1, and the login's eth0 on node 0.
    pub(super) fn good() -> Self {
        let tree = Self::new();
        const CPU: &str = "sys/devices/system/cpu";
        for (name, list) in [("online", "0-15\n"), ("isolated", "9-13\n"), ("nohz_full", "9-13\n")] {
            tree.file(&format!("{CPU}/{name}"), list);
        }
        for cpu in 0..16 {
            tree.file(&format!("{CPU}/cpu{cpu}/cpufreq/scaling_governor"), "performance\n");
            let other =
                if cpu < 8 { format!("{},{}\n", cpu / 2 * 2, cpu / 2 * 2 + 1) } else { format!("{cpu}\n") };
            tree.file(&format!("{CPU}/cpu{cpu}/topology/thread_siblings_list"), other);
        }
        for (node, list) in [(0, "0-7\n"), (1, "8-15\n")] {
            let of = format!("sys/devices/system/node/node{node}");
            tree.file(&format!("{of}/cpulist"), list);
            tree.file(&format!("{of}/hugepages/hugepages-2048kB/nr_hugepages"), "2048\n");
            tree.file(&format!("{of}/hugepages/hugepages-2048kB/free_hugepages"), "2048\n");
        }
        tree.file(
            "proc/self/mounts",
            "sysfs /sys sysfs rw 0 0\nnodev /dev/hugepages hugetlbfs rw,pagesize=2M 0 0\n",
        );
        tree.file(
            "proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units\n\
             Max open files            65536                65536                files\n\
             Max locked memory         unlimited            unlimited            bytes\n",
        );
        tree.file("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n");
        for (address, driver, class, node, group) in [
            ("0000:00:03.0", "virtio-pci", "0x020000", 0, 1),
            ("0000:81:00.0", "vfio-pci", "0x020000", 1, 7),
            ("0000:82:00.0", "mlx5_core", "0x020700", 1, 8),
        ] {
            let of = format!("sys/devices/pci/{address}");
            tree.file(&format!("{of}/class"), format!("{class}\n"));
            tree.file(&format!("{of}/numa_node"), format!("{node}\n"));
            tree.link(&format!("{of}/driver"), &format!("../../../bus/pci/drivers/{driver}"));
            tree.link(&format!("{of}/iommu_group"), &format!("../../../kernel/iommu_groups/{group}"));
            tree.file(&format!("sys/kernel/iommu_groups/{group}/type"), "identity\n");
            tree.link(&format!("sys/bus/pci/devices/{address}"), &format!("../../../devices/pci/{address}"));
        }
        tree.interface("lo", 772, "0x9", None);
        tree.interface("eth0", 1, "0x1003", Some("0000:00:03.0/virtio0"));
        tree.file(
            "proc/net/route",
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
             eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
             eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
        );
        tree.adapter();
        tree
    }

    /// Adds an interface, whose device is a part of the path of a PCI device.
    pub(super) fn interface(&self, name: &str, kind: u16, flags: &str, device: Option<&str>) {
        let of = format!("sys/class/net/{name}");
        for (file, text) in [
            ("type", kind.to_string()),
            ("flags", flags.to_owned()),
            ("mtu", "1500".to_owned()),
            ("carrier", "1".to_owned()),
        ] {
            self.file(&format!("{of}/{file}"), text + "\n");
        }
        self.file(&format!("{of}/ifindex"), "2\n");
        self.file(&format!("{of}/iflink"), "2\n");
        if let Some(device) = device {
            std::fs::create_dir_all(self.0.join("sys/devices/pci").join(device)).unwrap();
            self.link(&format!("{of}/device"), &format!("../../../devices/pci/{device}"));
        }
    }

    fn adapter(&self) {
        let of = "sys/class/infiniband/mlx5_0";
        self.link(&format!("{of}/device"), "../../../devices/pci/0000:82:00.0");
        self.file(&format!("{of}/fw_ver"), "20.35.1012\n");
        self.file(&format!("{of}/board_id"), "MT_0000000224\n");
        for (file, text) in [
            ("link_layer", "InfiniBand\n"),
            ("state", "4: ACTIVE\n"),
            ("sm_lid", "0x1\n"),
            ("pkeys/0", "0xffff\n"),
            ("pkeys/1", "0x8001\n"),
            ("pkeys/2", "0x0002\n"),
            ("pkeys/3", "0x0000\n"),
        ] {
            self.file(&format!("{of}/ports/1/{file}"), text);
        }
        self.file("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
        self.file("sys/class/infiniband_mad/umad0/ibdev", "mlx5_0\n");
        self.file("sys/class/infiniband_mad/umad0/port", "1\n");
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
