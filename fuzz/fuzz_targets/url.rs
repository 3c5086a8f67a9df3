//! Link URLs, and requests to the control socket.
#![no_main]

use dataplane::telemetry::Command;
use libfuzzer_sys::fuzz_target;
use connectx::cable::CableUrl;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(url) = str::from_utf8(bytes).unwrap_or_default().parse::<CableUrl>() {
        assert_eq!(url.to_string().parse(), Ok(url));
    }
    if let Ok(command) = Command::parse(bytes) {
        assert!(command.name.starts_with('/') && !command.name.contains(','));
    }
});
