//! The typed configuration, which only holds valid values. The descriptions of keys here are also those of
//! [`Config::annotated_default`].

use std::num::NonZeroU32;
use std::path::PathBuf;

use crate::address::Interface;

use crate::guid::Guid;
use crate::key::section;
use crate::pair_key::PairKey;
use crate::segment::{PKey, Segment};
use crate::word::{Cores, Driver, Idle, LogLevel, LongMessages, Mode, Privileges, Seccomp};

/// Maximum number of packet buffers.
pub(crate) const MAX_BUFFERS: u32 = 16_777_215;

/// The complete configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// `[gateway]`
    pub gateway: Gateway,
    /// `[ethernet]`: applies to every Ethernet port.
    pub ethernet: Ethernet,
    /// `[infiniband]`: applies to every InfiniBand device.
    pub infiniband: InfiniBand,
    /// `[buffers]`
    pub buffers: Buffers,
    /// `[[segment]]`, 1 to [`MAX_SEGMENTS`](crate::MAX_SEGMENTS). Without that section, the keys of the
    /// others define one named "default".
    pub segments: Vec<Segment>,
    /// Ports that a running gateway opened at startup. They stay open even if no segment uses them any more.
    pub(crate) open: OpenPorts,
}

/// Ports by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct OpenPorts {
    /// `None` is the only existing port.
    pub(crate) ethernets: Vec<Option<String>>,
    /// Each port with its device; `None` is the first existing device.
    pub(crate) infinibands: Vec<(Option<String>, u8)>,
}

impl Default for Config {
    /// The meaning of an empty file.
    fn default() -> Self {
        Self {
            gateway: Gateway::default(),
            ethernet: Ethernet::default(),
            infiniband: InfiniBand::default(),
            buffers: Buffers::default(),
            segments: vec![Segment::default()],
            open: OpenPorts::default(),
        }
    }
}

section! {
    /// `[gateway]`
    pub Gateway from RawGateway {
        /// The gateway's own IPv4 address with the prefix length of the joined subnet. It is the source of
        /// its ICMP messages and answers ping. Without it, ICMP messages have the destination's address as
        /// source. With [[segment]], each segment has its own.
        pub(crate) address: Option<Interface> = None, Segment, "\"10.77.0.254/24\"";
        /// Of two gateways between the same networks, the one with the higher priority forwards, and the
        /// other is on standby.
        pub(crate) priority: u8 = 100 => 0..=255, Segment;
        /// Hello interval between two gateways, in milliseconds. A gateway that is not heard for three
        /// intervals is considered down. A starting gateway listens for three intervals before it forwards.
        pub hello_ms: u32 = 300 => 50..=10_000, Restart;
        /// A secret of 32 hexadecimal digits, the same on all gateways of a segment. Messages between
        /// gateways without it are ignored. Without a key, a host that forges such messages can silence a
        /// gateway.
        pub pair_key: Option<PairKey> = None, Restart, "\"0f1e2d3c4b5a69788796a5b4c3d2e1f0\"";
        /// If an address moves repeatedly between the two sides, it stays where it is for this number of
        /// seconds.
        pub address_hold_seconds: u32 = 60 => 1..=3600, Restart;
        /// Behavior of an idle worker: "poll" polls again immediately, "pause" polls after a pause
        /// instruction, "sleep" sleeps until a port reports a packet. "sleep" lasts at most 10 milliseconds,
        /// or 2 if some ports cannot wake the worker. It is for machines with other work. `ctl links` shows
        /// the wakeup source of an Ethernet port: its "socket", its "rx-interrupt", or only the "timer".
        pub idle: Idle = Idle::Sleep, Live;
        /// Log level: "error", "warn", "info" or "debug". Each includes those before it. The environment
        /// variable IPOIB_FWD_LOG takes precedence.
        pub log: LogLevel = LogLevel::Info, Live;
        /// File in which the device's GID table is shared with other processes, for example
        /// "/run/ipoib-fwd-gids"; "" for none. `ipoib-fwd gids --shared FILE` reads it. Tables of further
        /// devices are in files with a dot and the device name appended.
        pub gids: Option<PathBuf> = None, Restart;
        /// Directory, on a local disk, in which `ipoib-fwd ctl capture` creates its files; "" for none, which
        /// disables captures at run time. Users with write access to it may remove the files.
        pub captures: Option<PathBuf> = None, Restart;
        /// Directory in which the gateway stores the addresses of known hosts, which it queries first after a
        /// restart. Each gateway needs its own. The default is the one that systemd has created
        /// (StateDirectory=), if there is one; otherwise nothing is stored.
        pub state_directory: Option<PathBuf> = None, Restart;
        /// UNIX socket of `ipoib-fwd ctl`, in an existing directory; "" for none.
        pub control_socket: Option<PathBuf> = Some("/run/ipoib-fwd.sock".into()), Restart;
        /// User, by name or number, to which the gateway switches when its ports and devices are open; "" for
        /// the user that starts it. Files opened later must be accessible to that user: the configuration for
        /// a reload, and the control socket's directory for its removal.
        pub user: Option<String> = None, Restart, "\"ipoib-fwd\"";
        /// Group, by name or number, to which the gateway switches. Its members may use the control socket.
        /// "" for the group of `user`, with a socket that only its user may use.
        pub group: Option<String> = None, Restart, "\"ipoib-fwd\"";
        /// "drop": when ports and devices are open, workers and the threads of DPDK give up all capabilities.
        /// The control lcore keeps those that its ports and devices require; they are logged. With driver
        /// "verbs" all are kept, since the kernel ties its devices to the credentials that opened them.
        /// "keep": all threads keep the gateway's initial privileges.
        pub privileges: Privileges = Privileges::Drop, Restart;
        /// Action for system calls that are not in the list of a thread's role, once ports and devices are
        /// open. "kill": the gateway is killed (SIGSYS; the kernel log contains the thread and the call, and
        /// the service manager restarts it). "log": the kernel log contains them, without other effects.
        /// "auto": "kill" if the lists were tested with all drivers in use (the software ConnectX and
        /// software ports), otherwise "log", as for adapters. "off": no lists. The gateway logs the choice at
        /// startup.
        pub seccomp: Seccomp = Seccomp::Auto, Restart;
        /// Contents of a core dump: "none": no core dump; "lean": stacks and the heap, without packet
        /// buffers, hugepages and memory shared with other processes (the software ConnectX has packets on
        /// the heap); "full": the system default.
        pub cores: Cores = Cores::None, Restart;
        /// Interval of printed statistics in seconds; 0 for never.
        pub stats_seconds: u32 = 0 => 0..=86_400, Live;
    }
}

