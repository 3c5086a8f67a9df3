//! Link URLs, and requests to the control socket.

use connectx::cable::CableUrl;
use dataplane::telemetry::Command;

/// One input.
pub fn run(bytes: &[u8]) {
    if let Ok(url) = str::from_utf8(bytes).unwrap_or_default().parse::<CableUrl>() {
        assert_eq!(url.to_string().parse(), Ok(url));
    }
    if let Ok(command) = Command::parse(bytes) {
        assert!(command.name.starts_with('/') && !command.name.contains(','));
    }
}
