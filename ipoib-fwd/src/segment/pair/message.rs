//! Messages between the gateways of one segment, with their own version, the same on both sides.
//!
//! On Ethernet behind an Ethernet header of type [`crate::forward::ETHERTYPE_HELLO`] to
//! [`crate::forward::PAIR_GROUP`], on InfiniBand behind the encapsulation header with that type, to the
//! broadcast group. Hosts have no use for the type and drop it. Numbers are in network order.
//!
//! ```text
//!  0 magic "IPGW"   4 version   5 kind   6 length, tag included   8 segment   16 GUID   24 instance   32 sequence
//! 40 side sent on  41 zero      48 body  …  16 bytes of tag, zero without a key
//! hello:      0 priority  1 role  2 flags  3 heard  4 interval ms  6 lease ms  8 MAC  14 LID  16 GID  32 queue pairs  33 zero
//!            36 heard × (GUID 8, instance 8, sides 1)  …  queue pairs × 4
//! neighbours: 0 count  2 zero  4 count × (side 1, address 16, link-layer address 20)
//! ```

use std::fmt;
use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ib_wire::ipoib::{HARDWARE_ADDRESS_LEN, HardwareAddress};
use ib_wire::{Gid, Guid, Lid, Qpn};
use ipoib::net::ethernet::MacAddress;
use siphasher::sip128::{Hasher128, SipHasher24};

/// Maximum length of a message, bytes: fits every Ethernet frame and every datagram of a broadcast group.
pub const LONGEST: usize = 1400;
/// Maximum number of gateways that a hello names as heard.
pub const MAX_PEERS: usize = 8;
/// Maximum number of datagram queue pairs of one gateway: one per worker.
pub const MAX_QPNS: usize = 255;
/// Maximum number of neighbors in one message.
pub const PER_PAGE: usize = (LONGEST - HEADER - TAG - 4) / NEIGHBOUR;

const MAGIC: [u8; 4] = *b"IPGW";
const VERSION: u8 = 1;
const HEADER: usize = 48;
const TAG: usize = 16;
const NEIGHBOUR: usize = 1 + 16 + HARDWARE_ADDRESS_LEN;
const KIND_HELLO: u8 = 1;
const KIND_NEIGHBOURS: u8 = 2;

/// One of the two networks that a segment joins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Side {
    /// The Ethernet network.
    Ethernet,
    /// The InfiniBand partition.
    InfiniBand,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Ethernet, Self::InfiniBand];

    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Ethernet => Self::InfiniBand,
            Self::InfiniBand => Self::Ethernet,
        }
    }

    /// Name of the side for output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ethernet => "Ethernet",
            Self::InfiniBand => "InfiniBand",
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Ethernet),
            1 => Some(Self::InfiniBand),
            _ => None,
        }
    }
}

/// None, one or both of the sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SideSet(u8);

impl SideSet {
    /// Neither.
    pub const NONE: Self = Self(0);
    /// Both.
    pub const BOTH: Self = Self(3);

    /// The set with or without this side.
    #[must_use]
    pub const fn with(self, side: Side, is_in: bool) -> Self {
        let bit = 1 << side as u8;
        Self(if is_in { self.0 | bit } else { self.0 & !bit })
    }

    /// True if the set contains this side.
    #[must_use]
    pub const fn has(self, side: Side) -> bool {
        self.0 & (1 << side as u8) != 0
    }

    /// True if the set contains both sides.
    #[must_use]
    pub const fn is_both(self) -> bool {
        self.0 == Self::BOTH.0
    }

    /// True if the set is empty.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// The role of a gateway in its segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It listens for other gateways, and does not forward yet.
    Listening,
    /// Another gateway forwards, or a side is down.
    Standby,
    /// It forwards.
    Forwarding,
    /// Its own packets came back from the other side: foreign equipment joins the two sides, and it does not
    /// forward.
    Blocked,
    /// Its operator has taken it out of service. Its hellos report it as a standby that is about to exit.
    Drained,
}

impl Role {
    /// Name of the role for output and counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Listening => "listening",
            Self::Standby => "standby",
            Self::Forwarding => "forwarding",
            Self::Blocked => "blocked",
            Self::Drained => "drained",
        }
    }

    /// The role that hellos report to other gateways.
    pub(super) const fn reported(self) -> Self {
        match self {
            Self::Drained => Self::Standby,
            role => role,
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Listening),
            1 => Some(Self::Standby),
            2 => Some(Self::Forwarding),
            3 => Some(Self::Blocked),
            _ => None,
        }
    }
}

/// The broadcast domain of a message, as the configuration names it. Gateways of different segments may hear
/// each other where VLANs or cables are shared. The gateway's own address is no part of it, and a gateway may
/// name no subnet. Gateways whose ids differ are of one segment only while they hear each other on both
/// sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentId(pub u64);