section! {
    /// `[ethernet]`
    pub Ethernet from RawEthernet {
        /// Name of the DPDK port: a PCI address, or the name given to --vdev. "" for the only existing one.
        pub(crate) port: Option<String> = None, Segment;
        /// Maximum length of an IPv4 packet on the Ethernet side, in bytes. Up to 1500, net_af_packet sets
        /// this MTU on its interface, where it stays after the gateway exits. For longer packets the
        /// interface must already have it.
        pub mtu: u16 = 1500 => 576..=9700, Restart;
        /// Receive descriptors of each worker on each port.
        pub rx_descriptors: u16 = 1024 => 64..=32_768, Restart;
        /// Transmit descriptors of each worker on each port.
        pub tx_descriptors: u16 = 1024 => 64..=32_768, Restart;
        /// Receive frames for all addresses. Not needed: the gateway answers ARP with its own address.
        pub promiscuous: bool = false, Restart;
        /// Enable the port's offloads, if available: VLAN tag stripping and insertion, and IPv4 header
        /// checks.
        pub offloads: bool = true, Restart;
    }
}

section! {
    /// `[infiniband]`
    pub InfiniBand from RawInfiniBand {
        /// "verbs" supports any device that libibverbs supports, "mlx5" uses the rings of a ConnectX-4 or
        /// later, "soft" is the software ConnectX of [infiniband.soft]. "auto" selects soft if that is
        /// configured, otherwise mlx5 for a ConnectX and verbs for others.
        pub driver: Driver = Driver::Auto, Restart;
        /// Name of the device, for example "mlx5_0"; "" for the first one.
        pub(crate) device: Option<String> = None, Segment;
        /// Port of the device.
        pub(crate) port: u8 = 1 => 1..=254, Segment;
        /// Partition key with the membership bit 0x8000.
        pub(crate) pkey: PKey = PKey::DEFAULT, Segment;
        /// Scope of the link's multicast groups; 2 is link-local, the usual value.
        pub(crate) scope: u8 = 2 => 1..=14, Segment;
        /// "connected": RC connections to hosts that accept them, with packets up to 65520 bytes; "datagram":
        /// UD only.
        pub(crate) mode: Mode = Mode::Connected, Segment;
        /// Maximum length of an IPv4 packet accepted on a connection, in bytes. After a reload with a smaller
        /// value, a reload without the key is rejected until a restart.
        pub receive_mtu: u16 = 65520 => 576..=65_520, Shrink;
        /// Send queue depth of a worker's datagram queue pair. Each segment has one.
        pub ud_send_depth: u32 = 512 => 64..=32_768, Restart;
        /// Receive queue depth of a worker's datagram queue pairs on a port, which share the queue.
        pub ud_receive_depth: u32 = 512 => 64..=32_768, Restart;
        /// Depth of a worker's shared receive queue. Each port has one. Each entry holds buffers for a
        /// message of the maximum size. If the queue is empty, Linux hosts close their connections.
        pub srq_depth: u32 = 512 => 16..=32_768, Restart;
        /// Raise an alarm if fewer receives than this are left in the shared receive queue; 0 for never. The
        /// default is a quarter of srq-depth.
        pub srq_low: Option<u32> = None => 0..=32_767, Restart, "128";
        /// Maximum number of connections of the gateway, half of them for each direction: a host with traffic
        /// in both directions has two. Every worker has an equal share of them on each InfiniBand port,
        /// rounded up. A software ConnectX supports 8064 with one worker.
        pub max_connections: u32 = 4096 => 2..=65_535, Restart;
        /// Send queue depth of a connection that the gateway opens. Packets beyond it for a slow host are
        /// dropped. The default is the depth for which max-connections leave room, at most 1024.
        pub connection_send_depth: Option<u32> = None => 4..=8192, Restart, "128";
        /// Maximum number of buffers of a message that a send on a connection references individually. The
        /// default is the device's limit: 36 on a ConnectX. Messages in more buffers are sent according to
        /// long-messages.
        pub send_segments: Option<u32> = None => 1..=36, Restart, "36";
        /// Method for sending a message in more buffers than a send supports: "copy" copies it into one large
        /// buffer; "key" registers a memory key for it if the device supports that (a ConnectX, the software
        /// one), and otherwise copies.
        pub long_messages: LongMessages = LongMessages::Copy, Restart;
        /// Number of retries of a connection after a timeout or a sequence error. Linux uses 0.
        pub retry_count: u8 = 0 => 0..=7, Live;
        /// Number of retries of a connection when the remote end has no receive posted; 7 is infinite. With
        /// 7, some dozens of hosts that never post any can use up all sends of a worker's connections. Linux
        /// uses 0.
        pub rnr_retry: u8 = 0 => 0..=7, Live;
        /// Close a connection that a host opened after this number of seconds without received messages.
        pub connection_idle_seconds: u32 = 512 => 1..=86_400, Live;
        /// Forget a host to which nothing was sent for this number of seconds.
        pub neighbour_idle_seconds: u32 = 60 => 1..=86_400, Live;
    }
    tables {
        soft: toml::Spanned<RawSoft>,
        soft_device: Vec<toml::Spanned<RawSoft>>,
    }
    made {
        /// Software devices: that of `[infiniband.soft]` first, if given, then those of
        /// `[[infiniband.soft-device]]`.
        pub soft: Vec<Soft>,
    }
}

