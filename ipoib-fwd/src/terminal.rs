//! What standard output is.

use std::io::IsTerminal as _;

/// True if standard output is for eyes that see colours.
#[must_use]
pub fn is_coloured() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
