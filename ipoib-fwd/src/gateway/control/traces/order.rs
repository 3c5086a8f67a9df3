//! Parameters of a trace, from the arguments on the control socket.

use std::time::Duration;

use dataplane::filter::Filter;

/// A trace's filter and limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Order {
    pub(super) filter: Filter,
    pub(super) segment: Option<String>,
    pub(super) port: Option<String>,
    /// Most rows to report.
    pub(super) count: u32,
    pub(super) time: Duration,
}

/// Arguments in addition to those of a filter.
const WORDS: &str = "segment=NAME, at=PORT (as `ctl links` names it), count=1..10000, seconds=1..3600";

impl Order {
    /// Parses `key=value,…`; the error lists the possible arguments.
    pub(super) fn parse(words: Option<&str>) -> Result<Self, String> {
        let mut order = Self {
            filter: Filter::default(),
            segment: None,
            port: None,
            count: 100,
            time: Duration::from_secs(60),
        };
        for word in words.into_iter().flat_map(|words| words.split(',')) {
            if order.take(word).is_none() {
                return Err(format!("`{}` is none of: {}, {WORDS}", word.escape_debug(), Filter::WORDS));
            }
        }
        Ok(order)
    }

    fn take(&mut self, word: &str) -> Option<()> {
        let (key, value) = word.split_once('=')?;
        let number = |range: std::ops::RangeInclusive<u32>| value.parse().ok().filter(|n| range.contains(n));
        match key {
            "segment" => self.segment = Some(value.to_owned()),
            "at" => self.port = Some(value.to_owned()),
            "count" => self.count = number(1..=10_000)?,
            "seconds" => self.time = Duration::from_secs(number(1..=3600)?.into()),
            _ => return self.filter.take(key, value),
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_bounded_and_its_words_are_known() {
        let plain = Order::parse(None).unwrap();
        assert_eq!((plain.count, plain.time), (100, Duration::from_secs(60)));
        let order =
            Order::parse(Some("host=10.0.0.1,segment=storage,at=mlx5_0/1,count=3,seconds=5")).unwrap();
        assert_eq!((order.segment.as_deref(), order.port.as_deref()), (Some("storage"), Some("mlx5_0/1")));
        assert_eq!((order.count, order.time), (3, Duration::from_secs(5)));
        assert_ne!(order.filter, plain.filter);
        for word in ["", "count=0", "count=10001", "seconds=0", "seconds=3601", "packets=1", "host", "x=y"] {
            assert!(Order::parse(Some(word)).unwrap_err().contains("is none of: host="), "{word:?}");
        }
    }
}
