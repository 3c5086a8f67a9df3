//! Every key of the file: its type, what it means, and its default or an example. The parser's types and
//! `--print-config` are made from the one table.

use std::fmt::Write as _;

use serde::Deserialize;
use toml::Spanned;

/// A table of the file, as it is shown.
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
        /// Subnet prefix, the upper half of every GID. Taken over by SIGHUP.
        prefix: Option<Spanned<String>> = "\"fe80::\"",
        /// Hop limit of all paths, 0 or 1. Above 0 every packet has a GRH, which virtual ports (grh_required) need. Taken over by SIGHUP,
        /// for paths that are looked up from then on.
        hop_limit: Option<Spanned<u64>> = "0",
        /// LID mask control, 0 to 7: each port of an adapter has 2^lmc LIDs, in order, the first a multiple of 2^lmc. Where several ways
        /// lead to it they are spread over them.
        lmc: Option<Spanned<u64>> = "0",
        /// SM_Key: requests with it see all members of all groups (`saquery --smkey`); it gives no right to change them. 0: nobody does.
        sm_key: Option<u64> = "1",
        /// Name of the switch where there is no [[switch]].
        name: Option<Spanned<String>> = "\"ibfab\"",
        /// GUID of that switch. None: made from its name, the same at every start.
        guid: Option<Spanned<String>> = "\"0x0200000000000100\"",
        /// true: packets have CRCs on every cable. false: not on those that cannot damage them, within ibfab and over shared memory, where
        /// both ends agree; captures and faults have right ones in any case.
        keep_crcs: Option<bool> = "false",
        /// What is logged: "error", "warn", "info" or "debug", each with what stands before it. The environment's IBFAB_LOG goes before.
        /// Taken over by SIGHUP.
        log: Option<Spanned<String>> = "\"info\"",
        /// How much single modules log, for instance "ibfab::host=debug,connectx=warn"; "": as the others. Taken over by SIGHUP.
        log_filter: Option<Spanned<String>> = "\"\"",
    }

    /// A switch; the first one has the subnet manager. None: a single one for all that there is.
    "[[switch]]" => switch: Vec<RawSwitch>, RawSwitch [] {
        /// Its name, for `switch` and `between` below and for reports.
        name: Spanned<String> = "\"s1\"",
        /// Ports, at most 254. None: as many as something hangs on.
        ports: Option<Spanned<u64>> = "36",
        /// GUID. None: made from its name.
        guid: Option<Spanned<String>> = "\"0x0200000000000200\"",
    }

    /// A cable between two switches. There may be several between the same two, and circles.
    "[[trunk]]" => trunk: Vec<RawTrunk>, RawTrunk [] {
        /// The switches at its ends.
        between: Spanned<Vec<String>> = "[\"s1\", \"s2\"]",
        /// false: pulled out. Taken over by SIGHUP.
        up: Option<bool> = "true",
    }

    /// A partition. None: the default one, 0xffff, with everybody as full members. Taken over by SIGHUP, all of them.
    "[[partition]]" => partition: Vec<RawPartition>, RawPartition [] {
        /// Its name in reports. None: its P_Key.
        name: Option<String> = "\"storage\"",
        /// P_Key, with or without the membership bit 0x8000. Once 0xffff is listed, who is in no partition reaches nobody.
        pkey: Spanned<u64> = "0x8001",
        /// Its IPoIB broadcast group is there from the start.
        ipoib: Option<bool> = "true",
        /// Ports by the name of their link or host or by GUID, and "all" for those that are not named; each a full member,
        /// or with "=limited" behind it one that talks with full members only.
        #[serde(default)]
        members: Option<Vec<Spanned<String>>> = "[\"all\"]",
        /// MTU of its broadcast group in bytes, at most that of the fabric, which is the default.
        mtu: Option<Spanned<u64>> = "4096",
        /// Rate of its broadcast group in Gb/s: 2.5, 5, 10, 20, 30 or 40.
        rate: Option<Spanned<f64>> = "10",
        /// Q_Key of its broadcast group.
        qkey: Option<u32> = "0x0b1b",
        /// Service level of its broadcast group and its paths, 0 to 15.
        sl: Option<Spanned<u64>> = "0",
    }

    /// A port for somebody else: a gateway, or another program with a software ConnectX.
    "[[link]]" => link: Vec<RawLink>, RawLink [] {
        /// Its name in reports and partitions.
        name: Spanned<String> = "\"gateway\"",
        /// Where the other end finds it: shm:SOCKET on this machine, or udp:LOCAL-PEER, each host:port. Faults for tests are
        /// parameters, as in shm:/run/ibfab.sock?loss=0.01&seed=7; crc=keep keeps its CRCs as fabric.keep_crcs does those of all;
        /// key-file=PATH, of udp only, names a file with a key of 32 hexadecimal digits that authenticates every datagram.
        url: Spanned<String> = "\"shm:/run/ibfab.sock\"",
        /// true: the subnet manager takes in switches that answer there, those of an ibfab with --sm none for instance. Whoever is at
        /// the other end is trusted with its hosts' and switches' M_Keys. false: hosts only.
        trunk: Option<bool> = "false",
        /// The switch that it is a port of. None: the first.
        switch: Option<Spanned<String>> = "\"s1\"",
    }

    /// A virtual host: a TUN interface whose packets go by IPoIB.
    "[[host]]" => host: Vec<RawHost>, RawHost [] {
        /// Its name in reports and partitions.
        name: Spanned<String> = "\"host1\"",
        /// Network namespace of its interface. None: that of ibfab itself.
        netns: Option<String> = "\"ib\"",
        /// Its interface.
        tun: Option<String> = "\"ib0\"",
        /// Its IPv4 address with the prefix of its subnet.
        address: Spanned<String> = "\"10.77.0.2/24\"",
        /// Next hop of packets to other subnets. None: they are dropped.
        gateway: Option<Spanned<String>> = "\"10.77.0.254\"",
        /// IP MTU of its interface, 68 to 65520; longer packets than a peer takes are fragmented, or refused by ICMP.
        mtu: Option<Spanned<u64>> = "65520",
        /// "connected" (RFC 4755) or "datagram" (RFC 4391).
        mode: Option<Spanned<String>> = "\"connected\"",
        /// GUID of its channel adapter; its port's is one more. None: made from its name.
        guid: Option<Spanned<String>> = "\"0x0200000000000300\"",
        /// P_Key of its interface. It waits until a partition has it as a member.
        pkey: Option<Spanned<u64>> = "0xffff",
        /// true: its port is as the virtual one of an SR-IOV function, which sends nothing without a GRH and takes nothing without one;
        /// fabric.hop_limit = 1 goes with it.
        grh_required: Option<bool> = "false",
        /// The switch that it hangs on. None: the first.
        switch: Option<Spanned<String>> = "\"s1\"",
    }
}

/// The file that changes nothing: every key with its default or an example, behind a `#`, and what it means.
#[must_use]
pub fn print() -> String {
    let mut out = String::from(
        "# Configuration of ibfab. Every key is here with its default, or an example if it has none.\n",
    );
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
