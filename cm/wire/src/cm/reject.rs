//! REJ (IBA 12.6.7).

use crate::CommId;
use crate::layout::{layout, narrow_number, open_enum};

layout! {
    /// REJ: refuses a connection or abandons its setup.
    pub struct Reject[232] {
        /// Communication id of the sender; 0 if it has none.
        local_comm_id: CommId = 0 @ 0, 32;
        /// Communication id of the receiver; 0 if it is not known.
        remote_comm_id: CommId = 4 @ 0, 32;
        /// The message that is rejected.
        message: MessageRejected = 8 @ 0, 2;
        /// Bytes of `info` in use.
        info_length: InfoLength = 9 @ 0, 7;
        /// Reason.
        reason: RejectReason = 10 @ 0, 16;
        /// Additional rejection information; its meaning depends on the reason.
        info: [u8; 72] = 12 @ 0, 576;
        /// Private data.
        private_data: [u8; 148] = 84 @ 0, 1184;
    }
}

impl Reject {
    /// The part of the additional information that is in use.
    #[must_use]
    pub fn used_info(&self) -> &[u8] {
        let n = usize::from(self.info_length.get()).min(self.info.len());
        self.info.get(..n).unwrap_or(&[])
    }
}

impl Default for Reject {
    fn default() -> Self {
        Self::parse(&[0; Self::LEN])
    }
}

narrow_number! {
    /// Length of the additional information, 7 bits; the information itself has 72 bytes at most.
    InfoLength(u8, 7)
}

open_enum! {
    /// The message that a REJ rejects, 2 bits.
    pub enum MessageRejected(u8) {
        /// REQ.
        Request = 0,
        /// REP.
        Reply = 1,
        /// No particular message.
        NoMessage = 2,
    }
}

open_enum! {
    /// Reason of a REJ (IBA 12.6.7.2).
    pub enum RejectReason(u16) {
        /// No queue pair is available.
        NoQp = 1,
        /// No EE context is available.
        NoEec = 2,
        /// No resources.
        NoResources = 3,
        /// No response arrived; the information is the sender's CA GUID.
        Timeout = 4,
        /// The request is not supported.
        Unsupported = 5,
        /// Invalid communication id.
        InvalidCommId = 6,
        /// Invalid communication instance.
        InvalidCommInstance = 7,
        /// No service listens on this service id.
        InvalidServiceId = 8,
        /// Invalid transport service.
        InvalidTransport = 9,
        /// The connection is a remnant of an earlier one.
        StaleConnection = 10,
        /// The RD channel does not exist.
        NoRdc = 11,
        /// Primary path: the remote GID is rejected.
        PrimaryGid = 12,
        /// Primary path: LID.
        PrimaryLid = 13,
        /// Primary path: service level.
        PrimarySl = 14,
        /// Primary path: traffic class.
        PrimaryTrafficClass = 15,
        /// Primary path: hop limit.
        PrimaryHopLimit = 16,
        /// Primary path: packet rate.
        PrimaryRate = 17,
        /// Alternate path: GID.
        AlternateGid = 18,
        /// Alternate path: LID.
        AlternateLid = 19,
        /// Alternate path: service level.
        AlternateSl = 20,
        /// Alternate path: traffic class.
        AlternateTrafficClass = 21,
        /// Alternate path: hop limit.
        AlternateHopLimit = 22,
        /// Alternate path: packet rate.
        AlternateRate = 23,
        /// Redirect to another port and CM.
        PortCmRedirect = 24,
        /// Redirect to another port.
        PortRedirect = 25,
        /// Invalid path MTU.
        InvalidMtu = 26,
        /// Too few responder resources.
        InsufficientResources = 27,
        /// The consumer rejects. Only with this reason is the private data the consumer's.
        Consumer = 28,
        /// The RNR retry count is rejected.
        RnrRetry = 29,
        /// The communication id is already in use.
        DuplicateCommId = 30,
        /// Class version not supported.
        ClassVersion = 31,
        /// Primary path: flow label.
        PrimaryFlowLabel = 32,
        /// Alternate path: flow label.
        AlternateFlowLabel = 33,
    }
}
