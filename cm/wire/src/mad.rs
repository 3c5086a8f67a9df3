//! Management datagrams between a port and its agents, and their common header.

use crate::layout::{layout, open_enum};
use crate::{Gid, Lid, QKey, Qpn, ServiceLevel, Tid};

/// Bytes of every management datagram (IBA 13.4.2).
pub const MAD_LEN: usize = 256;

/// The only base version (IBA 13.4.2).
pub const BASE_VERSION: u8 = 1;

/// Global routing of a datagram: the fields of its GRH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// GID of the peer: the destination when sending, the source when receiving.
    pub gid: Gid,
    /// Index of the local GID in the port's table.
    pub sgid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// The peer of a management datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadAddress {
    /// LID of the peer: the destination when sending, the source when receiving.
    pub lid: Lid,
    /// Queue pair of the peer: 0 for SMPs, 1 for general management.
    pub qpn: Qpn,
    /// Q_Key to send with; 0 when receiving.
    pub qkey: QKey,
    /// Service level.
    pub sl: ServiceLevel,
    /// Low 7 bits of the local LID that the datagram is sent from or was received on.
    pub path_bits: u8,
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// The GRH, if the datagram has or needs one.
    pub route: Option<Route>,
}

impl MadAddress {
    /// QP1 of the port at `lid`, default partition.
    #[must_use]
    pub const fn gsi(lid: Lid, sl: ServiceLevel) -> Self {
        Self { lid, qpn: Qpn::GSI, qkey: QKey::GSI, sl, path_bits: 0, pkey_index: 0, route: None }
    }

    /// The same address with a GRH to `gid`, from the first GID of the local port.
    #[must_use]
    pub const fn with_gid(self, gid: Gid) -> Self {
        let route = Route { gid, sgid_index: 0, flow_label: 0, hop_limit: 0, traffic_class: 0 };
        Self { route: Some(route), ..self }
    }

    /// The address to reply to a datagram that came from this one.
    #[must_use]
    pub const fn reply(self) -> Self {
        let qkey = if self.qpn.get() == 0 { QKey(0) } else { QKey::GSI };
        Self { qkey, ..self }
    }
}

/// One datagram and its peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mad {
    /// The peer.
    pub peer: MadAddress,
    /// The 256 bytes.
    pub bytes: Box<[u8; MAD_LEN]>,
}

impl Mad {
    /// Parses the common header.
    #[must_use]
    pub fn header(&self) -> MadHeader {
        MadHeader::of(&self.bytes)
    }
}

layout! {
    /// The first 24 bytes of every management datagram (IBA 13.4.3).
    pub struct MadHeader[24] {
        /// Version of the base format; 1.
        base_version: u8 = 0 @ 0, 8;
        /// Management class.
        class: MgmtClass = 1 @ 0, 8;
        /// Version of the class's format.
        class_version: u8 = 2 @ 0, 8;
        /// Method.
        method: Method = 3 @ 0, 8;
        /// Status; on directed-route SMPs its top bit is the direction.
        status: MadStatus = 4 @ 0, 16;
        /// Class-specific: hop pointer and hop count of directed-route SMPs.
        class_specific: u16 = 6 @ 0, 16;
        /// Transaction id.
        tid: Tid = 8 @ 0, 64;
        /// Attribute id; its meaning depends on the class.
        attribute: u16 = 16 @ 0, 16;
        /// Attribute modifier.
        modifier: u32 = 20 @ 0, 32;
    }
}

impl MadHeader {
    /// The header of a request: status 0, modifier 0.
    #[must_use]
    pub const fn new(class: MgmtClass, class_version: u8, method: Method, tid: Tid, attribute: u16) -> Self {
        Self {
            base_version: BASE_VERSION,
            class,
            class_version,
            method,
            status: MadStatus::OK,
            class_specific: 0,
            tid,
            attribute,
            modifier: 0,
        }
    }

    /// The header of a whole datagram.
    #[must_use]
    pub fn of(bytes: &[u8; MAD_LEN]) -> Self {
        crate::layout::Field::get(bytes, 0, Self::LEN * 8)
    }

    /// Writes the header to the start of a whole datagram.
    pub fn put(&self, bytes: &mut [u8; MAD_LEN]) {
        crate::layout::Field::put(self, bytes, 0, Self::LEN * 8);
    }
}

open_enum! {
    /// Management class (IBA 13.4.4).
    pub enum MgmtClass(u8) {
        /// Subnet management, LID routed.
        SubnLid = 0x01,
        /// Subnet management, directed route.
        SubnDirected = 0x81,
        /// Subnet administration.
        SubnAdm = 0x03,
        /// Performance management.
        Perf = 0x04,
        /// Baseboard management.
        BoardMgt = 0x05,
        /// Device management.
        DevMgt = 0x06,
        /// Communication management.
        ComMgt = 0x07,
        /// SNMP tunnelling.
        Snmp = 0x08,
    }
}

impl MgmtClass {
    /// True for the two classes that go to QP0.
    #[must_use]
    pub const fn is_smp(self) -> bool {
        matches!(self, Self::SubnLid | Self::SubnDirected)
    }
}

