//! Findings: a stable code, a severity, a description, a location and a fix.

use std::fmt;
use std::path::PathBuf;

use config::{ConfigFile, Place};

/// Severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// The gateway does not start, or does not forward.
    Error,
    /// It works, but not as well as possible or not as intended.
    Warning,
    /// Information.
    Note,
}

impl Severity {
    /// The name of the severity.
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
        /// The subject of a finding. The codes are for programs and do not change.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Code {
            $($(#[doc = $doc])* $name,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: [Self; { [$(Self::$name),*].len() }] = [$(Self::$name),*];

            /// The code's name.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// The code's description.
            #[must_use]
            pub const fn describe(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc),*).trim_ascii(),)*
                }
            }

            /// The code's severity.
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
    /// The configuration file has an error.
    ConfigInvalid = "config-invalid", Error;
    /// A key in the configuration file has no effect.
    KeyUnused = "key-unused", Warning;
    /// The connections of all workers may be more than a software ConnectX has queue pairs.
    ConnectionsOvercommitted = "connections-overcommitted", Warning;
    /// No configuration file is given.
    ConfigMissing = "config-missing", Note;
    /// Other users can read the key that gateways share.
    PairKeyReadable = "pair-key-readable", Warning;
    /// A user or group of the configuration does not exist, or its entry is incomplete.
    AccountUnknown = "account-unknown", Error;
    /// EAL's arguments are not valid.
    EalInvalid = "eal-invalid", Error;
    /// EAL's arguments are not given.
    EalMissing = "eal-missing", Note;
    /// Another DPDK process has the `--file-prefix`.
    PrefixTaken = "eal-prefix-taken", Error;
    /// EAL may take every network card.
    PciUnrestricted = "pci-unrestricted", Warning;
    /// There is no PCI device with that address.
    PciMissing = "pci-missing", Error;
    /// A PCI device is bound to a kernel driver that programs cannot use.
    PciKernelDriver = "pci-kernel-driver", Error;
    /// The gateway would take the network card that connects this host.
    LoginInterface = "login-interface", Warning;
    /// No EAL argument creates a port of the configuration.
    EthernetUnknown = "ethernet-unknown", Error;
    /// EAL has no Ethernet port, or several and the configuration selects none.
    EthernetUnnamed = "ethernet-unnamed", Error;
    /// A port cannot carry packets of the configured size.
    EthernetMtu = "ethernet-mtu", Error;
    /// The interface of a port does not exist.
    InterfaceMissing = "interface-missing", Error;
    /// The interface of a port is not an Ethernet interface.
    InterfaceKind = "interface-kind", Error;
    /// The interface of a port is down.
    InterfaceDown = "interface-down", Warning;
    /// The interface of a port does not accept packets of the configured size.
    InterfaceMtu = "interface-mtu", Warning;
    /// The kernel merges packets before the gateway receives them.
    InterfaceOffloads = "interface-offloads", Warning;
    /// The interface of a port is one end of a veth pair, whose other end may omit checksums.
    InterfaceChecksums = "interface-checksums", Note;
    /// The interface of a port is a member of a bridge or a bond.
    InterfaceMember = "interface-member", Warning;
    /// No lcore is left to forward packets.
    WorkerMissing = "worker-missing", Error;
    /// An lcore's processor is not online.
    LcoreOffline = "lcore-offline", Error;
    /// Two lcores share a processor.
    LcoresShared = "lcores-shared", Warning;
    /// Two lcores are threads of the same core.
    LcoresSiblings = "lcores-siblings", Warning;
    /// Other programs run on a worker's processor.
    LcoreNotIsolated = "lcore-not-isolated", Warning;
    /// The kernel's timer interrupts a worker.
    LcoreTicks = "lcore-ticks", Note;
    /// The frequency governor of a worker's processor saves energy.
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
    /// The gateway runs without hugepages.
    HugepagesUnused = "hugepages-unused", Warning;
    /// EAL has less memory than the configuration needs.
    MemoryTooSmall = "memory-too-small", Error;
    /// vfio needs an IOMMU, and there is none.
    IommuOff = "iommu-off", Error;
    /// vfio works without an IOMMU.
    IommuUnsafe = "iommu-unsafe", Warning;
    /// The IOMMU translates each access of an adapter.
    IommuTranslates = "iommu-translates", Note;
    /// The kernel's communication management occupies a resource that the gateway needs.
    IbCmLoaded = "ib-cm-loaded", Error;
    /// The kernel's IPoIB uses the port.
    IbIpoibLoaded = "ib-ipoib-loaded", Warning;
    /// There is no InfiniBand device.
    DeviceNone = "infiniband-none", Error;
    /// There is no InfiniBand device with that name.
    DeviceMissing = "infiniband-device-missing", Error;
    /// The device has no such port.
    PortMissing = "infiniband-port-missing", Error;
    /// The port is an Ethernet port.
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
    /// The driver does not support the adapter.
    DriverUnfit = "infiniband-driver", Error;
    /// The adapter's firmware version.
    Firmware = "firmware", Note;
    /// The adapter's firmware is older than the vendor's drivers support.
    FirmwareOld = "firmware-old", Warning;
    /// The software fabric's socket does not exist.
    CableMissing = "cable-missing", Warning;
    /// The user that the gateway runs as cannot use the software fabric's socket.
    CableForbidden = "cable-forbidden", Error;
    /// A file or directory of the configuration cannot be used.
    PathUnusable = "path-unusable", Error;
    /// A device file does not exist.
    DeviceFileMissing = "device-file-missing", Error;
    /// A device file cannot be opened.
    DeviceFileForbidden = "device-file-forbidden", Error;
    /// The process lacks a capability.
    CapabilityMissing = "capability-missing", Error;
    /// The process can lock less memory than adapters or the rings of net_af_packet need.
    LimitMemlock = "limit-memlock", Error;
    /// The process can open only few files.
    LimitNofile = "limit-nofile", Warning;
    /// Another gateway serves the control socket, or its path is occupied.
    SocketOccupied = "control-socket-occupied", Error;
    /// The directory of the control socket is not writable.
    SocketForbidden = "control-socket-forbidden", Error;
}

impl Code {
    /// True if the start is refused by the same rule before EAL starts. For the other errors, the start
    /// depends on opening EAL, devices and sockets.
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

/// A location in a file, with the marked text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spot {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The line's text, truncated if it is long.
    pub text: String,
    /// Number of marked characters.
    pub length: usize,
}

/// Maximum length of a line that is shown.
const WIDTH: usize = 120;

impl Spot {
    /// Creates a location from a position in a file.
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

/// A problem or an advice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Its code.
    pub code: Code,
    /// Its severity.
    pub severity: Severity,
    /// Its description.
    pub what: String,
    /// Its location, if it is in a file.
    pub at: Option<Spot>,
    /// The fix; empty if there is none.
    pub help: String,
}

impl Finding {
    /// Creates a finding with its code's severity and without a location.
    pub fn new(code: Code, what: impl Into<String>, help: impl Into<String>) -> Self {
        Self { code, severity: code.severity(), what: what.into(), at: None, help: help.into() }
    }

    /// Sets the location.
    #[must_use]
    pub fn at(mut self, spot: Option<Spot>) -> Self {
        self.at = spot;
        self
    }

    /// Sets another severity than the code's.
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
