//! Helpers for frames in buffers.

use ipoib::net::ethernet::ETHERTYPE_IPV4;
use ipoib::net::ipv4;
use pmd::mem::{FrameFacts, Mbuf};
use tap::{FrameKind, Tap, TapDirection};

use super::tag;
use crate::forward::FrameHead;

/// Header bytes that a verdict reads.
const HEAD: usize = 128;

/// The first bytes of a packet: enough for all its headers.
#[inline]
pub(super) fn head(packet: &Mbuf) -> &[u8] {
    let data = packet.data();
    data.get(..HEAD).unwrap_or(data)
}

/// Offers a frame to a tap, with the tag that the port took off or will put on.
pub(super) fn offer(tap: &mut Tap, direction: TapDirection, frame: &Mbuf, tag: Option<u16>) {
    let segments = frame.segments().map(|s| s.bytes);
    let Some(control) = tag else { return tap.offer_parts(FrameKind::Ethernet, direction, segments) };
    let first = frame.data();
    let (addresses, rest) = first.split_at_checked(tag::ADDRESSES).unwrap_or((first, &[]));
    let tag = tag::bytes(control);
    let parts = [addresses, &tag, rest].into_iter().chain(segments.skip(1));
    tap.offer_parts(FrameKind::Ethernet, direction, parts);
}

/// Fills in the checksum of an IPv4 header that the port says has none.
#[cold]
pub(super) fn complete(frame: &mut Mbuf) {
    let plain = FrameHead::parse(head(frame), FrameFacts::default());
    if let Ok(FrameHead { len, ethertype, .. }) = plain
        && ethertype == ETHERTYPE_IPV4
        && let Some(packet) = frame.data_mut().get_mut(len..)
    {
        ipv4::complete(packet);
    }
}