open_enum! {
    /// Method (IBA 13.4.5 and, for those of subnet administration, 15.2.2).
    pub enum Method(u8) {
        /// Reads an attribute.
        Get = 0x01,
        /// Sets an attribute.
        Set = 0x02,
        /// The response to `Get` or `Set`.
        GetResp = 0x81,
        /// A message without a prescribed response; every CM message uses it.
        Send = 0x03,
        /// Reports an event at a port.
        Trap = 0x05,
        /// Stops the repetition of a trap.
        TrapRepress = 0x07,
        /// Forwards an event to a subscriber.
        Report = 0x06,
        /// The response to `Report`.
        ReportResp = 0x86,
        /// Reads all records that match.
        GetTable = 0x12,
        /// The response to `GetTable`.
        GetTableResp = 0x92,
        /// Requests a trace.
        GetTraceTable = 0x13,
        /// Requests several paths.
        GetMulti = 0x14,
        /// The response to `GetMulti`.
        GetMultiResp = 0x94,
        /// Deletes a record.
        Delete = 0x15,
        /// The response to `Delete`.
        DeleteResp = 0x95,
    }
}

impl Method {
    /// True if the method is a response (IBA 13.4.5: bit 7, and `TrapRepress`).
    #[must_use]
    pub const fn is_response(self) -> bool {
        self.code() & 0x80 != 0 || matches!(self, Self::TrapRepress)
    }

    /// The method of the response to this one, if there is one.
    #[must_use]
    pub const fn response(self) -> Option<Self> {
        Some(match self {
            Self::Get | Self::Set => Self::GetResp,
            Self::Report => Self::ReportResp,
            Self::Trap => Self::TrapRepress,
            Self::GetTable | Self::GetTraceTable => Self::GetTableResp,
            Self::GetMulti => Self::GetMultiResp,
            Self::Delete => Self::DeleteResp,
            _ => return None,
        })
    }
}

/// The status field (IBA 13.4.7): flags and a code in the lower byte, a class-specific code in the upper.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MadStatus(pub u16);

impl MadStatus {
    /// Success.
    pub const OK: Self = Self(0);
    /// Busy: the request was discarded and can be retried.
    pub const BUSY: Self = Self(1);
    /// Redirect: the response has the address to use.
    pub const REDIRECT: Self = Self(2);
    /// Version not supported.
    pub const BAD_VERSION: Self = Self(1 << 2);
    /// Method not supported.
    pub const UNSUPPORTED_METHOD: Self = Self(2 << 2);
    /// Combination of method and attribute not supported.
    pub const UNSUPPORTED_ATTRIBUTE: Self = Self(3 << 2);
    /// A field of the attribute or the modifier is invalid.
    pub const INVALID_FIELD: Self = Self(7 << 2);

    /// True for success.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }

    /// True if the same request may succeed later.
    #[must_use]
    pub const fn is_busy(self) -> bool {
        self.0 & 1 != 0
    }

    /// The class-specific code; 0 if there is none.
    #[must_use]
    pub const fn class_code(self) -> u8 {
        (self.0 >> 8 & 0x7f) as u8
    }

    /// The code that all classes share (IBA table 112), without the busy and redirect flags.
    #[must_use]
    pub const fn common_code(self) -> u8 {
        (self.0 >> 2 & 7) as u8
    }

    /// A status with only a class-specific code.
    #[must_use]
    pub const fn class_specific(code: u8) -> Self {
        Self(((code & 0x7f) as u16) << 8)
    }
}

crate::layout::integer_field! { MadStatus: |v| Self(v as u16), |s| s.0; }

/// Attributes that more than one class has (IBA 13.4.8).
pub mod attribute {
    /// ClassPortInfo.
    pub const CLASS_PORT_INFO: u16 = 0x0001;
    /// Notice.
    pub const NOTICE: u16 = 0x0002;
    /// InformInfo.
    pub const INFORM_INFO: u16 = 0x0003;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_offsets() {
        let mut bytes = [0u8; 24];
        let h = MadHeader {
            modifier: 0x0102_0304,
            status: MadStatus(0x8001),
            ..MadHeader::new(MgmtClass::SubnAdm, 2, Method::Set, Tid(0x1122_3344_5566_7788), 0x38)
        };
        h.write(&mut bytes);
        assert_eq!(
            bytes,
            [
                1, 3, 2, 2, 0x80, 1, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0x38, 0, 0, 1,
                2, 3, 4
            ]
        );
        assert_eq!(MadHeader::parse(&bytes), h);
    }

    #[test]
    fn codes_without_a_name_are_kept() {
        assert_eq!(Method::from_code(0x55), Method::Other(0x55));
        assert_eq!(Method::Other(0x55).code(), 0x55);
        for m in Method::NAMED {
            assert_eq!(Method::from_code(m.code()), *m);
        }
        assert!(Method::TrapRepress.is_response());
        assert!(!Method::Send.is_response());
    }
}
