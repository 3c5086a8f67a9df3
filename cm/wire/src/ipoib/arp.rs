//! ARP over InfiniBand for IPv4 (RFC 826 with RFC 4391 section 9.1.1).

use std::net::Ipv4Addr;

use super::{HARDWARE_ADDRESS_LEN, HardwareAddress};

/// Bytes of a packet.
pub const ARP_LEN: usize = 56;

/// ARP hardware type of InfiniBand.
const HARDWARE_TYPE: u16 = 32;
const PROTOCOL_IPV4: u16 = 0x0800;

/// Operation of an ARP packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArpOperation {
    /// Requests the link-layer address of the target's IP address.
    Request,
    /// Gives the link-layer address of the sender's IP address.
    Reply,
    /// Any other operation; only parsing makes it.
    Other(u16),
}

impl ArpOperation {
    const fn from_code(code: u16) -> Self {
        match code {
            1 => Self::Request,
            2 => Self::Reply,
            other => Self::Other(other),
        }
    }

    const fn code(self) -> u16 {
        match self {
            Self::Request => 1,
            Self::Reply => 2,
            Self::Other(code) => code,
        }
    }
}

/// Reason why bytes are not an ARP packet for IPv4 over InfiniBand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ArpError {
    /// Too few bytes.
    #[error("{0} bytes are too few for an ARP packet")]
    TooShort(usize),
    /// Not InfiniBand.
    #[error("hardware type {0} is not InfiniBand's")]
    HardwareType(u16),
    /// Not IPv4.
    #[error("protocol {0:#06x} is not IPv4")]
    Protocol(u16),
    /// The address lengths are not 20 and 4.
    #[error("address lengths {hardware} and {protocol} are not 20 and 4")]
    AddressLength {
        /// Bytes of a hardware address.
        hardware: u8,
        /// Bytes of a protocol address.
        protocol: u8,
    },
}

/// An ARP packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Arp {
    /// The operation.
    pub operation: ArpOperation,
    /// The sender's link-layer address.
    pub sender: HardwareAddress,
    /// The sender's IP address.
    pub sender_ip: Ipv4Addr,
    /// The target's link-layer address; all zero in a request.
    pub target: HardwareAddress,
    /// The target's IP address.
    pub target_ip: Ipv4Addr,
}

impl Arp {
    /// A request for `target_ip`.
    #[must_use]
    pub fn request(sender: HardwareAddress, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> Self {
        let target = HardwareAddress::default();
        Self { operation: ArpOperation::Request, sender, sender_ip, target, target_ip }
    }

    /// The reply to this request, from the owner of its target address.
    #[must_use]
    pub const fn reply(&self, owner: HardwareAddress) -> Self {
        Self {
            operation: ArpOperation::Reply,
            sender: owner,
            sender_ip: self.target_ip,
            target: self.sender,
            target_ip: self.sender_ip,
        }
    }

    /// Reads a packet, which starts after the encapsulation header. Bytes after the packet are ignored.
    ///
    /// # Errors
    /// If the bytes are not a valid packet.
    pub fn parse(bytes: &[u8]) -> Result<Self, ArpError> {
        let Some(b) = bytes.first_chunk::<ARP_LEN>() else { return Err(ArpError::TooShort(bytes.len())) };
        let hardware_type = u16::from_be_bytes([b[0], b[1]]);
        if hardware_type != HARDWARE_TYPE {
            return Err(ArpError::HardwareType(hardware_type));
        }
        let protocol = u16::from_be_bytes([b[2], b[3]]);
        if protocol != PROTOCOL_IPV4 {
            return Err(ArpError::Protocol(protocol));
        }
        if usize::from(b[4]) != HARDWARE_ADDRESS_LEN || b[5] != 4 {
            return Err(ArpError::AddressLength { hardware: b[4], protocol: b[5] });
        }
        let mut sender = [0; HARDWARE_ADDRESS_LEN];
        let mut target = [0; HARDWARE_ADDRESS_LEN];
        sender.copy_from_slice(&b[8..28]);
        target.copy_from_slice(&b[32..52]);
        Ok(Self {
            operation: ArpOperation::from_code(u16::from_be_bytes([b[6], b[7]])),
            sender: HardwareAddress::from_bytes(&sender),
            sender_ip: Ipv4Addr::new(b[28], b[29], b[30], b[31]),
            target: HardwareAddress::from_bytes(&target),
            target_ip: Ipv4Addr::new(b[52], b[53], b[54], b[55]),
        })
    }

    /// Converts to bytes, without the encapsulation header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ARP_LEN] {
        let mut out = [0; ARP_LEN];
        out[0..2].copy_from_slice(&HARDWARE_TYPE.to_be_bytes());
        out[2..4].copy_from_slice(&PROTOCOL_IPV4.to_be_bytes());
        out[4] = HARDWARE_ADDRESS_LEN as u8;
        out[5] = 4;
        out[6..8].copy_from_slice(&self.operation.code().to_be_bytes());
        out[8..28].copy_from_slice(&self.sender.to_bytes());
        out[28..32].copy_from_slice(&self.sender_ip.octets());
        out[32..52].copy_from_slice(&self.target.to_bytes());
        out[52..56].copy_from_slice(&self.target_ip.octets());
        out
    }
}
