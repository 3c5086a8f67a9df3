use std::path::Path;

use super::*;

mod buffers;
mod change;
mod command_line;
mod file;
mod hostile;
mod segments;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("gateway.toml"), text)
}

/// What the operator reads about a bad file.
fn complaint(text: &str) -> String {
    parse(text).expect_err("is bad").to_string()
}