impl SegmentId {
    /// The id of a partition, and of the subnet if the gateway is configured with one. Membership of the
    /// P_Key does not matter.
    #[must_use]
    pub fn of(pkey: u16, subnet: Option<(Ipv4Addr, u8)>) -> Self {
        let (network, length) = subnet.unwrap_or((Ipv4Addr::UNSPECIFIED, 0));
        let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0);
        let partition = u64::from(pkey & 0x7fff) | 0x8000;
        Self(partition << 48 | u64::from(length) << 32 | u64::from(network.to_bits() & mask))
    }

    /// True if both name the same partition.
    #[must_use]
    pub const fn is_same_partition(self, other: Self) -> bool {
        self.0 >> 48 == other.0 >> 48
    }
}

/// One run of one gateway.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Identity {
    /// The GUID of its HCA's port or node.
    pub guid: Guid,
    /// The lower half is drawn when the gateway starts. The upper half is the uptime at which it made the
    /// segment: a segment that a reload makes again is another one.
    pub instance: u64,
}

/// The bits of an instance that all segments of a gateway have in common.
const GATEWAY: u64 = 0xffff_ffff;

impl Identity {
    /// True if both are of one run of one gateway, whichever segments and whenever they were made.
    #[must_use]
    pub const fn is_same_gateway(self, other: Self) -> bool {
        self.instance & GATEWAY == other.instance & GATEWAY
    }

    /// The identity of a segment that is made at this uptime.
    #[must_use]
    pub const fn made_after(self, uptime: Duration) -> Self {
        let instance = (uptime.as_millis() as u64) << 32 | self.instance & GATEWAY;
        Self { instance, ..self }
    }
}

/// A secret that the gateways of a segment share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 16]);

impl Key {
    /// Makes a key from its 128 bits.
    #[must_use]
    pub const fn new(key: [u8; 16]) -> Self {
        Self(key)
    }

    /// SipHash-2-4 with 128 bits is a keyed pseudorandom function, and so a message authentication code.
    fn tag(self, bytes: &[u8]) -> [u8; TAG] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(bytes);
        hasher.finish128().as_bytes()
    }
}

// A key must not appear in logs.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// A gateway that the sender of a hello hears.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heard {
    /// The gateway.
    pub who: Identity,
    /// The sides on which it is heard.
    pub sides: SideSet,
}

/// The state of a gateway, sent some three times a second.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Higher is better.
    pub priority: u8,
    /// Its role.
    pub role: Role,
    /// The sides that are up.
    pub up: SideSet,
    /// It is better and its tables are warm: the forwarder may resign.
    pub claims: bool,
    /// It is about to exit, or drained: do not wait for it.
    pub leaves: bool,
    /// Time to its next hello.
    pub interval: Duration,
    /// How long it counts as alive from now on.
    pub lease: Duration,
    /// Its Ethernet address: packets that come from there were forwarded already.
    pub mac: MacAddress,
    /// Its InfiniBand port.
    pub lid: Lid,
    /// That port's GID.
    pub gid: Gid,
    /// Its datagram queue pairs on it.
    pub qpns: Vec<Qpn>,
    /// The gateways that it hears.
    pub heard: Vec<Heard>,
}

impl Hello {
    /// True if it could forward.
    #[must_use]
    pub const fn is_able(&self) -> bool {
        self.up.is_both() && !self.leaves && !matches!(self.role, Role::Blocked)
    }

    /// The sides on which it hears this gateway.
    #[must_use]
    pub fn hears(&self, who: Identity) -> SideSet {
        self.heard.iter().find(|h| h.who == who).map_or(SideSet::NONE, |h| h.sides)
    }

    /// True if it names the same addresses as another hello.
    pub(super) fn has_addresses_of(&self, other: &Self) -> bool {
        (self.mac, self.lid, self.gid) == (other.mac, other.lid, other.gid) && self.qpns == other.qpns
    }
}

/// The location of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On the Ethernet side.
    Ethernet(MacAddress),
    /// On the InfiniBand side.
    InfiniBand(HardwareAddress),
}

impl Place {
    /// Its side.
    #[must_use]
    pub const fn side(self) -> Side {
        match self {
            Self::Ethernet(_) => Side::Ethernet,
            Self::InfiniBand(_) => Side::InfiniBand,
        }
    }
}

/// The hardware address.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ethernet(mac) => mac.fmt(f),
            Self::InfiniBand(hardware) => hardware.fmt(f),
        }
    }
}

/// A host that the forwarder knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// Its address.
    pub ip: IpAddr,
    /// Its side and its address there.
    pub place: Place,
}

