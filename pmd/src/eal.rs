//! The safe face of EAL, DPDK's environment: start, lcores, the time-stamp counter.
//!
//! EAL's arguments reach it unchanged. It pins the calling thread to the main lcore's CPU; a program whose main thread shall
//! roam says `--lcores '0@(0-1)'` with the CPUs that it may use.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use dpdk_sys as sys;

/// Why EAL did not start, or an lcore not work.
#[derive(Debug, thiserror::Error)]
pub enum EalError {
    /// EAL runs already; it can be started once in a process.
    #[error("EAL can be started once in a process, and has been")]
    Twice,
    /// An argument has a NUL byte.
    #[error("EAL argument {0:?} has a NUL byte")]
    Argument(String),
    /// No hugepages are free, and no argument asks for ordinary ones.
    #[error(
        "no hugepages are free: reserve some with `echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages` \
         (or `scripts/setup --hugepages 512`), or do without them: --no-huge -m 512"
    )]
    NoHugepages,
    /// Hugepages are there but no file system to make files in.
    #[error(
        "hugepages are reserved but no hugetlbfs is mounted: give EAL --in-memory, or \
         `mkdir -p /dev/hugepages && mount -t hugetlbfs nodev /dev/hugepages`"
    )]
    NoHugetlbfs,
    /// EAL refused; it has printed why.
    #[error(
        "EAL did not start: {reason}. Its own lines above name the argument; -l or -c must name CPUs that this machine \
         has ({cpus}), and --vdev a driver that is installed"
    )]
    Refused {
        /// EAL's word for it.
        reason: String,
        /// The CPUs that are online.
        cpus: String,
    },
    /// There is no such lcore, or it is at work.
    #[error("lcore {lcore}: {reason}")]
    Launch {
        /// The lcore.
        lcore: LcoreId,
        /// EAL's word for it.
        reason: String,
    },
    /// What ran on an lcore panicked.
    #[error("the worker on lcore {0} panicked")]
    Panicked(LcoreId),
}

/// Number of an lcore: a thread that EAL made and pinned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LcoreId(pub u32);

impl std::fmt::Display for LcoreId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// EAL, started. Dropping it ends it.
#[derive(Debug)]
pub struct Eal(());

static STARTED: AtomicBool = AtomicBool::new(false);

/// What `rte_errno` says on this thread.
pub(crate) fn last_error() -> String {
    // SAFETY: reads a thread-local number; the text is static or thread-local and copied at once.
    let (number, text) = unsafe {
        let number = sys::shim_errno();
        (number, CStr::from_ptr(sys::rte_strerror(number)))
    };
    if number == 0 { "no reason given".to_owned() } else { text.to_string_lossy().into_owned() }
}

impl Eal {
    /// Starts EAL with these arguments, program name first.
    pub fn init(arguments: impl IntoIterator<Item = String>) -> Result<Self, EalError> {
        let arguments: Vec<String> = arguments.into_iter().collect();
        check_hugepages(&arguments)?;
        let owned = arguments
            .iter()
            .map(|a| CString::new(a.as_str()).map_err(|_| EalError::Argument(a.clone())))
            .collect::<Result<Vec<_>, _>>()?;
        if STARTED.swap(true, Ordering::SeqCst) {
            return Err(EalError::Twice);
        }
        // EAL keeps pointers into its arguments.
        let mut argv: Vec<*mut c_char> = owned.into_iter().map(CString::into_raw).collect();
        let argc = argv.len() as c_int;
        argv.push(std::ptr::null_mut());
        // SAFETY: `argv` is a NULL-terminated list of C strings that live as long as the process; EAL starts once.
        let rc = unsafe { sys::rte_eal_init(argc, argv.leak().as_mut_ptr()) };
        if rc < 0 {
            return Err(EalError::Refused { reason: last_error(), cpus: online_cpus() });
        }
        Ok(Self(()))
    }

    /// The lcore of the calling program: it controls.
    #[must_use]
    pub fn main_lcore(&self) -> LcoreId {
        // SAFETY: EAL is started.
        LcoreId(unsafe { sys::rte_get_main_lcore() })
    }

    /// The other lcores: they forward.
    #[must_use]
    pub fn worker_lcores(&self) -> Vec<LcoreId> {
        let mut found = Vec::new();
        let mut at = u32::MAX;
        loop {
            // SAFETY: EAL is started; u32::MAX begins the walk.
            at = unsafe { sys::rte_get_next_lcore(at, 1, 0) };
            if at >= sys::SHIM_MAX_LCORE {
                return found;
            }
            found.push(LcoreId(at));
        }
    }

