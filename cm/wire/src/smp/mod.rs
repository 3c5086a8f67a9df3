//! Subnet management packets (IBA 14.2): the datagram, its attributes, and directed routes.
//!
//! [`Smp::attribute`] reads an attribute into a value, and [`Smp::set_attribute`] writes it back. Reserved
//! bits do not change.

mod guard;
mod lanes;
mod manager;
mod node;
mod notice;
mod path;
mod port;
mod route;
mod switch;
mod tables;
#[cfg(test)]
mod tests;

pub use guard::MKeyGuard;
pub use lanes::{ArbitrationEntry, ArbitrationTables, LaneMap, VlArbitrationBlock};
pub use manager::{SmInfo, SmPriority, SmState};
pub use node::{NodeDescription, NodeInfo, NodeType};
pub use path::{DirectedPath, MAX_HOPS};
pub use port::{
    Capabilities, ExtendedSpeeds, LinkWidth, Lmc, Nibble, PortInfo, PortMtu, PortPhysicalState, PortState,
    ProtectBits,
};
pub use route::{DirectedStep, Origin, step};
pub use switch::{
    LFT_BLOCK_LEN, LFT_NO_PORT, LinearForwardingBlock, MFT_BLOCK_LEN, MFT_PORTS, MulticastForwardingBlock,
    SwitchInfo,
};
pub use tables::{GUID_BLOCK_LEN, GuidBlock, PKEY_BLOCK_LEN, PKeyBlock};

use crate::layout::{Field, layout};
use crate::mad::{MAD_LEN, Mad, MadAddress, MadHeader, MadStatus, Method, MgmtClass};
use crate::{Lid, QKey, Qpn, ServiceLevel, Tid};

/// Version of both classes' format.
pub const CLASS_VERSION: u8 = 1;
/// Bytes of an attribute.
pub const DATA_LEN: usize = 64;

/// Attribute ids of the two classes (IBA 14.2.5).
pub mod attribute {
    pub use crate::mad::attribute::NOTICE;
    /// NodeDescription.
    pub const NODE_DESCRIPTION: u16 = 0x0010;
    /// NodeInfo.
    pub const NODE_INFO: u16 = 0x0011;
    /// SwitchInfo.
    pub const SWITCH_INFO: u16 = 0x0012;
    /// GUIDInfo.
    pub const GUID_INFO: u16 = 0x0014;
    /// PortInfo.
    pub const PORT_INFO: u16 = 0x0015;
    /// P_KeyTable.
    pub const PKEY_TABLE: u16 = 0x0016;
    /// SLtoVLMappingTable.
    pub const SL_TO_VL: u16 = 0x0017;
    /// VLArbitrationTable.
    pub const VL_ARBITRATION: u16 = 0x0018;
    /// LinearForwardingTable.
    pub const LINEAR_FORWARDING: u16 = 0x0019;
    /// MulticastForwardingTable.
    pub const MULTICAST_FORWARDING: u16 = 0x001b;
    /// SMInfo.
    pub const SM_INFO: u16 = 0x0020;
    /// Mellanox extension of PortInfo: the FDR10 speed.
    pub const MELLANOX_PORT_INFO: u16 = 0xff90;
}

/// Bit of the status field that distinguishes a directed-route response from a request (IBA 14.2.1.2).
const DIRECTION: u16 = 0x8000;

layout! {
    /// A whole subnet management packet. In LID-routed packets only header, M_Key and data have a meaning.
    pub struct Smp[256] {
        /// The common header.
        header: MadHeader = 0 @ 0, 192;
        /// M_Key.
        mkey: u64 = 24 @ 0, 64;
        /// Source LID before the directed part of the route; permissive if there is none.
        dr_slid: Lid = 32 @ 0, 16;
        /// Destination LID after the directed part of the route; permissive if there is none.
        dr_dlid: Lid = 34 @ 0, 16;
        /// The attribute.
        data: [u8; DATA_LEN] = 64 @ 0, 512;
        /// Egress port of each hop, from index 1.
        initial_path: [u8; 64] = 128 @ 0, 512;
        /// Ingress port of each hop, from index 1.
        return_path: [u8; 64] = 192 @ 0, 512;
    }
}

/// Reason why a datagram is not a subnet management packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SmpError {
    /// The base version is not 1.
    #[error("base version {0} is not 1")]
    BaseVersion(u8),
    /// The class is none of the two.
    #[error("class {0:#04x} is not subnet management")]
    Class(u8),
    /// The class version is not 1.
    #[error("class version {0} is not 1")]
    ClassVersion(u8),
}

/// An attribute of subnet management.
pub trait Attribute: Sized {
    /// Id of the attribute.
    const ID: u16;
    /// Reads the attribute; reserved bits are dropped.
    fn from_data(data: &[u8; DATA_LEN]) -> Self;
    /// Writes the attribute; reserved bits do not change.
    fn to_data(&self, data: &mut [u8; DATA_LEN]);
}

macro_rules! attributes {
    ($($name:ident = $id:ident;)*) => {$(
        impl Attribute for $name {
            const ID: u16 = attribute::$id;
            fn from_data(data: &[u8; DATA_LEN]) -> Self {
                Field::get(data, 0, Self::LEN * 8)
            }
            fn to_data(&self, data: &mut [u8; DATA_LEN]) {
                Field::put(self, data, 0, Self::LEN * 8);
            }
        }
    )*};
}

