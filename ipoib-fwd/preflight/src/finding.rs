//! What is found: a code that stays the same over versions, how bad it is, in words, where, and what to do about it.

use std::fmt;
use std::path::PathBuf;

use config::{ConfigFile, Place};

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// The gateway does not start, or does not forward.
    Error,
    /// It works, though not as well or not as is meant.
    Warning,
    /// To know.
    Note,
}

impl Severity {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// Defines the codes with their severities from one table.
macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $word:literal, $severity:ident;)*) => {
        /// What a finding is about. The words are for programs and do not change.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Code {
            $($(#[doc = $doc])* $name,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: [Self; { [$(Self::$name),*].len() }] = [$(Self::$name),*];

            /// Its word.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// What it is about.
            #[must_use]
            pub const fn describe(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc),*).trim_ascii(),)*
                }
            }

            /// How bad it is.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self {
                    $(Self::$name => Severity::$severity,)*
                }
            }
        }
    };
}

codes! {
    /// The configuration file cannot be read.
    ConfigUnreadable = "config-unreadable", Error;
    /// Something in the configuration file is wrong.
    ConfigInvalid = "config-invalid", Error;
    /// A key in the configuration file has no effect.
    KeyUnused = "key-unused", Warning;
    /// The connections of all workers may be more than a software ConnectX has queue pairs.
    ConnectionsOvercommitted = "connections-overcommitted", Warning;
    /// No configuration file was named.
    ConfigMissing = "config-missing", Note;
    /// The key that gateways share can be read by others.
    PairKeyReadable = "pair-key-readable", Warning;
    /// There is no user or group of a name in the configuration, or it does not say enough.
    AccountUnknown = "account-unknown", Error;
    /// EAL's arguments cannot be understood.
    EalInvalid = "eal-invalid", Error;
    /// EAL's arguments were not given.
    EalMissing = "eal-missing", Note;
    /// Another DPDK process has the `--file-prefix`.
    PrefixTaken = "eal-prefix-taken", Error;
    /// EAL may take every network card.
    PciUnrestricted = "pci-unrestricted", Warning;
    /// There is no PCI device of that address.
    PciMissing = "pci-missing", Error;
    /// A PCI device is bound to a driver that leaves it to the kernel.
    PciKernelDriver = "pci-kernel-driver", Error;
    /// The network card by which the machine is reached would be the gateway's.
    LoginInterface = "login-interface", Warning;
    /// No EAL argument makes a port that the configuration names.
    EthernetUnknown = "ethernet-unknown", Error;
    /// EAL is given no Ethernet port, or several and the configuration names none.
    EthernetUnnamed = "ethernet-unnamed", Error;
    /// A port cannot carry packets as long as the configuration has them.
    EthernetMtu = "ethernet-mtu", Error;
    /// The interface of a port is not there.
    InterfaceMissing = "interface-missing", Error;
    /// The interface of a port is no Ethernet interface.
    InterfaceKind = "interface-kind", Error;
    /// The interface of a port is down.
    InterfaceDown = "interface-down", Warning;
    /// The interface of a port takes no packets as long as the configuration has it.
    InterfaceMtu = "interface-mtu", Warning;
    /// The kernel joins packets before the gateway sees them.
    InterfaceOffloads = "interface-offloads", Warning;
    /// The interface of a port is one end of a veth, whose other end may leave checksums out.
    InterfaceChecksums = "interface-checksums", Note;
    /// The interface of a port is a member of a bridge or a bond.
    InterfaceMember = "interface-member", Warning;
    /// No lcore is left to forward packets.
    WorkerMissing = "worker-missing", Error;
    /// An lcore's processor is not online.
    LcoreOffline = "lcore-offline", Error;
    /// Two lcores have one processor.
    LcoresShared = "lcores-shared", Warning;
    /// Two lcores are halves of one core.
    LcoresSiblings = "lcores-siblings", Warning;
    /// Other programs run on a worker's processor.
    LcoreNotIsolated = "lcore-not-isolated", Warning;
    /// The kernel's clock interrupts a worker.
    LcoreTicks = "lcore-ticks", Note;
    /// A worker's processor saves energy.
    Governor = "governor", Warning;
    /// Workers are on several NUMA nodes.
    LcoresNodes = "lcores-nodes", Note;
    /// A port is on another NUMA node than the workers.
    PortNode = "port-node", Warning;
    /// No hugepages are reserved, or none of them is free.
    HugepagesNone = "hugepages-none", Error;
    /// Fewer hugepages are free than the configuration needs.
    HugepagesTooFew = "hugepages-too-few", Error;
    /// Too few hugepages are free on the workers' NUMA node.
    HugepagesNode = "hugepages-node", Warning;
    /// No hugetlbfs is mounted.
    HugepagesNotMounted = "hugepages-not-mounted", Error;
    /// The gateway is told to do without hugepages.
    HugepagesUnused = "hugepages-unused", Warning;
    /// EAL is given less memory than the configuration needs.
    MemoryTooSmall = "memory-too-small", Error;
    /// vfio has no IOMMU to work with.
    IommuOff = "iommu-off", Error;
    /// vfio works without an IOMMU.
    IommuUnsafe = "iommu-unsafe", Warning;
    /// The IOMMU translates each access of an adapter.
    IommuTranslates = "iommu-translates", Note;
    /// The kernel's communication management holds what the gateway needs.
    IbCmLoaded = "ib-cm-loaded", Error;
    /// The kernel's own IPoIB is on the port.
    IbIpoibLoaded = "ib-ipoib-loaded", Warning;
    /// There is no InfiniBand device.
    DeviceNone = "infiniband-none", Error;
    /// There is no InfiniBand device of that name.
    DeviceMissing = "infiniband-device-missing", Error;
    /// The device has no such port.
    PortMissing = "infiniband-port-missing", Error;
    /// The port is one of Ethernet.
    PortEthernet = "infiniband-port-ethernet", Error;
    /// The port is not active.
    PortDown = "infiniband-port-down", Warning;
    /// No subnet manager has found the port.
    PortUnmanaged = "infiniband-no-subnet-manager", Warning;
    /// The port does not have a segment's P_Key.
    PKeyMissing = "pkey-missing", Warning;
    /// The port is a limited member of a segment's partition.
    PKeyLimited = "pkey-limited", Warning;
    /// The fabric's MTU is smaller than the Ethernet side's.
    FabricMtu = "infiniband-mtu", Warning;
    /// The driver is for adapters of another kind.
    DriverUnfit = "infiniband-driver", Error;
    /// What firmware the adapter has.
    Firmware = "firmware", Note;
    /// The adapter's firmware is older than its makers' drivers are supported with.
    FirmwareOld = "firmware-old", Warning;
    /// The software fabric's socket is not there.
    CableMissing = "cable-missing", Warning;
    /// The user that the gateway becomes may not use the software fabric's socket.
    CableForbidden = "cable-forbidden", Error;
    /// A file or directory that the configuration names cannot be used.
    PathUnusable = "path-unusable", Error;
    /// A device file is not there.
    DeviceFileMissing = "device-file-missing", Error;
    /// A device file may not be opened.
    DeviceFileForbidden = "device-file-forbidden", Error;
    /// The process lacks a capability.
    CapabilityMissing = "capability-missing", Error;
    /// Less memory can be locked than adapters read, or than rings of net_af_packet take.
    LimitMemlock = "limit-memlock", Error;
    /// Few files can be open.
    LimitNofile = "limit-nofile", Warning;
    /// Another gateway serves the control socket, or something else is there.
    SocketOccupied = "control-socket-occupied", Error;
    /// The control socket's directory cannot be written to.
    SocketForbidden = "control-socket-forbidden", Error;
}

