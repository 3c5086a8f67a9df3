//! Values that can be set at runtime (`ctl set`): their keys, descriptions and legal values.

use config::{Idle, LogLevel, Mode};
use logging::Modules;

/// A key with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Set {
    /// Transport of all segments' unicast packets.
    Mode(Mode),
    /// Largest IP packet on new connections, in bytes.
    ReceiveMtu(u16),
    /// Priority among several gateways: the highest forwards.
    Priority(u8),
    /// Behavior of idle workers: poll, pause or sleep.
    Idle(Idle),
    /// Log level.
    Log(LogLevel),
    /// Log levels of single modules; empty for none.
    LogFilter(Modules),
}

/// Defines the enum, its list, words and descriptions from one table.
macro_rules! keys {
    ($($name:ident = $word:literal, $may_be:expr, $text:literal;)*) => {
        /// A key that can be set.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Key {
            $(#[doc = $text] $name,)*
        }

        impl Key {
            /// Every key.
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
            pub const fn help(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Its legal values.
            #[must_use]
            pub fn may_be(self) -> String {
                match self {
                    $(Self::$name => $may_be,)*
                }
            }
        }
    };
}

keys! {
    Mode = "mode", Mode::WORDS.join(", "), "Transport of all segments' unicast packets.";
    ReceiveMtu = "receive-mtu", "576 to the configured maximum".to_owned(),
        "Largest IP packet that hosts may send on new connections, in bytes.";
    Priority = "priority", "0 to 255".to_owned(), "Priority of this gateway in each segment: the gateway with the highest priority forwards.";
    Idle = "idle", Idle::WORDS.join(", "), "Idle behavior of workers.";
    Log = "log", LogLevel::WORDS.join(", "), "Log level.";
    LogFilter = "log-filter", Modules::may_be(),
        "Log levels of single modules, for instance ipoib_fwd::segment=debug,endpoint=warn.";
}

impl Key {
    /// Finds a key by its name; an error lists the keys.
    pub fn named(word: &str) -> Result<Self, String> {
        let key = Self::ALL.iter().find(|key| key.word() == word).copied();
        key.ok_or_else(|| match config::nearest(word, Self::WORDS) {
            Some(near) => format!("no key `{word}`; did you mean `{near}`?"),
            None => format!("no key `{word}`; there are {}", Self::WORDS.join(", ")),
        })
    }

    /// The legal values, if they are words.
    #[must_use]
    pub const fn words(self) -> &'static [&'static str] {
        match self {
            Self::Mode => Mode::WORDS,
            Self::Idle => Idle::WORDS,
            Self::Log => LogLevel::WORDS,
            _ => &[],
        }
    }

    /// Parses a value of the key; an error lists the legal values.
    pub fn value(self, text: &str) -> Result<Set, String> {
        let legal = match self {
            Self::Mode => text.parse().ok().map(Set::Mode),
            Self::ReceiveMtu => {
                text.parse().ok().filter(|bytes| (576..=65_520).contains(bytes)).map(Set::ReceiveMtu)
            }
            Self::Priority => text.parse().ok().map(Set::Priority),
            Self::Idle => text.parse().ok().map(Set::Idle),
            Self::Log => text.parse().ok().map(Set::Log),
            Self::LogFilter => text.parse().ok().map(Set::LogFilter),
        };
        legal.ok_or_else(|| {
            format!("{} cannot be `{}`: it may be {}", self.word(), text.escape_debug(), self.may_be())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legal_values_are_accepted_and_others_refused() {
        let value = |key: &str, text: &str| Key::named(key).unwrap().value(text);
        assert_eq!(value("mode", "datagram"), Ok(Set::Mode(Mode::Datagram)));
        assert_eq!(value("receive-mtu", "576"), Ok(Set::ReceiveMtu(576)));
        assert_eq!(value("priority", "255"), Ok(Set::Priority(255)));
        assert_eq!(value("idle", "poll"), Ok(Set::Idle(Idle::Poll)));
        assert_eq!(value("log", "debug"), Ok(Set::Log(LogLevel::Debug)));
        for filter in ["", "endpoint=debug", "ipoib_fwd::gateway=off,ipoib=trace"] {
            assert_eq!(value("log-filter", filter), Ok(Set::LogFilter(filter.parse().unwrap())));
        }
        for (key, text) in [
            ("mode", "Datagram"),
            ("receive-mtu", "575"),
            ("receive-mtu", "65521"),
            ("receive-mtu", "-1"),
            ("priority", "256"),
            ("priority", "high"),
            ("idle", ""),
            ("log", "trace"),
            ("log-filter", "debug"),
            ("log-filter", "[x{y=(a*)*}]=debug"),
        ] {
            let why = value(key, text).unwrap_err();
            assert!(why.contains("it may be") && why.contains(key), "{why}");
        }
        assert!(value("mode", "\x1b[2J").unwrap_err().contains("\\u{1b}"));
    }

    #[test]
    fn keys_are_found_or_the_nearest_is_suggested() {
        for (key, word) in Key::ALL.iter().zip(Key::WORDS) {
            assert_eq!(Key::named(word), Ok(*key));
            assert!(!key.may_be().is_empty() && key.help().ends_with('.'));
        }
        assert_eq!(
            Key::named("recieve-mtu").unwrap_err(),
            "no key `recieve-mtu`; did you mean `receive-mtu`?"
        );
        assert!(Key::named("xyz").unwrap_err().contains("there are mode, "));
    }
}
