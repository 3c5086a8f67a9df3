//! Fragments as buffers: each piece is a copy of its part, behind its own headers.

use pmd::mem::{Mbuf, Pool};

use ipoib::net::fragment::{Fragment, Fragments, fragments};
use ipoib::net::ipv4::{IPV4_HEADER_MAX, Ipv4View};

/// The pieces of a packet, first to last; a piece is `None` if there was no buffer for it.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    pool: &'a Pool,
    whole: &'a Mbuf,
    /// Bytes in front of the IPv4 packet.
    skip: usize,
    /// What goes in front of each piece's IPv4 header.
    link_header: &'a [u8],
    fragments: Option<Fragments>,
}

/// Cuts the IPv4 packet of `ip_len` bytes that begins `skip` bytes into `whole` into pieces of at most `mtu` bytes, each
/// behind `link_header`.
pub(super) fn pieces<'a>(
    pool: &'a Pool,
    whole: &'a Mbuf,
    skip: usize,
    ip_len: u16,
    mtu: u16,
    link_header: &'a [u8],
) -> Pieces<'a> {
    let mut head = [0; IPV4_HEADER_MAX];
    let read = whole.read(skip, &mut head);
    let head = head.get(..read).unwrap_or_default();
    let fragments = Ipv4View::parse(head, usize::from(ip_len)).ok().and_then(|view| fragments(&view, mtu));
    Pieces { pool, whole, skip, link_header, fragments }
}

impl Pieces<'_> {
    fn copy(&self, fragment: &Fragment) -> Option<Mbuf> {
        let mut piece = self.pool.alloc()?;
        piece.append(self.link_header.len())?.copy_from_slice(self.link_header);
        piece.append(fragment.header.len())?.copy_from_slice(&fragment.header);
        let body = piece.append(fragment.len)?;
        let read = self.whole.read(self.skip + fragment.offset, body);
        (read == fragment.len).then_some(piece)
    }
}

impl Iterator for Pieces<'_> {
    type Item = Option<Mbuf>;

    fn next(&mut self) -> Option<Self::Item> {
        let fragment = self.fragments.as_mut()?.next()?;
        Some(self.copy(&fragment))
    }
}
