//! The file as TOML has it: every key optional, each value with its place. The documentation of a key here is what the
//! annotated default configuration says.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use toml::Spanned;

use crate::settings::Guid;

/// One key of a section, for the annotated default configuration.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static [&'static str],
    /// The default as TOML; what begins with `#` has none and is an example.
    pub(crate) default: &'static str,
}

/// Defines a section: the type that serde fills and the list of its keys.
macro_rules! section {
    ($name:ident { $($(#[doc = $doc:literal])* $field:ident: $type:ty = $default:literal,)* } $(tables { $($table:ident: $ttype:ty,)* })?) => {
        #[derive(serde::Deserialize, Default)]
        #[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
        pub(crate) struct $name {
            $(pub(crate) $field: Option<Spanned<$type>>,)*
            $($(pub(crate) $table: Option<$ttype>,)*)?
        }

        impl $name {
            pub(crate) const KEYS: &[Key] = &[
                $(Key { name: stringify!($field), doc: &[$($doc),*], default: $default },)*
            ];
        }
    };
}

/// The file.
#[derive(serde::Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Raw {
    pub(crate) gateway: RawGateway,
    pub(crate) ethernet: RawEthernet,
    pub(crate) infiniband: RawInfiniBand,
    pub(crate) buffers: RawBuffers,
}

section!(RawGateway {
    /// The gateway's own IPv4 address and the length of the joined subnet's prefix. It is the source of its ICMP
    /// messages and answers ping. Without it, ICMP comes in the name of the destination.
    address: String = "# \"10.77.0.254/24\"",
    /// What a worker does when there is nothing to do: "poll" asks again at once, "pause" after a pause instruction,
    /// "sleep" sleeps for microseconds, or until the device tells of a message (for machines that have other work to do).
    idle: String = "\"sleep\"",
    /// File in which the device's GID table is shared with other processes, for instance "/run/ipoib-fwd-gids"; "" for
    /// none. `ipoib-fwd gids --shared` reads it.
    gids: String = "\"\"",
    /// UNIX socket of `ipoib-fwd ctl`; "" for none.
    control_socket: String = "\"/run/ipoib-fwd.sock\"",
    /// Print statistics every so many seconds; 0 = never.
    stats_seconds: i64 = "0",
});

section!(RawEthernet {
    /// Name of the DPDK port: a PCI address, or the name given to --vdev. "" for the only one there is.
    port: String = "\"\"",
    /// Largest IPv4 packet on the Ethernet side, bytes, 576 to 9700.
    mtu: i64 = "1500",
    /// Receive descriptors of each worker, 64 to 32768.
    rx_descriptors: i64 = "1024",
    /// Transmit descriptors of each worker, 64 to 32768.
    tx_descriptors: i64 = "1024",
    /// Receive frames for all addresses. Not needed: the gateway answers ARP with its own.
    promiscuous: bool = "false",
});

section!(RawInfiniBand {
    /// "verbs" drives any device that libibverbs knows, "mlx5" the rings of a ConnectX-4 or later, "soft" the software ConnectX
    /// of [infiniband.soft]; "auto" takes soft if that is configured, else mlx5 for a ConnectX and verbs for others.
    driver: String = "\"auto\"",
    /// Name of the device, for instance "mlx5_0"; "" for the first one.
    device: String = "\"\"",
    /// Port of the device, from 1.
    port: i64 = "1",
    /// Partition key, with the membership bit 0x8000.
    pkey: i64 = "0xffff",
    /// Scope of the link's multicast groups, 1 to 14; 2 = link-local, as almost everywhere.
    scope: i64 = "2",
    /// "connected": RC connections to hosts that accept them, packets up to 65520 bytes; "datagram": UD only.
    mode: String = "\"connected\"",
    /// Largest IPv4 packet accepted on a connection, bytes, 576 to 65520.
    receive_mtu: i64 = "65520",
    /// Send requests of a worker's datagram queue pair, 64 to 32768.
    ud_send_depth: i64 = "512",
    /// Receive requests of a worker's datagram queue pair, 64 to 32768.
    ud_receive_depth: i64 = "512",
    /// Receive requests of a worker's shared receive queue, 16 to 32768. Each holds buffers for a message of the
    /// largest size. If it runs dry, Linux hosts close their connections.
    srq_depth: i64 = "512",
    /// Raise an alarm when fewer receives than this are left in the shared receive queue; 0 = never. Without it a
    /// quarter of srq-depth.
    srq_low: i64 = "# 128",
    /// Most connections, both directions counted, 2 to 65535.
    max_connections: i64 = "4096",
    /// Send requests of a connection, 4 to 8192.
    connection_send_depth: i64 = "1024",
    /// How often a connection sends again after a timeout or a sequence error, 0 to 7. Linux has 0.
    retry_count: i64 = "0",
    /// How often a connection sends again when the other end has no receive posted, 0 to 7; 7 = for ever. Linux has 0.
    rnr_retry: i64 = "0",
    /// Close a connection that a host opened when nothing came by it for so many seconds.
    connection_idle_seconds: i64 = "512",
    /// Forget a host that nobody sends to for so many seconds.
    neighbour_idle_seconds: i64 = "60",
} tables {
    soft: RawSoft,
});

section!(RawSoft {
    /// GUID of the node, as "0x0002c90300a1b2c3" or "0002:c903:00a1:b2c3". Drawn at start if not given.
    node_guid: RawGuid = "# \"0x0202c90300000001\"",
    /// Seed of everything that the device draws. Drawn at start if not given.
    seed: i64 = "# 1",
    /// Entries of each port's GID table, 1 to 255.
    gid_table: i64 = "128",
    /// One or two ports. link is shm:/path of a socket of ibfab, or udp:LOCAL-PEER; mtu (256 to 4096, default 4096)
    /// and guid may be given.
    ports: Vec<Spanned<RawSoftPort>> = "[{ link = \"shm:/run/ibfab/gw.sock\", mtu = 4096 }]",
});

section!(RawBuffers {
    /// How many packet buffers; 0 = as many as the queues need.
    count: i64 = "0",
    /// Bytes of packet data in one buffer, 2048 to 16384, a multiple of 64.
    data_room: i64 = "4096",
    /// Buffers that each worker keeps at hand, 0 to 512.
    cache: i64 = "256",
});

/// A port of the software ConnectX.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawSoftPort {
    pub(crate) link: Spanned<String>,
    pub(crate) mtu: Option<Spanned<i64>>,
    pub(crate) guid: Option<Spanned<RawGuid>>,
}

/// A GUID: a number, or hexadecimal digits with `0x` or colons.
pub(crate) struct RawGuid(pub(crate) Guid);

impl<'de> Deserialize<'de> for RawGuid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct GuidVisitor;

        impl Visitor<'_> for GuidVisitor {
            type Value = RawGuid;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a GUID such as \"0x0002c90300a1b2c3\"")
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<RawGuid, E> {
                u64::try_from(value)
                    .ok()
                    .filter(|v| *v != 0)
                    .map(|v| RawGuid(Guid(v)))
                    .ok_or_else(|| E::custom("a GUID is neither zero nor negative"))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<RawGuid, E> {
                match value {
                    0 => Err(E::custom("a GUID is not zero")),
                    value => Ok(RawGuid(Guid(value))),
                }
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<RawGuid, E> {
                let digits = match text.strip_prefix("0x") {
                    Some(digits) => digits.to_owned(),
                    None if text.split(':').count() == 4 && text.split(':').all(|p| p.len() == 4) => {
                        text.replace(':', "")
                    }
                    None => String::new(),
                };
                if digits.len() > 16 || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
                    return Err(E::custom(format!("`{text}` is not a GUID such as \"0x0002c90300a1b2c3\"")));
                }
                match u64::from_str_radix(&digits, 16) {
                    Ok(value) if value != 0 => Ok(RawGuid(Guid(value))),
                    _ => Err(E::custom(format!("`{text}` is not a GUID such as \"0x0002c90300a1b2c3\""))),
                }
            }
        }

        deserializer.deserialize_any(GuidVisitor)
    }
}
