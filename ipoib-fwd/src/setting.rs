//! What may be set while the gateway runs (`ctl set`), each written down once: its key, what it does, what it may be.

use config::{Idle, LogLevel, Mode};
use logging::Modules;

/// A value for a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Set {
    /// How all segments' unicast packets travel.
    Mode(Mode),
    /// Largest IP packet that new connections take, in bytes.
    ReceiveMtu(u16),
    /// Which of several gateways forwards: the highest.
    Priority(u8),
    /// What idle workers do.
    Idle(Idle),
    /// How much is logged.
    Log(LogLevel),
    /// How much single modules log, as a filter has it; empty: as the others.
    LogFilter(Modules),
}

/// Defines the enum, its list, words and descriptions from one table.
macro_rules! keys {
    ($($name:ident = $word:literal, $may_be:expr, $text:literal;)*) => {
        /// What may be set.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Key {
            $(#[doc = $text] $name,)*
        }

        impl Key {
            /// Every key.
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

            /// What it does.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// What it may be.
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
    Mode = "mode", Mode::WORDS.join(", "), "How unicast packets of all segments travel.";
    ReceiveMtu = "receive-mtu", "576 up to what the configuration says".to_owned(),
        "Largest IP packet that hosts are told to send on connections made from now on, in bytes.";
    Priority = "priority", "0 to 255".to_owned(), "Of this gateway among those of each segment: the highest forwards.";
    Idle = "idle", Idle::WORDS.join(", "), "What idle workers do.";
    Log = "log", LogLevel::WORDS.join(", "), "How much is logged.";
    LogFilter = "log-filter", Modules::may_be(),
        "How much single modules log, for instance ipoib_fwd::segment=debug,endpoint=warn.";
}

impl Key {
    /// The key of that name; an error says which there are.
    pub fn named(word: &str) -> Result<Self, String> {
        let key = Self::ALL.iter().find(|key| key.word() == word).copied();
        key.ok_or_else(|| match config::nearest(word, Self::WORDS) {
            Some(near) => format!("no key `{word}`; did you mean `{near}`?"),
            None => format!("no key `{word}`; there are {}", Self::WORDS.join(", ")),
        })
    }

    /// The values that it may have, where these are words.
    #[must_use]
    pub const fn words(self) -> &'static [&'static str] {
        match self {
            Self::Mode => Mode::WORDS,
            Self::Idle => Idle::WORDS,
            Self::Log => LogLevel::WORDS,
            _ => &[],
        }
    }

    /// A value for it; an error says what it may be.
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
    fn values_are_what_they_may_be_and_nothing_else() {
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
    fn keys_are_found_or_the_nearest_is_told() {
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