    /// Runs `body` on a worker lcore.
    pub fn launch<T: Send + 'static>(
        &self,
        lcore: LcoreId,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Result<LcoreJob<T>, EalError> {
        let (done, result) = mpsc::channel();
        let job: Job = Box::new(move || {
            // A panic must not unwind into C; whoever joins hears of it by the channel's end.
            if let Ok(value) = catch_unwind(AssertUnwindSafe(body)) {
                let _ = done.send(value);
            }
        });
        let argument = Box::into_raw(Box::new(job));
        // SAFETY: `run_job` takes the box back exactly once, unless the launch fails.
        let rc = unsafe { sys::rte_eal_remote_launch(Some(run_job), argument.cast::<c_void>(), lcore.0) };
        if rc != 0 {
            // SAFETY: the launch failed, so that the box is still ours.
            drop(unsafe { Box::from_raw(argument) });
            let reason =
                if rc == -libc::EBUSY { "it is at work already" } else { "there is no such worker lcore" };
            return Err(EalError::Launch { lcore, reason: reason.to_owned() });
        }
        Ok(LcoreJob { lcore, result })
    }
}

impl Drop for Eal {
    fn drop(&mut self) {
        // SAFETY: started, and ended once.
        unsafe { sys::rte_eal_cleanup() };
    }
}

type Job = Box<dyn FnOnce() + Send>;

unsafe extern "C" fn run_job(argument: *mut c_void) -> c_int {
    // SAFETY: `launch` made this pointer from a box and gave it away.
    let job = unsafe { Box::from_raw(argument.cast::<Job>()) };
    job();
    0
}

/// Something that runs on an lcore.
#[derive(Debug)]
pub struct LcoreJob<T> {
    lcore: LcoreId,
    result: mpsc::Receiver<T>,
}

impl<T> LcoreJob<T> {
    /// The lcore.
    #[must_use]
    pub const fn lcore(&self) -> LcoreId {
        self.lcore
    }

    /// Waits for its end.
    pub fn join(self) -> Result<T, EalError> {
        let result = self.result.recv();
        // SAFETY: EAL is started as long as anything runs on an lcore of its.
        unsafe { sys::rte_eal_wait_lcore(self.lcore.0) };
        result.map_err(|_| EalError::Panicked(self.lcore))
    }

    /// True if it has ended, well or not.
    #[must_use]
    pub fn is_over(&self) -> bool {
        // SAFETY: reads the state of an lcore.
        let state = unsafe { sys::rte_eal_get_lcore_state(self.lcore.0) };
        state == sys::WAIT
    }
}

/// Time-stamp counter.
#[must_use]
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: reads a register.
    unsafe { sys::shim_tsc() }
}

/// Its frequency; 0 before EAL has started.
#[must_use]
pub fn tsc_hz() -> u64 {
    // SAFETY: reads a number.
    unsafe { sys::rte_get_tsc_hz() }
}

/// EAL's message for missing hugepages is "permission denied"; find out before.
fn check_hugepages(arguments: &[String]) -> Result<(), EalError> {
    let has = |word: &str| arguments.iter().any(|a| a == word || a.starts_with(&format!("{word}=")));
    if has("--no-huge") {
        return Ok(());
    }
    let sizes = std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let free = sizes.filter_map(|size| {
        let text = std::fs::read_to_string(size.path().join("free_hugepages")).ok()?;
        text.trim().parse::<u64>().ok()
    });
    if free.sum::<u64>() == 0 {
        return Err(EalError::NoHugepages);
    }
    let mounted = has("--in-memory")
        || has("--huge-dir")
        || std::fs::read_to_string("/proc/mounts")
            .is_ok_and(|text| text.lines().any(|l| l.split(' ').nth(2) == Some("hugetlbfs")));
    if mounted { Ok(()) } else { Err(EalError::NoHugetlbfs) }
}

fn online_cpus() -> String {
    std::fs::read_to_string(Path::new("/sys/devices/system/cpu/online"))
        .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// For tests of all rooms: EAL without hugepages, PCI or files, started once in this process. It stays until exit.
#[doc(hidden)]
pub fn for_tests() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let words = "test --no-huge --no-shconf --no-pci -m 512 --no-telemetry -l 0 --log-level=error";
        match Eal::init(words.split(' ').map(str::to_owned)) {
            Ok(eal) => std::mem::forget(eal),
            Err(e) => {
                eprintln!("EAL did not start for the tests: {e}");
                std::process::abort();
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_once() {
        for_tests();
        assert!(matches!(Eal::init(["x", "--no-huge"].map(str::to_owned)), Err(EalError::Twice)));
        assert!(tsc_hz() > 1_000_000 && tsc() != tsc());
    }

    #[test]
    fn an_lcore_that_is_not_there_is_an_error() {
        for_tests();
        let eal = std::mem::ManuallyDrop::new(Eal(()));
        assert!(eal.worker_lcores().is_empty());
        assert!(matches!(eal.launch(LcoreId(77), || ()), Err(EalError::Launch { .. })));
    }
}
