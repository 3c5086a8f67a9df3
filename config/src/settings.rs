//! The typed configuration: legal values only. What is said of a key here is what [`Config::annotated_default`] tells
//! operators.

use std::num::NonZeroU32;
use std::path::PathBuf;

use crate::address::Interface;

use crate::guid::Guid;
use crate::key::section;
use crate::pair_key::PairKey;
use crate::segment::{PKey, Segment};
use crate::word::{Cores, Driver, Idle, LogLevel, LongMessages, Mode, Privileges, Seccomp};

/// Most packet buffers.
pub(crate) const MAX_BUFFERS: u32 = 16_777_215;

/// The whole configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// `[gateway]`
    pub gateway: Gateway,
    /// `[ethernet]`: of every Ethernet port.
    pub ethernet: Ethernet,
    /// `[infiniband]`: of every InfiniBand device.
    pub infiniband: InfiniBand,
    /// `[buffers]`
    pub buffers: Buffers,
    /// `[[segment]]`, 1 to [`MAX_SEGMENTS`](crate::MAX_SEGMENTS). Without that section the keys of the others make one,
    /// named "default".
    pub segments: Vec<Segment>,
    /// Of a gateway that runs: the ports that it opened at the start. They stay
    /// open, whatever segments name later.
    pub(crate) open: OpenPorts,
}

/// Ports by their names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct OpenPorts {
    /// `None` = the only one that there is.
    pub(crate) ethernets: Vec<Option<String>>,
    /// Each with its device; `None` = the first one that there is.
    pub(crate) infinibands: Vec<(Option<String>, u8)>,
}

impl Default for Config {
    /// What an empty file means.
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
        /// The gateway's own IPv4 address and the length of the joined subnet's prefix. It is the source of its ICMP
        /// messages and answers ping. Without it, ICMP comes in the name of the destination. With [[segment]], each
        /// segment has its own.
        pub(crate) address: Option<Interface> = None, Segment, "\"10.77.0.254/24\"";
        /// Of two gateways between the same networks the one with the higher priority forwards, the other stands by.
        pub(crate) priority: u8 = 100 => 0..=255, Segment;
        /// How often two gateways tell each other that they live, milliseconds. Who is not heard for three times as long
        /// is taken to be gone, and a gateway that starts listens for three times as long before it forwards.
        pub hello_ms: u32 = 300 => 50..=10_000, Restart;
        /// A secret of 32 hexadecimal digits, the same on all gateways of a segment: messages between gateways that were not made
        /// with it do not count. Without it, a host that forges them can silence a gateway.
        pub pair_key: Option<PairKey> = None, Restart, "\"0f1e2d3c4b5a69788796a5b4c3d2e1f0\"";
        /// An address that moves from one side to the other and back again and again stays where it is for so many seconds.
        pub address_hold_seconds: u32 = 60 => 1..=3600, Restart;
        /// What a worker does when there is nothing to do: "poll" asks again at once, "pause" after a pause instruction,
        /// "sleep" sleeps until a port tells of a packet, 10 milliseconds at most, 2 where not all ports tell (for machines that have other
        /// work to do).
        /// `ctl links` says by what an Ethernet port wakes: its "socket", its "rx-interrupt", or the "timer" alone.
        pub idle: Idle = Idle::Sleep, Live;
        /// What is logged: "error", "warn", "info" or "debug", each with what stands before it. The environment's
        /// IPOIB_FWD_LOG goes before.
        pub log: LogLevel = LogLevel::Info, Live;
        /// File in which the device's GID table is shared with other processes, for instance "/run/ipoib-fwd-gids"; "" for
        /// none. `ipoib-fwd gids --shared FILE` reads it. Those of further devices are in files beside it, with a dot and the device's name.
        pub gids: Option<PathBuf> = None, Restart;
        /// Directory, on a local disk, in which `ipoib-fwd ctl capture` makes its files; "" for none: then nothing is captured while the
        /// gateway runs. Whoever may write to it may take them away.
        pub captures: Option<PathBuf> = None, Restart;
        /// Directory in which the gateway keeps the addresses of known hosts, so that it queries them first after a restart. Each
        /// gateway needs its own. Without it the one that systemd has made (StateDirectory=), if there is one; else nothing is kept.
        pub state_directory: Option<PathBuf> = None, Restart;
        /// UNIX socket of `ipoib-fwd ctl`, in a directory that exists; "" for none.
        pub control_socket: Option<PathBuf> = Some("/run/ipoib-fwd.sock".into()), Restart;
        /// User that the gateway becomes when its ports and devices are open, by name or number; "" for the one that starts it. What it
        /// opens later must be that user's: the configuration to read it again, and the control socket's directory to take that away.
        pub user: Option<String> = None, Restart, "\"ipoib-fwd\"";
        /// Group that it becomes, by name or number; its members may use the control socket. "" for that of `user`, with a socket that
        /// only its user may use.
        pub group: Option<String> = None, Restart, "\"ipoib-fwd\"";
        /// "drop": when ports and devices are open, workers and the threads of DPDK give up all capabilities, and the control lcore
        /// keeps what these ports and devices take; the log says what. With driver "verbs" all stay, since the kernel ties its devices to
        /// the credentials that opened them. "keep": all threads keep what the gateway was started with.
        pub privileges: Privileges = Privileges::Drop, Restart;
        /// System calls that are not on the list of a thread's role, once ports and devices are open: "kill": the gateway ends (SIGSYS; the
        /// kernel's log names thread and call, and the service manager starts it anew); "log": the kernel's log names them, and nothing
        /// else happens; "auto": "kill" where all drivers are ones that the lists were tried with (the software ConnectX and software
        /// ports), else "log", as for adapters; "off": there are no lists. The log says at the start which it is.
        pub seccomp: Seccomp = Seccomp::Auto, Restart;
        /// What a core dump holds: "none": there is none; "lean": stacks and the heap, but no packet buffers, hugepages and memory shared
        /// with other processes (the software ConnectX has packets on the heap); "full": as the system has it.
        pub cores: Cores = Cores::None, Restart;
        /// Print statistics every so many seconds; 0 = never.
        pub stats_seconds: u32 = 0 => 0..=86_400, Live;
    }
}

