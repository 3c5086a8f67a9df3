//! The table of every key of the file: its type, its description, and its default or an example. The parser's
//! types and `--print-config` are generated from this table.

use std::fmt::Write as _;

use serde::Deserialize;
use toml::Spanned;

/// A table of the file for `--print-config`.
struct Table {
    /// Its header.
    header: &'static str,
    words: &'static [&'static str],
    keys: &'static [Key],
}

struct Key {
    name: &'static str,
    /// Its default, or an example where it has none.
    value: &'static str,
    words: &'static [&'static str],
}

macro_rules! tables {
    ($($(#[doc = $words:literal])* $header:literal => $field:ident: $kind:ty, $name:ident [$($derive:ident)?] {
        $($(#[doc = $key_words:literal])* $(#[serde($attr:meta)])? $key:ident: $type:ty = $value:literal,)*
    })*) => {
        /// The file.
        #[derive(Deserialize, Default)]
        #[serde(default, deny_unknown_fields)]
        pub(super) struct Raw {
            $(pub(super) $field: $kind,)*
        }

        $(
            $(#[doc = $words])*
            #[derive(Deserialize $(, $derive)?)]
            #[serde(deny_unknown_fields)]
            pub(super) struct $name {
                $($(#[doc = $key_words])* $(#[serde($attr)])? pub(super) $key: $type,)*
            }
        )*

        const TABLES: &[Table] = &[$(Table {
            header: $header,
            words: &[$($words),*],
            keys: &[$(Key { name: stringify!($key), value: $value, words: &[$($key_words),*] }),*],
        }),*];
    };
}

tables! {
    /// The fabric as a whole.
    "[fabric]" => fabric: RawFabric, RawFabric [Default] {
        /// Largest MTU of all ports in bytes: 256, 512, 1024, 2048 or 4096.
        mtu: Option<Spanned<u64>> = "4096",
        /// Subnet prefix, the upper half of every GID. SIGHUP applies changes.
        prefix: Option<Spanned<String>> = "\"fe80::\"",
        /// Hop limit of all paths, 0 or 1. Above 0, every packet has a GRH, which virtual ports
        /// (grh_required) need. SIGHUP applies changes, to later path queries.
        hop_limit: Option<Spanned<u64>> = "0",
        /// LID mask control, 0 to 7. Each port of an adapter has 2^lmc consecutive LIDs; the first is a
        /// multiple of 2^lmc. If several paths lead to the port, its LIDs are spread over them.
        lmc: Option<Spanned<u64>> = "0",
        /// SM_Key. Requests with it see all members of all groups (`saquery --smkey`); it gives no right to
        /// change them. 0: no request does.
        sm_key: Option<u64> = "1",
        /// Name of the switch if there is no [[switch]].
        name: Option<Spanned<String>> = "\"ibfab\"",
        /// GUID of that switch. Default: made from its name, the same at every start.
        guid: Option<Spanned<String>> = "\"0x0200000000000100\"",
        /// true: packets have CRCs on every cable. false: no CRCs on cables that cannot damage packets, which
        /// are those within ibfab and, if both ends agree, over shared memory. Captures and fault injection
        /// have valid CRCs in any case.
        keep_crcs: Option<bool> = "false",
        /// Log level: "error", "warn", "info" or "debug"; each includes those before it. The environment
        /// variable IBFAB_LOG takes precedence. SIGHUP applies changes.
        log: Option<Spanned<String>> = "\"info\"",
        /// Log levels of single modules, for instance "ibfab::host=debug,connectx=warn"; "": `log` for all.
        /// SIGHUP applies changes.
        log_filter: Option<Spanned<String>> = "\"\"",
    }

    /// A switch; the first one has the subnet manager. Without any [[switch]], there is a single one for all
    /// ports.
    "[[switch]]" => switch: Vec<RawSwitch>, RawSwitch [] {
        /// Name, for `switch` and `between` below and for reports.
        name: Spanned<String> = "\"s1\"",
        /// Number of ports, at most 254. Default: the number of ports in use.
        ports: Option<Spanned<u64>> = "36",
        /// GUID. Default: made from its name.
        guid: Option<Spanned<String>> = "\"0x0200000000000200\"",
    }

    /// A cable between two switches. Parallel cables and loops are allowed.
    "[[trunk]]" => trunk: Vec<RawTrunk>, RawTrunk [] {
        /// The switches at its ends.
        between: Spanned<Vec<String>> = "[\"s1\", \"s2\"]",
        /// false: pulled out. SIGHUP applies changes.
        up: Option<bool> = "true",
    }

    /// A partition. Without any [[partition]], there is the default one, 0xffff, with all ports as full
    /// members. SIGHUP applies changes of all partitions.
    "[[partition]]" => partition: Vec<RawPartition>, RawPartition [] {
        /// Name in reports. Default: its P_Key.
        name: Option<String> = "\"storage\"",
        /// P_Key, with or without the membership bit 0x8000. Once 0xffff is listed, a port without a
        /// partition can reach no other.
        pkey: Spanned<u64> = "0x8001",
        /// true: its IPoIB broadcast group exists from the start.
        ipoib: Option<bool> = "true",
        /// Members: the name of a link or host, a port GUID, or "all" for ports that are not named. A member
        /// has full membership, or with the suffix "=limited" a limited one, which communicates with full
        /// members only.
        #[serde(default)]
        members: Option<Vec<Spanned<String>>> = "[\"all\"]",
        /// MTU of its broadcast group in bytes, at most that of the fabric. Default: that of the fabric.
        mtu: Option<Spanned<u64>> = "4096",
        /// Rate of its broadcast group in Gb/s: 2.5, 5, 10, 20, 30 or 40.
        rate: Option<Spanned<f64>> = "10",
        /// Q_Key of its broadcast group.
        qkey: Option<u32> = "0x0b1b",
        /// Service level of its broadcast group and its paths, 0 to 15.
        sl: Option<Spanned<u64>> = "0",
    }

    /// A port for another process: a gateway, or another program with a software ConnectX.
    "[[link]]" => link: Vec<RawLink>, RawLink [] {
        /// Name in reports and partitions.
        name: Spanned<String> = "\"gateway\"",
        /// Address for the other end: shm:SOCKET on this host, or udp:LOCAL-PEER, each host:port. Parameters
        /// inject faults for tests, as in shm:/run/ibfab.sock?loss=0.01&seed=7. crc=keep keeps this link's
        /// CRCs, as fabric.keep_crcs does for all links. key-file=PATH, for udp only, names a file with a key
        /// of 32 hexadecimal digits that authenticates every datagram.
        url: Spanned<String> = "\"shm:/run/ibfab.sock\"",
        /// true: the subnet manager also manages switches behind this link, for instance those of an ibfab
        /// with --sm none. The other end is trusted with the M_Keys of its hosts and switches. false: hosts
        /// only.
        trunk: Option<bool> = "false",
        /// The switch that has the port. Default: the first.
        switch: Option<Spanned<String>> = "\"s1\"",
    }

    /// A virtual host: a TUN interface whose packets are carried by IPoIB.
    "[[host]]" => host: Vec<RawHost>, RawHost [] {
        /// Name in reports and partitions.
        name: Spanned<String> = "\"host1\"",
        /// Network namespace of its interface. Default: that of ibfab.
        netns: Option<String> = "\"ib\"",
        /// Name of its interface.
        tun: Option<String> = "\"ib0\"",
        /// IPv4 address with the prefix length of its subnet.
        address: Spanned<String> = "\"10.77.0.2/24\"",
        /// Next hop of packets to other subnets. Without it, they are dropped.
        gateway: Option<Spanned<String>> = "\"10.77.0.254\"",
        /// IP MTU of its interface, 68 to 65520. Packets that are too long for a peer are fragmented, or
        /// refused by ICMP.
        mtu: Option<Spanned<u64>> = "65520",
        /// "connected" (RFC 4755) or "datagram" (RFC 4391).
        mode: Option<Spanned<String>> = "\"connected\"",
        /// GUID of its channel adapter; the GUID of its port is one more. Default: made from its name.
        guid: Option<Spanned<String>> = "\"0x0200000000000300\"",
        /// P_Key of its interface. The host waits until it is a member of that partition.
        pkey: Option<Spanned<u64>> = "0xffff",
        /// true: its port behaves as the virtual port of an SR-IOV function, which neither sends nor accepts
        /// packets without a GRH. Set fabric.hop_limit = 1, too.
        grh_required: Option<bool> = "false",
        /// The switch that its port is on. Default: the first.
        switch: Option<Spanned<String>> = "\"s1\"",
    }
}

/// Returns a file that changes nothing: every key with its description, and its default or an example behind
/// a `#`.
#[must_use]
pub fn print() -> String {
    let mut out =
        String::from("# Configuration of ibfab: every key with its default, or an example if it has none.\n");
    for table in TABLES {
        out.push('\n');
        words(&mut out, table.words);
        // Writing to a string does not fail.
        let _ = writeln!(out, "#{}", table.header);
        for key in table.keys {
            words(&mut out, key.words);
            let _ = writeln!(out, "#{} = {}", key.name, key.value);
        }
    }
    out
}

fn words(out: &mut String, lines: &[&str]) {
    for line in lines {
        let _ = writeln!(out, "#{line}");
    }
}
