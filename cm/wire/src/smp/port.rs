//! PortInfo (IBA 14.2.5.6).

use crate::layout::{integer_field, layout, narrow_number, open_enum};
use crate::{Lid, Mtu, ServiceLevel, TimeoutCode};

open_enum! {
    /// Logical state of a port; in a `Set`, the requested state.
    pub enum PortState(u8) {
        /// `Set` only: no change.
        NoChange = 0,
        /// No link.
        Down = 1,
        /// The link is up and waits for configuration.
        Init = 2,
        /// Configured; only management packets pass.
        Armed = 3,
        /// Data packets pass.
        Active = 4,
    }
}

open_enum! {
    /// Physical state of a port.
    pub enum PortPhysicalState(u8) {
        /// `Set` only: no change.
        NoChange = 0,
        /// Sleeping.
        Sleep = 1,
        /// Looking for a link partner.
        Polling = 2,
        /// Disabled.
        Disabled = 3,
        /// Training.
        Training = 4,
        /// Up.
        LinkUp = 5,
        /// Recovering.
        Recovery = 6,
        /// Phy test.
        PhyTest = 7,
    }
}

bitflags::bitflags! {
    /// Capabilities of a port. Bits without a name are kept.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Capabilities: u32 {
        /// A subnet manager runs on the node.
        const SM = 1 << 1;
        /// Supports the Notice attribute.
        const NOTICE = 1 << 2;
        /// Sends traps.
        const TRAP = 1 << 3;
        /// Maps service levels to lanes.
        const SL_MAPPING = 1 << 6;
        /// Reports the GUID of its system.
        const SYSTEM_IMAGE_GUID = 1 << 11;
        /// Supports `link_speed_ext_*`.
        const EXTENDED_SPEEDS = 1 << 14;
        /// Supports `capability_mask2`.
        const CAPABILITY_MASK2 = 1 << 15;
        /// Supports communication management.
        const COMMUNICATION_MANAGEMENT = 1 << 16;
        /// Sends traps by directed route.
        const DIRECTED_ROUTE_NOTICE = 1 << 21;
        /// Sends trap 144.
        const CAPABILITY_NOTICE = 1 << 22;
        /// Supports `client_reregister`.
        const CLIENT_REREGISTRATION = 1 << 25;
        const _ = !0;
    }
}
integer_field! { Capabilities: |v| Self::from_bits_retain(v as u32), |s| s.bits(); }

bitflags::bitflags! {
    /// Widths of a link; 255 in a `Set` of the enabled widths means all supported ones.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct LinkWidth: u8 {
        /// One lane.
        const X1 = 1;
        /// Four lanes.
        const X4 = 2;
        /// Eight lanes.
        const X8 = 4;
        /// Twelve lanes.
        const X12 = 8;
        const _ = !0;
    }
}
integer_field! { LinkWidth: |v| Self::from_bits_retain(v as u8), |s| s.bits(); }

narrow_number! {
    /// A component of four bits without named codes.
    Nibble(u8, 4)
}
narrow_number! {
    /// MTU code of a port. A code that names no MTU is kept.
    PortMtu(u8, 4)
}

impl PortMtu {
    /// The MTU, if the code names one.
    #[must_use]
    pub const fn mtu(self) -> Option<Mtu> {
        Mtu::from_code(self.get())
    }
}

impl From<Mtu> for PortMtu {
    fn from(mtu: Mtu) -> Self {
        Self::new(mtu.code())
    }
}

narrow_number! {
    /// Extended speeds that may be used.
    ExtendedSpeeds(u8, 5)
}
narrow_number! {
    /// LID mask control: a port uses 2^lmc LIDs.
    Lmc(u8, 3)
}
narrow_number! {
    /// Two bits of protection.
    ProtectBits(u8, 2)
}
narrow_number! {
    /// Three bits of stall count.
    StallCount(u8, 3)
}
narrow_number! {
    /// 24 bits, units of 4 ns.
    RoundTrip(u32, 24)
}