/// The body of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// The state of its sender.
    Hello(Hello),
    /// Some of the hosts that its sender knows, at most [`PER_PAGE`].
    Neighbours(Vec<Neighbour>),
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The segment.
    pub segment: SegmentId,
    /// The sender.
    pub from: Identity,
    /// Rises with every message of an instance.
    pub sequence: u64,
    /// The side that it was sent on.
    pub side: Side,
    /// The body.
    pub body: Body,
}

/// Why bytes are no valid message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// The Ethernet type is used for experiments by others, too.
    #[error("not a message of a gateway")]
    Foreign,
    /// It has another version.
    #[error(
        "version {0} of the messages between gateways, and this gateway uses {VERSION}: run the same version on both"
    )]
    Version(u8),
    /// A length contradicts another or the bytes.
    #[error("a length contradicts the message")]
    Length,
    /// A field has an undefined value.
    #[error("a field has an undefined value")]
    Value,
    /// It was signed without our key or with another.
    #[error("signed with another key or none: use the same gateway.pair-key on all gateways of a segment")]
    Key,
}

/// Takes fields off the front of a buffer.
struct Fields<'b>(&'b [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(MessageError::Length)?;
        self.0 = rest;
        Ok(*field)
    }

    fn byte(&mut self) -> Result<u8, MessageError> {
        self.take::<1>().map(|[b]| b)
    }

    fn be16(&mut self) -> Result<u16, MessageError> {
        self.take().map(u16::from_be_bytes)
    }

    fn be64(&mut self) -> Result<u64, MessageError> {
        self.take().map(u64::from_be_bytes)
    }

    fn identity(&mut self) -> Result<Identity, MessageError> {
        Ok(Identity { guid: Guid(self.be64()?), instance: self.be64()? })
    }
}

impl Message {
    /// Parses a message; further bytes are padding. With a key, only messages signed with it are accepted.
    pub fn parse(bytes: &[u8], key: Option<Key>) -> Result<Self, MessageError> {
        let mut fields = Fields(bytes);
        if fields.take() != Ok(MAGIC) {
            return Err(MessageError::Foreign);
        }
        match fields.byte()? {
            VERSION => {}
            other => return Err(MessageError::Version(other)),
        }
        let kind = fields.byte()?;
        let length = usize::from(fields.be16()?);
        if !(HEADER + TAG..=LONGEST).contains(&length) {
            return Err(MessageError::Length);
        }
        let (signed, tag) =
            bytes.get(..length).and_then(|b| b.split_last_chunk::<TAG>()).ok_or(MessageError::Length)?;
        let expected = key.map_or([0; TAG], |key| key.tag(signed));
        // Compares all bytes: the time does not depend on the number of equal bytes.
        if tag.iter().zip(expected).fold(0, |differ, (a, b)| differ | (a ^ b)) != 0 {
            return Err(MessageError::Key);
        }
        let segment = SegmentId(fields.be64()?);
        let from = fields.identity()?;
        let sequence = fields.be64()?;
        let side = Side::from_byte(fields.byte()?).ok_or(MessageError::Value)?;
        let mut fields = Fields(signed.get(HEADER..).ok_or(MessageError::Length)?);
        let body = match kind {
            KIND_HELLO => Body::Hello(parse_hello(&mut fields)?),
            KIND_NEIGHBOURS => Body::Neighbours(parse_neighbours(&mut fields)?),
            _ => return Err(MessageError::Value),
        };
        if !fields.0.is_empty() {
            return Err(MessageError::Length);
        }
        Ok(Self { segment, from, sequence, side, body })
    }

    /// Encodes the message, in at most [`LONGEST`] bytes.
    #[must_use]
    pub fn to_bytes(&self, key: Option<Key>) -> Vec<u8> {
        let mut b = Vec::with_capacity(LONGEST);
        b.extend_from_slice(&MAGIC);
        let kind = match self.body {
            Body::Hello(_) => KIND_HELLO,
            Body::Neighbours(_) => KIND_NEIGHBOURS,
        };
        b.extend_from_slice(&[VERSION, kind, 0, 0]);
        b.extend_from_slice(&self.segment.0.to_be_bytes());
        push_identity(&mut b, self.from);
        b.extend_from_slice(&self.sequence.to_be_bytes());
        b.push(self.side as u8);
        b.resize(HEADER, 0);
        match &self.body {
            Body::Hello(hello) => push_hello(&mut b, hello),
            Body::Neighbours(list) => push_neighbours(&mut b, list),
        }
        let length = (b.len() + TAG) as u16;
        if let Some(field) = b.get_mut(6..8) {
            field.copy_from_slice(&length.to_be_bytes());
        }
        let tag = key.map_or([0; TAG], |key| key.tag(&b));
        b.extend_from_slice(&tag);
        b
    }
}

const FLAG_CLAIMS: u8 = 4;
const FLAG_LEAVES: u8 = 8;

