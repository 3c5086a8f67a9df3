//! A row of the list: an entry of a device's GID table, as printed by the command and sent by the control
//! socket.

use std::net::Ipv4Addr;

use gidcache::{Entry, GidType, IfIndex, VlanId, ipv4_of_gid};
use ib_wire::Gid;
use serde::{Deserialize, Serialize};

/// An entry. Rows are ordered by device, port and index.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The device's name.
    #[serde(default)]
    pub device: String,
    /// The port.
    pub port: u8,
    /// The index in the port's table.
    pub index: u16,
    /// The GID with all eight groups, as the kernel prints it in sysfs.
    pub gid: String,
    /// The IPv4 address that the GID is derived from.
    pub ipv4: Option<Ipv4Addr>,
    /// `IB`, `RoCE v1` or `RoCE v2`.
    #[serde(rename = "type")]
    pub gid_type: String,
    /// Name of the interface that holds the address.
    pub netdev: Option<String>,
    /// Its index.
    pub ifindex: Option<u32>,
    /// VLAN of packets with this GID.
    pub vlan: Option<u16>,
    /// True for the port's own GID.
    pub default: bool,
}

impl Row {
    /// Creates the row of an entry. `name` returns the name of an interface.
    #[must_use]
    pub fn new(device: &str, entry: &Entry, name: impl Fn(IfIndex) -> Option<String>) -> Self {
        let ifindex = entry.attributes.key.ifindex;
        Self {
            device: device.to_owned(),
            port: entry.port.0,
            index: entry.index,
            gid: written_out(entry.gid()),
            // For InfiniBand, these bits are a prefix and a GUID.
            ipv4: (entry.gid_type() != GidType::Ib).then(|| ipv4_of_gid(entry.gid())).flatten(),
            gid_type: entry.gid_type().to_string(),
            netdev: ifindex.and_then(name),
            ifindex: ifindex.map(IfIndex::get),
            vlan: entry.attributes.vlan.map(VlanId::get),
            default: entry.default,
        }
    }

    /// The cells of a line of text.
    #[must_use]
    pub fn cells(&self) -> [String; COLUMNS.len()] {
        let or_nothing = |text: Option<String>| text.unwrap_or_default();
        // An interface without a name here is in another network namespace.
        let netdev = self.netdev.clone().or_else(|| self.ifindex.map(|index| format!("#{index}")));
        [
            self.device.clone(),
            self.port.to_string(),
            self.index.to_string(),
            self.gid.clone(),
            or_nothing(self.ipv4.map(|address| address.to_string())),
            self.gid_type.clone(),
            or_nothing(netdev),
        ]
    }
}

/// Titles of the columns.
pub const COLUMNS: [&str; 7] = ["DEV", "PORT", "INDEX", "GID", "IPv4", "TYPE", "NETDEV"];

/// Formats a GID as in sysfs.
fn written_out(gid: Gid) -> String {
    let groups = std::net::Ipv6Addr::from(gid.0).segments();
    groups.map(|group| format!("{group:04x}")).join(":")
}

#[cfg(test)]
mod tests {
    use gidcache::{Attributes, Key};
    use ib_wire::{Guid, PortNumber};

    use super::*;

    fn entry(gid: Gid, gid_type: GidType, ifindex: u32) -> Entry {
        let key = Key { gid, gid_type, ifindex: IfIndex::new(ifindex) };
        Entry {
            port: PortNumber(1),
            index: 3,
            attributes: Attributes { key, vlan: VlanId::new(7) },
            default: false,
        }
    }

    #[test]
    fn gids_are_printed_in_full_with_their_addresses() {
        let mapped = gidcache::gid_of_address([10, 77, 0, 1].into());
        let row = Row::new("rxe0", &entry(mapped, GidType::RoceV2, 5), |_| Some("eth1".into()));
        let cells =
            ["rxe0", "1", "3", "0000:0000:0000:0000:0000:ffff:0a4d:0001", "10.77.0.1", "RoCE v2", "eth1"];
        assert_eq!(row.cells(), cells.map(str::to_owned));
        let row = Row::new("rxe0", &entry(mapped, GidType::RoceV2, 5), |_| None);
        assert_eq!(row.cells()[6], "#5");
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_00a1_b2c3));
        let row = Row::new("mlx5_0", &entry(gid, GidType::Ib, 0), |_| None);
        assert_eq!(
            row.cells()[3..],
            ["fe80:0000:0000:0000:0002:c903:00a1:b2c3", "", "IB", ""].map(str::to_owned)
        );
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!(
            (&json["type"], &json["vlan"], &json["ipv4"]),
            (&"IB".into(), &7.into(), &serde_json::Value::Null)
        );
        assert_eq!(serde_json::from_value::<Row>(json).unwrap(), row);
    }
}
