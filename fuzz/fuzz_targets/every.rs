//! All targets in one program, which builds as fast as one target: `FUZZ_TARGET` selects one.

#![no_main]

use std::sync::OnceLock;

static CHOSEN: OnceLock<fuzz::Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let target = CHOSEN.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let target = fuzz::TARGETS.iter().find(|(target, _)| *target == name);
        target.unwrap_or_else(|| panic!("FUZZ_TARGET={name}: unknown target")).1
    });
    target(bytes);
});
