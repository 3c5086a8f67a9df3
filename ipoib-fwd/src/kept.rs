//! The file in which a gateway keeps the addresses of known hosts over a restart.
//!
//! ```text
//! ipoib-fwd hosts 1
//! segment storage
//! 10.77.0.1 4
//! 10.77.0.9 310
//! sum 1c6f0e7d52a8b394
//! ```
//!
//! Each row is an IPv4 address and the seconds since its host was last known, the most recent host first. The
//! last line is a checksum of everything before it.
//!
//! The file is untrusted input. Its size and its rows are bounded, each row is validated, and only the exact
//! text that [`KeptFile::to_text`] writes is accepted. The gateway queries its addresses and never trusts
//! them.

use std::fmt::Write as _;
use std::hash::Hasher as _;
use std::net::Ipv4Addr;

use config::{MAX_SEGMENTS, SegmentName};
use ipoib::net::ipv4;
use siphasher::sip::SipHasher13;

/// Maximum number of hosts of a segment.
pub const MOST: usize = 4096;
/// Maximum age in seconds, one day: older hosts are left out.
pub const LONGEST: u32 = 24 * 60 * 60;
/// Maximum length of the file in bytes: a row takes at most 22 bytes, the name of a segment 41.
pub const MOST_BYTES: usize = MAX_SEGMENTS * (MOST * 22 + 41) + 64;

const FIRST_LINE: &str = "ipoib-fwd hosts 1";
const SEGMENT: &str = "segment ";
const SUM: &str = "sum ";

/// A host that was known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptHost {
    /// Its address.
    pub ip: Ipv4Addr,
    /// Seconds since it was last known.
    pub age: u32,
}

/// The hosts of a segment, the most recent first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptSegment {
    /// The name of the segment.
    pub name: SegmentName,
    /// Its hosts, at most [`MOST`].
    pub hosts: Vec<KeptHost>,
}

/// The contents of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeptFile {
    /// The segments, at most [`MAX_SEGMENTS`].
    pub segments: Vec<KeptSegment>,
}

/// Why a file is ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeptError {
    /// The file is too long.
    #[error("it has more than {MOST_BYTES} bytes")]
    TooLong,
    /// The first line is wrong.
    #[error("its first line is not `{FIRST_LINE}`: it is not a list of hosts, or has another version")]
    Version,
    /// The file was truncated or changed.
    #[error("its checksum is wrong: it is damaged")]
    Checksum,
    /// A line is not valid.
    #[error("line {0} is not valid: a gateway did not write it")]
    Line(usize),
}

fn checksum(text: &str) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// Appends the checksum to a text.
#[must_use]
pub fn signed(mut text: String) -> String {
    let sum = checksum(&text);
    // Writing to a string does not fail.
    let _ = writeln!(text, "{SUM}{sum:016x}");
    text
}

/// Parses a row; `None` if it is not exactly as [`KeptFile::to_text`] writes it.
fn row(line: &str) -> Option<KeptHost> {
    let (ip, age) = line.split_once(' ')?;
    let host = KeptHost { ip: ip.parse().ok()?, age: age.parse().ok()? };
    let is_exact = format!("{} {}", host.ip, host.age) == line;
    (is_exact && ipv4::is_unicast(host.ip) && host.age <= LONGEST).then_some(host)
}

impl KeptFile {
    /// Parses a file.
    pub fn parse(bytes: &[u8]) -> Result<Self, KeptError> {
        if bytes.len() > MOST_BYTES {
            return Err(KeptError::TooLong);
        }
        let text = str::from_utf8(bytes).map_err(|_| KeptError::Checksum)?;
        if text.split('\n').next() != Some(FIRST_LINE) {
            return Err(KeptError::Version);
        }
        let body = text.rfind(SUM).and_then(|at| text.split_at_checked(at));
        let (body, sum) = body.ok_or(KeptError::Checksum)?;
        if sum != format!("{SUM}{:016x}\n", checksum(body)) || !body.ends_with('\n') {
            return Err(KeptError::Checksum);
        }
        let mut this = Self::default();
        for (line, number) in body.split_terminator('\n').zip(1..).skip(1) {
            this.take(line).ok_or(KeptError::Line(number))?;
        }
        Ok(this)
    }

    fn take(&mut self, line: &str) -> Option<()> {
        if let Some(name) = line.strip_prefix(SEGMENT) {
            let name = SegmentName::new(name)?;
            let is_new = self.segments.iter().all(|segment| segment.name != name);
            let fits = is_new && self.segments.len() < MAX_SEGMENTS;
            self.segments.extend(fits.then(|| KeptSegment { name, hosts: Vec::new() }));
            return fits.then_some(());
        }
        let (host, segment) = (row(line)?, self.segments.last_mut()?);
        let is_in_order = segment.hosts.last().is_none_or(|last| last.age <= host.age);
        let fits = is_in_order && segment.hosts.len() < MOST;
        segment.hosts.extend(fits.then_some(host));
        fits.then_some(())
    }

