//! IPv4 fragmentation (RFC 791 3.2). Only headers are made here; the caller copies the payload.

use arrayvec::ArrayVec;

use crate::net::checksum;
use crate::net::ipv4::{IPV4_HEADER_LEN, IPV4_HEADER_MAX, Ipv4View};

/// An IPv4 header, 20 to 60 bytes.
pub type Header = ArrayVec<u8, IPV4_HEADER_MAX>;

/// Flag bit: more fragments follow.
const MF: u16 = 0x2000;
/// Bit of an option's type: the option is copied into every fragment.
const COPIED: u8 = 0x80;

/// A fragment of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Its header.
    pub header: Header,
    /// Start of its payload in the original packet, bytes from the start of the original header.
    pub offset: usize,
    /// Bytes of its payload.
    pub len: usize,
}

/// The fragments of a packet, first to last.
#[derive(Clone, Debug)]
pub struct Fragments {
    first: Header,
    later: Header,
    /// Flags and offset of the original packet.
    original: u16,
    mtu: usize,
    payload_len: usize,
    done: usize,
}

/// Splits `packet` into fragments of at most `mtu` bytes, header included. `None` if a header and 8 bytes of
/// payload do not fit.
/// The caller has checked that the packet may be fragmented.
#[must_use]
pub fn fragments(packet: &Ipv4View<'_>, mtu: u16) -> Option<Fragments> {
    let mtu = usize::from(mtu);
    if mtu < packet.header_len() + 8 {
        return None;
    }
    let first = Header::try_from(packet.header()).ok()?;
    let mut later = Header::try_from(packet.header().get(..IPV4_HEADER_LEN)?).ok()?;
    copy_options(packet.header().get(IPV4_HEADER_LEN..).unwrap_or_default(), &mut later);
    while !later.len().is_multiple_of(4) {
        later.try_push(0).ok()?;
    }
    Some(Fragments {
        first,
        later,
        original: (u16::from(packet.more_fragments()) * MF) | (packet.fragment_offset() / 8) as u16,
        mtu,
        payload_len: packet.payload_len(),
        done: 0,
    })
}

/// Appends the options that belong in every fragment; stops at the first malformed one.
fn copy_options(mut options: &[u8], header: &mut Header) {
    while let [kind, rest @ ..] = options {
        let len = match (kind & 0x1f, rest) {
            // End of list.
            (0, _) => return,
            // No operation: padding, which fragments do not need.
            (1, _) => 1,
            (_, [len, ..]) if *len >= 2 => usize::from(*len),
            _ => return,
        };
        let Some((option, behind)) = options.split_at_checked(len) else { return };
        if kind & COPIED != 0 && len > 1 && header.try_extend_from_slice(option).is_err() {
            return;
        }
        options = behind;
    }
}

impl Iterator for Fragments {
    type Item = Fragment;

    fn next(&mut self) -> Option<Fragment> {
        let left = self.payload_len.checked_sub(self.done).filter(|left| *left > 0)?;
        let mut header = if self.done == 0 { self.first.clone() } else { self.later.clone() };
        let room = self.mtu - header.len();
        let (len, more) = if left <= room { (left, self.original & MF) } else { (room & !7, MF) };
        let fragment_offset = (self.original & 0x1fff) + (self.done / 8) as u16;
        let total = (header.len() + len) as u16;
        let version_and_length = 0x40 | (header.len() / 4) as u8;
        let mut put = |at: usize, bytes: [u8; 2]| {
            if let Some(field) = header.get_mut(at..at + 2) {
                field.copy_from_slice(&bytes);
            }
        };
        put(2, total.to_be_bytes());
        put(6, (more | (fragment_offset & 0x1fff)).to_be_bytes());
        put(10, [0, 0]);
        if let Some(first) = header.first_mut() {
            *first = version_and_length;
        }
        let sum = checksum::checksum(&header);
        if let Some(field) = header.get_mut(10..12) {
            field.copy_from_slice(&sum.to_be_bytes());
        }
        let offset = self.first.len() + self.done;
        self.done += len;
        Some(Fragment { header, offset, len })
    }
}