section! {
    /// `[infiniband.soft]` and `[[infiniband.soft-device]]`
    pub Soft from RawSoft {
        /// Name of the device for segments; "" for that of [infiniband], or "soft0".
        pub name: String = String::new(), Restart, "\"soft0\"";
        /// Node GUID, such as "0x0002c90300a1b2c3" or "0002:c903:00a1:b2c3". Random at startup if not given.
        pub node_guid: Option<Guid> = None, Restart, "\"0x0202c90300000001\"";
        /// Seed of all random values of the device. Random at startup if not given.
        pub seed: Option<u64> = None => 0..=i64::MAX as u64, Restart, "1";
        /// Number of entries of each port's GID table.
        pub gid_table: u16 = 128 => 1..=255, Restart;
    }
    tables { ports: toml::Spanned<Vec<toml::Spanned<RawSoftPort>>>, }
    made {
        /// Its ports, one or two.
        pub ports: Vec<SoftPort>,
    }
}

section! {
    /// A port of the software ConnectX: one of `ports`.
    pub SoftPort from RawSoftPort {
        /// URL of its cable: shm:/path of a socket of ibfab, or udp:LOCAL-PEER.
        pub link: String = String::new(), Restart, "\"shm:/run/ibfab.sock\"";
        /// Maximum MTU in bytes: 256, 512, 1024, 2048 or 4096.
        pub mtu: u16 = 4096 => 256..=4096, Restart, "4096";
        /// Port GUID. Derived from the node GUID if not given.
        pub guid: Option<Guid> = None, Restart, "\"0x0202c90300000002\"";
        /// true: like the virtual port of an SR-IOV function, the port neither sends nor accepts packets
        /// without a GRH. The subnet manager's paths then need a hop limit of at least 1.
        pub grh_required: bool = false, Restart, "false";
    }
}

section! {
    /// `[buffers]`
    pub Buffers from RawBuffers {
        /// Number of packet buffers; 0 for the number that the queues need.
        pub count: Option<NonZeroU32> = None => 0..=MAX_BUFFERS, Restart;
        /// Data room of a buffer without headroom in bytes, a multiple of 64.
        pub data_room: u16 = 4096 => 2048..=16_384, Restart;
        /// Number of buffers in each worker's cache.
        pub cache: u16 = 256 => 0..=512, Restart;
        /// Percentage of the buffers that is not assigned to any queue. It refills the shared receive queues
        /// while slow hosts occupy their share.
        pub receive_reserve: u8 = 25 => 0..=75, Restart;
    }
}

/// Command line options that override the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    /// `infiniband.mode`, and that of every segment.
    pub mode: Option<Mode>,
    /// `gateway.idle`
    pub idle: Option<Idle>,
    /// `infiniband.driver`
    pub driver: Option<Driver>,
    /// `gateway.control-socket`; empty for no socket.
    pub control_socket: Option<PathBuf>,
    /// `gateway.stats-seconds`
    pub stats_seconds: Option<u32>,
}
