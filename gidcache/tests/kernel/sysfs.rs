//! Soft-RoCE devices and their GID tables in sysfs.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use gidcache::gid_of_address;
use ib_wire::{Gid, PortNumber};

/// A device: its name, the number of our port that follows it, and its interface.
#[derive(Clone, Copy)]
pub(crate) struct Device {
    pub(crate) name: &'static str,
    pub(crate) port: PortNumber,
    pub(crate) netdev: &'static str,
}

/// Index, GID and interface name of each entry.
pub(crate) type Files = BTreeMap<u16, (Gid, String)>;

impl Device {
    pub(crate) fn exists(&self) -> bool {
        fs::exists(format!("/sys/class/infiniband/{}", self.name)).unwrap()
    }

    /// Creates the device on its interface. Returns false if the kernel rejects it.
    pub(crate) fn add(&self) -> bool {
        rdma(&["link", "add", self.name, "type", "rxe", "netdev", self.netdev])
    }

    pub(crate) fn delete(&self) -> bool {
        rdma(&["link", "delete", self.name])
    }

    /// Reads the first slots of its table. Returns `None` while an entry changes. A missing device has no
    /// entries.
    pub(crate) fn table(&self, slots: u16) -> Option<Files> {
        let port = format!("/sys/class/infiniband/{}/ports/1", self.name);
        let mut entries = Files::new();
        for index in 0..slots {
            let Ok(gid) = fs::read_to_string(format!("{port}/gids/{index}")) else {
                return if self.exists() { None } else { Some(Files::new()) };
            };
            let gid = gid_of_address(gid.trim().parse().unwrap());
            if gid == Gid::ZERO {
                continue;
            }
            let attribute = |what: &str| fs::read_to_string(format!("{port}/gid_attrs/{what}/{index}")).ok();
            let (gid_type, netdev) = (attribute("types")?, attribute("ndevs")?);
            assert_eq!(gid_type.trim(), "RoCE v2", "soft-RoCE supports nothing else");
            entries.insert(index, (gid, netdev.trim().to_owned()));
        }
        Some(entries)
    }
}

fn rdma(arguments: &[&str]) -> bool {
    Command::new("rdma").args(arguments).output().unwrap().status.success()
}
