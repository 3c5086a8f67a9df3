//! Privileges of the gateway after its ports and devices are open: the control lcore keeps those that these
//! need, all other threads none.

mod calls;
mod panics;

use config::{Config, Gateway, Seccomp};
use dataplane::telemetry::Access;
use pmd::eal::{Eal, LcoreId};
use privileges::{Call, CapabilitySet, Cores, Filter, GroupId, Keep, User, Violation};

use super::devices::Devices;
use super::error::{GatewayError, Places};

/// A capability that the control lcore keeps, and the reason.
type Reason = (CapabilitySet, &'static str);

/// Drivers of Ethernet ports with which the end-to-end checks run gateways under these lists.
const TRIED: &[&str] = &["net_af_packet", "net_af_xdp", "net_bonding", "net_null", "net_pcap", "net_tap"];

/// System calls of the thread that writes captures.
const CAPTURES: &[&[Call]] = &[calls::ANY, calls::CAPTURES];

/// System calls of the thread that saves known hosts.
const HOSTS: &[&[Call]] = &[calls::ANY, calls::HOSTS];

/// Filters that threads apply to themselves.
#[derive(Debug)]
pub(super) struct OwnFilters {
    /// For the thread that writes captures.
    pub(super) captures: Filter,
    /// For the thread that saves known hosts.
    pub(super) hosts: Filter,
}

/// The driver of the InfiniBand ports, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Driver {
    Soft,
    Mlx5,
    Verbs,
}

/// User and group of the gateway, looked up before anything is opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Privileges {
    user: Option<User>,
    group: Option<GroupId>,
    driver: Driver,
}

impl Privileges {
    /// User and group as configured. From now on, files that this process creates are accessible to their
    /// user only.
    pub(super) fn configured(
        gateway: &Gateway,
        devices: &Devices,
        places: &Places,
    ) -> Result<Self, GatewayError> {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let driver = match devices {
            Devices::Soft(_) => Driver::Soft,
            Devices::Mlx5(_) => Driver::Mlx5,
            Devices::Verbs(_) => Driver::Verbs,
        };
        let find = |name: &Option<String>| name.as_deref().map(privileges::user).transpose();
        let user = find(&gateway.user).map_err(|e| places.at("gateway.user", None, e))?;
        let find = |name: &Option<String>| name.as_deref().map(privileges::group).transpose();
        let group = find(&gateway.group).map_err(|e| places.at("gateway.group", None, e))?;
        for (key, given) in [("gateway.user", user.is_some()), ("gateway.group", group.is_some())] {
            if given && driver == Driver::Verbs {
                let what = "the kernel ties a device that driver \"verbs\" opens to the credentials that opened it: leave this key out, \
                            or start the gateway as that user";
                return Err(places.at(key, None, GatewayError::Unsupported(what.to_owned())));
            }
        }
        if user.is_some_and(|user| user.group.is_none()) && group.is_none() {
            let what = "no entry of /etc/passwd says the group of this user: write gateway.group, too";
            return Err(places.at("gateway.user", None, GatewayError::Unsupported(what.to_owned())));
        }
        Ok(Self { user, group, driver })
    }

    /// The users that may access the control socket.
    pub(super) fn access(&self) -> Access {
        Access { user: self.user.map(|user| user.id.0), group: self.group.map(|group| group.0) }
    }

