//! ARP over IPoIB: hardware type 32, 20-byte addresses (RFC 4391 9.1.3), behind the 4-byte encapsulation header.

use std::net::Ipv4Addr;

use super::address::HardwareAddress;

/// Bytes of the encapsulation header: ethertype, reserved.
pub const ENCAPSULATION_LEN: usize = 4;
/// Bytes of an ARP packet for IPv4, without the encapsulation header.
pub const ARP_LEN: usize = 8 + 2 * (HardwareAddress::LEN + 4);
/// Bytes of an ARP packet with its encapsulation header.
pub const ARP_FRAME_LEN: usize = ENCAPSULATION_LEN + ARP_LEN;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const HARDWARE_INFINIBAND: u16 = 32;

/// What an ARP packet wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArpOperation {
    /// Who has the target's address?
    Request,
    /// The sender has its address.
    Reply,
}

/// Why bytes are no ARP packet of IPoIB.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum ArpError {
    /// Fewer bytes than an ARP packet has.
    #[error("ARP packet too short")]
    Short,
    /// The encapsulation header names another protocol.
    #[error("not ARP")]
    NotArp,
    /// Hardware type is not 32 or hardware length not 20.
    #[error("ARP hardware type or length is not InfiniBand's")]
    Hardware,
    /// Protocol is not IPv4.
    #[error("ARP protocol is not IPv4")]
    Protocol,
    /// Neither request nor reply.
    #[error("ARP operation unknown")]
    Operation,
    /// The sender's hardware address is not a host's.
    #[error("ARP sender's hardware address is not unicast")]
    Sender,
}

/// An ARP packet of IPv4 over InfiniBand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArpPacket {
    /// Request or reply.
    pub operation: ArpOperation,
    /// Sender's link-layer address.
    pub sender_hardware: HardwareAddress,
    /// Sender's IPv4 address.
    pub sender_ip: Ipv4Addr,
    /// Target's link-layer address; zero in most requests.
    pub target_hardware: HardwareAddress,
    /// Target's IPv4 address.
    pub target_ip: Ipv4Addr,
}

impl ArpPacket {
    /// Parses a received message: encapsulation header and ARP packet. Bytes behind it are ignored.
    pub fn parse(frame: &[u8]) -> Result<Self, ArpError> {
        let frame: &[u8; ARP_FRAME_LEN] =
            frame.get(..ARP_FRAME_LEN).and_then(|f| f.try_into().ok()).ok_or(ArpError::Short)?;
        let be16 = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        if be16(0) != ETHERTYPE_ARP {
            return Err(ArpError::NotArp);
        }
        if be16(4) != HARDWARE_INFINIBAND || usize::from(frame[8]) != HardwareAddress::LEN {
            return Err(ArpError::Hardware);
        }
        if be16(6) != ETHERTYPE_IPV4 || frame[9] != 4 {
            return Err(ArpError::Protocol);
        }
        let operation = match be16(10) {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            _ => return Err(ArpError::Operation),
        };
        let hardware = |at: usize| {
            let mut b = [0; HardwareAddress::LEN];
            b.copy_from_slice(&frame[at..at + HardwareAddress::LEN]);
            HardwareAddress::from_bytes(&b)
        };
        let ip = |at: usize| Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
        let packet = Self {
            operation,
            sender_hardware: hardware(12),
            sender_ip: ip(32),
            target_hardware: hardware(36),
            target_ip: ip(56),
        };
        if !packet.sender_hardware.is_unicast() {
            return Err(ArpError::Sender);
        }
        Ok(packet)
    }

    /// As a message to send: encapsulation header and ARP packet.
    #[must_use]
    pub fn to_frame(&self) -> [u8; ARP_FRAME_LEN] {
        let mut f = [0; ARP_FRAME_LEN];
        f[0..2].copy_from_slice(&ETHERTYPE_ARP.to_be_bytes());
        f[4..6].copy_from_slice(&HARDWARE_INFINIBAND.to_be_bytes());
        f[6..8].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
        f[8] = HardwareAddress::LEN as u8;
        f[9] = 4;
        f[11] = match self.operation {
            ArpOperation::Request => 1,
            ArpOperation::Reply => 2,
        };
        f[12..32].copy_from_slice(&self.sender_hardware.to_bytes());
        f[32..36].copy_from_slice(&self.sender_ip.octets());
        f[36..56].copy_from_slice(&self.target_hardware.to_bytes());
        f[56..60].copy_from_slice(&self.target_ip.octets());
        f
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_wire::{Gid, Guid, Qpn};
    use proptest::prelude::*;

    fn packet() -> ArpPacket {
        let hw = |n: u32| HardwareAddress {
            flags: 0x80,
            qpn: Qpn::new(n),
            gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(u64::from(n))),
        };
        ArpPacket {
            operation: ArpOperation::Request,
            sender_hardware: hw(0x49),
            sender_ip: Ipv4Addr::new(10, 0, 0, 1),
            target_hardware: hw(0x123456),
            target_ip: Ipv4Addr::new(10, 0, 0, 2),
        }
    }

    #[test]
    fn round_trip() {
        let p = packet();
        let f = p.to_frame();
        assert_eq!(f.len(), 60);
        assert_eq!(ArpPacket::parse(&f), Ok(p));
        assert_eq!(&f[..12], &[0x08, 0x06, 0, 0, 0, 32, 0x08, 0, 20, 4, 0, 1]);
    }

    #[test]
    fn each_wrong_field_has_its_error() {
        let cases = [
            (0usize, 9u8, ArpError::NotArp),
            (5, 1, ArpError::Hardware),
            (8, 6, ArpError::Hardware),
            (6, 0x86, ArpError::Protocol),
            (9, 16, ArpError::Protocol),
            (11, 3, ArpError::Operation),
            (16, 0xff, ArpError::Sender),
        ];
        for (at, value, error) in cases {
            let mut f = packet().to_frame();
            f[at] = value;
            assert_eq!(ArpPacket::parse(&f), Err(error), "byte {at}");
        }
        assert_eq!(ArpPacket::parse(&packet().to_frame()[..59]), Err(ArpError::Short));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(p) = ArpPacket::parse(&bytes) {
                prop_assert_eq!(ArpPacket::parse(&p.to_frame()), Ok(p));
            }
        }
    }
}