section! {
    /// `[ethernet]`
    pub Ethernet from RawEthernet {
        /// Name of the DPDK port: a PCI address, or the name given to --vdev. "" for the only one there is.
        pub(crate) port: Option<String> = None, Segment;
        /// Largest IPv4 packet on the Ethernet side, bytes. Up to 1500, net_af_packet gives its interface this MTU, which stays when the
        /// gateway ends; for longer packets the interface must have it.
        pub mtu: u16 = 1500 => 576..=9700, Restart;
        /// Receive descriptors of each worker on each port.
        pub rx_descriptors: u16 = 1024 => 64..=32_768, Restart;
        /// Transmit descriptors of each worker on each port.
        pub tx_descriptors: u16 = 1024 => 64..=32_768, Restart;
        /// Receive frames for all addresses. Not needed: the gateway answers ARP with its own.
        pub promiscuous: bool = false, Restart;
        /// Let the port take VLAN tags off and put them on, and check IPv4 headers, where it can.
        pub offloads: bool = true, Restart;
    }
}

section! {
    /// `[infiniband]`
    pub InfiniBand from RawInfiniBand {
        /// "verbs" drives any device that libibverbs knows, "mlx5" the rings of a ConnectX-4 or later, "soft" the software ConnectX
        /// of [infiniband.soft]; "auto" takes soft if that is configured, else mlx5 for a ConnectX and verbs for others.
        pub driver: Driver = Driver::Auto, Restart;
        /// Name of the device, for instance "mlx5_0"; "" for the first one.
        pub(crate) device: Option<String> = None, Segment;
        /// Port of the device.
        pub(crate) port: u8 = 1 => 1..=254, Segment;
        /// Partition key, with the membership bit 0x8000.
        pub(crate) pkey: PKey = PKey::DEFAULT, Segment;
        /// Scope of the link's multicast groups; 2 = link-local, as almost everywhere.
        pub(crate) scope: u8 = 2 => 1..=14, Segment;
        /// "connected": RC connections to hosts that accept them, packets up to 65520 bytes; "datagram": UD only.
        pub(crate) mode: Mode = Mode::Connected, Segment;
        /// Largest IPv4 packet accepted on a connection, bytes. After a reload with a smaller one, a reload without the key is
        /// refused until a restart.
        pub receive_mtu: u16 = 65520 => 576..=65_520, Shrink;
        /// Send requests of a worker's datagram queue pair, of which each segment has one.
        pub ud_send_depth: u32 = 512 => 64..=32_768, Restart;
        /// Receive requests of a worker's datagram queue pairs on a port, which share them.
        pub ud_receive_depth: u32 = 512 => 64..=32_768, Restart;
        /// Receive requests of a worker's shared receive queue, of which each port has one. Each holds buffers for a
        /// message of the largest size. If it runs dry, Linux hosts close their connections.
        pub srq_depth: u32 = 512 => 16..=32_768, Restart;
        /// Raise an alarm when fewer receives than this are left in the shared receive queue; 0 = never. Without it a
        /// quarter of srq-depth.
        pub srq_low: Option<u32> = None => 0..=32_767, Restart, "128";
        /// Most connections of the gateway, half of them for each direction: a host with traffic both ways has two. Every
        /// worker has an equal share of them on each InfiniBand port, rounded up. A software ConnectX holds 8064 with one worker.
        pub max_connections: u32 = 4096 => 2..=65_535, Restart;
        /// Send requests of a connection that the gateway opens. What a slow host does not take beyond that is dropped. Without
        /// it as many as max-connections leave room for, at most 1024.
        pub connection_send_depth: Option<u32> = None => 4..=8192, Restart, "128";
        /// Most buffers of a message that a send on a connection names one by one. Without it as many as the device takes: 36 on a
        /// ConnectX. What is in more is sent as long-messages says.
        pub send_segments: Option<u32> = None => 1..=36, Restart, "36";
        /// How a message in more buffers than a send names is sent: "copy" copies it into one large buffer; "key" gives it a memory key
        /// of its own where the device can (a ConnectX, the software one), and copies elsewhere.
        pub long_messages: LongMessages = LongMessages::Copy, Restart;
        /// How often a connection sends again after a timeout or a sequence error. Linux has 0.
        pub retry_count: u8 = 0 => 0..=7, Live;
        /// How often a connection sends again when the other end has no receive posted; 7 = for ever, with which some dozens of hosts
        /// that never post any can hold all that a worker's connections may send. Linux has 0.
        pub rnr_retry: u8 = 0 => 0..=7, Live;
        /// Close a connection that a host opened when nothing came by it for so many seconds.
        pub connection_idle_seconds: u32 = 512 => 1..=86_400, Live;
        /// Forget a host that nobody sends to for so many seconds.
        pub neighbour_idle_seconds: u32 = 60 => 1..=86_400, Live;
    }
    tables {
        soft: toml::Spanned<RawSoft>,
        soft_device: Vec<toml::Spanned<RawSoft>>,
    }
    made {
        /// The software devices: that of `[infiniband.soft]` first, if it is given, then those of `[[infiniband.soft-device]]`.
        pub soft: Vec<Soft>,
    }
}

