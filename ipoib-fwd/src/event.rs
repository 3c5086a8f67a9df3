//! What happens in a gateway, as it tells those who follow it (`ctl events`): kinds, and what an event looks like.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

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
            /// What they are called, in the same order.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            /// What it is called.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// What it is about.
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
    Role = "role", "What the gateway is in a segment, and which others there are.";
    Connection = "connection", "A connection is made, has ended, or did not come into being.";
    Address = "address", "An address is learnt, has moved, is in dispute, or is gone.";
    Alarm = "alarm", "Something that an operator is to look at.";
    Reload = "reload", "The configuration was read again, or something was set.";
    Gateway = "gateway", "The gateway itself: it stops, is drained or put back into service, or its events are too many.";
}

/// Defines the enum, its list, words, descriptions and remedies from one table.
macro_rules! alarms {
    ($($name:ident = $word:literal, $text:literal, $remedy:literal;)*) => {
        /// What an alarm is about ([`Kind::Alarm`]).
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Alarm {
            $(#[doc = $text] $name,)*
        }

        impl Alarm {
            /// Every alarm.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// What it is called.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// What it tells.
            #[must_use]
            pub const fn describe(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// What an operator does about it.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self {
                    $(Self::$name => $remedy,)*
                }
            }
        }
    };
}

alarms! {
    WorkerStuck = "worker-stuck", "A worker does not turn; if it goes on so, the service manager's watchdog ends the gateway.",
        "Something holds its processor, or a driver hangs: the kernel's log; `isolcpus`, and no other lcore on that processor.";
    ControlSlow = "control-slow", "Events of queue pairs were lost, since the control lcore was late.",
        "Give the control lcore a processor of its own.";
    DeviceGone = "device-gone", "An InfiniBand device is gone, and its segments are down.",
        "The kernel's log says why; restart the gateway once the device is back.";
    SrqLow = "srq-low", "Shared receive queues came down to their limit: hosts send faster than workers receive.",
        "More workers, or a greater `infiniband.srq-depth`.";
    Storm = "storm", "The storm guard has dropped packets to groups or to all.",
        "A host broadcasts too much, or there is a loop: a capture of broadcasts tells the sender.";
    Loop = "loop", "Packets of the gateway's own come back from the other side, or two segments of it meet on both sides: the segment is blocked.",
        "Take away what else joins both networks; the segment goes on by itself.";
    Sibling = "sibling", "Two segments of this gateway are on the same network on one side.",
        "Keep these networks apart, or make one segment of the two.";
    Stranger = "stranger", "Another gateway between the same networks is not believed, and both may forward.",
        "The same `gateway.pair-key`, version, P_Key and subnets on both: `why` says which differ.";
    StrangerGone = "stranger-gone", "The gateway that was not believed is gone, or is believed.",
        "Nothing.";
    Multiplied = "multiplied", "What the gateway sends on a side comes back there several times: that network has a loop of its own.",
        "Switch spanning tree on in that network.";
    CaptureStalls = "capture-stalls", "The disk that captures are written to takes nothing.",
        "Look at the disk, or stop the capture; forwarding does not wait for it.";
    CaptureFailed = "capture-failed", "A capture ended by an error, which the text has.",
        "What the text says: room on the disk, whose the directory is.";
}

impl Kind {
    /// Its bit in a set of kinds.
    #[must_use]
    pub const fn bit(self) -> u64 {
        1 << self as u64
    }

    /// The set of kinds that words joined by commas name; all of them without words.
    #[must_use]
    pub fn set(words: Option<&str>) -> u64 {
        let named =
            |word: &str| Self::ALL.iter().find(|kind| kind.word() == word).map_or(0, |kind| kind.bit());
        words.map_or(!0, |words| words.split(',').map(named).fold(0, |set, bit| set | bit))
    }
}

/// An event as an object; what is known beside its text stands behind it.
#[must_use]
pub fn object(
    at: SystemTime,
    kind: Kind,
    what: &str,
    segment: Option<&str>,
    text: String,
    facts: Value,
) -> Value {
    let first = [
        ("time", time(at).into()),
        ("kind", kind.word().into()),
        ("what", what.into()),
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

/// An event on a line.
#[must_use]
pub fn line(event: &Value) -> String {
    let word = |name| event.get(name).and_then(Value::as_str).unwrap_or("-");
    let what = format!("{}: {}", word("kind"), word("what"));
    format!("{}  {}  {what:<24}  {}\n", word("time"), word("segment"), word("text"))
}

/// A time as RFC 3339 has it, in milliseconds of UTC.
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
    fn times_are_those_of_the_calendar() {
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
    fn kinds_are_named_and_a_line_has_what_is_told() {
        assert_eq!(Kind::set(None), !0);
        assert_eq!(Kind::set(Some("link,alarm")), Kind::Link.bit() | Kind::Alarm.bit());
        assert_eq!(Kind::set(Some("none")), 0);
        assert_eq!(Kind::set(Some("link,link")), Kind::Link.bit());
        let facts = json!({"address": "10.0.0.1"});
        let text = "10.0.0.1 has moved".to_owned();
        let event = object(SystemTime::UNIX_EPOCH, Kind::Address, "moved", Some("one"), text, facts);
        assert_eq!(event["address"], "10.0.0.1");
        assert_eq!(
            line(&event),
            "1970-01-01T00:00:00.000Z  one  address: moved            10.0.0.1 has moved\n"
        );
        let event = object(SystemTime::UNIX_EPOCH, Kind::Reload, "done", None, String::new(), Value::Null);
        assert!(line(&event).contains("  -  reload: done"));
    }
}
