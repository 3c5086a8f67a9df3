//! PathRecord (IBA 15.2.5.16).

use super::{FlowLabel, LifeTime, MtuCode, NumbPath, QosClass, Selector};
use crate::layout::layout;
use crate::{Gid, Lid, PKey, Rate, ServiceId, ServiceLevel};

layout! {
    /// One path between two ports.
    pub struct PathRecord[64] {
        /// Service that the path is for; 0 = any.
        service_id: ServiceId = 0 @ 0, 64;
        /// Destination GID.
        dgid: Gid = 8 @ 0, 128;
        /// Source GID.
        sgid: Gid = 24 @ 0, 128;
        /// Destination LID.
        dlid: Lid = 40 @ 0, 16;
        /// Source LID.
        slid: Lid = 42 @ 0, 16;
        /// The path carries raw packets.
        raw_traffic: bool = 44 @ 0, 1;
        /// Flow label.
        flow_label: FlowLabel = 44 @ 4, 20;
        /// Hop limit.
        hop_limit: u8 = 47 @ 0, 8;
        /// Traffic class.
        traffic_class: u8 = 48 @ 0, 8;
        /// The path is valid in both directions.
        reversible: bool = 49 @ 0, 1;
        /// Maximum number of paths in the response.
        numb_path: NumbPath = 49 @ 1, 7;
        /// Partition.
        pkey: PKey = 50 @ 0, 16;
        /// QoS class.
        qos_class: QosClass = 52 @ 0, 12;
        /// Service level.
        sl: ServiceLevel = 53 @ 4, 4;
        /// Comparison for `mtu`.
        mtu_selector: Selector = 54 @ 0, 2;
        /// MTU.
        mtu: MtuCode = 54 @ 2, 6;
        /// Comparison for `rate`.
        rate_selector: Selector = 55 @ 0, 2;
        /// Static rate.
        rate: Rate = 55 @ 2, 6;
        /// Comparison for `life_time`.
        life_time_selector: Selector = 56 @ 0, 2;
        /// Packet life time.
        life_time: LifeTime = 56 @ 2, 6;
        /// Preference among several paths.
        preference: u8 = 57 @ 0, 8;
    }
}

impl Default for PathRecord {
    fn default() -> Self {
        Self::parse(&[0; Self::LEN])
    }
}

bitflags::bitflags! {
    /// Components of a PathRecord.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct PathMask: u64 {
        /// Service id (both halves).
        const SERVICE_ID = 0b11;
        /// DGID.
        const DGID = 1 << 2;
        /// SGID.
        const SGID = 1 << 3;
        /// DLID.
        const DLID = 1 << 4;
        /// SLID.
        const SLID = 1 << 5;
        /// Raw traffic.
        const RAW_TRAFFIC = 1 << 6;
        /// Flow label.
        const FLOW_LABEL = 1 << 8;
        /// Hop limit.
        const HOP_LIMIT = 1 << 9;
        /// Traffic class.
        const TRAFFIC_CLASS = 1 << 10;
        /// Reversible.
        const REVERSIBLE = 1 << 11;
        /// Number of paths.
        const NUMB_PATH = 1 << 12;
        /// P_Key.
        const PKEY = 1 << 13;
        /// QoS class.
        const QOS_CLASS = 1 << 14;
        /// Service level.
        const SL = 1 << 15;
        /// MTU selector.
        const MTU_SELECTOR = 1 << 16;
        /// MTU.
        const MTU = 1 << 17;
        /// Rate selector.
        const RATE_SELECTOR = 1 << 18;
        /// Rate.
        const RATE = 1 << 19;
        /// Life time selector.
        const LIFE_TIME_SELECTOR = 1 << 20;
        /// Life time.
        const LIFE_TIME = 1 << 21;
        /// Preference.
        const PREFERENCE = 1 << 22;
    }
}
