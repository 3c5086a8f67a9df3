//! What an operator writes: both configuration files, and command lines in EAL's words.
#![no_main]

use std::path::Path;

use config::{CommandLine, Config};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let file = Path::new("file.toml");
    match Config::parse(file, text) {
        Ok(config) => assert!(config.buffers_needed(1) > 0),
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
});