impl Code {
    /// True if a start is refused by the same rule, before EAL is started. What the other errors are about is decided by
    /// what the start opens: EAL, devices and sockets.
    #[must_use]
    pub const fn refuses_start(self) -> bool {
        matches!(
            self,
            Self::ConfigUnreadable
                | Self::ConfigInvalid
                | Self::AccountUnknown
                | Self::EalInvalid
                | Self::PrefixTaken
                | Self::PciMissing
                | Self::EthernetMtu
                | Self::InterfaceMissing
                | Self::WorkerMissing
                | Self::LcoreOffline
                | Self::HugepagesNone
                | Self::HugepagesNotMounted
                | Self::CapabilityMissing
                | Self::CableForbidden
                | Self::PathUnusable
        )
    }
}

/// A place in a file, with the text that is meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spot {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The line's text, cut if it is long.
    pub text: String,
    /// Characters of it that are meant.
    pub length: usize,
}

/// Most characters of a line that are shown.
const WIDTH: usize = 120;

impl Spot {
    /// A place with the text of its file.
    #[must_use]
    pub fn new(place: &Place, file: &ConfigFile) -> Self {
        let line = file.text().lines().nth(place.line.saturating_sub(1)).unwrap_or_default();
        let text: String = line.chars().take(WIDTH).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let meant = file.text().get(place.span.clone()).unwrap_or_default();
        let length = meant.lines().next().unwrap_or_default().chars().count();
        let length = length.min(text.chars().count().saturating_sub(place.column - 1)).max(1);
        Self { file: place.file.clone(), line: place.line, column: place.column, text, length }
    }
}

/// Something that is wrong or unwise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What it is about.
    pub code: Code,
    /// How bad it is.
    pub severity: Severity,
    /// In words.
    pub what: String,
    /// Where, if it is in a file.
    pub at: Option<Spot>,
    /// What to do about it; empty if there is nothing.
    pub help: String,
}

impl Finding {
    /// As bad as its code says, and in no file.
    pub fn new(code: Code, what: impl Into<String>, help: impl Into<String>) -> Self {
        Self { code, severity: code.severity(), what: what.into(), at: None, help: help.into() }
    }

    /// In a file.
    #[must_use]
    pub fn at(mut self, spot: Option<Spot>) -> Self {
        self.at = spot;
        self
    }

    /// Better or worse than usual.
    #[must_use]
    pub const fn as_severe_as(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]: {}", self.severity.word(), self.code.word(), self.what)
    }
}