    /// Drops all privileges that are no longer needed, in all threads. `ports` are the drivers of the
    /// Ethernet ports. After this call, no port or device may be opened.
    pub(super) fn give_up<'a>(
        &self,
        config: &Config,
        ports: impl Iterator<Item = &'a str>,
    ) -> Result<(), GatewayError> {
        let cores = match config.gateway.cores {
            config::Cores::None => Cores::None,
            config::Cores::Lean => Cores::Lean,
            config::Cores::Full => Cores::Full,
        };
        privileges::leave_out_of_cores(cores)?;
        if config.gateway.privileges == config::Privileges::Drop {
            if self.driver == Driver::Verbs {
                privileges::no_new_privileges()?;
                tracing::info!(
                    "driver \"verbs\": capabilities stay, since the kernel ties its devices to the credentials that opened them"
                );
            } else {
                self.keep(&reasons(self.driver, ports, config.ethernet.promiscuous))?;
            }
        }
        Ok(privileges::set_cores(cores)?)
    }

    /// Restricts each thread to the system calls of its role. All existing threads get the list of the
    /// control lcore; workers, which have no job yet, narrow it to their own. Returns the filters that other
    /// threads apply themselves.
    pub(super) fn filter_calls<'a>(
        &self,
        seccomp: Seccomp,
        ports: impl Iterator<Item = &'a str> + Clone,
        eal: &Eal,
        workers: &[LcoreId],
    ) -> Result<Option<OwnFilters>, GatewayError> {
        let Some((violation, why)) = violation(seccomp, self.driver, ports.clone()) else { return Ok(None) };
        let worker = worker_calls(self.driver, ports.clone());
        let control: Vec<_> = worker.iter().copied().chain(control_calls(ports)).collect();
        let (worker, control) = (Filter::new(&worker, violation)?, Filter::new(&control, violation)?);
        let filters =
            OwnFilters { captures: Filter::new(CAPTURES, violation)?, hosts: Filter::new(HOSTS, violation)? };
        panics::install_plain_hook();
        // A thread's first allocation makes calls that depend on the allocator's version; later ones do not.
        for &lcore in workers {
            eal.launch(lcore, move || drop(std::hint::black_box(Box::new(lcore))))?.join()?;
        }
        control.apply_to_all()?;
        for &lcore in workers {
            let filter = worker.clone();
            eal.launch(lcore, move || filter.apply())?.join()??;
        }
        tracing::info!(
            "system calls are filtered{why}: {}",
            match violation {
                Violation::Kill => {
                    "a call that is not on a thread's list ends the gateway by SIGSYS, the kernel's log names it, and [gateway] \
                     seccomp = \"log\" lets it pass"
                }
                Violation::Log => {
                    "the kernel's log names calls that are not on a thread's list; if there are none, set [gateway] \
                     seccomp = \"kill\""
                }
            }
        );
        Ok(Some(filters))
    }

    fn keep(&self, reasons: &[Reason]) -> Result<(), GatewayError> {
        let capabilities = reasons.iter().fold(CapabilitySet::empty(), |all, (one, _)| all | *one);
        let group = self.group.or_else(|| self.user?.group);
        Keep { capabilities, user: self.user.map(|user| user.id), group }.in_all_threads()?;
        let kept: Vec<String> =
            reasons.iter().map(|(what, why)| format!("{} ({why})", names(*what))).collect();
        let kept = if kept.is_empty() { "no capability".to_owned() } else { kept.join(", ") };
        tracing::info!("privileges: the control lcore keeps {kept}, all other threads nothing");
        Ok(())
    }
}

/// The reaction to calls that are not on a list, and its reason if the configuration leaves the choice open;
/// `None` without lists.
fn violation<'a>(
    seccomp: Seccomp,
    driver: Driver,
    ports: impl Iterator<Item = &'a str>,
) -> Option<(Violation, String)> {
    let name = |port: &'a str| if port.is_empty() { "a port without a name" } else { port };
    let untried = || {
        let driver = match driver {
            Driver::Soft => None,
            Driver::Mlx5 => Some("driver mlx5"),
            Driver::Verbs => Some("driver verbs"),
        };
        let mut all: Vec<_> =
            driver.into_iter().chain(ports.filter(|port| !TRIED.contains(port)).map(name)).collect();
        all.sort_unstable();
        all.dedup();
        all.join(", ")
    };
    match seccomp {
        Seccomp::Kill => Some((Violation::Kill, String::new())),
        Seccomp::Log => Some((Violation::Log, String::new())),
        Seccomp::Off => None,
        Seccomp::Auto => Some(match untried() {
            none if none.is_empty() => {
                (Violation::Kill, " (seccomp = \"auto\": the lists were tried with these drivers)".to_owned())
            }
            some => (Violation::Log, format!(" (seccomp = \"auto\": the lists were not tried with {some})")),
        }),
    }
}

/// System calls of workers, by driver.
fn worker_calls<'a>(driver: Driver, ports: impl Iterator<Item = &'a str>) -> Vec<&'static [Call]> {
    let mut lists = vec![calls::ANY];
    lists.push(match driver {
        Driver::Soft => calls::SOFTWARE_DEVICE,
        Driver::Mlx5 | Driver::Verbs => calls::VERBS,
    });
    for port in ports {
        match port {
            "net_af_packet" | "net_af_xdp" | "net_pcap" | "net_tap" | "net_virtio_user" => {
                lists.push(calls::KERNEL_PORT);
            }
            "net_null" | "net_ring" => {}
            // Members of either kind.
            "net_bonding" => lists.extend([calls::KERNEL_PORT, calls::ADAPTER_PORT]),
            _ => lists.push(calls::ADAPTER_PORT),
        }
    }
    lists
}