    /// The text of the file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{FIRST_LINE}\n");
        for segment in self.segments.iter().take(MAX_SEGMENTS) {
            let _ = writeln!(text, "{SEGMENT}{}", segment.name);
            for host in segment.hosts.iter().take(MOST).filter(|host| host.age <= LONGEST) {
                let _ = writeln!(text, "{} {}", host.ip, host.age);
            }
        }
        signed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(ip: [u8; 4], age: u32) -> KeptHost {
        KeptHost { ip: ip.into(), age }
    }

    fn segment(name: &str, hosts: &[KeptHost]) -> KeptSegment {
        KeptSegment { name: SegmentName::new(name).unwrap(), hosts: hosts.to_vec() }
    }

    fn file() -> KeptFile {
        let storage = segment("storage", &[host([10, 77, 0, 1], 4), host([10, 77, 0, 9], 310)]);
        KeptFile {
            segments: vec![storage, segment("vlan100", &[]), segment("a", &[host([192, 0, 2, 1], 0)])],
        }
    }

    #[test]
    fn a_written_file_is_read_unchanged() {
        let text = file().to_text();
        assert!(text.starts_with(
            "ipoib-fwd hosts 1\nsegment storage\n10.77.0.1 4\n10.77.0.9 310\nsegment vlan100\n"
        ));
        assert_eq!(KeptFile::parse(text.as_bytes()), Ok(file()));
        assert_eq!(KeptFile::parse(KeptFile::default().to_text().as_bytes()), Ok(KeptFile::default()));
    }

    #[test]
    fn a_file_that_is_damaged_anywhere_is_refused() {
        let good = file().to_text().into_bytes();
        for at in 0..good.len() {
            let mut cut = good.clone();
            cut.truncate(at);
            assert!(KeptFile::parse(&cut).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut damaged = good.clone();
                damaged[at] ^= 1 << bit;
                assert!(KeptFile::parse(&damaged).is_err(), "bit {bit} of byte {at}");
            }
        }
        assert!(KeptFile::parse(&[good.clone(), b"\n".to_vec()].concat()).is_err());
        assert!(KeptFile::parse(&[good.clone(), good].concat()).is_err());
    }

    #[test]
    fn another_version_is_refused_whatever_its_checksum() {
        for first in ["ipoib-fwd hosts 2", "ipoib-fwd hosts 10", "ipoib-fwd hosts 1\r", "", "\0"] {
            assert_eq!(
                KeptFile::parse(signed(format!("{first}\n")).as_bytes()),
                Err(KeptError::Version),
                "{first:?}"
            );
        }
    }

    #[test]
    fn a_file_at_all_bounds_is_read_and_one_beyond_is_not() {
        let full = |segments: usize| {
            let ip = |n: usize| [223, 255, 100 + (n >> 8) as u8, n as u8];
            let hosts: Vec<_> = (0..MOST).map(|n| host(ip(n), LONGEST)).collect();
            let names = (0..segments).map(|n| format!("{n:032}"));
            KeptFile { segments: names.map(|name| segment(&name, &hosts)).collect() }
        };
        let most = full(MAX_SEGMENTS);
        let text = most.to_text();
        assert!(text.len() <= MOST_BYTES);
        assert_eq!(KeptFile::parse(text.as_bytes()), Ok(most));
        let one_more = full(MAX_SEGMENTS + 1);
        assert_eq!(one_more.to_text(), text, "it is not written");
        assert_eq!(KeptFile::parse(&vec![b'\n'; MOST_BYTES + 1]), Err(KeptError::TooLong));
        let rows = "10.77.0.1 0\n".repeat(MOST + 1);
        let body = format!("{FIRST_LINE}\nsegment a\n{rows}");
        assert_eq!(KeptFile::parse(signed(body).as_bytes()), Err(KeptError::Line(MOST + 3)));
    }

    #[test]
    fn each_line_is_validated() {
        for bad in [
            "10.77.0.1",
            "10.77.0.1 ",
            "10.77.0.1 -1",
            "10.77.0.1 +1",
            "10.77.0.1 01",
            "10.77.0.1  1",
            " 10.77.0.1 1",
            "10.77.0.1 1\r",
            "10.77.0.1 86401",
            "10.77.0.1 4294967296",
            "0.0.0.0 1",
            "127.0.0.1 1",
            "224.0.0.1 1",
            "255.255.255.255 1",
            "fe80::1 1",
            "10.77.0.1 3 4",
            "segment",
            "segment ",
            "segment a",
            "segment a b",
            "segment \u{e9}",
            "",
            "sum 0",
        ] {
            let body = format!("{FIRST_LINE}\nsegment a\n{bad}\n");
            assert_eq!(KeptFile::parse(signed(body).as_bytes()), Err(KeptError::Line(3)), "{bad:?}");
        }
        let without_segment = format!("{FIRST_LINE}\n10.77.0.1 1\n");
        assert_eq!(KeptFile::parse(signed(without_segment).as_bytes()), Err(KeptError::Line(2)));
        let unfinished = format!("{FIRST_LINE}\nsegment a");
        assert_eq!(KeptFile::parse(signed(unfinished).as_bytes()), Err(KeptError::Checksum));
        let out_of_order = format!("{FIRST_LINE}\nsegment a\n10.77.0.1 2\n10.77.0.2 1\n");
        assert_eq!(KeptFile::parse(signed(out_of_order).as_bytes()), Err(KeptError::Line(4)));
    }
}
