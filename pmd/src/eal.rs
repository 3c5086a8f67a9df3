//! Safe interface to EAL, DPDK's environment abstraction layer: initialization, lcores and the time-stamp
//! counter.
//!
//! Arguments are passed to EAL unchanged. EAL pins the calling thread to the main lcore's CPU. To let the
//! main thread move between CPUs, pass `--lcores '0@(0-1)'` with the allowed CPUs.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use dpdk_sys as sys;
use parking_lot::Mutex;

mod check;
mod life;

pub(crate) use life::Hold;

/// Reason why EAL did not start or an lcore could not be used.
#[derive(Debug, thiserror::Error)]
pub enum EalError {
    /// EAL was started before. It can start only once per process.
    #[error("EAL can be started once in a process, and has been")]
    Twice,
    /// An argument contains a NUL byte.
    #[error("EAL argument {0:?} has a NUL byte")]
    Argument(String),
    /// No hugepages are free, and the arguments do not request normal pages.
    #[error(
        "no hugepages are free: reserve some with `echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages` \
         (or `scripts/setup --hugepages 512`), or do without them: --no-huge -m 512"
    )]
    NoHugepages,
    /// Hugepages are reserved, but no hugetlbfs is mounted.
    #[error(
        "hugepages are reserved but no hugetlbfs is mounted: give EAL --in-memory, or \
         `mkdir -p /dev/hugepages && mount -t hugetlbfs nodev /dev/hugepages`"
    )]
    NoHugetlbfs,
    /// `-l` or `-c` names a CPU that is not online.
    #[error("CPU {cpu} is not online: -l and -c may name {online}")]
    Cpu {
        /// The CPU.
        cpu: u32,
        /// The CPUs that are online.
        online: String,
    },
    /// `--vdev` names a driver that is not installed.
    #[error(
        "no driver is installed for --vdev {name}: a name is a driver's and a number, as net_af_packet0; there are \
         {drivers} (more are in Debian's librte-net-* packages)"
    )]
    Vdev {
        /// Name of the device.
        name: String,
        /// Drivers of software devices that are installed.
        drivers: String,
    },
    /// `--proc-type` requests a secondary process, or would create one because a primary is running.
    #[error(
        "--proc-type {0}: this program cannot run as a secondary EAL process: queues and buffers belong to the process that made them. Leave \
         --proc-type out, and give another running DPDK program another --file-prefix"
    )]
    Secondary(String),
    /// EAL failed to start and has printed the reason.
    #[error(
        "EAL did not start: {reason}. Its own lines above name the cause. Common ones: -l, -c or --lcores name CPUs that \
         this machine does not have ({cpus}); another DPDK process has the same --file-prefix; too few hugepages are free"
    )]
    Refused {
        /// EAL's error text.
        reason: String,
        /// The CPUs that are online.
        cpus: String,
    },
    /// The lcore does not exist or is busy.
    #[error("lcore {lcore}: {reason}")]
    Launch {
        /// The lcore.
        lcore: LcoreId,
        /// EAL's error text.
        reason: String,
    },
    /// The function on an lcore panicked.
    #[error("the worker on lcore {0} panicked")]
    Panicked(LcoreId),
}

/// Number of an lcore, a thread that EAL created and pinned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LcoreId(pub u32);

impl std::fmt::Display for LcoreId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A started EAL. Dropping it cleans EAL up, unless a pool, a port or a job still needs its memory. In that
/// case the memory stays until the process exits.
#[derive(Debug)]
pub struct Eal(());

/// EAL was started for tests by a thread that has exited, so that no thread is the main lcore.
static NO_MAIN: AtomicBool = AtomicBool::new(false);

/// EAL's arguments. EAL keeps pointers into them; this static keeps leak checkers from reporting them.
static ARGUMENTS: AtomicPtr<*mut c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Serializes launches: EAL checks that an lcore is idle and assigns work in two steps.
static LAUNCH: Mutex<()> = Mutex::new(());

/// True if no other thread can be inside a per-lcore cache.
///
/// That is the case if no worker is busy and the caller is not a busy EAL thread itself. Only EAL's lcores
/// have caches.
pub(crate) fn caches_are_still() -> bool {
    // SAFETY: reads a thread-local number.
    let here = unsafe { sys::shim_lcore_id() };
    // SAFETY: reads a number.
    let main = unsafe { sys::rte_get_main_lcore() };
    let mut at = u32::MAX;
    loop {
        // SAFETY: u32::MAX begins the walk over EAL's workers.
        at = unsafe { sys::rte_get_next_lcore(at, 1, 0) };
        if at >= sys::SHIM_MAX_LCORE {
            return here == main || NO_MAIN.load(Ordering::Relaxed);
        }
        // SAFETY: `at` is a worker lcore.
        if unsafe { sys::rte_eal_get_lcore_state(at) } != sys::WAIT {
            return false;
        }
    }
}

