//! Subnet administration (IBA 15): its datagram and its records.

mod class_port_info;
mod event;
mod group;
mod path;
mod service;

pub use class_port_info::{CapabilityMask2, ClassPortInfo};
pub use event::{InformInfo, Notice, NoticeCount, NoticeType, SUBSCRIBE_ALL_LIDS, trap};
pub use group::{JoinState, McMask, McMemberRecord};
pub use path::{PathMask, PathRecord};
pub use service::{ServiceMask, ServiceRecord};

use crate::layout::{Field, layout, narrow_number, open_enum};
use crate::mad::{MAD_LEN, MadHeader, MadStatus, Method, MgmtClass};
use crate::rmpp::RmppHeader;
use crate::{Mtu, Tid};

/// Version of the class's format.
pub const CLASS_VERSION: u8 = 2;
/// Bytes of a datagram that are available for records.
pub const DATA_LEN: usize = 200;

/// Attribute ids of the class (IBA 15.2.5).
pub mod attribute {
    pub use crate::mad::attribute::{CLASS_PORT_INFO, INFORM_INFO, NOTICE};
    /// NodeRecord.
    pub const NODE_RECORD: u16 = 0x0011;
    /// PortInfoRecord.
    pub const PORT_INFO_RECORD: u16 = 0x0012;
    /// GUIDInfoRecord.
    pub const GUID_INFO_RECORD: u16 = 0x0030;
    /// ServiceRecord.
    pub const SERVICE_RECORD: u16 = 0x0031;
    /// PathRecord.
    pub const PATH_RECORD: u16 = 0x0035;
    /// MCMemberRecord.
    pub const MC_MEMBER_RECORD: u16 = 0x0038;
    /// MultiPathRecord.
    pub const MULTI_PATH_RECORD: u16 = 0x003a;
    /// InformInfoRecord.
    pub const INFORM_INFO_RECORD: u16 = 0x00f3;
}

/// Class-specific status codes (IBA 15.2.4), the upper byte of a [`MadStatus`].
pub mod status {
    /// No resources.
    pub const NO_RESOURCES: u8 = 1;
    /// The request is invalid.
    pub const REQUEST_INVALID: u8 = 2;
    /// No record matches.
    pub const NO_RECORDS: u8 = 3;
    /// More than one record matches a `Get`.
    pub const TOO_MANY_RECORDS: u8 = 4;
    /// The GID is invalid.
    pub const INVALID_GID: u8 = 5;
    /// Components are missing from the mask.
    pub const INSUFFICIENT_COMPONENTS: u8 = 6;
    /// The request is denied.
    pub const DENIED: u8 = 7;

    /// The name of a status of subnet administration, class-specific or common.
    #[must_use]
    pub const fn name(status: super::MadStatus) -> &'static str {
        match (status.class_code(), status.common_code()) {
            (NO_RESOURCES, _) => "no resources",
            (REQUEST_INVALID, _) => "invalid request",
            (NO_RECORDS, _) => "no records",
            (TOO_MANY_RECORDS, _) => "too many records",
            (INVALID_GID, _) => "invalid GID",
            (INSUFFICIENT_COMPONENTS, _) => "insufficient components",
            (DENIED, _) => "denied",
            (0, 0) => "success",
            (0, 1) => "unsupported version",
            (0, 2) => "unsupported method",
            (0, 3) => "unsupported attribute",
            (0, 7) => "invalid field",
            _ => "unknown",
        }
    }
}

layout! {
    /// A whole datagram of subnet administration.
    pub struct SaMad[256] {
        /// The common header.
        header: MadHeader = 0 @ 0, 192;
        /// The RMPP header.
        rmpp: RmppHeader = 24 @ 0, 96;
        /// SM_Key; 0 from untrusted clients.
        sm_key: u64 = 36 @ 0, 64;
        /// Distance between records in a response with several, in units of 8 bytes.
        attribute_offset: u16 = 44 @ 0, 16;
        /// The components of the record that the request uses.
        component_mask: u64 = 48 @ 0, 64;
        /// The record or records.
        data: [u8; DATA_LEN] = 56 @ 0, 1600;
    }
}

/// A record of subnet administration.
pub trait Record: Sized {
    /// Attribute id of the record.
    const ATTRIBUTE: u16;
    /// Reads the record from the start of a datagram's data.
    fn from_data(data: &[u8; DATA_LEN]) -> Self;
    /// Writes the record to the start of a datagram's data.
    fn to_data(&self, data: &mut [u8; DATA_LEN]);
}

