//! The typed configuration: legal values only. [`Config::annotated_default`] explains each key to operators.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// Defines an enum that is one word in the file and on the command line.
macro_rules! word {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)*
        }

        impl $name {
            /// The words that it can be.
            pub const WORDS: &[&str] = &[$($word),*];

            /// The word.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> Result<Self, String> {
                match word {
                    $($word => Ok(Self::$variant),)*
                    _ => Err(format!("`{word}` is none of: {}", Self::WORDS.join(", "))),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

word!(
    /// What a worker does in a turn that found nothing to do.
    Idle {
        /// Asks again at once.
        Poll = "poll",
        /// Asks again after a pause instruction.
        Pause = "pause",
        /// Sleeps for a moment, longer and longer, or until the device tells of a message.
        Sleep = "sleep",
    }
);

word!(
    /// How unicast packets travel through the fabric.
    Mode {
        /// By UD only (RFC 4391).
        Datagram = "datagram",
        /// By RC connections to hosts that accept them, else by UD (RFC 4755).
        Connected = "connected",
    }
);

word!(
    /// What drives the InfiniBand port.
    Driver {
        /// The software device if `[infiniband.soft]` is given, else mlx5 for a device of that kind, verbs for others.
        Auto = "auto",
        /// The software ConnectX.
        Soft = "soft",
        /// The gateway's own driver on the rings of a ConnectX-4 or later.
        Mlx5 = "mlx5",
        /// Any RDMA device, by the calls of libibverbs.
        Verbs = "verbs",
    }
);

/// The whole configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// `[gateway]`
    pub gateway: Gateway,
    /// `[ethernet]`
    pub ethernet: Ethernet,
    /// `[infiniband]`
    pub infiniband: InfiniBand,
    /// `[buffers]`
    pub buffers: Buffers,
}

/// An IPv4 address with the length of its network prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4Interface {
    /// A host's address within the prefix.
    pub address: Ipv4Addr,
    /// 1 to 31.
    pub prefix_len: u8,
}

/// `[gateway]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gateway {
    /// Its own address: source of ICMP, answers ping.
    pub address: Option<Ipv4Interface>,
    /// What an idle worker does.
    pub idle: Idle,
    /// File of the shared GID table; `None` = not shared.
    pub gids: Option<PathBuf>,
    /// Path of the control socket; `None` = no socket.
    pub control_socket: Option<PathBuf>,
    /// Seconds between two lines of statistics; 0 = none.
    pub stats_seconds: u32,
}

/// `[ethernet]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ethernet {
    /// Name of the DPDK port; `None` = the only one.
    pub port: Option<String>,
    /// Largest IPv4 packet, 576 to 9,700 bytes.
    pub mtu: u16,
    /// Receive descriptors per worker, 64 to 32,768.
    pub rx_descriptors: u16,
    /// Transmit descriptors per worker, 64 to 32,768.
    pub tx_descriptors: u16,
    /// True to receive frames for all addresses.
    pub promiscuous: bool,
}

/// `[infiniband]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InfiniBand {
    /// What drives the port.
    pub driver: Driver,
    /// Name of the device; `None` = the first one.
    pub device: Option<String>,
    /// Port of the device, from 1.
    pub port: u8,
    /// The partition, with its membership bit; neither 0 nor 0x8000.
    pub pkey: u16,
    /// Scope of multicast groups, 1 to 14.
    pub scope: u8,
    /// Mode to start in.
    pub mode: Mode,
    /// Largest IPv4 packet accepted on a connection, 576 to 65,520 bytes.
    pub receive_mtu: u16,
    /// Send requests of a worker's datagram queue pair, 64 to 32,768.
    pub ud_send_depth: u32,
    /// Receive requests of a worker's datagram queue pair, 64 to 32,768.
    pub ud_receive_depth: u32,
    /// Receive requests of a worker's shared receive queue, 16 to 32,768.
    pub srq_depth: u32,
    /// Alarm when fewer are posted, less than `srq_depth`; 0 = never.
    pub srq_low: u32,
    /// Most connections, both directions counted, 2 to 65,535.
    pub max_connections: u32,
    /// Send requests of a connection, 4 to 8,192.
    pub connection_send_depth: u32,
    /// Retries after timeouts and sequence errors, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0 to 7; 7 = for ever.
    pub rnr_retry: u8,
    /// A connection that peers opened is closed when idle for so long, seconds, at least 1.
    pub connection_idle_seconds: u32,
    /// A neighbour that nobody uses is forgotten after so long, seconds, at least 1.
    pub neighbour_idle_seconds: u32,
    /// The software ConnectX, if `[infiniband.soft]` is given.
    pub soft: Option<Soft>,
}