/// System calls of the control lcore in addition to those of workers.
fn control_calls<'a>(mut ports: impl Iterator<Item = &'a str>) -> Vec<&'static [Call]> {
    let xdp = ports.any(|port| matches!(port, "net_af_xdp" | "net_bonding"));
    let mut lists = vec![calls::CONTROL];
    lists.extend(xdp.then_some(calls::XDP));
    lists
}

/// Names of capabilities as capabilities(7) has them.
fn names(set: CapabilitySet) -> String {
    let names: Vec<String> = set.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
    names.join(" and ")
}

/// The capabilities that the control lcore keeps, and the reasons.
fn reasons<'a>(driver: Driver, ports: impl Iterator<Item = &'a str>, promiscuous: bool) -> Vec<Reason> {
    let mut all = Vec::new();
    for port in ports {
        let why = match port {
            "net_bonding" => "a bond gives its members addresses and modes",
            "net_af_xdp" => "net_af_xdp takes its program off the interface at the end",
            "net_tap" => "net_tap takes its rules off the interface at the end",
            "net_af_packet" if promiscuous => "the interface takes all frames until the end",
            _ => continue,
        };
        all.push((CapabilitySet::NET_ADMIN, why));
    }
    if driver == Driver::Mlx5 {
        // Since Linux 6.4, a Q_Key whose highest bit is set, which partitions' groups may have, requires
        // CAP_NET_RAW.
        all.push((CapabilitySet::NET_RAW, "controlled Q_Keys"));
        all.push((CapabilitySet::IPC_LOCK, "memory of queue pairs that are made later is locked"));
    }
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, ExitStatus};
    use std::time::Instant;

    use dataplane::capture::{Bounds, Capture, Order, Recording, State};
    use tap::{FrameKind, TapDirection};

    use super::super::keeper;
    use super::*;
    use crate::kept::KeptFile;

    /// The task of a child process.
    const TASK: &str = "GATEWAY_TEST_TASK";
    const SIGSYS: i32 = libc::SIGSYS;

    fn child(test: &str, task: &str) -> ExitStatus {
        program(test, task).output().unwrap().status
    }

    fn program(test: &str, task: &str) -> Command {
        let test = format!("gateway::privileges::tests::{test}");
        let mut program = Command::new(std::env::current_exe().unwrap());
        // Symbolizing a backtrace of a panic opens files.
        program.args(["--exact", &test, "--nocapture", "--test-threads=1"]);
        program.env(TASK, task).env_remove("RUST_BACKTRACE");
        program
    }

    /// Runs a closure on a thread under a filter.
    fn under(filter: Filter, what: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(move || {
            filter.apply().unwrap();
            what();
        });
        thread.join().unwrap();
    }

    #[test]
    fn a_worker_that_calls_what_it_should_not_ends_the_gateway() {
        let me = "a_worker_that_calls_what_it_should_not_ends_the_gateway";
        let Ok(task) = std::env::var(TASK) else {
            for task in ["rest", "logged"] {
                assert!(child(me, task).success(), "{task}");
            }
            for task in ["open", "execute", "socket", "executable"] {
                assert_eq!(child(me, task).signal(), Some(SIGSYS), "{task}");
            }
            return;
        };
        let violation = if task == "logged" { Violation::Log } else { Violation::Kill };
        // With the rings of an adapter, it needs no sockets.
        let filter = Filter::new(&worker_calls(Driver::Mlx5, ["net_mlx5"].into_iter()), violation).unwrap();
        under(filter, move || match task.as_str() {
            "rest" => {
                std::thread::sleep(std::time::Duration::from_millis(1));
                drop(vec![1_u8; 4 << 20]);
                eprintln!("a line of the log");
            }
            "open" | "logged" => drop(std::fs::File::open("/etc/passwd")),
            "execute" => drop(Command::new("/bin/true").status()),
            "socket" => drop(std::net::UdpSocket::bind("127.0.0.1:0")),
            // Executable memory, which our code never maps: a library that is loaded.
            _ => drop(std::hint::black_box(std::net::ToSocketAddrs::to_socket_addrs("localhost:1"))),
        });
    }

    #[test]
    fn the_capture_thread_can_only_write() {
        let me = "the_capture_thread_can_only_write";
        // A killed process removes nothing.
        let folder = |id: u32| std::env::temp_dir().join(format!("filtered-captures-{id}"));
        let Ok(task) = std::env::var(TASK) else {
            for task in ["write", "all"] {
                assert!(child(me, task).success(), "{task}");
            }
            for task in ["execute", "socket"] {
                assert_eq!(child(me, task).signal(), Some(SIGSYS), "{task}");
            }
            std::fs::remove_dir_all(folder(std::process::id())).unwrap();
            // The control lcore's filter, which this thread also has, allows all of it.
            let control: Vec<_> = worker_calls(Driver::Soft, ["net_null"].into_iter())
                .into_iter()
                .chain(control_calls(["net_null"].into_iter()))
                .flatten()
                .map(|call| call.number)
                .collect();
            for call in CAPTURES.iter().copied().flatten() {
                assert!(control.contains(&call.number), "{}", call.name);
            }
            return;
        };
        let folder = folder(std::os::unix::process::parent_id());
        std::fs::create_dir_all(&folder).unwrap();
        let of = folder.clone();
        // A capture from the start exists before the filter.
        let mut all = Capture::create(&folder.join("all"), Bounds { files: 2, size: 65_536 }).unwrap();
        under(Filter::new(CAPTURES, Violation::Kill).unwrap(), move || match task.as_str() {
            "write" => {
                let order = Order::parse("c,files=1,size=65536,packets=2000").unwrap();
                let mut recording = Recording::begin(&of, order, Instant::now()).unwrap();
                let mut tap = recording.tap();
                (0..2000).for_each(|_| tap.offer(FrameKind::Ethernet, TapDirection::Sent, &[0; 100]));
                while recording.drain(Instant::now()).unwrap() != State::Done {}
                assert_eq!(recording.progress().counts(), [2000, 2000, 0]);
            }
            "all" => {
                let mut tap = all.tap();
                for kind in [FrameKind::Ethernet, FrameKind::InfiniBand] {
                    (0..200).for_each(|_| tap.offer(kind, TapDirection::Sent, &[0; 2000]));
                    while all.drain().unwrap() > 0 {}
                }
                assert_eq!(all.progress().counts(), [400, 400, 0]);
                all.leave_rest();
            }
            "execute" => drop(Command::new("/bin/true").status()),
            _ => drop(std::net::UdpSocket::bind("127.0.0.1:0")),
        });
    }

    #[test]
    fn the_thread_that_keeps_hosts_does_nothing_but_write_them() {
        let me = "the_thread_that_keeps_hosts_does_nothing_but_write_them";
        let Ok(task) = std::env::var(TASK) else {
            assert!(child(me, "write").success());
            for task in ["execute", "socket", "list"] {
                assert_eq!(child(me, task).signal(), Some(SIGSYS), "{task}");
            }
            // It has the control lcore's filter, too.
            let control: Vec<_> = worker_calls(Driver::Soft, ["net_null"].into_iter())
                .into_iter()
                .chain(control_calls(["net_null"].into_iter()))
                .flatten()
                .map(|call| call.number)
                .collect();
            for call in HOSTS.iter().copied().flatten() {
                assert!(control.contains(&call.number), "{}", call.name);
            }
            return;
        };
        let directory = std::env::temp_dir().join(format!("filtered-hosts-{}", std::process::id()));
        if task == "write" {
            std::fs::create_dir_all(&directory).unwrap();
        }
        let of = directory.clone();
        under(Filter::new(HOSTS, Violation::Kill).unwrap(), move || match task.as_str() {
            "write" => (0..2).for_each(|_| keeper::write(&of, &KeptFile::default()).unwrap()),
            "execute" => drop(Command::new("/bin/true").status()),
            "socket" => drop(std::net::UdpSocket::bind("127.0.0.1:0")),
            _ => drop(std::fs::read_dir("/").map(Iterator::count)),
        });
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_panic_on_a_worker_prints_its_message() {
        let me = "a_panic_on_a_worker_prints_its_message";
        let Ok(task) = std::env::var(TASK) else {
            assert!(child(me, "panic").success());
            for trace in ["0", "1", "full"] {
                let output = program(me, "plain").env("RUST_BACKTRACE", trace).output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{trace}: {}, {said}", output.status);
                assert!(said.contains("as it may happen") && said.contains(file!()), "{trace}: {said}");
            }
            return;
        };
        let filter =
            Filter::new(&worker_calls(Driver::Mlx5, ["net_null"].into_iter()), Violation::Kill).unwrap();
        if task == "plain" {
            panics::install_plain_hook();
        }
        under(filter, || {
            assert!(std::panic::catch_unwind(|| panic!("as it may happen")).is_err());
        });
    }

    #[test]
    fn a_worker_may_come_to_a_heap_of_its_own() {
        let me = "a_worker_may_come_to_a_heap_of_its_own";
        if std::env::var_os(TASK).is_none() {
            assert!(child(me, "count").success());
            return;
        }
        let filter =
            Filter::new(&worker_calls(Driver::Mlx5, ["net_mlx5"].into_iter()), Violation::Kill).unwrap();
        under(filter, || {
            let own = rustix::thread::sched_getaffinity(None).unwrap();
            assert!(own.count() > 0);
        });
    }

    #[test]
    fn a_call_ends_the_gateway_only_where_the_lists_were_tried() {
        let auto = |driver, ports: &[&str]| violation(Seccomp::Auto, driver, ports.iter().copied()).unwrap();
        let (what, why) = auto(Driver::Soft, &["net_af_packet", "net_bonding", "net_null"]);
        assert_eq!(what, Violation::Kill);
        assert!(why.contains("were tried"), "{why}");
        for (driver, ports, named) in [
            (Driver::Soft, &["net_null", "net_ixgbe"] as &[_], "not tried with net_ixgbe)"),
            (Driver::Soft, &["net_bonding", "mlx5_pci", "mlx5_pci"], "not tried with mlx5_pci)"),
            (Driver::Mlx5, &["net_af_packet"], "not tried with driver mlx5)"),
            (Driver::Verbs, &["net_null"], "not tried with driver verbs)"),
            // Members that DPDK does not report.
            (Driver::Soft, &["net_bonding", ""], "not tried with a port without a name"),
        ] {
            let (what, why) = auto(driver, ports);
            assert_eq!(what, Violation::Log, "{ports:?}");
            assert!(why.contains(named), "{why}");
        }
        let said = |seccomp| violation(seccomp, Driver::Verbs, ["net_ixgbe"].into_iter());
        assert_eq!(said(Seccomp::Kill), Some((Violation::Kill, String::new())));
        assert_eq!(said(Seccomp::Log), Some((Violation::Log, String::new())));
        assert_eq!(said(Seccomp::Off), None);
    }

    #[test]
    fn nobody_may_do_what_nobody_needs() {
        let worker = worker_calls(Driver::Soft, ["net_af_packet", "net_bonding", "net_mlx5"].into_iter());
        let all = worker.into_iter().chain(control_calls(["net_af_xdp"].into_iter()));
        let names: Vec<_> = all.flatten().map(|call| (call.name, call.why)).collect();
        assert!(names.iter().all(|(name, why)| name.starts_with("SYS_") && !why.is_empty()));
        for name in [
            "execve",
            "execveat",
            "ptrace",
            "kill",
            "mount",
            "setuid",
            "setresuid",
            "setgid",
            "setgroups",
            "capset",
            "init_module",
            "finit_module",
            "process_vm_readv",
            "pidfd_open",
            "unshare",
            "setns",
            "chroot",
            "keyctl",
            "userfaultfd",
            "io_uring_setup",
            "perf_event_open",
            "shmget",
            "personality",
        ] {
            assert!(!names.iter().any(|(known, _)| known.strip_prefix("SYS_") == Some(name)), "{name}");
        }
    }

    #[test]
    fn a_capability_is_kept_only_for_what_takes_it() {
        let kept = |driver, ports: &[&str], promiscuous| {
            let all = reasons(driver, ports.iter().copied(), promiscuous);
            names(all.iter().fold(CapabilitySet::empty(), |set, (one, _)| set | *one))
        };
        assert_eq!(kept(Driver::Soft, &["net_af_packet", "net_mlx5"], false), "");
        assert_eq!(kept(Driver::Soft, &["net_af_packet"], true), "CAP_NET_ADMIN");
        for port in ["net_bonding", "net_af_xdp", "net_tap"] {
            assert_eq!(kept(Driver::Soft, &["net_null", port], false), "CAP_NET_ADMIN");
        }
        assert_eq!(kept(Driver::Mlx5, &["net_af_packet"], false), "CAP_NET_RAW and CAP_IPC_LOCK");
    }
}
