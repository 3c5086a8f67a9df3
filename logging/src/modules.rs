//! Log levels of single modules.

use std::fmt;
use std::str::FromStr;

use config::LogLevel;

/// Maximum number of modules.
const MOST: usize = 16;

/// A few modules with a level each, `MODULE=LEVEL,…`. Other filter syntax is not accepted. Without any, all
/// modules log at the same level.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Modules(String);

impl Modules {
    /// Describes the valid format.
    #[must_use]
    pub fn may_be() -> String {
        format!("MODULE=LEVEL,... with {}, off or trace; empty: the level in log", LogLevel::WORDS.join(", "))
    }

    /// Returns the text as written.
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
            Err(format!("`{}` is not a valid filter: use {}", text.escape_debug(), Self::may_be()))
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
            assert!(bad.parse::<Modules>().unwrap_err().contains("is not a valid filter"), "{bad}");
        }
        assert!("\x1b[2J".parse::<Modules>().unwrap_err().contains("\\u{1b}"));
    }
}