fn parse_hello(fields: &mut Fields<'_>) -> Result<Hello, MessageError> {
    let [priority, role, flags, heard] = fields.take()?;
    let role = Role::from_byte(role).ok_or(MessageError::Value)?;
    let interval = Duration::from_millis(fields.be16()?.into());
    let lease = Duration::from_millis(fields.be16()?.into());
    let mac = MacAddress(fields.take()?);
    let lid = Lid(fields.be16()?);
    let gid = Gid(fields.take()?);
    let [queue_pairs, _, _, _] = fields.take()?;
    // A gateway must not name a group address.
    if mac.is_multicast() || gid.is_multicast() || usize::from(heard) > MAX_PEERS {
        return Err(MessageError::Value);
    }
    let heard = (0..heard)
        .map(|_| Ok(Heard { who: fields.identity()?, sides: SideSet(fields.byte()? & SideSet::BOTH.0) }))
        .collect::<Result<_, _>>()?;
    let qpns = (0..queue_pairs)
        .map(|_| fields.take().map(|[_, a, b, c]| Qpn::from_be_bytes([a, b, c])))
        .collect::<Result<_, _>>()?;
    Ok(Hello {
        priority,
        role,
        up: SideSet(flags & SideSet::BOTH.0),
        claims: flags & FLAG_CLAIMS != 0,
        leaves: flags & FLAG_LEAVES != 0,
        interval,
        lease,
        mac,
        lid,
        gid,
        qpns,
        heard,
    })
}

fn push_identity(b: &mut Vec<u8>, who: Identity) {
    b.extend_from_slice(&who.guid.0.to_be_bytes());
    b.extend_from_slice(&who.instance.to_be_bytes());
}

fn milliseconds(time: Duration) -> [u8; 2] {
    u16::try_from(time.as_millis()).unwrap_or(u16::MAX).to_be_bytes()
}

fn push_hello(b: &mut Vec<u8>, hello: &Hello) {
    let claims = if hello.claims { FLAG_CLAIMS } else { 0 };
    let heard = hello.heard.get(..MAX_PEERS).unwrap_or(&hello.heard);
    let leaves = if hello.leaves { FLAG_LEAVES } else { 0 };
    b.extend_from_slice(&[
        hello.priority,
        hello.role as u8,
        hello.up.0 | claims | leaves,
        hello.heard.len() as u8,
    ]);
    b.extend_from_slice(&milliseconds(hello.interval));
    b.extend_from_slice(&milliseconds(hello.lease));
    b.extend_from_slice(&hello.mac.0);
    b.extend_from_slice(&hello.lid.0.to_be_bytes());
    b.extend_from_slice(&hello.gid.0);
    let qpns = hello.qpns.get(..MAX_QPNS).unwrap_or(&hello.qpns);
    b.extend_from_slice(&[qpns.len() as u8, 0, 0, 0]);
    for heard in heard {
        push_identity(b, heard.who);
        b.push(heard.sides.0);
    }
    for qpn in qpns {
        b.extend_from_slice(&qpn.get().to_be_bytes());
    }
}

fn parse_neighbours(fields: &mut Fields<'_>) -> Result<Vec<Neighbour>, MessageError> {
    let count = usize::from(fields.be16()?);
    fields.be16()?;
    if count > PER_PAGE {
        return Err(MessageError::Length);
    }
    (0..count)
        .map(|_| {
            let side = Side::from_byte(fields.byte()?).ok_or(MessageError::Value)?;
            let ip = Ipv6Addr::from(fields.take::<16>()?).to_canonical();
            let address = fields.take::<HARDWARE_ADDRESS_LEN>()?;
            let place = match side {
                Side::InfiniBand => Place::InfiniBand(HardwareAddress::from_bytes(&address)),
                Side::Ethernet => {
                    let mac = address.first_chunk().copied().map(MacAddress).ok_or(MessageError::Length)?;
                    Place::Ethernet(mac)
                }
            };
            Ok(Neighbour { ip, place })
        })
        .collect()
}

fn push_neighbours(b: &mut Vec<u8>, list: &[Neighbour]) {
    let list = list.get(..PER_PAGE).unwrap_or(list);
    b.extend_from_slice(&(list.len() as u16).to_be_bytes());
    b.extend_from_slice(&[0, 0]);
    for neighbour in list {
        let ip = match neighbour.ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let (side, address) = match neighbour.place {
            Place::Ethernet(MacAddress(mac)) => {
                let mut address = [0; HARDWARE_ADDRESS_LEN];
                address[..mac.len()].copy_from_slice(&mac);
                (Side::Ethernet, address)
            }
            Place::InfiniBand(hardware) => (Side::InfiniBand, hardware.to_bytes()),
        };
        b.push(side as u8);
        b.extend_from_slice(&ip.octets());
        b.extend_from_slice(&address);
    }
}
