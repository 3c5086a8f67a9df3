//! Errors of the environment, with remedies.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use ib_wire::{Lid, QKey};
use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::hca::{HcaError, PortNumber};

/// Modules that use communication management through `ib_cm`, and `ib_cm` itself, in the order in which they
/// can be unloaded.
const CM_MODULES: [&str; 7] = ["ib_ipoib", "ib_srp", "ib_srpt", "ib_isert", "rdma_ucm", "rdma_cm", "ib_cm"];

/// Returns the error that the library left in `errno`.
pub(super) fn last(what: impl Into<String>) -> HcaError {
    HcaError::Io { what: what.into(), source: io::Error::last_os_error() }
}

/// Returns the error of a call that returns an error number.
pub(super) fn code(what: impl Into<String>, errno: i32) -> HcaError {
    HcaError::Io { what: what.into(), source: io::Error::from_raw_os_error(errno.abs()) }
}

/// Returns an error with the system's error text, in one line.
pub(super) fn whole(error: &HcaError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// An object cannot be destroyed because it is still in use.
pub(super) fn in_use(what: &str) -> HcaError {
    HcaError::Environment(format!(
        "a {what} is still in use: destroy its users first; its buffers are leaked"
    ))
}

/// Receive buffers are too small for a datagram of the port's MTU.
pub(super) fn small_buffers(device: &str, port: PortNumber, mtu: usize, room: usize) -> HcaError {
    HcaError::Environment(format!(
        "port {} of {device} has an MTU of {mtu} bytes, and a receive buffer takes {room}: a longer datagram would stop the queue \
         pair; set [buffers] data-room = {mtu} or more",
        port.0
    ))
}

/// The pool has too few buffers for the receives of another datagram queue pair.
pub(super) fn few_buffers(device: &str, each: u32, others: u32, most: u32) -> HcaError {
    HcaError::Environment(format!(
        "{device} cannot share receives among datagram queue pairs: another queue pair needs {each} in addition to {others} of a worker, which exceeds the \
         {most} for which there are packet buffers; a restart distributes them again among all links"
    ))
}

/// The mlx5 driver cannot address datagrams at an Ethernet port.
pub(super) fn no_ethernet_datagrams(device: &str, port: PortNumber) -> HcaError {
    HcaError::Environment(format!(
        "port {} of {device} is an Ethernet port, where the mlx5 driver does not know the destinations' MAC addresses: let the \
         library send datagrams (--hca-driver verbs)",
        port.0
    ))
}

/// An address has no GRH, at a port that shares its LID with others.
pub(super) fn no_grh(device: &str, port: PortNumber, to: Lid) -> HcaError {
    HcaError::Environment(format!(
        "port {} of {device} requires a GRH, and the address of LID {to} has none: give the subnet manager's paths a hop limit of \
         at least 1",
        port.0
    ))
}

pub(super) fn no_device() -> HcaError {
    HcaError::Environment(
        "there is no RDMA device: load the adapter's driver and the verbs interface (modprobe mlx5_ib ib_uverbs), or use the \
         software ConnectX (infiniband.driver = \"soft\")"
            .to_owned(),
    )
}

pub(super) fn no_such_device(name: &str, seen: &str) -> HcaError {
    HcaError::NotFound { what: "RDMA device", name: format!("{name} (there are: {seen})") }
}

pub(super) fn no_infiniband(port: PortNumber, seen: &str) -> HcaError {
    HcaError::Environment(format!(
        "no RDMA device has an InfiniBand port {}; available: {seen}; IPoIB needs an InfiniBand link layer (for ConnectX: \
         mlxconfig set LINK_TYPE_P{0}=1)",
        port.0
    ))
}

pub(super) fn wrong_link_layer(device: &str, port: PortNumber) -> HcaError {
    HcaError::Environment(format!(
        "port {} of {device} is an Ethernet port: IPoIB needs an InfiniBand link layer (for ConnectX: mlxconfig set \
         LINK_TYPE_P{0}=1)",
        port.0
    ))
}

pub(super) fn not_mlx5(device: &str) -> HcaError {
    HcaError::Environment(format!(
        "{device} is not driven by libmlx5: --hca-driver verbs drives any RDMA device, --hca-driver mlx5 a ConnectX-4 or later \
         (infiniband.device names it)"
    ))
}

/// The driver does not support the rings. With the remedy the library creates different ones.
pub(super) fn rings(what: &str, remedy: &str) -> HcaError {
    HcaError::Environment(format!("{what}: {remedy}, or let the library drive them (--hca-driver verbs)"))
}

/// The rings differ from what this driver expects, and no setting changes that.
pub(super) fn foreign_rings(what: &str) -> HcaError {
    HcaError::Environment(format!(
        "{what}, which the mlx5 driver cannot use: let the library drive the queues (driver = \"verbs\" in [infiniband], or \
         --hca-driver verbs)"
    ))
}

/// The device does not let programs create memory keys.
pub(super) fn no_indirect_keys(device: &str, why: &str) -> HcaError {
    HcaError::Environment(format!(
        "{device} does not let programs create fast-registration keys: {why}; this requires user-level commands (DEVX): a firmware with \
         UCTX_EN (mlxconfig -d {device} set UCTX_EN=1, then a cold start), or a software ConnectX with --users; or let the \
         library register by memory windows (--hca-driver verbs)"
    ))
}

/// Returns the device file of a class of RDMA devices for this device, and for this port if the class has a
/// file per port.
fn device_file(classes: &Path, class: &str, device: &str, port: Option<PortNumber>) -> Option<PathBuf> {
    let says = |entry: &Path, name: &str, wanted: &str| {
        std::fs::read_to_string(entry.join(name)).is_ok_and(|text| text.trim() == wanted)
    };
    let entries = std::fs::read_dir(classes.join(class)).ok()?;
    let found = entries.flatten().map(|entry| entry.path()).find(|entry| {
        says(entry, "ibdev", device) && port.is_none_or(|port| says(entry, "port", &port.0.to_string()))
    })?;
    Some(Path::new("/dev/infiniband").join(found.file_name()?))
}

/// True if the error is caused by missing permissions. Some libraries do not return the kernel's error.
fn is_forbidden(class: &str, device: &str, port: Option<PortNumber>, source: &io::Error) -> bool {
    source.kind() == io::ErrorKind::PermissionDenied
        || device_file(Path::new("/sys/class"), class, device, port)
            .is_some_and(|file| access(&file, Access::READ_OK | Access::WRITE_OK) == Err(Errno::ACCESS))
}

pub(super) fn open(device: &str, source: io::Error) -> HcaError {
    if is_forbidden("infiniband_verbs", device, None, &source) {
        return HcaError::Environment(format!(
            "{device} cannot be opened: permission denied: run as root, or give the user access to /dev/infiniband/uverbs*"
        ));
    }
    match source.kind() {
        io::ErrorKind::NotFound => {
            HcaError::Environment(format!("{device} has no verbs interface: modprobe ib_uverbs"))
        }
        _ => HcaError::Io { what: format!("opening {device}"), source },
    }
}

/// Registration must lock all the memory.
pub(super) fn registration(bytes: u64, source: io::Error) -> HcaError {
    if source.raw_os_error() == Some(libc::ENOMEM) {
        return HcaError::Environment(format!(
            "{} MiB of packet buffers cannot be locked for the adapter: raise the limit (ulimit -l unlimited, \
             LimitMEMLOCK=infinity in a systemd unit) or run with CAP_IPC_LOCK",
            bytes.div_ceil(1 << 20)
        ));
    }
    HcaError::Io { what: format!("registering {bytes} bytes of packet buffers"), source }
}

/// Q_Keys with the top bit set are reserved for privileged programs (IBA 10.2.4).
pub(super) fn qkey(qkey: QKey, what: String, source: io::Error) -> HcaError {
    if qkey.is_privileged() && source.kind() == io::ErrorKind::PermissionDenied {
        return HcaError::Environment(format!(
            "{qkey} is a controlled Q_Key: run with CAP_NET_RAW (setcap cap_net_raw,cap_ipc_lock+ep), allow it to all (rdma \
             system set privileged-qkey on), or give the broadcast group a Q_Key below 0x80000000"
        ));
    }
    HcaError::Io { what, source }
}

/// A port's management interface cannot be opened.
pub(super) fn umad_open(device: &str, port: PortNumber, source: io::Error) -> HcaError {
    let forbidden = is_forbidden("infiniband_mad", device, Some(port), &source);
    let port = port.0;
    if !Path::new("/sys/class/infiniband_mad/abi_version").exists() {
        return HcaError::Environment(format!(
            "management datagrams of {device} port {port} are not available: modprobe ib_umad"
        ));
    }
    if forbidden {
        return HcaError::Environment(format!(
            "management datagrams of {device} port {port} are not allowed: run as root, or give the user access to \
             /dev/infiniband/umad*"
        ));
    }
    HcaError::Io { what: format!("opening management datagrams of {device} port {port}"), source }
}

/// Another agent is registered for communication management. `modules` is the kernel's module directory.
pub(super) fn cm_taken(device: &str, port: PortNumber, modules: &Path) -> HcaError {
    let loaded: Vec<_> = CM_MODULES.into_iter().filter(|m| modules.join(m).exists()).collect();
    let mut text = format!("communication management (class 7) of {device} port {} is taken", port.0);
    // Writing to a string cannot fail.
    if loaded.contains(&"ib_cm") {
        let _ = write!(
            text,
            " by the kernel module ib_cm; either unload it and what uses it (modprobe -r {0}) and keep it unloaded \
             (printf 'blacklist %s\\n' {0} > /etc/modprobe.d/gateway.conf), or start the gateway first and load ib_cm \
             afterwards: it leaves out a port that is taken",
            loaded.join(" ")
        );
    } else {
        text.push_str(" by another program: only one can register for it");
    }
    HcaError::Environment(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_that_holds_the_class_is_named() {
        let place = std::env::temp_dir().join(format!("verbs-remedy-{}", std::process::id()));
        for module in ["ib_ipoib", "ib_cm"] {
            std::fs::create_dir_all(place.join(module)).unwrap();
        }
        let text = cm_taken("mlx5_0", PortNumber(1), &place).to_string();
        assert!(text.contains("modprobe -r ib_ipoib ib_cm)"), "{text}");
        std::fs::remove_dir_all(&place).unwrap();
        let text = cm_taken("mlx5_0", PortNumber(1), &place).to_string();
        assert!(text.contains("another program") && !text.contains("ib_cm"), "{text}");
    }

    #[test]
    fn rings_that_the_driver_cannot_use_are_left_to_the_library() {
        let text = foreign_rings("libmlx5 gave a queue pair a ring").to_string();
        assert!(text.contains("driver = \"verbs\"") && text.contains("--hca-driver verbs"), "{text}");
    }

    #[test]
    fn the_file_of_a_device_and_port_is_found() {
        let classes = std::env::temp_dir().join(format!("verbs-classes-{}", std::process::id()));
        for (name, device, port) in
            [("umad0", "mlx5_0", "1\n"), ("umad1", "mlx5_0", "2\n"), ("umad2", "mlx5_1", "1\n")]
        {
            let entry = classes.join("infiniband_mad").join(name);
            std::fs::create_dir_all(&entry).unwrap();
            std::fs::write(entry.join("ibdev"), format!("{device}\n")).unwrap();
            std::fs::write(entry.join("port"), port).unwrap();
        }
        std::fs::write(classes.join("infiniband_mad/abi_version"), "5\n").unwrap();
        let file = |device, port| device_file(&classes, "infiniband_mad", device, port);
        assert_eq!(file("mlx5_0", Some(PortNumber(2))), Some("/dev/infiniband/umad1".into()));
        assert_eq!(file("mlx5_1", None), Some("/dev/infiniband/umad2".into()));
        assert_eq!(file("mlx5_1", Some(PortNumber(2))), None);
        std::fs::remove_dir_all(&classes).unwrap();
        assert_eq!(file("mlx5_0", None), None);
    }

    #[test]
    fn only_a_controlled_qkey_is_a_matter_of_privilege() {
        let denied = || io::Error::from_raw_os_error(libc::EPERM);
        let text = |key| qkey(QKey(key), "x".into(), denied()).to_string();
        assert!(text(0x8000_0b1b).contains("CAP_NET_RAW"));
        assert_eq!(text(0x0b1b), "x");
    }
}
