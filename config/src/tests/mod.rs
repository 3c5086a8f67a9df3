use std::path::Path;

use super::*;

mod bounds;
mod buffers;
mod change;
mod command_line;
mod faults;
mod file;
mod hostile;
mod segments;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("gateway.toml"), text)
}

/// Returns the error message of an invalid file. It must also be among all errors of the file.
fn complaint(text: &str) -> String {
    let complaint = parse(text).expect_err("is bad").to_string();
    let all = faults::complaints(text);
    assert!(all.contains(&complaint), "{complaint}\n{all:#?}");
    complaint
}
