//! NodeInfo and NodeDescription (IBA 14.2.5.3, 14.2.5.2).

use crate::layout::{layout, open_enum};
use crate::{Guid, Qpn};

open_enum! {
    /// What a node is.
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
    /// What every node is asked first.
    pub struct NodeInfo[40] {
        /// Base version of datagrams.
        base_version: u8 = 0 @ 0, 8;
        /// Class version of subnet management.
        class_version: u8 = 1 @ 0, 8;
        /// Kind of node.
        node_type: NodeType = 2 @ 0, 8;
        /// Physical ports; a switch's port 0 does not count.
        num_ports: u8 = 3 @ 0, 8;
        /// GUID of the system that the node belongs to.
        system_image_guid: Guid = 4 @ 0, 64;
        /// GUID of the node.
        node_guid: Guid = 12 @ 0, 64;
        /// GUID of the port that the question came in by; of a switch the one GUID of port 0.
        port_guid: Guid = 20 @ 0, 64;
        /// Entries of each P_Key table.
        partition_cap: u16 = 28 @ 0, 16;
        /// The vendor's device.
        device_id: u16 = 30 @ 0, 16;
        /// The vendor's revision.
        revision: u32 = 32 @ 0, 32;
        /// Port that the question came in by.
        local_port: u8 = 36 @ 0, 8;
        /// The vendor (an IEEE OUI, 24 bits).
        vendor_id: Qpn = 37 @ 0, 24;
    }
}

layout! {
    /// A name for people.
    pub struct NodeDescription[64] {
        /// UTF-8, filled with zeros.
        text: [u8; 64] = 0 @ 0, 512;
    }
}

impl NodeDescription {
    /// From a name; what is longer than 64 bytes is cut at a character.
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
