//! Something done in every thread of this process: capabilities, users and groups are each thread's own, and libraries have threads that
//! nobody else can speak for. Each gets a signal and does it in its handler.

use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::PrivilegeError;
use crate::yielding::Work;

/// How long a thread may take to answer. It may stand in a call that is not interrupted.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the handler does, as long as somebody waits for it.
static WORK: AtomicPtr<Work> = AtomicPtr::new(std::ptr::null_mut());
/// Threads that have done it, well or not.
static DONE: AtomicU32 = AtomicU32::new(0);
/// What the last one failed with; 0 if it did not.
static FAILED: AtomicI32 = AtomicI32::new(0);
/// One user at a time of all of these.
static BUSY: Mutex<()> = Mutex::new(());

extern "C" fn handle(_: c_int) {
    // SAFETY: set to a `Work` that lives, and is only read, until every thread that got the signal has counted itself in DONE.
    if let Some(work) = unsafe { WORK.load(Ordering::Acquire).as_ref() } {
        // Calls to the system alone: nothing that a signal's handler may not do.
        let outcome = work.carry_out();
        FAILED.store(outcome.map_or_else(Errno::raw_os_error, |()| 0), Ordering::Relaxed);
        DONE.fetch_add(1, Ordering::Release);
    }
}

/// The threads of this process.
pub(crate) fn all() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The name of a thread.
pub(crate) fn name(thread: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
    name.map_or_else(|_| "it has ended".to_owned(), |name| name.trim().to_owned())
}

/// Has all other threads of this process do the work, one after the other. Threads that they make meanwhile do it, too.
pub(crate) fn everywhere_else(work: &Work) -> Result<(), PrivilegeError> {
    let _one = BUSY.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    let signal = libc::SIGRTMAX() - 1;
    let mut before = Handler::install(signal)?;
    WORK.store(std::ptr::from_ref(work).cast_mut(), Ordering::Release);
    let outcome = each(own, signal);
    if matches!(outcome, Err(PrivilegeError::Silent { .. })) {
        // It may still come: the work stays for it.
        WORK.store(Box::into_raw(Box::new(*work)), Ordering::Release);
        before.keep();
    } else {
        WORK.store(std::ptr::null_mut(), Ordering::Release);
    }
    outcome
}

fn each(own: i32, signal: c_int) -> Result<(), PrivilegeError> {
    let mut told = vec![own];
    // A thread that was made before its maker did the work has not done it: look again until there is no new one.
    while let Some(thread) = all().into_iter().find(|thread| !told.contains(thread)) {
        told.push(thread);
        tell(thread, signal)?;
    }
    Ok(())
}

fn tell(thread: i32, signal: c_int) -> Result<(), PrivilegeError> {
    let before = DONE.load(Ordering::Acquire);
    // SAFETY: sends a signal to a thread of this process that has a handler; numbers alone.
    let rc = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
    if rc != 0 {
        let error = std::io::Error::last_os_error();
        // It has ended meanwhile.
        return if error.raw_os_error() == Some(libc::ESRCH) {
            Ok(())
        } else {
            Err(PrivilegeError::Step { what: "signal a thread of this process", source: error })
        };
    }
    let until = Instant::now() + PATIENCE;
    while DONE.load(Ordering::Acquire) == before {
        if !std::path::Path::new(&format!("/proc/self/task/{thread}")).exists() {
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

/// The signal's handler, until it is dropped.
struct Handler {
    signal: c_int,
    before: Option<libc::sigaction>,
}

impl Handler {
    fn install(signal: c_int) -> Result<Self, PrivilegeError> {
        // SAFETY: plain integers and pointers, for which zero is a value.
        let (mut new, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        new.sa_sigaction = handle as extern "C" fn(c_int) as usize;
        // Calls that other threads wait in go on.
        new.sa_flags = libc::SA_RESTART;
        // SAFETY: both structures live; the handler is of the kind that these flags announce.
        let rc = unsafe { libc::sigaction(signal, &raw const new, &raw mut before) };
        if rc != 0 {
            let source = std::io::Error::last_os_error();
            return Err(PrivilegeError::Step { what: "handle a signal", source });
        }
        Ok(Self { signal, before: Some(before) })
    }

    /// It stays.
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
