//! How much single modules log.

use std::fmt;
use std::str::FromStr;

use config::LogLevel;

/// Modules that may be named.
const MOST: usize = 16;

/// A few modules with a level each, `MODULE=LEVEL,…`, and nothing else of what filters can be told; none: all log as much as the others.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Modules(String);

impl Modules {
    /// What it may be, for whoever wrote something else.
    #[must_use]
    pub fn may_be() -> String {
        format!("MODULE=LEVEL,... with {}, off or trace; empty: as log says", LogLevel::WORDS.join(", "))
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Modules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Modules {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_level = |level: &str| LogLevel::WORDS.contains(&level) || matches!(level, "off" | "trace");
        let is_module = |module: &str| {
            let mut parts = module.split("::");
            parts.all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
        };
        let one = |text: &str| {
            text.split_once('=').is_some_and(|(module, level)| is_module(module) && is_level(level))
        };
        if text.is_empty() || (text.split(',').count() <= MOST && text.split(',').all(one)) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!("`{}` is no filter: it may be {}", text.escape_debug(), Self::may_be()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_have_levels_and_nothing_else() {
        for good in ["", "endpoint=debug", "ipoib_fwd::gateway=off,ipoib=trace"] {
            assert_eq!(good.parse::<Modules>().unwrap().as_str(), good);
        }
        let many = vec!["a=info"; MOST + 1].join(",");
        for bad in ["debug", "[x{y=(a*)*}]=debug", "a:b=debug", "::=debug", "a=debug,", "a=loud", &many] {
            assert!(bad.parse::<Modules>().unwrap_err().contains("it may be"), "{bad}");
        }
        assert!("\x1b[2J".parse::<Modules>().unwrap_err().contains("\\u{1b}"));
    }
}
