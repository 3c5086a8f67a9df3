//! Which system calls a thread of the gateway makes once ports and devices are open, and why. Any other one ends the gateway.
//!
//! Not here, for nobody: to execute a program, to trace or signal another process, to mount, to change users or capabilities, to load
//! a module. Nor can anybody make memory executable ([`privileges::Filter`]).

use privileges::Call;

macro_rules! calls {
    ($($(#[$on:meta])? $name:ident $why:literal,)*) => {
        &[$($(#[$on])? Call { name: stringify!($name), number: libc::$name, why: $why },)*]
    };
}

/// What each thread may come to: it rests, it takes a lock, it allocates, it logs, it panics, it ends.
pub(super) const ANY: &[Call] = calls![
    SYS_ppoll "a rest, until a port tells of a packet",
    #[cfg(target_arch = "x86_64")] SYS_poll "the same in libraries",
    SYS_futex "a lock that is taken: the software device's, the allocator's, standard error's",
    SYS_clock_nanosleep "a nap",
    SYS_nanosleep "a nap of DPDK's",
    SYS_restart_syscall "a nap that a signal has interrupted",
    SYS_sched_yield "a lock that is taken, in DPDK and in the software device's lock",
    SYS_clock_gettime "time, where the machine cannot tell it without a call",
    SYS_gettimeofday "the same",
    SYS_read "what woke it: eventfd, timer; orders of EAL to an lcore that has no job",
    SYS_write "what wakes others; answers to EAL; lines of the log",
    SYS_writev "lines of the log",
    SYS_sendto "the same, to the journal",
    SYS_mmap "memory: of the allocator, of a cable",
    SYS_munmap "the same",
    SYS_mremap "memory that grows",
    SYS_mprotect "a thread's heap that grows",
    SYS_madvise "memory that the allocator gives back",
    SYS_brk "the main heap",
    SYS_sched_getaffinity "a thread's heap, which the allocator makes as many of as there are processors",
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

/// A turn of the software ConnectX, which whoever polls it takes: its cables, dialled again where they were lost, and its timers.
pub(super) const SOFTWARE_DEVICE: &[Call] = calls![
    SYS_socket "a cable is dialled again",
    SYS_bind "the same, over UDP",
    SYS_connect "the same",
    SYS_getsockname "the same",
    SYS_getsockopt "whether it was reached; errors that wait",
    SYS_setsockopt "sizes of its buffers",
    SYS_fcntl "seals of its memory, a descriptor that does not block",
    SYS_fstat "the size of its memory",
    SYS_recvmsg "its memory is handed over; what wakes",
    SYS_recvfrom "what wakes, packets over UDP",
    SYS_sendmsg "answers to the hello",
    SYS_sendto "what wakes the other end, packets over UDP",
    SYS_recvmmsg "packets over UDP",
    SYS_sendmmsg "packets over UDP",
    SYS_epoll_create1 "what a worker rests on: cables and a timer",
    SYS_epoll_ctl "the same",
    SYS_epoll_pwait "the same",
    #[cfg(target_arch = "x86_64")] SYS_epoll_wait "the same",
    SYS_timerfd_create "the same",
    SYS_timerfd_settime "the same",
    SYS_eventfd2 "the same",
];

/// Bursts of drivers for interfaces of the kernel: `net_af_packet`, `net_af_xdp`, `net_pcap`, `net_tap`, `net_virtio_user`, and bonds of these.
pub(super) const KERNEL_PORT: &[Call] = calls![
    SYS_sendto "frames are in the ring (net_af_packet, net_af_xdp), or a frame (net_pcap)",
    SYS_recvfrom "the kernel is to fill the ring (net_af_xdp), or a frame (net_pcap)",
    SYS_readv "a frame, of net_tap",
    SYS_writev "a frame, to net_tap",
    SYS_getsockopt "an error that would wake again and again",
];

/// Bursts of drivers of adapters, and their interrupts.
pub(super) const ADAPTER_PORT: &[Call] = calls![
    SYS_pwrite64 "a queue is told of by a register of the bus (virtio before 1.0 on vfio)",
    SYS_sendto "a line of the log, of a driver that calls syslog(3) itself",
    SYS_ioctl "an interrupt is asked for (vfio), or an adapter's queue is told of to the kernel",
    SYS_epoll_ctl "an interrupt that is waited for",
    SYS_epoll_pwait "the same",
    #[cfg(target_arch = "x86_64")] SYS_epoll_wait "the same",
];

/// Queues of devices of the machine: the rings take none but to be woken, libibverbs' calls those of its providers.
pub(super) const VERBS: &[Call] = calls![
    SYS_ioctl "a completion is asked to be told of, a send of a provider without doorbells (soft-RoCE)",
];

/// The thread that writes captures: files of one directory.
pub(super) const CAPTURES: &[Call] = calls![
    SYS_openat "a capture's files, and the list of the directory",
    SYS_getdents64 "the list of the directory",
    SYS_fstat "files",
    SYS_newfstatat "files",
    SYS_flock "no other capture takes a file that is open for one that was left",
    SYS_fcntl "descriptors",
    SYS_lseek "files",
    #[cfg(target_arch = "x86_64")] SYS_open "the same as its successor",
    #[cfg(target_arch = "x86_64")] SYS_unlink "the oldest file of a capture goes",
    SYS_unlinkat "the same",
];

/// The thread that keeps known hosts: two files of one directory.
pub(super) const HOSTS: &[Call] = calls![
    SYS_openat "the new file, and its directory",
    SYS_fcntl "descriptors",
    SYS_fsync "the file is on the disk before it takes the place of the one before",
    #[cfg(target_arch = "x86_64")] SYS_rename "it takes that place",
    SYS_renameat2 "the same",
    #[cfg(target_arch = "x86_64")] SYS_open "the same as its successor",
];

/// The control lcore, and with it the threads of DPDK: sockets, files, timers, memory, threads.
pub(super) const CONTROL: &[Call] = calls![
    SYS_epoll_create1 "the event loop",
    #[cfg(target_arch = "x86_64")] SYS_epoll_create "DPDK's interrupts, whenever one comes or goes",
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
    SYS_socket "whether a link is up is asked anew; cables, rtnetlink",
    SYS_socketpair "signals of the event loop",
    SYS_bind "cables, rtnetlink",
    SYS_listen "cables",
    SYS_connect "cables, the service manager",
    SYS_accept4 "clients of the control socket",
    SYS_accept "clients of DPDK's telemetry",
    SYS_getsockname "which interface a socket is of",
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
    SYS_openat "the configuration that is read again, the report, sysfs; captures, on their thread",
    SYS_read "the same",
    SYS_pread64 "the same",
    SYS_readv "the same",
    SYS_pwrite64 "GID tables, the report",
    SYS_lseek "the same",
    SYS_ftruncate "GID tables that grow",
    SYS_fsync "the list of known hosts, on its thread",
    SYS_fallocate "the same",
    SYS_flock "who maintains a GID table; captures, on their thread",
    SYS_fchmod "who reads a GID table",
    SYS_fcntl "descriptors",
    SYS_dup "descriptors of libraries",
    SYS_fstat "files",
    SYS_newfstatat "files",
    SYS_statx "files",
    SYS_statfs "hugepages",
    SYS_fstatfs "hugepages",
    SYS_faccessat "which devices there are",
    SYS_faccessat2 "the same",
    SYS_readlinkat "the same",
    SYS_getdents64 "the same, and threads",
    SYS_getcwd "names of files in messages",
    SYS_unlinkat "sockets and files that end with the gateway",
    #[cfg(target_arch = "x86_64")] SYS_renameat "a GID table in its place",
    SYS_renameat2 "a GID table in its place",
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
    SYS_sched_setaffinity "where it runs",
    SYS_sched_getparam "the same",
    SYS_sched_getscheduler "the same",
    SYS_sched_setscheduler "the same",
    SYS_getuid "who maintains a GID table",
    SYS_geteuid "the same",
    SYS_getgid "the same",
    SYS_getegid "the same",
    SYS_getppid "whose child it is",
    SYS_uname "what libraries go by",
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
    SYS_bpf "its map and program go",
    #[cfg(target_arch = "x86_64")] SYS_rmdir "a directory of libxdp's, where its programs were held",
];
