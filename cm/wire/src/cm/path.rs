//! Paths in REQ, and the messages that load an alternate one: LAP (IBA 12.8.1) and APR (12.8.2).

use super::FlowLabel;
use crate::layout::{layout, open_enum};
use crate::{CommId, Gid, Lid, Qpn, Rate, ServiceLevel, TimeoutCode};

layout! {
    /// A path in a REQ; "local" is the end of the message's sender.
    pub struct PathInfo[44] {
        /// LID of the sender's port; the permissive LID means the source LID of the datagram.
        local_lid: Lid = 0 @ 0, 16;
        /// LID of the receiver's port.
        remote_lid: Lid = 2 @ 0, 16;
        /// GID of the sender's port.
        local_gid: Gid = 4 @ 0, 128;
        /// GID of the receiver's port.
        remote_gid: Gid = 20 @ 0, 128;
        /// Flow label.
        flow_label: FlowLabel = 36 @ 0, 20;
        /// Static rate.
        rate: Rate = 39 @ 2, 6;
        /// Traffic class.
        traffic_class: u8 = 40 @ 0, 8;
        /// Hop limit.
        hop_limit: u8 = 41 @ 0, 8;
        /// Service level.
        sl: ServiceLevel = 42 @ 0, 4;
        /// Both ends are in one subnet, so that no GRH is needed.
        subnet_local: bool = 42 @ 4, 1;
        /// Local ACK timeout of the sender's queue pair.
        ack_timeout: TimeoutCode = 43 @ 0, 5;
    }
}

impl PathInfo {
    /// No path: all zero.
    pub const NONE: Self = Self {
        local_lid: Lid(0),
        remote_lid: Lid(0),
        local_gid: Gid::ZERO,
        remote_gid: Gid::ZERO,
        flow_label: FlowLabel::new(0),
        rate: Rate::new(0),
        traffic_class: 0,
        hop_limit: 0,
        sl: ServiceLevel::new(0),
        subnet_local: false,
        ack_timeout: TimeoutCode::new(0),
    };

    /// True if there is no path.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.local_lid == Lid(0) && self.remote_lid == Lid(0) && self.remote_gid == Gid::ZERO
    }
}

layout! {
    /// LAP: offers an alternate path for a connection.
    pub struct LoadAlternatePath[232] {
        /// Communication id of the sender.
        local_comm_id: CommId = 0 @ 0, 32;
        /// Communication id of the receiver.
        remote_comm_id: CommId = 4 @ 0, 32;
        /// The receiver's queue pair.
        remote_qpn: Qpn = 12 @ 0, 24;
        /// Time within which the receiver must respond.
        remote_response_timeout: TimeoutCode = 15 @ 0, 5;
        /// LID of the sender's port.
        local_lid: Lid = 20 @ 0, 16;
        /// LID of the receiver's port.
        remote_lid: Lid = 22 @ 0, 16;
        /// GID of the sender's port.
        local_gid: Gid = 24 @ 0, 128;
        /// GID of the receiver's port.
        remote_gid: Gid = 40 @ 0, 128;
        /// Flow label.
        flow_label: FlowLabel = 56 @ 0, 20;
        /// Traffic class.
        traffic_class: u8 = 59 @ 0, 8;
        /// Hop limit.
        hop_limit: u8 = 60 @ 0, 8;
        /// Static rate.
        rate: Rate = 61 @ 2, 6;
        /// Service level.
        sl: ServiceLevel = 62 @ 0, 4;
        /// Both ends are in one subnet.
        subnet_local: bool = 62 @ 4, 1;
        /// Local ACK timeout of the sender's queue pair.
        ack_timeout: TimeoutCode = 63 @ 0, 5;
        /// Private data.
        private_data: [u8; 168] = 64 @ 0, 1344;
    }
}

layout! {
    /// APR: the response to LAP.
    pub struct AlternatePathResponse[232] {
        /// Communication id of the sender.
        local_comm_id: CommId = 0 @ 0, 32;
        /// Communication id of the receiver.
        remote_comm_id: CommId = 4 @ 0, 32;
        /// Bytes of `info` in use.
        info_length: u8 = 8 @ 0, 8;
        /// Outcome.
        status: AprStatus = 9 @ 0, 8;
        /// Additional information.
        info: [u8; 72] = 12 @ 0, 576;
        /// Private data.
        private_data: [u8; 148] = 84 @ 0, 1184;
    }
}

open_enum! {
    /// Outcome of a LAP (IBA table 121).
    pub enum AprStatus(u8) {
        /// Loaded.
        Loaded = 0,
        /// Invalid communication ids.
        InvalidCommId = 1,
        /// Alternate paths are not supported.
        Unsupported = 2,
        /// Rejected by the consumer.
        Rejected = 3,
        /// Redirect.
        Redirect = 4,
        /// The path is already in use.
        IsPrimary = 5,
        /// The queue pair is not the one of this connection.
        QpnMismatch = 6,
    }
}
