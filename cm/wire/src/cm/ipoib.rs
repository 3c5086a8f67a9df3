//! The use of CM messages in IPoIB connected mode (RFC 4755, and Linux where it differs).

use crate::layout::layout;
use crate::{Qpn, ServiceId};

/// First octet of a service id in Linux's form.
const LINUX: u64 = 0x10 << 56;
/// First octet of a service id of the IETF (RFC 4755 section 5.1).
const IETF: u64 = 0x01 << 56;

layout! {
    /// Private data of REQ and REP (RFC 4755 section 5.2).
    pub struct PrivateData[8] {
        /// The sender's datagram queue pair.
        ud_qpn: Qpn = 1 @ 0, 24;
        /// Largest message that the sender receives, in bytes. Linux counts the 4 bytes of encapsulation,
        /// too.
        receive_mtu: u32 = 4 @ 0, 32;
    }
}

impl PrivateData {
    /// Reads the start of a message's private data, which is always longer.
    #[must_use]
    pub fn from_message(private_data: &[u8]) -> Option<Self> {
        private_data.first_chunk().map(Self::parse)
    }

    /// Converts to bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        self.write(&mut bytes);
        bytes
    }
}

/// The form of a service id; both carry the datagram queue pair's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ServiceIdForm {
    /// `0x10…|QPN`.
    Linux,
    /// `0x01…|QPN`.
    Rfc4755,
}

impl ServiceIdForm {
    /// The service id of the node whose datagram queue pair is `ud_qpn`.
    #[must_use]
    pub const fn service_id(self, ud_qpn: Qpn) -> ServiceId {
        let prefix = match self {
            Self::Linux => LINUX,
            Self::Rfc4755 => IETF,
        };
        ServiceId(prefix | ud_qpn.get() as u64)
    }

    /// The form and queue pair of a service id; `None` if it is not IPoIB's.
    #[must_use]
    pub const fn of(id: ServiceId) -> Option<(Self, Qpn)> {
        let form = match id.0 & !(Qpn::MASK as u64) {
            LINUX => Self::Linux,
            IETF => Self::Rfc4755,
            _ => return None,
        };
        Some((form, Qpn::new(id.0 as u32)))
    }

    /// The other form.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Linux => Self::Rfc4755,
            Self::Rfc4755 => Self::Linux,
        }
    }
}
