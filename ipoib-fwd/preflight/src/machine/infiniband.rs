//! RDMA devices, from `/sys/class/infiniband`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::files::Root;

/// Maximum entries read from a P_Key table.
const MOST_PKEYS: usize = 512;

/// A port of an RDMA device.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct AdapterPort {
    /// True if its link layer is InfiniBand.
    pub is_infiniband: bool,
    /// True if it is active.
    pub is_active: bool,
    /// Its state as the kernel prints it.
    pub state: String,
    /// LID of the subnet manager; 0 if there is none.
    pub manager: u16,
    /// Its P_Keys, without empty entries, in the table's order.
    pub pkeys: Vec<u16>,
    /// The largest payload of a packet in bytes. The kernel reports it only through verbs.
    pub mtu: Option<u16>,
}

impl AdapterPort {
    /// True if it is a full member of a P_Key's partition.
    #[must_use]
    pub fn is_member(&self, pkey: u16) -> bool {
        self.pkeys.contains(&(pkey | 0x8000))
    }
}

/// An RDMA device.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Adapter {
    /// Its PCI device.
    pub pci: Option<String>,
    /// Its NUMA node.
    pub node: Option<u16>,
    /// Version of its firmware.
    pub firmware: Option<String>,
    /// Its board ID.
    pub board: Option<String>,
    /// Its ports by number.
    pub ports: BTreeMap<u8, AdapterPort>,
    /// Name of its verbs file in `/dev/infiniband`.
    pub verbs: Option<String>,
    /// Names of its ports' files for management datagrams, by port.
    pub management: BTreeMap<u8, String>,
}

impl Adapter {
    /// The device files that programs use.
    pub(super) fn device_files(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.verbs
            .iter()
            .chain(self.management.values())
            .map(|name| PathBuf::from("/dev/infiniband").join(name))
    }
}

pub(super) fn read(root: &Root) -> BTreeMap<String, Adapter> {
    let mut adapters = BTreeMap::new();
    for name in root.entries("sys/class/infiniband") {
        adapters.insert(name.clone(), adapter(root, &name));
    }
    let belongs = |class: &str, file: &str| root.text(&format!("sys/class/{class}/{file}/ibdev"));
    for file in root.entries("sys/class/infiniband_verbs") {
        if let Some(adapter) = belongs("infiniband_verbs", &file).and_then(|name| adapters.get_mut(&name)) {
            adapter.verbs = Some(file);
        }
    }
    for file in root.entries("sys/class/infiniband_mad").into_iter().filter(|f| f.starts_with("umad")) {
        let port = root.number::<u8>(&format!("sys/class/infiniband_mad/{file}/port"));
        let adapter = belongs("infiniband_mad", &file).and_then(|name| adapters.get_mut(&name));
        if let (Some(adapter), Some(port)) = (adapter, port) {
            adapter.management.insert(port, file);
        }
    }
    adapters
}

fn adapter(root: &Root, name: &str) -> Adapter {
    let of = |path: &str| format!("sys/class/infiniband/{name}/{path}");
    let ports = root.entries(&of("ports")).into_iter().filter_map(|number| {
        let port = port(root, &of(&format!("ports/{number}")));
        Some((number.parse().ok()?, port))
    });
    Adapter {
        pci: root.pci_address(&of("device")),
        node: root.number(&of("device/numa_node")),
        firmware: root.text(&of("fw_ver")).filter(|text| !text.is_empty()),
        board: root.text(&of("board_id")).filter(|text| !text.is_empty()),
        ports: ports.collect(),
        verbs: None,
        management: BTreeMap::new(),
    }
}

fn hexadecimal(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

fn port(root: &Root, directory: &str) -> AdapterPort {
    let text = |name: &str| root.text(&format!("{directory}/{name}")).unwrap_or_default();
    // "4: ACTIVE"
    let state = text("state");
    let state = state.split_once(": ").map_or(state.as_str(), |(_, word)| word).to_owned();
    let mut entries: Vec<u16> = root
        .entries(&format!("{directory}/pkeys"))
        .into_iter()
        .filter_map(|index| index.parse().ok())
        .collect();
    entries.sort_unstable();
    let pkeys = entries
        .into_iter()
        .take(MOST_PKEYS)
        .filter_map(|index| hexadecimal(&text(&format!("pkeys/{index}"))).filter(|pkey| pkey & 0x7fff != 0));
    AdapterPort {
        is_infiniband: text("link_layer") == "InfiniBand",
        is_active: state == "ACTIVE",
        state,
        manager: hexadecimal(&text("sm_lid")).unwrap_or(0),
        pkeys: pkeys.collect(),
        mtu: None,
    }
}
