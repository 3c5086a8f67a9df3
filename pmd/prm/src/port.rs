//! Port attributes from the firmware.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout;

/// A virtual port.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct VportContext {
    /// Fields to change.
    pub field_select: U32,
    /// Zero.
    pub reserved_4: [u8; 28],
    /// [`VportContext::HAS_SMI`] and the like.
    pub flags: u8,
    /// Zero.
    pub reserved_33: u8,
    /// Physical state (4 bits at 4) and policy (4 bits).
    pub physical_policy: u8,
    /// State of the port (4 bits at 4) and of its virtual port (4 bits).
    pub states: u8,
    /// Zero.
    pub reserved_36: U32,
    /// System image GUID.
    pub system_guid: U64,
    /// Port GUID.
    pub port_guid: U64,
    /// Node GUID.
    pub node_guid: U64,
    /// Capability mask, as in PortInfo.
    pub capabilities: U32,
    /// Capability bits that can be changed.
    pub capabilities_mutable: U32,
    /// Second capability mask, and its bits that can be changed.
    pub capabilities_2: U64,
    /// Zero.
    pub reserved_80: [u8; 16],
    /// LID.
    pub lid: U16,
    /// Type of initialization.
    pub init_type: u8,
    /// LMC (3 bits at 5) and subnet timeout (5 bits).
    pub lmc_timeout: u8,
    /// LID of the subnet manager.
    pub sm_lid: U16,
    /// Service level to the subnet manager, 4 bits at 4.
    pub sm_sl: u8,
    /// Zero.
    pub reserved_103: u8,
    /// Q_Key violations.
    pub qkey_violations: U16,
    /// P_Key violations.
    pub pkey_violations: U16,
}

impl VportContext {
    /// In `flags`: queue pair 0 is available.
    pub const HAS_SMI: u8 = 0x40;
    /// In `flags`: packets to other ports need a GRH.
    pub const GRH_REQUIRED: u8 = 0x10;
}

impl Default for VportContext {
    fn default() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

layout!(
    VportContext, 0x6c, flags @ 0x20, physical_policy @ 0x22, states @ 0x23, system_guid @ 0x28, port_guid @ 0x30,
    node_guid @ 0x38, capabilities @ 0x40, capabilities_mutable @ 0x44, lid @ 0x60, lmc_timeout @ 0x63, sm_lid @ 0x64,
    sm_sl @ 0x66
);

/// Numbers of access registers.
pub mod register {
    /// [`Pmtu`](super::Pmtu).
    pub const PMTU: u16 = 0x5003;
    /// [`Ptys`](super::Ptys).
    pub const PTYS: u16 = 0x5004;
    /// [`Pvlc`](super::Pvlc).
    pub const PVLC: u16 = 0x500f;
    /// Node description, 64 bytes of text.
    pub const NODE_DESCRIPTION: u16 = 0x6001;
    /// Byte order of the host.
    pub const HOST_ENDIANNESS: u16 = 0x7004;
}

/// Width and speed of a port.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ptys {
    /// Zero.
    pub reserved_0: u8,
    /// Port.
    pub port: u8,
    /// Zero.
    pub reserved_2: u8,
    /// 1 for InfiniBand.
    pub protocol: u8,
    /// Fields of Ethernet ports.
    pub reserved_4: [u8; 12],
    /// Supported widths: bits 0 for 1x, 1 for 2x, 2 for 4x.
    pub width_supported: U16,
    /// Supported speeds: bits 0 for SDR, 1 for DDR, 2 for QDR, 3 for FDR10, 4 for FDR, 5 for EDR.
    pub speed_supported: U16,
    /// Fields of Ethernet ports, and the administrative limits.
    pub reserved_20: [u8; 20],
    /// Width in use.
    pub width: U16,
    /// Speed in use.
    pub speed: U16,
    /// Zero.
    pub reserved_44: [u8; 20],
}

layout!(Ptys, 64, port @ 1, protocol @ 3, width_supported @ 0x10, speed_supported @ 0x12, width @ 0x28, speed @ 0x2a);

/// MTU of a port in bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Pmtu {
    /// Zero.
    pub reserved_0: u8,
    /// Port.
    pub port: u8,
    /// Zero.
    pub reserved_2: U16,
    /// Largest MTU.
    pub max: U16,
    /// Zero.
    pub reserved_6: U16,
    /// Administrative limit.
    pub admin: U16,
    /// Zero.
    pub reserved_10: U16,
    /// Current MTU.
    pub operational: U16,
    /// Zero.
    pub reserved_14: U16,
}

layout!(Pmtu, 16, port @ 1, max @ 4, admin @ 8, operational @ 12);

/// Virtual lanes of a port: 1 for VL 0, 2 for VL 0 and 1, 4 for VL 0 to 3, 8 for VL 0 to 7.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Pvlc {
    /// Zero.
    pub reserved_0: u8,
    /// Port.
    pub port: u8,
    /// Zero.
    pub reserved_2: [u8; 5],
    /// Supported lanes.
    pub supported: u8,
    /// Zero.
    pub reserved_8: [u8; 3],
    /// Administrative limit.
    pub admin: u8,
    /// Zero.
    pub reserved_12: [u8; 3],
    /// Lanes in use.
    pub operational: u8,
}

layout!(Pvlc, 16, port @ 1, supported @ 7, admin @ 11, operational @ 15);
