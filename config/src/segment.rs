//! Segments. Each joins a VLAN of an Ethernet port with a partition of an InfiniBand port as one broadcast
//! domain.

use std::fmt;
use std::net::Ipv4Addr;

use crate::address::{Interface, Prefix, Route};
use crate::key::section;
use crate::value::{Fault, MayLack, Value};
use crate::word::Mode;

/// Maximum number of segments of a gateway.
pub const MAX_SEGMENTS: usize = 128;
/// Maximum number of routes of a segment.
pub const MAX_ROUTES: usize = 256;
/// Maximum number of subnets of a segment, in addition to its own address's.
pub const MAX_SUBNETS: usize = 64;

/// Name of a segment: 1 to 32 of `A-Z a-z 0-9 _ -`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SegmentName(Box<str>);

impl SegmentName {
    /// Returns `None` if the name is not valid.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let legal = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'-';
        ((1..=32).contains(&name.len()) && name.bytes().all(legal)).then(|| Self(name.into()))
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name of a segment without one.
    pub(crate) fn implied(vlan: Option<VlanId>, pkey: PKey) -> Self {
        Self(match vlan {
            Some(vlan) => format!("vlan{vlan}").into(),
            None => format!("pkey{:04x}", pkey.value()).into(),
        })
    }
}

impl Default for SegmentName {
    /// The only segment of a configuration without `[[segment]]`.
    fn default() -> Self {
        Self("default".into())
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Value for SegmentName {
    type Raw = String;
    type Legal = ();

    fn read(_: &str, text: String, _: Option<()>) -> Result<Self, Fault> {
        Self::new(&text).ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            Fault::new(
                format!("`{shown}` is not a valid segment name"),
                "write 1 to 32 letters, digits, `_` and `-`",
            )
        })
    }

    fn toml(&self) -> Option<String> {
        Some(format!("\"{self}\""))
    }
}

/// A VLAN ID, 1 to 4094 (IEEE 802.1Q).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct VlanId(u16);

impl VlanId {
    /// Returns `None` for 0 (a priority tag), 4095 (reserved) and numbers with more than 12 bits.
    #[must_use]
    pub const fn new(id: u16) -> Option<Self> {
        if id >= 1 && id <= 4094 { Some(Self(id)) } else { None }
    }

    /// Returns the number.
    #[must_use]
    pub const fn value(self) -> u16 {
        self.0
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl MayLack for VlanId {}

impl Value for VlanId {
    type Raw = i64;
    type Legal = ();

    fn read(key: &str, raw: i64, _: Option<()>) -> Result<Self, Fault> {
        u16::try_from(raw).ok().and_then(Self::new).ok_or_else(|| {
            let remedy = "write a number from 1 to 4094, or leave it out for frames without a tag";
            Fault::new(format!("{key} = {raw} is out of range"), remedy)
        })
    }

    fn toml(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// A partition key with full membership: bit 15, and 15 nonzero bits that identify the partition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PKey(u16);

impl PKey {
    /// The default partition.
    pub const DEFAULT: Self = Self(0xffff);

    /// Returns `None` without full membership, and for 0x8000.
    #[must_use]
    pub const fn new(value: u16) -> Option<Self> {
        if value > 0x8000 { Some(Self(value)) } else { None }
    }

    /// Returns the key with the membership bit.
    #[must_use]
    pub const fn value(self) -> u16 {
        self.0
    }
}

impl fmt::Display for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

impl Value for PKey {
    type Raw = i64;
    type Legal = ();

    fn read(key: &str, raw: i64, _: Option<()>) -> Result<Self, Fault> {
        let value = u16::try_from(raw).map_err(|_| {
            Fault::new(format!("{key} = {raw} is out of range"), "write a number from 0x8001 to 0xffff")
        })?;
        Self::new(value).ok_or_else(|| match value & 0x7fff {
            0 => Fault::new(
                format!("P_Key {value:#06x} is not a valid partition"),
                "write 0xffff for the default partition",
            ),
            base => Fault::new(
                format!(
                    "P_Key {value:#06x} is limited membership: its members hear full members only, so that half \
                     of the partition's hosts would be out of reach"
                ),
                format!("write {:#06x}, and configure the port as a full member in the subnet manager", base | 0x8000),
            ),
        })
    }

    fn toml(&self) -> Option<String> {
        Some(self.to_string())
    }
}

section! {
    /// `[[segment]]`: a VLAN joined with a partition.
    pub Segment from RawSegment {
        /// Name in `ipoib-fwd ctl` and in the log: 1 to 32 letters, digits, _ and -. The default is
        /// "vlan100", from its VLAN, or "pkey8001", from its P_Key.
        pub name: SegmentName = SegmentName::default(), Live, "\"storage\"";
        /// Name of its DPDK port, as in [ethernet]; the default is that of [ethernet]. The port sizes are
        /// those of [ethernet].
        pub ethernet: Option<String> = None, Restart, "\"net_pcap0\"";
        /// VLAN ID, from 1 to 4094. Without it, the segment has the untagged frames.
        pub vlan: Option<VlanId> = None, Restart, "100";
        /// Name of its InfiniBand device; the default is that of [infiniband].
        pub device: Option<String> = None, Restart, "\"mlx5_0\"";
        /// Port of the device; the default is that of [infiniband].
        pub port: u8 = 1 => 1..=254, Restart, "1";
        /// Partition key with full membership (0x8000 added); the default is that of [infiniband]. If the
        /// port does not have it yet, the segment waits for it.
        pub pkey: PKey = PKey::DEFAULT, Restart, "0x8001";
        /// Scope of its multicast groups; the default is that of [infiniband].
        pub scope: u8 = 2 => 1..=14, Restart, "2";
        /// "connected" or "datagram"; the default is that of [infiniband].
        pub mode: Mode = Mode::Connected, Live, "\"connected\"";
        /// Maximum length of an IPv4 packet on its Ethernet side in bytes, at most the mtu of [ethernet],
        /// which is also the default.
        pub mtu: u16 = 1500 => 576..=9700, Live, "1500";
        /// The gateway's own IPv4 address in it with the prefix length of its subnet, as in [gateway].
        pub address: Option<Interface> = None, Live, "\"10.77.0.254/24\"";
        /// Other subnets with hosts on the segment.
        pub subnets: Vec<Prefix> = Vec::new() => MAX_SUBNETS, Live, "[\"10.78.0.0/16\"]";
        /// Election priority between two gateways; the default is that of [gateway].
        pub priority: u8 = 100 => 0..=255, Live, "100";
    }
    tables { route: Vec<toml::Spanned<RawRoute>>, }
    made {
        /// Routes to other networks in file order. The longest prefix takes precedence.
        pub routes: Vec<Route>,
    }
}

section! {
    /// `[[segment.route]]` with its keys.
    pub(crate) RouteKeys from RawRoute {
        /// A network that is not on the segment; "0.0.0.0/0" for all others. The longest prefix takes
        /// precedence.
        pub to: Option<Prefix> = None, Live, "\"0.0.0.0/0\"";
        /// Router for packets to this network: a host of the segment's own subnets, on either side.
        pub via: Option<Ipv4Addr> = None, Live, "\"10.77.0.1\"";
    }
}

impl MayLack for Prefix {}
impl MayLack for Ipv4Addr {}

impl Segment {
    /// Returns the networks on the segment: that of its own address, then the others. If there are none,
    /// every host is assumed to be on the segment.
    pub fn on_link(&self) -> impl Iterator<Item = Prefix> + '_ {
        self.address.map(Interface::prefix).into_iter().chain(self.subnets.iter().copied())
    }
}
