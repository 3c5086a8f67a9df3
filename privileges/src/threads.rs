//! Executes work in every thread of this process.
//!
//! Capabilities, users and groups are per thread, and libraries have threads that other code does not
//! control. Each thread gets a signal and does the work in its handler.

use std::ffi::{OsString, c_int};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::PrivilegeError;
use crate::yielding::Work;

/// Time limit of a thread's response. It may be in an uninterruptible call.
const PATIENCE: Duration = Duration::from_secs(5);

/// Work of the handler, while a caller waits for it.
static WORK: AtomicPtr<Work> = AtomicPtr::new(std::ptr::null_mut());
/// Number of threads that have finished, successfully or not.
static DONE: AtomicU32 = AtomicU32::new(0);
/// Error number of the last failure; 0 without one.
static FAILED: AtomicI32 = AtomicI32::new(0);
/// Serializes the users of these variables.
static BUSY: Mutex<()> = Mutex::new(());

extern "C" fn handle(_: c_int) {
    // SAFETY: `WORK` is set to a live `Work`. It is only read until every signaled thread has counted itself
    // in DONE.
    if let Some(work) = unsafe { WORK.load(Ordering::Acquire).as_ref() } {
        // Only system calls, as required in a signal handler.
        let outcome = work.carry_out();
        FAILED.store(outcome.map_or_else(Errno::raw_os_error, |()| 0), Ordering::Relaxed);
        DONE.fetch_add(1, Ordering::Release);
    }
}

/// Returns the calling thread.
pub(crate) fn own() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Returns all threads of this process, including the calling one. Errors are not skipped, because an omitted
/// thread would keep its privileges.
pub(crate) fn all() -> Result<Vec<i32>, PrivilegeError> {
    let failed = |error| unknown(format!("/proc/self/task: {error}"));
    let names = std::fs::read_dir("/proc/self/task").map_err(failed)?.map(|entry| Ok(entry?.file_name()));
    list(names.collect::<Result<Vec<_>, _>>().map_err(failed)?, own())
}

fn list(names: Vec<OsString>, own: i32) -> Result<Vec<i32>, PrivilegeError> {
    let number = |name: OsString| {
        let number = name.to_str().and_then(|name| name.parse().ok());
        number.ok_or_else(|| unknown(format!("/proc/self/task has {}", name.display())))
    };
    let all: Vec<i32> = names.into_iter().map(number).collect::<Result<_, _>>()?;
    if all.contains(&own) {
        Ok(all)
    } else {
        Err(unknown(format!("/proc/self/task has no {own}, which reads it")))
    }
}

pub(crate) const fn unknown(what: String) -> PrivilegeError {
    PrivilegeError::Unknown { what }
}

/// Returns the name of a thread.
pub(crate) fn name(thread: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
    name.map_or_else(|_| "it has ended".to_owned(), |name| name.trim().to_owned())
}

/// Executes the work in all other threads of this process, one after another, including threads created
/// meanwhile.
pub(crate) fn everywhere_else(work: &Work) -> Result<(), PrivilegeError> {
    let _one = BUSY.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let signal = libc::SIGRTMAX() - 1;
    let mut before = Handler::install(signal)?;
    WORK.store(std::ptr::from_ref(work).cast_mut(), Ordering::Release);
    let outcome = each(own(), signal);
    if matches!(outcome, Err(PrivilegeError::Silent { .. })) {
        // A late signal may still arrive, so the work must stay allocated.
        WORK.store(Box::into_raw(Box::new(*work)), Ordering::Release);
        before.keep();
    } else {
        WORK.store(std::ptr::null_mut(), Ordering::Release);
    }
    outcome
}

fn each(own: i32, signal: c_int) -> Result<(), PrivilegeError> {
    let mut signaled = vec![own];
    // A thread created before its creator did the work has not done it. Repeat until there is no new thread.
    while let Some(thread) = all()?.into_iter().find(|thread| !signaled.contains(thread)) {
        signaled.push(thread);
        signal_and_wait(thread, signal)?;
    }
    Ok(())
}

fn signal_and_wait(thread: i32, signal: c_int) -> Result<(), PrivilegeError> {
    let before = DONE.load(Ordering::Acquire);
    if !is_sent(thread, signal)? {
        return Ok(());
    }
    let until = Instant::now() + PATIENCE;
    while DONE.load(Ordering::Acquire) == before {
        if !is_sent(thread, 0)? {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(PrivilegeError::Silent { thread, name: name(thread), signal });
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    match FAILED.load(Ordering::Relaxed) {
        0 => Ok(()),
        code => {
            let source = std::io::Error::from_raw_os_error(code);
            Err(PrivilegeError::Step { what: "give up privileges in every thread", source })
        }
    }
}

/// Sends a signal to a thread, or (0) none. Returns false if it has ended.
fn is_sent(thread: i32, signal: c_int) -> Result<bool, PrivilegeError> {
    // SAFETY: sends a signal to a thread of this process that has a handler, or none; numbers alone.
    let rc = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
    let error = std::io::Error::last_os_error();
    match (rc, error.raw_os_error()) {
        (0, _) => Ok(true),
        (_, Some(libc::ESRCH)) => Ok(false),
        _ => Err(PrivilegeError::Step { what: "signal a thread of this process", source: error }),
    }
}

/// Restores the signal's previous handler on drop.
struct Handler {
    signal: c_int,
    before: Option<libc::sigaction>,
}

impl Handler {
    fn install(signal: c_int) -> Result<Self, PrivilegeError> {
        // SAFETY: plain integers and pointers, for which zero is a value.
        let (mut new, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        new.sa_sigaction = handle as extern "C" fn(c_int) as usize;
        // Restart interrupted system calls of other threads.
        new.sa_flags = libc::SA_RESTART;
        // SAFETY: both structures live; the handler is of the kind that these flags announce.
        let rc = unsafe { libc::sigaction(signal, &raw const new, &raw mut before) };
        if rc != 0 {
            let source = std::io::Error::last_os_error();
            return Err(PrivilegeError::Step { what: "handle a signal", source });
        }
        Ok(Self { signal, before: Some(before) })
    }

    /// Keeps the handler installed.
    fn keep(&mut self) {
        self.before = None;
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: the action that was there before.
            unsafe { libc::sigaction(self.signal, before, std::ptr::null_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_threads_includes_the_reader() {
        let names = |names: &[&str]| names.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(list(names(&["7", "12"]), 12).unwrap(), [7, 12]);
        for bad in [&["7"] as &[_], &[], &["7", "12", "self"]] {
            assert!(matches!(list(names(bad), 12), Err(PrivilegeError::Unknown { .. })), "{bad:?}");
        }
        assert!(all().unwrap().contains(&own()));
    }

    #[test]
    fn an_ended_thread_is_distinguished_from_a_running_one() {
        assert!(is_sent(own(), 0).unwrap());
        let ended = std::thread::spawn(own).join().unwrap();
        // The thread ID disappears some time after the join.
        let until = Instant::now() + Duration::from_secs(120);
        while is_sent(ended, 0).unwrap() {
            assert!(Instant::now() < until);
        }
    }
}