macro_rules! record {
    ($($name:ident = $attribute:ident;)*) => {$(
        impl Record for $name {
            const ATTRIBUTE: u16 = attribute::$attribute;
            fn from_data(data: &[u8; DATA_LEN]) -> Self {
                Field::get(data, 0, Self::LEN * 8)
            }
            fn to_data(&self, data: &mut [u8; DATA_LEN]) {
                Field::put(self, data, 0, Self::LEN * 8);
            }
        }
    )*};
}

record! {
    ClassPortInfo = CLASS_PORT_INFO;
    InformInfo = INFORM_INFO;
    McMemberRecord = MC_MEMBER_RECORD;
    Notice = NOTICE;
    PathRecord = PATH_RECORD;
    ServiceRecord = SERVICE_RECORD;
}

impl SaMad {
    /// Builds a request with one record.
    #[must_use]
    pub fn request<R: Record>(method: Method, tid: Tid, component_mask: u64, record: &R) -> Self {
        let mut data = [0; DATA_LEN];
        record.to_data(&mut data);
        Self {
            header: MadHeader::new(MgmtClass::SubnAdm, CLASS_VERSION, method, tid, R::ATTRIBUTE),
            rmpp: RmppHeader::INACTIVE,
            sm_key: 0,
            attribute_offset: 0,
            component_mask,
            data,
        }
    }

    /// Builds the response to `request` with one record.
    #[must_use]
    pub fn answer<R: Record>(request: &Self, record: &R) -> Self {
        let mut answer = *request;
        answer.header.method = request.header.method.response().unwrap_or(Method::GetResp);
        answer.header.status = MadStatus::OK;
        answer.attribute_offset = 0;
        answer.data = [0; DATA_LEN];
        record.to_data(&mut answer.data);
        answer
    }

    /// Builds the response that refuses `request`.
    #[must_use]
    pub fn refusal(request: &Self, status: MadStatus) -> Self {
        let mut answer = *request;
        answer.header.method = request.header.method.response().unwrap_or(Method::GetResp);
        answer.header.status = status;
        answer
    }

    /// The record, if the attribute is that of `R`.
    #[must_use]
    pub fn record<R: Record>(&self) -> Option<R> {
        (self.header.attribute == R::ATTRIBUTE).then(|| R::from_data(&self.data))
    }

    /// The 256 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Box<[u8; MAD_LEN]> {
        let mut bytes = Box::new([0; MAD_LEN]);
        self.write(&mut bytes);
        bytes
    }
}

open_enum! {
    /// Comparison for a component with a selector.
    pub enum Selector(u8) {
        /// Greater than the value.
        Greater = 0,
        /// Less than the value.
        Less = 1,
        /// Exactly the value.
        Exactly = 2,
        /// The largest available value (for life times the smallest).
        Best = 3,
    }
}

narrow_number! {
    /// MTU code of a record, 6 bits. A code that names no MTU is kept.
    MtuCode(u8, 6)
}

impl MtuCode {
    /// The MTU, if the code names one.
    #[must_use]
    pub const fn mtu(self) -> Option<Mtu> {
        Mtu::from_code(self.get())
    }
}

impl From<Mtu> for MtuCode {
    fn from(mtu: Mtu) -> Self {
        Self::new(mtu.code())
    }
}

narrow_number! {
    /// Flow label of a GRH, 20 bits.
    FlowLabel(u32, 20)
}

narrow_number! {
    /// A component of 12 bits: QoS class.
    QosClass(u16, 12)
}

narrow_number! {
    /// Packet life time, 6 bits: 4.096 µs · 2^n.
    LifeTime(u8, 6)
}

impl LifeTime {
    /// The life time as a five-bit time code, at most 31.
    #[must_use]
    pub const fn timeout(self) -> crate::TimeoutCode {
        crate::TimeoutCode::new(if self.get() > 31 { 31 } else { self.get() })
    }
}

narrow_number! {
    /// Number of requested paths, 7 bits.
    NumbPath(u8, 7)
}

narrow_number! {
    /// Scope of a multicast GID, 4 bits; 2 = link-local.
    Scope(u8, 4)
}

#[cfg(test)]
mod tests;
