//! Replacements of libc functions: these symbols of the program precede the library's own. Unrelated calls
//! are passed to the real kernel.

use std::ffi::CStr;
use std::sync::atomic::{AtomicI16, Ordering};

use libc::{c_char, c_int, c_uint, c_ulong, c_void, off_t, size_t, ssize_t};

use super::{command, devices, end_page};

/// The netlink family of RDMA. It is rejected so that libibverbs looks for devices in the file system.
const NETLINK_RDMA: c_int = 20;
const INTERFACE: &[u8] = b"/dev/infiniband/uverbs";
/// The file that replaces it.
const BACKING: &CStr = c"/dev/null";

const DESCRIPTORS: usize = 1024;
/// Role of each descriptor: 0 none, `n` the interface of device `n - 1`, `-n` its events.
static ROLES: [AtomicI16; DESCRIPTORS] = [const { AtomicI16::new(0) }; DESCRIPTORS];

fn role(fd: c_int) -> i16 {
    usize::try_from(fd).ok().and_then(|fd| ROLES.get(fd)).map_or(0, |role| role.load(Ordering::Acquire))
}

fn set_role(fd: c_int, to: i16) {
    if let Some(role) = usize::try_from(fd).ok().and_then(|fd| ROLES.get(fd)) {
        role.store(to, Ordering::Release);
    }
}

/// Creates a descriptor for a device's events.
pub(super) fn event_descriptor(device: usize) -> c_int {
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    set_role(fd, -(device as i16 + 1));
    fd
}

/// Creates a pipe. Returns the read end and the write end.
pub(super) fn pipe() -> (c_int, c_int) {
    let mut ends = [0; 2];
    // SAFETY: room for two.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    (ends[0], ends[1])
}

/// Drains a nonblocking pipe. Returns the number of 8-byte words.
pub(super) fn drain(fd: c_int) -> u32 {
    let mut word = [0_u8; 8];
    // SAFETY: the word has room for `word.len()` bytes.
    let take = || unsafe { libc::syscall(libc::SYS_read, fd, word.as_mut_ptr(), word.len()) };
    std::iter::repeat_with(take).take_while(|n| *n == 8).count() as u32
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Returns the device whose interface a path refers to.
///
/// # Safety
///
/// `path` is a C string, or null.
unsafe fn interface(path: *const c_char) -> Option<i16> {
    if path.is_null() {
        return None;
    }
    // SAFETY: by the contract of this function.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    std::str::from_utf8(path.strip_prefix(INTERFACE)?).ok()?.parse().ok()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller's path.
    let device = unsafe { interface(path) };
    let real = if device.is_some() { BACKING.as_ptr() } else { path };
    // SAFETY: the caller's arguments; the mode is read only if there is one.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, real, flags, mode) } as c_int;
    set_role(fd, device.map_or(0, |device| device + 1));
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C" fn stat(path: *const c_char, buf: *mut libc::stat) -> c_int {
    // SAFETY: the caller's path and buffer.
    unsafe {
        let real = if interface(path).is_some() { BACKING.as_ptr() } else { path };
        libc::fstatat(libc::AT_FDCWD, real, buf, 0)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    set_role(fd, 0);
    // SAFETY: the caller's descriptor.
    unsafe { libc::syscall(libc::SYS_close, fd) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let device = role(fd);
    if device <= 0 || request != c_ulong::from(uverbs_sys::REQUEST_VERBS) {
        // SAFETY: the caller's arguments.
        return unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) as c_int };
    }
    let index = device as usize - 1;
    let mut devices = devices();
    // SAFETY: the library's request, in the form of the kernel's header.
    match unsafe { command::request(&mut devices[index], argument.cast()) } {
        Ok(()) => 0,
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let device = role(fd);
    if device <= 0 {
        // SAFETY: the caller's arguments.
        return unsafe { libc::syscall(libc::SYS_mmap, address, len, protection, flags, fd, offset) }
            as *mut c_void;
    }
    match devices()[device as usize - 1].map_page(offset as u64) {
        Some(page) => page as *mut c_void,
        None => {
            fail(libc::EINVAL);
            libc::MAP_FAILED
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, len: size_t) -> c_int {
    end_page(address as usize);
    // SAFETY: the caller's arguments.
    unsafe { libc::syscall(libc::SYS_munmap, address, len) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    let device = role(fd);
    if device >= 0 {
        // SAFETY: the caller's arguments.
        return unsafe { libc::syscall(libc::SYS_read, fd, into, len) as ssize_t };
    }
    let event = devices()[usize::from((-device) as u16) - 1].take_event();
    let Some(event) = event else { return fail(libc::EAGAIN) as ssize_t };
    assert!(len >= size_of_val(&event));
    // SAFETY: the caller's buffer has room for `len` bytes.
    unsafe { into.cast::<uverbs_sys::ib_uverbs_async_event_desc>().write_unaligned(event) };
    size_of_val(&event) as ssize_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        return fail(libc::EPROTONOSUPPORT);
    }
    // SAFETY: no memory is involved.
    unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as c_int }
}
