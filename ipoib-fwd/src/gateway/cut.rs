//! IPv4 fragments as buffers: each fragment is a copy of its part of the packet behind its own headers, in a
//! chain of buffers if needed.

use pmd::hca::Checksum;
use pmd::mem::{Mbuf, Pool};

use ipoib::drop_reason::DropReason;
use ipoib::net::fragment::{Fragment, Fragments, fragments};
use ipoib::net::ipv4::{IPV4_HEADER_MAX, Ipv4View};

/// The fragments of a packet, first to last; a fragment is `None` if there were no buffers for it.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    pool: &'a Pool,
    whole: &'a Mbuf,
    /// Bytes in front of the IPv4 packet.
    skip: usize,
    /// Link header in front of each fragment's IPv4 header.
    link_header: &'a [u8],
    fragments: Fragments,
}

/// Fragments an IPv4 packet of `ip_len` bytes, which starts `skip` bytes into `whole`, to at most `mtu`
/// bytes. Each fragment follows `link_header`. The packet's header has been validated, here or by its device.
pub(super) fn pieces<'a>(
    pool: &'a Pool,
    whole: &'a Mbuf,
    skip: usize,
    ip_len: u16,
    mtu: u16,
    link_header: &'a [u8],
) -> Result<Pieces<'a>, DropReason> {
    let mut head = [0; IPV4_HEADER_MAX];
    let read = whole.read(skip, &mut head);
    let head = head.get(..read).unwrap_or_default();
    let view = Ipv4View::parse_received(head, usize::from(ip_len), Checksum::Good)?;
    let fragments = fragments(&view, mtu).ok_or(DropReason::TooBig)?;
    Ok(Pieces { pool, whole, skip, link_header, fragments })
}

impl Pieces<'_> {
    fn copy(&self, fragment: &Fragment) -> Option<Mbuf> {
        let mut piece = self.pool.alloc()?;
        piece.append(self.link_header.len())?.copy_from_slice(self.link_header);
        piece.append(fragment.header.len())?.copy_from_slice(&fragment.header);
        let mut done = self.fill(&mut piece, fragment, 0)?;
        while done < fragment.len {
            let mut next = self.pool.alloc()?;
            done += self.fill(&mut next, fragment, done)?;
            piece.append_chain(next);
        }
        Some(piece)
    }

    /// Copies bytes of a fragment's body from offset `done` into a buffer, up to its tailroom. Returns the
    /// number of bytes; `None` if it is zero.
    fn fill(&self, buf: &mut Mbuf, fragment: &Fragment, done: usize) -> Option<usize> {
        let length = buf.tailroom().min(fragment.len.checked_sub(done)?);
        let read = self.whole.read(self.skip + fragment.offset + done, buf.append(length)?);
        (length > 0 && read == length).then_some(length)
    }
}

impl Iterator for Pieces<'_> {
    type Item = Option<Mbuf>;

    fn next(&mut self) -> Option<Self::Item> {
        let fragment = self.fragments.next()?;
        Some(self.copy(&fragment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmd::mem::PoolConfig;

    /// An IPv4 packet of this length without a valid checksum.
    fn packet(length: u16) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        bytes[..20].copy_from_slice(&[0x45, 0, 0, 100, 0, 1, 0, 0, 64, 17, 1, 2, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes[2..4].copy_from_slice(&length.to_be_bytes());
        bytes
    }

    /// Fragments a packet into fragments longer than a buffer.
    fn cut_into_long_pieces(pool: &Pool) {
        const LENGTH: u16 = 19_000;
        let bytes = packet(LENGTH);
        let mut whole = pool.copy_from_slice(&bytes[..1000]).unwrap();
        for part in bytes[1000..].chunks(1500) {
            whole.append_chain(pool.copy_from_slice(part).unwrap());
        }
        let cut: Vec<Mbuf> =
            pieces(pool, &whole, 0, LENGTH, 9000, b"head").unwrap().collect::<Option<_>>().unwrap();
        assert_eq!(cut.iter().map(Mbuf::len).collect::<Vec<_>>(), [8996, 8996, 1048].map(|len| len + 4));
        assert!(cut[0].segment_count() > 4 && cut[2].segment_count() == 1);
        let mut body = Vec::new();
        for piece in &cut {
            let mut flat = vec![0; piece.len()];
            assert_eq!(piece.read(0, &mut flat), flat.len());
            assert_eq!(&flat[..4], b"head");
            assert!(Ipv4View::parse(&flat[4..], flat.len() - 4).is_ok());
            body.extend_from_slice(&flat[24..]);
        }
        assert!(body == bytes[20..], "the bodies are the packet's, in order");
        // If buffers run out within a fragment, the fragment is `None`, and no buffer is lost.
        drop(cut);
        let in_use = pool.in_use();
        let mut taken: Vec<Mbuf> = std::iter::from_fn(|| pool.alloc()).collect();
        taken.truncate(taken.len() - 3);
        let left: Vec<bool> =
            pieces(pool, &whole, 0, LENGTH, 9000, b"head").unwrap().map(|piece| piece.is_some()).collect();
        assert_eq!(left, [false, false, true]);
        drop(taken);
        assert_eq!(pool.in_use(), in_use);
    }

    #[test]
    fn a_packet_whose_header_was_believed_is_cut_and_no_other_is_lost_without_a_reason() {
        let words = "cut --no-huge --no-shconf --no-pci -m 64 --no-telemetry --log-level=error --lcores 0@0";
        let eal = pmd::eal::Eal::init(words.split_whitespace().map(str::to_owned)).unwrap();
        let config = PoolConfig { count: 64, data_room: 2048, cache: 0, socket: -1 };
        let pool = Pool::create("cut", &config).unwrap();
        let whole = pool.copy_from_slice(&packet(100)).unwrap();
        let cut: Vec<Mbuf> =
            pieces(&pool, &whole, 0, 100, 68, b"head").unwrap().collect::<Option<_>>().unwrap();
        assert_eq!(cut.iter().map(Mbuf::len).collect::<Vec<_>>(), [4 + 68, 4 + 20 + 32]);
        for piece in &cut {
            assert!(
                Ipv4View::parse(&piece.data()[4..], piece.len() - 4).is_ok(),
                "with a checksum of its own"
            );
        }
        assert_eq!(pieces(&pool, &whole, 0, 100, 27, b"").unwrap_err(), DropReason::TooBig);
        assert_eq!(pieces(&pool, &whole, 0, 99, 68, b"").unwrap_err(), DropReason::Truncated);
        drop((whole, cut));
        cut_into_long_pieces(&pool);
        drop((pool, eal));
    }
}