section! {
    /// `[infiniband.soft]` and `[[infiniband.soft-device]]`
    pub Soft from RawSoft {
        /// Name of the device, by which segments find it; "" for that of [infiniband], or else "soft0".
        pub name: String = String::new(), Restart, "\"soft0\"";
        /// GUID of the node, as "0x0002c90300a1b2c3" or "0002:c903:00a1:b2c3". Drawn at start if not given.
        pub node_guid: Option<Guid> = None, Restart, "\"0x0202c90300000001\"";
        /// Seed of everything that the device draws. Drawn at start if not given.
        pub seed: Option<u64> = None => 0..=i64::MAX as u64, Restart, "1";
        /// Entries of each port's GID table.
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
        /// Largest MTU, bytes: 256, 512, 1024, 2048 or 4096.
        pub mtu: u16 = 4096 => 256..=4096, Restart, "4096";
        /// Port GUID. Made from the node's if not given.
        pub guid: Option<Guid> = None, Restart, "\"0x0202c90300000002\"";
        /// true: as the virtual port of an SR-IOV function, the port sends nothing without a GRH and takes nothing without one. The subnet
        /// manager's paths then need a hop limit of at least 1.
        pub grh_required: bool = false, Restart, "false";
    }
}

section! {
    /// `[buffers]`
    pub Buffers from RawBuffers {
        /// How many packet buffers; 0 = as many as the queues need.
        pub count: Option<NonZeroU32> = None => 0..=MAX_BUFFERS, Restart;
        /// Bytes of packet data in one buffer, without headroom, a multiple of 64.
        pub data_room: u16 = 4096 => 2048..=16_384, Restart;
        /// Buffers that each worker keeps at hand.
        pub cache: u16 = 256 => 0..=512, Restart;
        /// Percent of the buffers that no queue is counted for: with them the shared receive queues are filled again while
        /// hosts that are slow to take packets hold theirs.
        pub receive_reserve: u8 = 25 => 0..=75, Restart;
    }
}

/// What the command line may say instead of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    /// `infiniband.mode`, and that of every segment.
    pub mode: Option<Mode>,
    /// `gateway.idle`
    pub idle: Option<Idle>,
    /// `infiniband.driver`
    pub driver: Option<Driver>,
    /// `gateway.control-socket`; empty = no socket.
    pub control_socket: Option<PathBuf>,
    /// `gateway.stats-seconds`
    pub stats_seconds: Option<u32>,
}
