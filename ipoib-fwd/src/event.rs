//! Events of a gateway, for clients that follow them (`ctl events`): their kinds and their format.

mod what;

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
pub use what::What;

/// Defines the enum, its list and its words from one table.
macro_rules! kinds {
    ($($name:ident = $word:literal, $text:literal;)*) => {
        /// A kind of event.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Kind {
            $(#[doc = $text] $name,)*
        }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
            /// Their names, in the same order.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            /// Its name.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// Its description.
            #[must_use]
            pub const fn describe(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

kinds! {
    Link = "link", "A link of a segment, or an Ethernet port, goes up or down.";
    Role = "role", "The role of the gateway in a segment, and the other gateways.";
    Connection = "connection", "A connection is established or closed, or could not be established.";
    Address = "address", "An address is learnt, has moved, is disputed, or is gone.";
    Alarm = "alarm", "A condition that needs the operator's attention.";
    Reload = "reload", "The configuration was reloaded, or a value was set.";
    Gateway = "gateway", "The gateway itself: it stops, is drained or put back into service, or its events are too frequent.";
}

impl Kind {
    /// Its bit in a set of kinds.
    #[must_use]
    pub const fn bit(self) -> u64 {
        1 << self as u64
    }

    /// The set of the kinds in a list separated by commas; all kinds without a list.
    #[must_use]
    pub fn set(words: Option<&str>) -> u64 {
        let named =
            |word: &str| Self::ALL.iter().find(|kind| kind.word() == word).map_or(0, |kind| kind.bit());
        words.map_or(!0, |words| words.split(',').map(named).fold(0, |set, bit| set | bit))
    }
}

/// Formats an event as an object. The details in `facts` follow its text.
#[must_use]
pub fn object(at: SystemTime, what: What, segment: Option<&str>, text: String, facts: Value) -> Value {
    let first = [
        ("time", time(at).into()),
        ("kind", what.kind().word().into()),
        ("what", what.word().into()),
        ("segment", segment.into()),
        ("text", text.into()),
    ];
    let mut object: Map<String, Value> =
        first.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    if let Value::Object(facts) = facts {
        object.extend(facts);
    }
    object.into()
}

/// Formats an event as a line.
#[must_use]
pub fn line(event: &Value) -> String {
    let word = |name| event.get(name).and_then(Value::as_str).unwrap_or("-");
    let what = format!("{}: {}", word("kind"), word("what"));
    format!("{}  {}  {what:<24}  {}\n", word("time"), word("segment"), word("text"))
}

/// Formats a time by RFC 3339, in milliseconds of UTC.
#[must_use]
pub fn time(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (mut days, of_day) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (mut year, mut month) = (1970u64, 0);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    for length in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        month += 1;
        if days < length {
            break;
        }
        days -= length;
    }
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!(
        "{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z",
        days + 1,
        since.subsec_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_equal_those_of_date() {
        // date -u -d @N +%FT%TZ
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (68_169_599, "1972-02-28T23:59:59"),
            (68_169_600, "1972-02-29T00:00:00"),
            (951_868_799, "2000-02-29T23:59:59"),
            (1_798_761_599, "2026-12-31T23:59:59"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1000 * seconds + 7);
            assert_eq!(time(at), format!("{text}.007Z"));
        }
    }

    #[test]
    fn kinds_have_names_and_a_line_has_the_text() {
        assert_eq!(Kind::set(None), !0);
        assert_eq!(Kind::set(Some("link,alarm")), Kind::Link.bit() | Kind::Alarm.bit());
        assert_eq!(Kind::set(Some("none")), 0);
        assert_eq!(Kind::set(Some("link,link")), Kind::Link.bit());
        let facts = json!({"address": "10.0.0.1"});
        let text = "10.0.0.1 has moved".to_owned();
        let event = object(SystemTime::UNIX_EPOCH, What::Moved, Some("one"), text, facts);
        assert_eq!(event["address"], "10.0.0.1");
        assert_eq!(
            line(&event),
            "1970-01-01T00:00:00.000Z  one  address: moved            10.0.0.1 has moved\n"
        );
        let event = object(SystemTime::UNIX_EPOCH, What::Reloaded, None, String::new(), Value::Null);
        assert!(line(&event).contains("  -  reload: done"));
    }
}
