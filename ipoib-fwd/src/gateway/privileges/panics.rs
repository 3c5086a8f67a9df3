//! What a panic says where system calls are filtered.

use std::io::Write as _;
use std::panic;

/// From now on a panic of any other thread than this one says what and where, and no more: whoever looks for functions' names, as
/// RUST_BACKTRACE has it, opens files, and on a worker that would be the end before a word is said.
pub(super) fn tell_plainly() {
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