layout! {
    /// State and configuration of a port.
    pub struct PortInfo[64] {
        /// M_Key that protects the port.
        mkey: u64 = 0 @ 0, 64;
        /// Subnet prefix of the port's GIDs.
        gid_prefix: u64 = 8 @ 0, 64;
        /// Base LID.
        lid: Lid = 16 @ 0, 16;
        /// LID of the subnet manager.
        sm_lid: Lid = 18 @ 0, 16;
        /// Capabilities of the port.
        capabilities: Capabilities = 20 @ 0, 32;
        /// Diagnostic code.
        diag_code: u16 = 24 @ 0, 16;
        /// Lease of the M_Key after a violation, seconds.
        mkey_lease: u16 = 26 @ 0, 16;
        /// Port that received the request.
        local_port: u8 = 28 @ 0, 8;
        /// Enabled widths.
        width_enabled: LinkWidth = 29 @ 0, 8;
        /// Supported widths.
        width_supported: LinkWidth = 30 @ 0, 8;
        /// Width in use.
        width_active: LinkWidth = 31 @ 0, 8;
        /// Supported speeds: 1 = 2.5, 2 = 5, 4 = 10 Gb/s per lane.
        speed_supported: Nibble = 32 @ 0, 4;
        /// Logical state.
        state: PortState = 32 @ 4, 4;
        /// Physical state.
        physical_state: PortPhysicalState = 33 @ 0, 4;
        /// Physical state that the port enters when its link is lost.
        down_default: Nibble = 33 @ 4, 4;
        /// Protection level of the M_Key.
        mkey_protect: ProtectBits = 34 @ 0, 2;
        /// LID mask control.
        lmc: Lmc = 34 @ 5, 3;
        /// Speed in use.
        speed_active: Nibble = 35 @ 0, 4;
        /// Enabled speeds.
        speed_enabled: Nibble = 35 @ 4, 4;
        /// MTU in use: at most the one that the link partner supports.
        neighbor_mtu: PortMtu = 36 @ 0, 4;
        /// Service level for packets to the subnet manager.
        sm_sl: ServiceLevel = 36 @ 4, 4;
        /// Supported lanes: 1 = VL0, 2 = VL0-1, 3 = VL0-3, 4 = VL0-7, 5 = VL0-14.
        vl_cap: Nibble = 37 @ 0, 4;
        /// Requested initialization.
        init_type: Nibble = 37 @ 4, 4;
        /// Weight of the high-priority lanes.
        vl_high_limit: u8 = 38 @ 0, 8;
        /// Entries of the high-priority arbitration table.
        vl_arb_high_cap: u8 = 39 @ 0, 8;
        /// Entries of the low-priority arbitration table.
        vl_arb_low_cap: u8 = 40 @ 0, 8;
        /// Initialization that was done.
        init_type_reply: Nibble = 41 @ 0, 4;
        /// Largest supported MTU.
        mtu_cap: PortMtu = 41 @ 4, 4;
        /// Stalls before a lane is declared stalled.
        vl_stall_count: StallCount = 42 @ 0, 3;
        /// Maximum time at the head of a queue.
        hoq_life: TimeoutCode = 42 @ 3, 5;
        /// Lanes in use, coded as `vl_cap`.
        operational_vls: Nibble = 43 @ 0, 4;
        /// Inbound P_Keys are checked.
        pkey_enforce_in: bool = 43 @ 4, 1;
        /// Outbound P_Keys are checked.
        pkey_enforce_out: bool = 43 @ 5, 1;
        /// Inbound raw packets are dropped.
        filter_raw_in: bool = 43 @ 6, 1;
        /// Outbound raw packets are dropped.
        filter_raw_out: bool = 43 @ 7, 1;
        /// Packets with a wrong M_Key.
        mkey_violations: u16 = 44 @ 0, 16;
        /// Packets with a wrong P_Key.
        pkey_violations: u16 = 46 @ 0, 16;
        /// Packets with a wrong Q_Key.
        qkey_violations: u16 = 48 @ 0, 16;
        /// Entries of the GUID table.
        guid_cap: u8 = 50 @ 0, 8;
        /// `Set` only: clients must join and subscribe again.
        client_reregister: bool = 51 @ 0, 1;
        /// Traps about multicast P_Keys are suppressed.
        multicast_pkey_trap_suppression: ProtectBits = 51 @ 1, 2;
        /// Longest one-way time through the subnet.
        subnet_timeout: TimeoutCode = 51 @ 3, 5;
        /// Longest time that the port's agents take to respond.
        response_time: TimeoutCode = 52 @ 3, 5;
        /// Local phy errors before a link is retrained.
        local_phy_errors: Nibble = 53 @ 0, 4;
        /// Overruns before a link is retrained.
        overrun_errors: Nibble = 53 @ 4, 4;
        /// Largest credit hint.
        max_credit_hint: u16 = 54 @ 0, 16;
        /// Round trip of the link.
        round_trip: RoundTrip = 57 @ 0, 24;
        /// Further capabilities of the port.
        capability_mask2: u16 = 60 @ 0, 16;
        /// Extended speed in use: 1 = 14, 2 = 25 Gb/s per lane.
        speed_ext_active: Nibble = 62 @ 0, 4;
        /// Supported extended speeds.
        speed_ext_supported: Nibble = 62 @ 4, 4;
        /// Enabled extended speeds.
        speed_ext_enabled: ExtendedSpeeds = 63 @ 3, 5;
    }
}

impl Default for PortInfo {
    fn default() -> Self {
        Self::parse(&[0; Self::LEN])
    }
}
