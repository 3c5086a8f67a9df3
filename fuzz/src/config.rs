//! Input of an operator: both configuration files, and command lines with EAL's arguments.

use std::path::Path;

use config::{CommandLine, Config};

/// One input.
pub fn run(text: &[u8]) {
    let Ok(text) = str::from_utf8(text) else { return };
    let file = Path::new("file.toml");
    match Config::parse(file, text) {
        Ok(config) => {
            assert!((1..=config::MAX_SEGMENTS).contains(&config.segments.len()));
            assert!(config.buffers_needed(1) > 0);
            let _ = config.check(2);
            assert!(config.difference(&config).is_ok_and(|change| change.is_empty()));
        }
        Err(error) => assert!(error.to_string().starts_with("file.toml"), "{error}"),
    }
    if let Err(error) = ibfab::config::FabricConfig::parse(file, text) {
        assert!(error.to_string().starts_with("file.toml"), "{error}");
    }
    let words = std::iter::once("ipoib-fwd").chain(text.split_ascii_whitespace()).map(str::to_owned);
    if let Ok(line) = CommandLine::parse(words) {
        let _ = line.eal.roles();
        let _ = line.eal.warnings();
    }
}
