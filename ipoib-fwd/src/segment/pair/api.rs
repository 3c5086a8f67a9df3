//! Settings, events and reports of a pair.

use std::fmt;
use std::time::Duration;

use ib_wire::{Gid, Guid, Lid, Qpn};
use ipoib::net::ethernet::MacAddress;
use ipoib::net::probe::PROBE_LEN;

use super::loops::Sign;
use super::message::{Identity, Key, MessageError, Neighbour, Role, SegmentId, Side, SideSet};

/// Hello intervals that a gateway listens before it forwards, and lost hellos before it counts as gone.
const LISTEN: u32 = 3;

/// Maximum transit time of a hello.
pub(super) const DELAY: Duration = Duration::from_millis(100);

/// The settings of a segment's configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Higher is better.
    pub priority: u8,
    /// Time between two hellos.
    pub hello: Duration,
    /// The segment.
    pub segment: SegmentId,
    /// The gateways' secret.
    pub key: Option<Key>,
}

/// How long a gateway with this time between two hellos counts as alive after one.
#[must_use]
pub const fn lease(hello: Duration) -> Duration {
    hello.saturating_mul(LISTEN).saturating_add(DELAY)
}

impl Settings {
    /// How long the gateway counts as alive after a hello.
    #[must_use]
    pub const fn lease(&self) -> Duration {
        lease(self.hello)
    }

    /// How long a gateway listens before it forwards.
    pub(super) const fn listening(&self) -> Duration {
        self.hello.saturating_mul(LISTEN)
    }
}

/// A gateway's own addresses: that gateway has forwarded all packets that come from there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Station {
    /// Its Ethernet address.
    pub mac: MacAddress,
    /// Its InfiniBand port.
    pub lid: Lid,
    /// That port's GID.
    pub gid: Gid,
    /// Its datagram queue pairs there.
    pub qpns: Vec<Qpn>,
}

/// An output to send, without the header of its side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Transmit {
    /// A message, of type [`crate::forward::ETHERTYPE_HELLO`].
    Message(Side, Vec<u8>),
    /// The IPv4 packet of a probe, a broadcast.
    Probe(Side, [u8; PROBE_LEN]),
}

/// Why a gateway's role changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Both sides are up.
    SidesUp,
    /// A side is down.
    SideDown,
    /// The gateway exits.
    Leaving,
    /// The operator drains the gateway.
    Drained,
    /// The operator has put the gateway back into service.
    Undrained,
    /// The gateway was drained, and no other gateway has taken over.
    NoSuccessor,
    /// No other gateway forwards or ranks better.
    Alone,
    /// The gateway that forwarded is silent or resigned.
    TakeOver,
    /// A better gateway forwards or claims, or this one waits for it.
    Better(Identity),
    /// Another gateway forwards and does not hear this one.
    Deaf(Identity),
    /// The own control lcore did not run for longer than the lease: another gateway may have taken over.
    Silent,
    /// Another gateway that could have forwarded has detected a loop, so this one checks for the loop first.
    PeerBlocked,
    /// Our own packets came back.
    Loop,
    /// The hold time is over.
    Quiet,
    /// Another gateway that is not believed forwards between the same two networks.
    Rival(Identity),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SidesUp => f.write_str("both sides are up"),
            Self::SideDown => f.write_str("a side is down"),
            Self::Leaving => f.write_str("it exits"),
            Self::Drained => f.write_str("it is drained"),
            Self::Undrained => f.write_str("it is in service again"),
            Self::NoSuccessor => f.write_str("no other gateway has taken over: it is not drained any more"),
            Self::Alone => f.write_str("no other gateway forwards"),
            Self::TakeOver => f.write_str("the other gateway is silent or has resigned"),
            Self::Better(who) => write!(f, "gateway {:016x} takes precedence", who.guid.0),
            Self::Deaf(who) => write!(f, "gateway {:016x} forwards and does not hear us", who.guid.0),
            Self::Silent => f.write_str("its control lcore did not run for longer than its lease"),
            Self::PeerBlocked => f.write_str("another gateway has detected a loop"),
            Self::Loop => f.write_str("our own packets came back"),
            Self::Quiet => f.write_str("the hold time is over"),
            Self::Rival(who) => write!(
                f,
                "gateway {:016x}, which is not believed, forwards between the same networks",
                who.guid.0
            ),
        }
    }
}

