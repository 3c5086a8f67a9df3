//! ICMPv4 (RFC 792): the messages that the gateway sends.

use std::net::Ipv4Addr;

use super::checksum;
use super::ipv4::{self, IPV4_HEADER_LEN, Ipv4View, PROTOCOL_ICMP};
use crate::drop_reason::DropReason;

/// Bytes of an ICMP header.
pub const ICMP_HEADER_LEN: usize = 8;
/// Longest ICMP error (RFC 1812 4.3.2.3).
pub const ICMP_ERROR_MAX: usize = 576;

const ECHO_REPLY: u8 = 0;
const DESTINATION_UNREACHABLE: u8 = 3;
const FRAGMENTATION_NEEDED: u8 = 4;
const ECHO_REQUEST: u8 = 8;
/// Time to live of packets that the gateway originates.
const TTL: u8 = 64;

/// True if an ICMP error may be sent about the packet whose first bytes are `packet` (RFC 1122 3.2.2): it is
/// the first fragment, from one host to one host, and no ICMP error. `packet_len` as for [`Ipv4View::parse`].
#[must_use]
pub fn may_answer(packet: &[u8], packet_len: usize) -> bool {
    let Ok(view) = Ipv4View::parse(packet, packet_len) else { return false };
    if view.fragment_offset() != 0
        || !ipv4::is_unicast(view.source())
        || !ipv4::is_unicast(view.destination())
    {
        return false;
    }
    // Echo, timestamp, information and address mask messages are queries; everything else is an error or
    // unknown.
    view.protocol() != PROTOCOL_ICMP
        || packet.get(view.header_len()).is_some_and(|kind| matches!(kind, 0 | 8 | 13..=18))
}

/// Writes an IPv4 packet to `out` that notifies the source of `packet` of the MTU to use: fragmentation
/// needed (RFC 792, RFC 1191 4).
///
/// `from` is the gateway's own address, or the packet's destination if the gateway has none. The message
/// quotes `packet`, up to 576 bytes in all. Returns the length. Returns `None` if `packet` has no header or
/// `out` is too short; 576 bytes are always enough.
#[must_use]
pub fn fragmentation_needed(out: &mut [u8], packet: &[u8], from: Ipv4Addr, mtu: u16) -> Option<usize> {
    let source: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
    let total_len = usize::from(super::be16(packet, 2)?);
    let head = IPV4_HEADER_LEN + ICMP_HEADER_LEN;
    let quote = packet.get(..packet.len().min(total_len).min(ICMP_ERROR_MAX - head))?;
    if quote.len() < IPV4_HEADER_LEN {
        return None;
    }
    let len = head + quote.len();
    let out = out.get_mut(..len)?;
    let (header, message) = out.split_at_mut_checked(IPV4_HEADER_LEN)?;
    let [m0, m1] = mtu.to_be_bytes();
    message.get_mut(..ICMP_HEADER_LEN)?.copy_from_slice(&[
        DESTINATION_UNREACHABLE,
        FRAGMENTATION_NEEDED,
        0,
        0,
        0,
        0,
        m0,
        m1,
    ]);
    message.get_mut(ICMP_HEADER_LEN..)?.copy_from_slice(quote);
    let sum = checksum::checksum(message);
    message.get_mut(2..4)?.copy_from_slice(&sum.to_be_bytes());
    // Precedence 6: network control (RFC 1812 4.3.2.5). Do-not-fragment is not needed: the packet is short.
    let [l0, l1] = (len as u16).to_be_bytes();
    let mut fields = [0x45, 0xc0, l0, l1, 0, 0, 0, 0, TTL, PROTOCOL_ICMP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    fields[12..16].copy_from_slice(&from.octets());
    fields[16..20].copy_from_slice(&source);
    let [c0, c1] = checksum::checksum(&fields).to_be_bytes();
    fields[10..12].copy_from_slice(&[c0, c1]);
    header.copy_from_slice(&fields);
    Some(len)
}

/// Turns an echo request, the whole IPv4 packet, into its reply in place. On an error the bytes are
/// unchanged.
pub fn echo_reply(packet: &mut [u8]) -> Result<(), DropReason> {
    let view = Ipv4View::parse(packet, packet.len())?;
    let (header_len, total_len) = (view.header_len(), usize::from(view.total_len()));
    // Fragments would need reassembly, and options may request a route.
    if view.protocol() != PROTOCOL_ICMP
        || view.more_fragments()
        || view.fragment_offset() != 0
        || header_len != IPV4_HEADER_LEN
        || !ipv4::is_unicast(view.source())
    {
        return Err(DropReason::NotHandled);
    }
    let (header, rest) = packet.split_at_mut_checked(header_len).ok_or(DropReason::Truncated)?;
    let message = rest.get_mut(..total_len - header_len).ok_or(DropReason::Truncated)?;
    if message.len() < ICMP_HEADER_LEN {
        return Err(DropReason::Truncated);
    }
    if !checksum::is_valid(message) || message.first_chunk::<2>() != Some(&[ECHO_REQUEST, 0]) {
        return Err(DropReason::NotHandled);
    }
    // A full sum: the incremental update of RFC 1624 gives an all-zero reply a checksum of 0, which is wrong.
    if let Some(start) = message.first_chunk_mut::<4>() {
        *start = [ECHO_REPLY, 0, 0, 0];
    }
    let sum = checksum::checksum(message);
    if let Some([_, _, c0, c1]) = message.first_chunk_mut::<4>() {
        [*c0, *c1] = sum.to_be_bytes();
    }
    if let Some(fields) = header.first_chunk_mut::<IPV4_HEADER_LEN>() {
        let (sources, destinations) = fields[12..].split_at_mut(4);
        sources.swap_with_slice(destinations);
        // Clear do-not-fragment: the path back may have a smaller MTU.
        fields[6] &= !0x40;
        fields[8] = TTL;
        fields[10..12].copy_from_slice(&[0, 0]);
        let sum = checksum::checksum(fields.as_slice());
        fields[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    Ok(())
}
