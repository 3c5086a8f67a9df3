//! MCMemberRecord (IBA 15.2.5.17).

use super::{FlowLabel, LifeTime, MtuCode, Scope, Selector};
use crate::layout::{integer_field, layout};
use crate::{Gid, Lid, PKey, QKey, Rate, ServiceLevel};

layout! {
    /// A multicast group and the membership of one port.
    pub struct McMemberRecord[52] {
        /// The group.
        mgid: Gid = 0 @ 0, 128;
        /// The port.
        port_gid: Gid = 16 @ 0, 128;
        /// Q_Key of the group.
        qkey: QKey = 32 @ 0, 32;
        /// Multicast LID of the group.
        mlid: Lid = 36 @ 0, 16;
        /// Comparison for `mtu`.
        mtu_selector: Selector = 38 @ 0, 2;
        /// MTU of the group.
        mtu: MtuCode = 38 @ 2, 6;
        /// Traffic class.
        traffic_class: u8 = 39 @ 0, 8;
        /// Partition.
        pkey: PKey = 40 @ 0, 16;
        /// Comparison for `rate`.
        rate_selector: Selector = 42 @ 0, 2;
        /// Static rate.
        rate: Rate = 42 @ 2, 6;
        /// Comparison for `life_time`.
        life_time_selector: Selector = 43 @ 0, 2;
        /// Packet life time.
        life_time: LifeTime = 43 @ 2, 6;
        /// Service level.
        sl: ServiceLevel = 44 @ 0, 4;
        /// Flow label.
        flow_label: FlowLabel = 44 @ 4, 20;
        /// Hop limit.
        hop_limit: u8 = 47 @ 0, 8;
        /// Scope.
        scope: Scope = 48 @ 0, 4;
        /// Membership of the port.
        join_state: JoinState = 48 @ 4, 4;
        /// The port was joined on behalf of another port.
        proxy_join: bool = 49 @ 0, 1;
    }
}

impl Default for McMemberRecord {
    fn default() -> Self {
        Self::parse(&[0; Self::LEN])
    }
}

bitflags::bitflags! {
    /// Membership of a port in a group.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct JoinState: u8 {
        /// Sends and receives; keeps the group alive.
        const FULL_MEMBER = 1;
        /// Sends and receives; does not keep the group alive.
        const NON_MEMBER = 2;
        /// Sends only; does not keep the group alive.
        const SEND_ONLY_NON_MEMBER = 4;
        /// Sends only; keeps the group alive.
        const SEND_ONLY_FULL_MEMBER = 8;
    }
}

integer_field! { JoinState: |v| Self::from_bits_truncate(v as u8), |s| s.bits(); }

bitflags::bitflags! {
    /// Components of an MCMemberRecord.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct McMask: u64 {
        /// MGID.
        const MGID = 1 << 0;
        /// Port GID.
        const PORT_GID = 1 << 1;
        /// Q_Key.
        const QKEY = 1 << 2;
        /// MLID.
        const MLID = 1 << 3;
        /// MTU selector.
        const MTU_SELECTOR = 1 << 4;
        /// MTU.
        const MTU = 1 << 5;
        /// Traffic class.
        const TRAFFIC_CLASS = 1 << 6;
        /// P_Key.
        const PKEY = 1 << 7;
        /// Rate selector.
        const RATE_SELECTOR = 1 << 8;
        /// Rate.
        const RATE = 1 << 9;
        /// Life time selector.
        const LIFE_TIME_SELECTOR = 1 << 10;
        /// Life time.
        const LIFE_TIME = 1 << 11;
        /// Service level.
        const SL = 1 << 12;
        /// Flow label.
        const FLOW_LABEL = 1 << 13;
        /// Hop limit.
        const HOP_LIMIT = 1 << 14;
        /// Scope.
        const SCOPE = 1 << 15;
        /// Join state.
        const JOIN_STATE = 1 << 16;
        /// Proxy join.
        const PROXY_JOIN = 1 << 17;
    }
}
