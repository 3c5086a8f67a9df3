//! NodeInfo and NodeDescription (IBA 14.2.5.3, 14.2.5.2).

use crate::layout::{layout, open_enum};
use crate::{Guid, Qpn};

open_enum! {
    /// Type of a node.
    pub enum NodeType(u8) {
        /// Channel adapter.
        ChannelAdapter = 1,
        /// Switch.
        Switch = 2,
        /// Router.
        Router = 3,
    }
}

layout! {
    /// The basic attributes of a node.
    pub struct NodeInfo[40] {
        /// Base version of datagrams.
        base_version: u8 = 0 @ 0, 8;
        /// Class version of subnet management.
        class_version: u8 = 1 @ 0, 8;
        /// Type of the node.
        node_type: NodeType = 2 @ 0, 8;
        /// Physical ports, without port 0 of a switch.
        num_ports: u8 = 3 @ 0, 8;
        /// GUID of the system that the node belongs to.
        system_image_guid: Guid = 4 @ 0, 64;
        /// GUID of the node.
        node_guid: Guid = 12 @ 0, 64;
        /// GUID of the port that received the request; for a switch, the GUID of port 0.
        port_guid: Guid = 20 @ 0, 64;
        /// Entries of each P_Key table.
        partition_cap: u16 = 28 @ 0, 16;
        /// Device id of the vendor.
        device_id: u16 = 30 @ 0, 16;
        /// Revision of the vendor.
        revision: u32 = 32 @ 0, 32;
        /// Port that received the request.
        local_port: u8 = 36 @ 0, 8;
        /// Vendor id (an IEEE OUI, 24 bits).
        vendor_id: Qpn = 37 @ 0, 24;
    }
}

layout! {
    /// A human-readable name.
    pub struct NodeDescription[64] {
        /// UTF-8, filled with zeros.
        text: [u8; 64] = 0 @ 0, 512;
    }
}

impl NodeDescription {
    /// Converts from a name. A name longer than 64 bytes is cut at a character boundary.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut text = [0; 64];
        let mut end = name.len().min(64);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        for (to, from) in text.iter_mut().zip(name.bytes().take(end)) {
            *to = from;
        }
        Self { text }
    }

    /// The name, with bytes that are not UTF-8 replaced.
    #[must_use]
    pub fn name(&self) -> String {
        let end = self.text.iter().position(|&b| b == 0).unwrap_or(self.text.len());
        String::from_utf8_lossy(self.text.get(..end).unwrap_or_default()).into_owned()
    }
}
