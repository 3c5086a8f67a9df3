//! The system calls that a thread of the gateway makes once ports and devices are open, and their reasons.
//! Any other call kills the gateway.
//!
//! No list allows a thread to execute a program, to trace or signal another process, to mount, to change
//! users or capabilities, or to load a module. No thread can make memory executable ([`privileges::Filter`]).

use privileges::Call;

macro_rules! calls {
    ($($(#[$on:meta])? $name:ident $why:literal,)*) => {
        &[$($(#[$on])? Call { name: stringify!($name), number: libc::$name, why: $why },)*]
    };
}

/// Calls of any thread: it sleeps, takes a lock, allocates, logs, panics, exits.
pub(super) const ANY: &[Call] = calls![
    SYS_ppoll "sleep until a port reports a packet",
    #[cfg(target_arch = "x86_64")] SYS_poll "the same in libraries",
    SYS_futex "a lock that is taken: the software device's, the allocator's, standard error's",
    SYS_clock_nanosleep "a nap",
    SYS_nanosleep "sleep in DPDK",
    SYS_restart_syscall "sleep that a signal has interrupted",
    SYS_sched_yield "a lock that is taken, in DPDK and in the software device's lock",
    SYS_clock_gettime "time, on hosts where the vDSO cannot read the clock",
    SYS_gettimeofday "the same",
    SYS_read "wakeups: eventfd, timer; orders of EAL to an lcore that has no job",
    SYS_write "wakeups of other threads; answers to EAL; lines of the log",
    SYS_writev "lines of the log",
    SYS_sendto "the same, to the journal",
    SYS_mmap "memory: of the allocator, of a cable",
    SYS_munmap "the same",
    SYS_mremap "memory that grows",
    SYS_mprotect "a thread's heap that grows",
    SYS_madvise "memory that the allocator gives back",
    SYS_brk "the main heap",
    SYS_sched_getaffinity "a thread's heap: the allocator limits their number by that of the processors",
    SYS_getrandom "seeds of tables",
    SYS_close "a cable that is gone, a buffer's file",
    SYS_rt_sigreturn "the end of a signal's handler",
    SYS_rt_sigprocmask "abort after a panic",
    SYS_sigaltstack "the end of a thread",
    SYS_gettid "abort, and the name of a thread that panics",
    SYS_getpid "abort; events of DPDK",
    SYS_tgkill "abort",
    SYS_exit "the end of a thread",
    SYS_exit_group "the end of the gateway",
];

/// An iteration of the software ConnectX, made by the thread that polls it: its cables, which are reconnected
/// if they were lost, and its timers.
pub(super) const SOFTWARE_DEVICE: &[Call] = calls![
    SYS_socket "a cable is reconnected",
    SYS_bind "the same, over UDP",
    SYS_connect "the same",
    SYS_getsockname "the same",
    SYS_getsockopt "whether it was reached; errors that wait",
    SYS_setsockopt "sizes of its buffers",
    SYS_fcntl "seals of its memory, a descriptor that does not block",
    SYS_fstat "the size of its memory",
    SYS_recvmsg "its memory is handed over; wakeups",
    SYS_recvfrom "wakeups, packets over UDP",
    SYS_sendmsg "answers to the hello",
    SYS_sendto "wakeups of the other end, packets over UDP",
    SYS_recvmmsg "packets over UDP",
    SYS_sendmmsg "packets over UDP",
    SYS_epoll_create1 "what a worker sleeps on: cables and a timer",
    SYS_epoll_ctl "the same",
    SYS_epoll_pwait "the same",
    #[cfg(target_arch = "x86_64")] SYS_epoll_wait "the same",
    SYS_timerfd_create "the same",
    SYS_timerfd_settime "the same",
    SYS_eventfd2 "the same",
];

/// Bursts of drivers for interfaces of the kernel: `net_af_packet`, `net_af_xdp`, `net_pcap`, `net_tap`,
/// `net_virtio_user`, and bonds of these.
pub(super) const KERNEL_PORT: &[Call] = calls![
    SYS_sendto "frames are in the ring (net_af_packet, net_af_xdp), or a frame (net_pcap)",
    SYS_recvfrom "the kernel should fill the ring (net_af_xdp), or a frame (net_pcap)",
    SYS_readv "a frame, of net_tap",
    SYS_writev "a frame, to net_tap",
    SYS_getsockopt "an error that would wake again and again",
];

/// Bursts of drivers of adapters, and their interrupts.
pub(super) const ADAPTER_PORT: &[Call] = calls![
    SYS_pwrite64 "a queue is notified by a register of the bus (virtio before 1.0 on vfio)",
    SYS_sendto "a line of the log, of a driver that calls syslog(3) itself",
    SYS_ioctl "an interrupt is requested (vfio), or the kernel is notified of an adapter's queue",
    SYS_epoll_ctl "an interrupt that is waited for",
    SYS_epoll_pwait "the same",
    #[cfg(target_arch = "x86_64")] SYS_epoll_wait "the same",
];

/// Queues of devices of the host. The rings need no calls except for wakeups; libibverbs makes the calls of
/// its providers.
pub(super) const VERBS: &[Call] = calls![
    SYS_ioctl "a completion event is requested, a send of a provider without doorbells (soft-RoCE)",
];

/// The thread that writes captures: files of one directory.
pub(super) const CAPTURES: &[Call] = calls![
    SYS_openat "a capture's files, and the list of the directory",
    SYS_getdents64 "the list of the directory",
    SYS_fstat "files",
    SYS_newfstatat "files",
    SYS_flock "no other capture mistakes an open file for an abandoned one",
    SYS_fcntl "descriptors",
    SYS_lseek "files",
    #[cfg(target_arch = "x86_64")] SYS_open "the same as its successor",
    #[cfg(target_arch = "x86_64")] SYS_unlink "the oldest file of a capture is deleted",
    SYS_unlinkat "the same",
];

/// The thread that saves known hosts: two files of one directory.
pub(super) const HOSTS: &[Call] = calls![
    SYS_openat "the new file, and its directory",
    SYS_fcntl "descriptors",
    SYS_fsync "the file is on the disk before it replaces the previous one",
    #[cfg(target_arch = "x86_64")] SYS_rename "it replaces the previous one",
    SYS_renameat2 "the same",
    #[cfg(target_arch = "x86_64")] SYS_open "the same as its successor",
];

/// The control lcore, and with it the threads of DPDK: sockets, files, timers, memory, threads.
pub(super) const CONTROL: &[Call] = calls![
    SYS_epoll_create1 "the event loop",
    #[cfg(target_arch = "x86_64")] SYS_epoll_create "DPDK's interrupts, whenever one is added or removed",
    SYS_epoll_ctl "the same",
    SYS_epoll_pwait "the same",
    #[cfg(target_arch = "x86_64")] SYS_epoll_wait "the same",
    SYS_eventfd2 "the same",
    SYS_pipe2 "the same",
    SYS_timerfd_create "timers, alarms of DPDK",
    SYS_timerfd_settime "the same",
    SYS_timerfd_gettime "the same",
    SYS_rt_sigaction "SIGINT, SIGTERM, and at the end",
    SYS_rt_sigtimedwait "signals of libraries",
    SYS_socket "the state of a link is queried again; cables, rtnetlink",
    SYS_socketpair "signals of the event loop",
    SYS_bind "cables, rtnetlink",
    SYS_listen "cables",
    SYS_connect "cables, the service manager",
    SYS_accept4 "clients of the control socket",
    SYS_accept "clients of DPDK's telemetry",
    SYS_getsockname "the interface of a socket",
    SYS_getpeername "clients",
    SYS_getsockopt "errors, sizes of buffers",
    SYS_setsockopt "sizes of buffers",
    SYS_shutdown "clients",
    SYS_sendto "answers, the service manager, rtnetlink",
    SYS_sendmsg "the same",
    SYS_sendmmsg "cables over UDP",
    SYS_recvfrom "requests",
    SYS_recvmsg "processes of DPDK, memory of cables",
    SYS_recvmmsg "cables over UDP",
    SYS_openat "the configuration on reload, the report, sysfs; captures, on their thread",
    SYS_read "the same",
    SYS_pread64 "the same",
    SYS_readv "the same",
    SYS_pwrite64 "GID tables, the report",
    SYS_lseek "the same",
    SYS_ftruncate "GID tables that grow",
    SYS_fsync "the list of known hosts, on its thread",
    SYS_fallocate "the same",
    SYS_flock "the owner of a GID table; captures, on their thread",
    SYS_fchmod "the readers of a GID table",
    SYS_fcntl "descriptors",
    SYS_dup "descriptors of libraries",
    SYS_fstat "files",
    SYS_newfstatat "files",
    SYS_statx "files",
    SYS_statfs "hugepages",
    SYS_fstatfs "hugepages",
    SYS_faccessat "existing devices",
    SYS_faccessat2 "the same",
    SYS_readlinkat "the same",
    SYS_getdents64 "the same, and threads",
    SYS_getcwd "names of files in messages",
    SYS_unlinkat "sockets and files that are removed at exit",
    #[cfg(target_arch = "x86_64")] SYS_renameat "a GID table replaces the previous one",
    SYS_renameat2 "a GID table replaces the previous one",
    SYS_mkdirat "directories of these",
    SYS_ioctl "the carrier of an interface; verbs, vfio",
    #[cfg(target_arch = "x86_64")] SYS_open "the same as their successors, in libraries",
    #[cfg(target_arch = "x86_64")] SYS_stat "the same",
    #[cfg(target_arch = "x86_64")] SYS_lstat "the same",
    #[cfg(target_arch = "x86_64")] SYS_access "the same",
    #[cfg(target_arch = "x86_64")] SYS_readlink "the same",
    #[cfg(target_arch = "x86_64")] SYS_unlink "the same",
    #[cfg(target_arch = "x86_64")] SYS_rename "the same",
    #[cfg(target_arch = "x86_64")] SYS_mkdir "the same",
    #[cfg(target_arch = "x86_64")] SYS_pipe "the same",
    #[cfg(target_arch = "x86_64")] SYS_time "the same",
    SYS_memfd_create "memory of DPDK and of cables",
    SYS_mlock "memory that adapters read",
    SYS_munlock "the same",
    SYS_mbind "memory of DPDK by its socket",
    SYS_get_mempolicy "the same",
    SYS_set_mempolicy "the same",
    SYS_mincore "memory that an unwinder looks at",
    SYS_membarrier "quiescence in libraries",
    SYS_clone "a thread for each client of DPDK's telemetry",
    SYS_clone3 "the same",
    SYS_set_robust_list "the same",
    SYS_rseq "the same",
    SYS_prctl "its name, and no new privileges before a filter",
    SYS_seccomp "workers narrow their filters",
    SYS_sched_setaffinity "its processors",
    SYS_sched_getparam "the same",
    SYS_sched_getscheduler "the same",
    SYS_sched_setscheduler "the same",
    SYS_getuid "the owner of a GID table",
    SYS_geteuid "the same",
    SYS_getgid "the same",
    SYS_getegid "the same",
    SYS_getppid "its parent",
    SYS_uname "the kernel's version, for libraries",
    SYS_sysinfo "the same",
    SYS_prlimit64 "the same",
    SYS_getrusage "the same",
    SYS_getcpu "the same",
    SYS_clock_getres "the same",
    SYS_umask "the same",
    #[cfg(target_arch = "x86_64")] SYS_getrlimit "the same",
];

/// An AF_XDP port is closed.
pub(super) const XDP: &[Call] = calls![
    SYS_bpf "its map and program are removed",
    #[cfg(target_arch = "x86_64")] SYS_rmdir "a directory of libxdp's, where its programs were pinned",
];
