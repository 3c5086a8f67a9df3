//! Panic messages of threads whose system calls are filtered.

use std::io::Write as _;
use std::panic;

/// From now on, a panic on any thread but this one prints only its message and location. Symbolizing a
/// backtrace (RUST_BACKTRACE) opens files; on a worker, the filter would kill the process before the message
/// is printed.
pub(super) fn install_plain_hook() {
    let own = rustix::thread::gettid();
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |about| {
        let thread = rustix::thread::gettid();
        if thread == own {
            before(about);
        } else {
            let _ = writeln!(std::io::stderr().lock(), "thread {} {about}", thread.as_raw_nonzero());
        }
    }));
}
