//! Doorbell pages: write-protected memory in which each store is caught (SIGSEGV), executed with the
//! processor's trap flag set (SIGTRAP), and recorded. A device therefore sees every store, even consecutive
//! ones to the same register.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t, ucontext_t};

const PAGE: usize = 4096;
/// The processor's trap flag.
const TRAP_FLAG: i64 = 0x100;
/// Offset of the first register of a page, and length of a half. A doorbell is a store to the start of a
/// half. Further BlueFlame stores are a copy of the entry.
const FIRST_REGISTER: usize = 0x800;
const HALF: usize = 0x100;
/// Offset of the register that arms completion queues.
const ARM_REGISTER: usize = 0x20;
const PAGES: usize = 64;
const STORES: usize = 1 << 14;

/// A store to a doorbell register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Doorbell {
    /// Address of the page.
    pub(crate) page: usize,
    /// Offset of the store in it.
    pub(crate) offset: usize,
    /// The first eight bytes there, after the store.
    pub(crate) bytes: [u8; 8],
}

impl Doorbell {
    /// Returns the queue pair: a doorbell is the start of a control segment.
    pub(crate) fn qpn(&self) -> u32 {
        u32::from_be_bytes([0, self.bytes[4], self.bytes[5], self.bytes[6]])
    }

    /// Returns the armed completion queue and the consumer index, or `None` for a send.
    pub(crate) fn arms(&self) -> Option<(u32, u32)> {
        let word =
            |at: usize| u32::from_be_bytes([0, self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]]);
        (self.offset == ARM_REGISTER).then(|| (word(4), word(0)))
    }

    /// Address of the register, whose halves are written alternately.
    pub(crate) fn register(&self) -> usize {
        self.page + (self.offset & !(2 * HALF - 1))
    }
}

static GUARDED: [AtomicUsize; PAGES] = [const { AtomicUsize::new(0) }; PAGES];
static ADDRESSES: [AtomicUsize; STORES] = [const { AtomicUsize::new(0) }; STORES];
static VALUES: [AtomicU64; STORES] = [const { AtomicU64::new(0) }; STORES];
/// Numbers of stores recorded and taken so far.
static NOTED: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Index of the store that is being executed.
    static UNDER_WAY: Cell<usize> = const { Cell::new(0) };
}

fn protect(page: usize, protection: c_int) {
    // SAFETY: a whole page that `new_page` has mapped.
    unsafe { libc::syscall(libc::SYS_mprotect, page, PAGE, protection) };
}

fn guarded(address: usize) -> bool {
    is_page(address & !(PAGE - 1))
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives both to a handler of this kind.
    let (address, context) = unsafe { ((*info).si_addr() as usize, &mut *context.cast::<ucontext_t>()) };
    if !guarded(address) {
        // Not a doorbell page: without the handler the fault repeats and kills the program.
        // SAFETY: takes the handler away.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    protect(address & !(PAGE - 1), libc::PROT_READ | libc::PROT_WRITE);
    UNDER_WAY.with(|cell| cell.set(address));
    context.uc_mcontext.gregs[libc::REG_EFL as usize] |= TRAP_FLAG;
}

extern "C" fn on_step(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives it to a handler of this kind.
    let context = unsafe { &mut *context.cast::<ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_EFL as usize] &= !TRAP_FLAG;
    let address = UNDER_WAY.with(|cell| cell.replace(0));
    let offset = address & (PAGE - 1);
    if offset == ARM_REGISTER || offset >= FIRST_REGISTER && offset.is_multiple_of(HALF) {
        let at = NOTED.fetch_add(1, Ordering::AcqRel) % STORES;
        // SAFETY: within a mapped page.
        VALUES[at].store(unsafe { (address as *const u64).read_volatile() }, Ordering::Release);
        ADDRESSES[at].store(address, Ordering::Release);
    }
    protect(address & !(PAGE - 1), libc::PROT_READ);
}

/// Installs the handlers.
pub(super) fn catch() {
    for (signal, handler) in [
        (libc::SIGSEGV, on_fault as extern "C" fn(c_int, *mut siginfo_t, *mut c_void)),
        (libc::SIGTRAP, on_step),
    ] {
        // SAFETY: all zeros is an empty set of signals and no flags; the handlers only make system calls.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
        }
    }
}

/// Allocates a doorbell page. Stores to it are caught if `caught` is true.
pub(super) fn new_page(caught: bool) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let protection = if caught { libc::PROT_READ } else { libc::PROT_READ | libc::PROT_WRITE };
    // SAFETY: new memory.
    let page = unsafe { libc::syscall(libc::SYS_mmap, 0, PAGE, protection, flags, -1, 0) } as usize;
    if caught {
        let free = GUARDED.iter().find(|known| known.load(Ordering::Acquire) == 0);
        free.expect("fewer pages").store(page, Ordering::Release);
    }
    page
}

/// True if stores to this page are caught.
pub(super) fn is_page(page: usize) -> bool {
    page != 0 && GUARDED.iter().any(|known| known.load(Ordering::Acquire) == page)
}

/// Removes an unmapped page.
pub(super) fn forget_page(page: usize) {
    for known in GUARDED.iter().filter(|known| known.load(Ordering::Acquire) == page) {
        known.store(0, Ordering::Release);
    }
}

/// Takes the stores since the last call, oldest first. Only one thread calls it.
pub(super) fn take() -> Vec<Doorbell> {
    let mut stores = Vec::new();
    loop {
        let at = TAKEN.load(Ordering::Acquire) % STORES;
        // Empty, or not written yet.
        let address = ADDRESSES[at].swap(0, Ordering::AcqRel);
        if address == 0 {
            return stores;
        }
        TAKEN.fetch_add(1, Ordering::AcqRel);
        let left = NOTED.load(Ordering::Acquire) - TAKEN.load(Ordering::Acquire);
        assert!(left < STORES, "doorbells were not taken in time");
        stores.push(Doorbell {
            page: address & !(PAGE - 1),
            offset: address & (PAGE - 1),
            bytes: VALUES[at].load(Ordering::Acquire).to_ne_bytes(),
        });
    }
}