/// A 64-bit identifier of a node or port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Guid(pub u64);

/// `[infiniband.soft]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Soft {
    /// GUID of the node; `None` = drawn at start.
    pub node_guid: Option<Guid>,
    /// Seed of all that is drawn; `None` = drawn at start.
    pub seed: Option<u64>,
    /// Entries of each port's GID table, 1 to 255.
    pub gid_table: u16,
    /// Its ports, one or two.
    pub ports: Vec<SoftPort>,
}

/// A port of the software ConnectX.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SoftPort {
    /// URL of its link: begins with `shm:` or `udp:`.
    pub link: String,
    /// Largest MTU: 256, 512, 1024, 2048 or 4096 bytes.
    pub mtu: u16,
    /// Port GUID; `None` = made from the node's.
    pub guid: Option<Guid>,
}

/// `[buffers]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buffers {
    /// How many; `None` = as many as the queues need ([`Config::buffers_needed`]).
    pub count: Option<u32>,
    /// Bytes of packet data in one, without headroom: 2,048 to 16,384, a multiple of 64.
    pub data_room: u16,
    /// How many a worker keeps at hand, 0 to 512.
    pub cache: u16,
}

/// What the command line may say instead of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    /// `infiniband.mode`
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

impl Config {
    /// Puts what the command line says in place of what the file says.
    pub fn apply(&mut self, overrides: &Overrides) {
        if let Some(mode) = overrides.mode {
            self.infiniband.mode = mode;
        }
        if let Some(idle) = overrides.idle {
            self.gateway.idle = idle;
        }
        if let Some(driver) = overrides.driver {
            self.infiniband.driver = driver;
        }
        if let Some(path) = &overrides.control_socket {
            self.gateway.control_socket = (!path.as_os_str().is_empty()).then(|| path.clone());
        }
        if let Some(seconds) = overrides.stats_seconds {
            self.gateway.stats_seconds = seconds;
        }
    }

    /// Buffers that one message on a connection takes at most.
    #[must_use]
    pub fn segments_per_message(&self) -> u32 {
        // The encapsulation header's 4 bytes come on top of the packet.
        (u32::from(self.infiniband.receive_mtu) + 4).div_ceil(u32::from(self.buffers.data_room))
    }

    /// Buffers that `workers` workers need so that every queue can be full: all receives posted, all sends outstanding,
    /// caches full, and as much again of one shared receive queue in flight between the sides.
    #[must_use]
    pub fn buffers_needed(&self, workers: u32) -> u32 {
        let ib = &self.infiniband;
        let eth = u32::from(self.ethernet.rx_descriptors) + u32::from(self.ethernet.tx_descriptors);
        // Rings have a power of two of entries, the shared one with one that is never posted, and are filled.
        let shared = (ib.srq_depth + 1).next_power_of_two() - 1;
        let srq = shared.saturating_mul(self.segments_per_message());
        let ud = ib.ud_send_depth + ib.ud_receive_depth.next_power_of_two();
        let one = srq.saturating_add(srq / 2).saturating_add(eth + ud + 2 * u32::from(self.buffers.cache));
        one.saturating_mul(workers).saturating_add(1024)
    }
}
