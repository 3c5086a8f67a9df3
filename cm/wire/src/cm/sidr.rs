//! Service id resolution: SIDR_REQ (IBA 12.11.1) and SIDR_REP (12.11.2).

use crate::layout::{layout, open_enum};
use crate::{PKey, QKey, Qpn, ServiceId};

layout! {
    /// SIDR_REQ: requests the datagram queue pair that offers a service.
    pub struct SidrRequest[232] {
        /// Identifies the request.
        request_id: u32 = 0 @ 0, 32;
        /// Partition.
        pkey: PKey = 4 @ 0, 16;
        /// Service.
        service_id: ServiceId = 8 @ 0, 64;
        /// Private data.
        private_data: [u8; 216] = 16 @ 0, 1728;
    }
}

layout! {
    /// SIDR_REP: the response to SIDR_REQ.
    pub struct SidrReply[232] {
        /// Identifies the request.
        request_id: u32 = 0 @ 0, 32;
        /// Outcome.
        status: SidrStatus = 4 @ 0, 8;
        /// Bytes of `info` in use.
        info_length: u8 = 5 @ 0, 8;
        /// The queue pair.
        qpn: Qpn = 8 @ 0, 24;
        /// Service.
        service_id: ServiceId = 12 @ 0, 64;
        /// Q_Key of the queue pair.
        qkey: QKey = 20 @ 0, 32;
        /// Additional information.
        info: [u8; 72] = 24 @ 0, 576;
        /// Private data.
        private_data: [u8; 136] = 96 @ 0, 1088;
    }
}

open_enum! {
    /// Outcome of a resolution.
    pub enum SidrStatus(u8) {
        /// Valid.
        Valid = 0,
        /// The service id is not supported.
        Unsupported = 1,
        /// Rejected.
        Rejected = 2,
        /// No queue pair is available.
        NoQp = 3,
        /// Redirect.
        Redirect = 4,
        /// Version not supported.
        UnsupportedVersion = 5,
    }
}
