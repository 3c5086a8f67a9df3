//! ClassPortInfo (IBA 13.4.8.1).

use super::FlowLabel;
use crate::layout::{integer_field, layout};
use crate::{Gid, Lid, PKey, QKey, Qpn, ServiceLevel, TimeoutCode};

layout! {
    /// The abilities of a class's agent at a port, and the address that it redirects requests to.
    pub struct ClassPortInfo[72] {
        /// Base version.
        base_version: u8 = 0 @ 0, 8;
        /// Class version.
        class_version: u8 = 1 @ 0, 8;
        /// Capability mask.
        capability_mask: u16 = 2 @ 0, 16;
        /// Second capability mask, 27 bits.
        capability_mask2: CapabilityMask2 = 4 @ 0, 27;
        /// Maximum time that the agent takes to respond.
        response_time: TimeoutCode = 7 @ 3, 5;
        /// Redirect: GID.
        redirect_gid: Gid = 8 @ 0, 128;
        /// Redirect: traffic class.
        redirect_traffic_class: u8 = 24 @ 0, 8;
        /// Redirect: service level.
        redirect_sl: ServiceLevel = 25 @ 0, 4;
        /// Redirect: flow label.
        redirect_flow_label: FlowLabel = 25 @ 4, 20;
        /// Redirect: LID.
        redirect_lid: Lid = 28 @ 0, 16;
        /// Redirect: P_Key.
        redirect_pkey: PKey = 30 @ 0, 16;
        /// Redirect: queue pair.
        redirect_qpn: Qpn = 33 @ 0, 24;
        /// Redirect: Q_Key.
        redirect_qkey: QKey = 36 @ 0, 32;
        /// Traps: GID.
        trap_gid: Gid = 40 @ 0, 128;
        /// Traps: traffic class.
        trap_traffic_class: u8 = 56 @ 0, 8;
        /// Traps: service level.
        trap_sl: ServiceLevel = 57 @ 0, 4;
        /// Traps: flow label.
        trap_flow_label: FlowLabel = 57 @ 4, 20;
        /// Traps: LID.
        trap_lid: Lid = 60 @ 0, 16;
        /// Traps: P_Key.
        trap_pkey: PKey = 62 @ 0, 16;
        /// Traps: hop limit.
        trap_hop_limit: u8 = 64 @ 0, 8;
        /// Traps: queue pair.
        trap_qpn: Qpn = 65 @ 0, 24;
        /// Traps: Q_Key.
        trap_qkey: QKey = 68 @ 0, 32;
    }
}

bitflags::bitflags! {
    /// Optional capabilities of subnet administration (IBA 15.2.5.1). Bits without a name are kept.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct CapabilityMask2: u32 {
        /// Groups can be joined as send-only full member.
        const SEND_ONLY_FULL_MEMBER = 1 << 12;
        const _ = (1 << 27) - 1;
    }
}

integer_field! { CapabilityMask2: |v| Self::from_bits_retain(v as u32), |s| s.bits(); }