attributes! {
    NodeDescription = NODE_DESCRIPTION;
    NodeInfo = NODE_INFO;
    SwitchInfo = SWITCH_INFO;
    GuidBlock = GUID_INFO;
    PortInfo = PORT_INFO;
    PKeyBlock = PKEY_TABLE;
    LinearForwardingBlock = LINEAR_FORWARDING;
    MulticastForwardingBlock = MULTICAST_FORWARDING;
    SmInfo = SM_INFO;
    LaneMap = SL_TO_VL;
    VlArbitrationBlock = VL_ARBITRATION;
}

impl Smp {
    /// Reads a datagram.
    ///
    /// # Errors
    /// If its class or a version is another.
    pub fn from_mad(bytes: &[u8; MAD_LEN]) -> Result<Self, SmpError> {
        let smp = Self::parse(bytes);
        if smp.header.base_version != crate::mad::BASE_VERSION {
            return Err(SmpError::BaseVersion(smp.header.base_version));
        }
        if !smp.header.class.is_smp() {
            return Err(SmpError::Class(smp.header.class.code()));
        }
        if smp.header.class_version != CLASS_VERSION {
            return Err(SmpError::ClassVersion(smp.header.class_version));
        }
        Ok(smp)
    }

    /// Builds a directed-route request along `path`, without attribute.
    #[must_use]
    pub const fn directed(method: Method, tid: Tid, id: u16, modifier: u32, path: &DirectedPath) -> Self {
        let mut header = MadHeader::new(MgmtClass::SubnDirected, CLASS_VERSION, method, tid, id);
        header.modifier = modifier;
        header.class_specific = path.hops() as u16;
        Self {
            header,
            mkey: 0,
            dr_slid: Lid::PERMISSIVE,
            dr_dlid: Lid::PERMISSIVE,
            data: [0; DATA_LEN],
            initial_path: *path.ports(),
            return_path: [0; 64],
        }
    }

    /// Builds a LID-routed packet without attribute.
    #[must_use]
    pub const fn lid_routed(method: Method, tid: Tid, id: u16, modifier: u32) -> Self {
        let mut header = MadHeader::new(MgmtClass::SubnLid, CLASS_VERSION, method, tid, id);
        header.modifier = modifier;
        Self {
            header,
            mkey: 0,
            dr_slid: Lid(0),
            dr_dlid: Lid(0),
            data: [0; DATA_LEN],
            initial_path: [0; 64],
            return_path: [0; 64],
        }
    }

    /// The same packet with an attribute.
    #[must_use]
    pub fn with<A: Attribute>(mut self, attribute: &A) -> Self {
        self.set_attribute(attribute);
        self
    }

    /// The attribute, if the id is that of `A`.
    #[must_use]
    pub fn attribute<A: Attribute>(&self) -> Option<A> {
        (self.header.attribute == A::ID).then(|| A::from_data(&self.data))
    }

    /// Writes an attribute into the data; reserved bits do not change.
    pub fn set_attribute<A: Attribute>(&mut self, attribute: &A) {
        attribute.to_data(&mut self.data);
    }

    /// True for the directed-route class.
    #[must_use]
    pub const fn is_directed(&self) -> bool {
        matches!(self.header.class, MgmtClass::SubnDirected)
    }

    /// True for a returning directed-route packet: the direction bit.
    #[must_use]
    pub const fn is_returning(&self) -> bool {
        self.is_directed() && self.header.status.0 & DIRECTION != 0
    }

    /// The status without the direction bit.
    #[must_use]
    pub const fn status(&self) -> MadStatus {
        MadStatus(self.header.status.0 & !DIRECTION)
    }

    /// Current hop of a directed-route packet.
    #[must_use]
    pub const fn hop_pointer(&self) -> u8 {
        (self.header.class_specific >> 8) as u8
    }

    /// Number of hops of a directed-route packet.
    #[must_use]
    pub const fn hop_count(&self) -> u8 {
        self.header.class_specific as u8
    }

    /// Sets the current hop.
    pub const fn set_hop_pointer(&mut self, to: u8) {
        self.header.class_specific = (to as u16) << 8 | self.header.class_specific & 0xff;
    }

    /// Turns a request into its response: method, direction and status. The caller fills in the attribute.
    /// Hop pointer and paths do not change, because the return route is computed from them.
    #[must_use]
    pub fn answer(mut self, status: MadStatus) -> Self {
        self.header.method = self.header.method.response().unwrap_or(Method::GetResp);
        let direction = if self.is_directed() { DIRECTION } else { 0 };
        self.header.status = MadStatus(status.0 & !DIRECTION | direction);
        self
    }

    /// The 256 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Box<[u8; MAD_LEN]> {
        let mut bytes = Box::new([0; MAD_LEN]);
        self.write(&mut bytes);
        bytes
    }

    /// Wraps the packet in a datagram from QP0 to QP0 of `lid` ([`Lid::PERMISSIVE`] for a purely directed
    /// route).
    #[must_use]
    pub fn to_mad(&self, lid: Lid) -> Mad {
        let peer = MadAddress {
            lid,
            qpn: Qpn::SMI,
            qkey: QKey(0),
            sl: ServiceLevel::new(0),
            path_bits: 0,
            pkey_index: 0,
            route: None,
        };
        Mad { peer, bytes: self.to_bytes() }
    }
}