/// How a gateway is taken out of service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drain {
    /// If another gateway takes over; otherwise it forwards again.
    HandOver,
    /// Whether or not another gateway forwards then.
    Alone,
}

/// Why no other gateway would forward in place of this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoSuccessor {
    /// No gateway is there that could.
    #[error("no standby gateway hears this one")]
    Alone,
    /// One is there, but has not been there for long enough.
    #[error("the other gateway does not know the hosts yet: try again in a few seconds")]
    Cold,
}

/// Why another gateway between the same two networks is not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disbelief {
    /// Its messages have another version, or were signed with another key.
    Message(MessageError),
    /// It names another partition.
    Segment,
}

impl fmt::Display for Disbelief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(error) => error.fmt(f),
            Self::Segment => f.write_str(
                "another gateway joins these two networks with another P_Key: use the same P_Key on all gateways of a segment",
            ),
        }
    }
}

/// An event of the pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The role changed.
    Role {
        /// The previous role.
        from: Role,
        /// The new role.
        to: Role,
        /// The reason.
        why: Why,
    },
    /// The handover is over: this gateway no longer forwards packets that hosts still send here after another
    /// gateway has taken over.
    HandedOver,
    /// Another gateway is there, or gone.
    Peer {
        /// The other gateway.
        who: Identity,
        /// True if it is there.
        alive: bool,
    },
    /// Our own packets came back: the segment is blocked.
    Loop {
        /// How the loop was detected.
        sign: Sign,
        /// The side on which they arrived.
        arrived: Side,
        /// The minimum time of the block.
        hold: Duration,
    },
    /// Hellos of ours come back more than once on the side that they were sent on: that side has a loop of
    /// its own. Nothing is blocked: a block would not end the loop, and any station that hears a hello can
    /// repeat it.
    Multiplied {
        /// The side.
        side: Side,
    },
    /// Another gateway that is not believed forwards between the same two networks: this one is blocked.
    Blocked {
        /// The other gateway.
        by: Identity,
    },
    /// Another gateway that is not believed forwards between the same two networks and ranks worse: this one
    /// continues.
    Rival {
        /// The other gateway.
        who: Identity,
    },
    /// A gateway that is not believed has appeared or is gone.
    Stranger {
        /// The reason; none if it is gone.
        why: Option<Disbelief>,
    },
    /// Another segment of this gateway is on the same network.
    Sibling {
        /// The GUID of its InfiniBand port.
        guid: Guid,
        /// The side.
        side: Side,
    },
    /// Another gateway forwarded, or may have forwarded, at the same time as this one, which continues. The
    /// caller announces all hosts again on both sides: some still send to the other gateway.
    AnnounceHosts,
    /// The forwarder reported hosts that it knows: learn them as if they had been heard.
    Neighbours(Vec<Neighbour>),
}

/// Counts since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Messages sent.
    pub sent: u64,
    /// Messages of other gateways of this segment.
    pub received: u64,
    /// Bytes that were no message, or were signed with another key.
    pub rejected: u64,
    /// Copies of messages, and replayed messages.
    pub old: u64,
    /// Messages of other segments.
    pub other_segment: u64,
    /// Hellos for which there was no room.
    pub no_room: u64,
    /// Times that this gateway started to forward.
    pub takeovers: u64,
    /// Times that it stopped.
    pub resignations: u64,
    /// Hellos of ours that came back more than once on their own side.
    pub multiplied: u64,
    /// Messages of other segments of this gateway.
    pub siblings: u64,
    /// Hellos that look like ours and arrived on the other side without a signature, so they only made the
    /// gateway probe.
    pub suspected: u64,
    /// Signs of loops, and rivals that blocked the gateway.
    pub loops: u64,
}

/// Another gateway, as `ctl` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerInfo {
    /// The gateway.
    pub who: Identity,
    /// Its priority.
    pub priority: u8,
    /// Its role in its last hello.
    pub role: Role,
    /// True if it was about to exit, or drained, by its last hello.
    pub leaves: bool,
    /// False if its lease is over.
    pub alive: bool,
    /// The sides on which it is heard.
    pub heard: SideSet,
    /// The sides on which it hears us, by its last hello.
    pub hears_us: SideSet,
    /// Time since it was heard.
    pub age: Duration,
    /// Its Ethernet address.
    pub mac: MacAddress,
}
