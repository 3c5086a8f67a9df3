//! A message of communication management in its datagram.

use super::{
    AlternatePathResponse, BODY, CLASS_VERSION, DisconnectReply, DisconnectRequest, LoadAlternatePath,
    MessageReceiptAck, ReadyToUse, Reject, Reply, Request, SidrReply, SidrRequest,
};
use crate::Tid;
use crate::layout::{Field, open_enum};
use crate::mad::{BASE_VERSION, MAD_LEN, MadHeader, Method, MgmtClass};

open_enum! {
    /// Attribute ids of the class (IBA 16.7.1).
    pub enum AttributeId(u16) {
        /// ClassPortInfo.
        ClassPortInfo = 0x0001,
        /// REQ.
        Request = 0x0010,
        /// MRA.
        MessageReceiptAck = 0x0011,
        /// REJ.
        Reject = 0x0012,
        /// REP.
        Reply = 0x0013,
        /// RTU.
        ReadyToUse = 0x0014,
        /// DREQ.
        DisconnectRequest = 0x0015,
        /// DREP.
        DisconnectReply = 0x0016,
        /// SIDR_REQ.
        SidrRequest = 0x0017,
        /// SIDR_REP.
        SidrReply = 0x0018,
        /// LAP.
        LoadAlternatePath = 0x0019,
        /// APR.
        AlternatePathResponse = 0x001a,
    }
}

/// Reason why a datagram is not a CM message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CmError {
    /// The base version is not 1.
    #[error("base version {0} is not 1")]
    BaseVersion(u8),
    /// The management class is not communication management.
    #[error("management class {0:?} is not communication management")]
    Class(MgmtClass),
    /// The class version is not 2.
    #[error("class version {0} is not 2")]
    ClassVersion(u8),
    /// The method is not Send.
    #[error("method {0:?} is not Send")]
    Method(Method),
    /// This crate does not know the attribute.
    #[error("attribute {0:?} is not a CM message")]
    Attribute(AttributeId),
}

macro_rules! messages {
    ($($(#[$meta:meta])* $variant:ident($ty:ty),)*) => {
        /// A CM message.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(clippy::large_enum_variant, reason = "all variants are one datagram's body")]
        pub enum Message {
            $($(#[$meta])* $variant($ty),)*
        }

        impl Message {
            /// Its attribute id.
            #[must_use]
            pub const fn attribute(&self) -> AttributeId {
                match self {
                    $(Self::$variant(_) => AttributeId::$variant,)*
                }
            }

            fn read(attribute: AttributeId, bytes: &[u8; MAD_LEN]) -> Option<Self> {
                Some(match attribute {
                    $(AttributeId::$variant => Self::$variant(<$ty>::get(bytes, BODY * 8, <$ty>::LEN * 8)),)*
                    _ => return None,
                })
            }

            fn put_body(&self, bytes: &mut [u8; MAD_LEN]) {
                match self {
                    $(Self::$variant(m) => m.put(bytes, BODY * 8, <$ty>::LEN * 8),)*
                }
            }
        }

        $(impl From<$ty> for Message {
            fn from(m: $ty) -> Self {
                Self::$variant(m)
            }
        })*
    };
}

messages! {
    /// REQ.
    Request(Request),
    /// MRA.
    MessageReceiptAck(MessageReceiptAck),
    /// REJ.
    Reject(Reject),
    /// REP.
    Reply(Reply),
    /// RTU.
    ReadyToUse(ReadyToUse),
    /// DREQ.
    DisconnectRequest(DisconnectRequest),
    /// DREP.
    DisconnectReply(DisconnectReply),
    /// SIDR_REQ.
    SidrRequest(SidrRequest),
    /// SIDR_REP.
    SidrReply(SidrReply),
    /// LAP.
    LoadAlternatePath(LoadAlternatePath),
    /// APR.
    AlternatePathResponse(AlternatePathResponse),
}

impl Message {
    /// Reads a datagram.
    pub fn parse(bytes: &[u8; MAD_LEN]) -> Result<(MadHeader, Self), CmError> {
        let header = MadHeader::of(bytes);
        if header.base_version != BASE_VERSION {
            return Err(CmError::BaseVersion(header.base_version));
        }
        if header.class != MgmtClass::ComMgt {
            return Err(CmError::Class(header.class));
        }
        if header.class_version != CLASS_VERSION {
            return Err(CmError::ClassVersion(header.class_version));
        }
        if header.method != Method::Send {
            return Err(CmError::Method(header.method));
        }
        let attribute = AttributeId::from_code(header.attribute);
        let message = Self::read(attribute, bytes).ok_or(CmError::Attribute(attribute))?;
        Ok((header, message))
    }

    /// Writes the message with the given header; reserved bits of `bytes` do not change.
    pub fn write(&self, header: &MadHeader, bytes: &mut [u8; MAD_LEN]) {
        header.put(bytes);
        self.put_body(bytes);
    }

    /// Builds a new datagram with the message.
    #[must_use]
    pub fn to_bytes(&self, tid: Tid) -> Box<[u8; MAD_LEN]> {
        let header =
            MadHeader::new(MgmtClass::ComMgt, CLASS_VERSION, Method::Send, tid, self.attribute().code());
        let mut bytes = Box::new([0; MAD_LEN]);
        self.write(&header, &mut bytes);
        bytes
    }
}
