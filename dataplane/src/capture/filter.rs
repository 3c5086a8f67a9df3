//! Parameters of a recording: its filter and limits, parsed from a control socket request.

use std::time::Duration;

use tap::TapDirection;

use super::files::Bounds;
use crate::filter::{Filter, Look};

/// Maximum length of a name.
const MAX_NAME: usize = 64;

/// Parameters of a recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// Prefix of the file names; not a path.
    pub name: String,
    filter: Filter,
    pub(super) bounds: Bounds,
    /// Limits in packets and time.
    pub(super) packets: u64,
    pub(super) time: Duration,
}

impl Order {
    /// Parses `NAME,key=value,…`. An error lists the valid parameters.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let name = words.next().unwrap_or_default();
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if name.is_empty()
            || name.len() > MAX_NAME
            || name.starts_with(['.', '-'])
            || !name.bytes().all(is_plain)
        {
            return Err(format!(
                "a capture's name has at most {MAX_NAME} letters, digits, dots, dashes and underscores, and begins with none of the \
                 first two signs: it is no path, the directory is gateway.captures'"
            ));
        }
        let mut order = Self {
            name: name.to_owned(),
            filter: Filter::default(),
            bounds: Bounds::default(),
            packets: u64::MAX,
            time: Duration::from_secs(600),
        };
        for word in words {
            let may_be = order.take(word).ok_or(()).err();
            if may_be.is_some() {
                let (filter, bounds) = (Filter::WORDS, Self::BOUNDS);
                return Err(format!("`{}` is none of: {filter}, {bounds}", word.escape_debug()));
            }
        }
        Ok(order)
    }

    /// Parameters other than those of the filter.
    const BOUNDS: &str = "files=1..64, size=BYTES (64 KiB to 64 MiB), packets=N, seconds=1..86400";

    fn take(&mut self, word: &str) -> Option<()> {
        let (key, value) = word.split_once('=')?;
        let number = |range: std::ops::RangeInclusive<u64>| value.parse().ok().filter(|n| range.contains(n));
        match key {
            "files" => self.bounds.files = number(1..=Bounds::MOST_FILES.into())? as u32,
            "size" => self.bounds.size = number(Bounds::LEAST_SIZE..=Bounds::MOST_SIZE)?,
            "packets" => self.packets = number(1..=u64::MAX)?,
            "seconds" => self.time = Duration::from_secs(number(1..=86_400)?),
            _ => return self.filter.take(key, value),
        }
        Some(())
    }

    /// True if the recording includes a frame.
    pub(super) fn wants(&self, direction: TapDirection, frame: &[u8]) -> bool {
        self.filter.wants(&Look::at_frame(direction, frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_paths_and_words_are_known() {
        for name in
            ["", ".", "..", "../x", "/etc/passwd", "a/b", "-x", "a b", "a\0b", "\u{e9}", &"x".repeat(65)]
        {
            assert!(Order::parse(name).unwrap_err().contains("no path"), "{name:?}");
        }
        for word in [
            "",
            "host",
            "host=::1",
            "port=0",
            "files=0",
            "files=65",
            "size=1",
            "size=67108865",
            "packets=0",
            "seconds=0",
            "seconds=86401",
            "snaplen=1",
            "size=16 ",
        ] {
            assert!(
                Order::parse(&format!("x,{word}")).unwrap_err().contains("is none of: host="),
                "{word:?}"
            );
        }
        assert!(Order::parse("a.b_C-9,files=64,size=67108864,packets=1,seconds=86400").is_ok());
        let order = Order::parse("x,direction=in,vlan=0").unwrap();
        assert!(order.wants(TapDirection::Received, &[0; 60]) && !order.wants(TapDirection::Sent, &[0; 60]));
    }
}