/// Returns the text of this thread's `rte_errno`.
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
    ///
    /// EAL logs only to standard error. SIGHUP, SIGINT and SIGTERM are blocked in its threads, so that the
    /// program receives them.
    pub fn init(arguments: impl IntoIterator<Item = String>) -> Result<Self, EalError> {
        let arguments: Vec<String> = arguments.into_iter().collect();
        check::cpus(&arguments, &check::online_cpus())?;
        check::process_type(&arguments)?;
        check::vdevs(&arguments, check::plugins())?;
        check::hugepages(&arguments)?;
        for directory in check::locked_directories(&arguments, &check::mounts()) {
            tracing::warn!(
                "{}: another process has locked this directory, and EAL waits until it is unlocked; if no DPDK program is \
                 starting, stop that process (lslocks lists it), or use --in-memory",
                directory.display()
            );
        }
        let owned = arguments
            .iter()
            .map(|a| CString::new(a.as_str()).map_err(|_| EalError::Argument(a.clone())))
            .collect::<Result<Vec<_>, _>>()?;
        if !life::begin() {
            return Err(EalError::Twice);
        }
        // EAL keeps pointers into its arguments.
        let mut argv: Vec<*mut c_char> = owned.into_iter().map(CString::into_raw).collect();
        let argc = argv.len() as c_int;
        argv.push(std::ptr::null_mut());
        let argv = argv.leak().as_mut_ptr();
        ARGUMENTS.store(argv, Ordering::Relaxed);
        // SAFETY: `argv` is a NULL-terminated list of C strings that live as long as the process; EAL starts
        // only once.
        let rc = unsafe { sys::shim_eal_init(argc, argv) };
        if rc < 0 {
            return Err(EalError::Refused { reason: last_error(), cpus: check::online_cpus() });
        }
        life::started();
        Ok(Self(()))
    }

    /// Excludes the memory that EAL has allocated so far, mainly packet buffers, from core dumps.
    pub fn leave_out_of_cores(&self) -> std::io::Result<()> {
        // SAFETY: EAL is started; an advice to the kernel, which changes no memory.
        let rc = unsafe { sys::shim_leave_out_of_cores() };
        if rc == 0 { Ok(()) } else { Err(std::io::Error::from_raw_os_error(-rc)) }
    }

    /// Returns the main lcore, which runs the control path.
    #[must_use]
    pub fn main_lcore(&self) -> LcoreId {
        // SAFETY: EAL is started.
        LcoreId(unsafe { sys::rte_get_main_lcore() })
    }

    /// Returns the worker lcores, which forward packets.
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

    /// Waits until EAL's interrupt thread has run all alarms that are due within `time` from now, those of drivers for instance. False
    /// if it does not run any.
    #[must_use]
    pub fn wait_for_alarms(&self, time: Duration) -> bool {
        let (done, waits) = mpsc::channel::<()>();
        let argument = Box::into_raw(Box::new(done));
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        // SAFETY: EAL is started; the callback runs at most once and takes the box back.
        if unsafe { sys::rte_eal_alarm_set(micros, Some(alarm), argument.cast::<c_void>()) } != 0 {
            // SAFETY: the alarm was refused, so that the box is still ours.
            drop(unsafe { Box::from_raw(argument) });
            return false;
        }
        waits.recv_timeout(time.saturating_add(ALARM_TIMEOUT)).is_ok()
    }

    /// Runs `body` on a worker lcore.
    pub fn launch<T: Send + 'static>(
        &self,
        lcore: LcoreId,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Result<LcoreJob<T>, EalError> {
        let (done, result) = mpsc::channel();
        let hold = Hold::take();
        let job: Job = Box::new(move || {
            // A panic must not unwind into C. The joining thread detects it because the channel closes.
            let value = catch_unwind(AssertUnwindSafe(body));
            drop(hold);
            if let Ok(value) = value {
                let _ = done.send(value);
            }
        });
        let _one_at_a_time = LAUNCH.lock();
        let argument = Box::into_raw(Box::new(job));
        // SAFETY: `run_job` takes the box back exactly once, unless the launch fails.
        let rc = unsafe { sys::rte_eal_remote_launch(Some(run_job), argument.cast::<c_void>(), lcore.0) };
        if rc != 0 {
            // SAFETY: the launch failed, so the worker did not take the box.
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
        crate::mem::free_late();
        life::end(|| {
            // SAFETY: EAL was started and is stopped only once; nobody holds its memory.
            unsafe { sys::rte_eal_cleanup() };
        });
    }
}

/// How late EAL's interrupt thread may be.
const ALARM_TIMEOUT: Duration = Duration::from_secs(60);

/// Alarms run one after the other, in the order in which they are due: those before this one are done.
unsafe extern "C" fn alarm(argument: *mut c_void) {
    // SAFETY: `wait_for_alarms` made this pointer from a box and gave it away.
    let done = unsafe { Box::from_raw(argument.cast::<mpsc::Sender<()>>()) };
    // A receiver that no longer waits is no failure.
    let _ = done.send(());
}

type Job = Box<dyn FnOnce() + Send>;

unsafe extern "C" fn run_job(argument: *mut c_void) -> c_int {
    // SAFETY: `launch` made this pointer from a box and gave it away.
    let job = unsafe { Box::from_raw(argument.cast::<Job>()) };
    job();
    0
}

/// A job that runs on an lcore.
#[derive(Debug)]
pub struct LcoreJob<T> {
    lcore: LcoreId,
    result: mpsc::Receiver<T>,
}

impl<T> LcoreJob<T> {
    /// Returns the lcore.
    #[must_use]
    pub const fn lcore(&self) -> LcoreId {
        self.lcore
    }

    /// Waits for the job to finish.
    pub fn join(self) -> Result<T, EalError> {
        let result = self.result.recv();
        // SAFETY: EAL is started as long as anything runs on an lcore of its.
        unsafe { sys::rte_eal_wait_lcore(self.lcore.0) };
        result.map_err(|_| EalError::Panicked(self.lcore))
    }

    /// True if the job has finished, successfully or not.
    #[must_use]
    pub fn is_over(&self) -> bool {
        // SAFETY: reads the state of an lcore.
        let state = unsafe { sys::rte_eal_get_lcore_state(self.lcore.0) };
        state == sys::WAIT
    }
}

/// Reads the time-stamp counter.
#[must_use]
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: reads a register.
    unsafe { sys::shim_tsc() }
}

/// Returns the frequency of the time-stamp counter, or 0 before EAL has started.
#[must_use]
pub fn tsc_hz() -> u64 {
    // SAFETY: reads a number.
    unsafe { sys::rte_get_tsc_hz() }
}

/// Starts EAL once in this process for tests of all crates, without hugepages, PCI devices or files. It runs
/// until the process exits.
#[doc(hidden)]
pub fn for_tests() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // The lcore may be any CPU available to this process: a test thread and its children must not be
        // pinned.
        let words = "test --no-huge --no-shconf --no-pci -m 512 --no-telemetry --log-level=error";
        let lcores = format!("--lcores=0@({})", check::allowed_cpus());
        let words = words.split(' ').map(str::to_owned).chain([lcores]);
        // On a separate thread: the thread that starts EAL becomes the main lcore, and tests have none.
        let outcome = std::thread::spawn(|| Eal::init(words).map(std::mem::forget)).join();
        NO_MAIN.store(true, Ordering::Relaxed);
        if !matches!(outcome, Ok(Ok(()))) {
            eprintln!("EAL did not start for the tests: {outcome:?}");
            std::process::abort();
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
    fn alarms_that_are_due_earlier_have_run_when_the_wait_ends() {
        static RAN: AtomicBool = AtomicBool::new(false);
        unsafe extern "C" fn earlier(_: *mut c_void) {
            // The next alarm waits for this one's end.
            std::thread::sleep(Duration::from_millis(200));
            RAN.store(true, Ordering::Relaxed);
        }
        for_tests();
        let eal = std::mem::ManuallyDrop::new(Eal(()));
        // SAFETY: EAL is started; the callback takes no argument.
        let rc = unsafe { sys::rte_eal_alarm_set(1000, Some(earlier), std::ptr::null_mut()) };
        assert_eq!(rc, 0);
        assert!(eal.wait_for_alarms(Duration::from_millis(50)) && RAN.load(Ordering::Relaxed));
    }

    #[test]
    fn an_lcore_that_is_not_there_is_an_error() {
        for_tests();
        let eal = std::mem::ManuallyDrop::new(Eal(()));
        assert!(eal.worker_lcores().is_empty());
        assert!(matches!(eal.launch(LcoreId(77), || ()), Err(EalError::Launch { .. })));
    }
}
