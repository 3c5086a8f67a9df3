//! What a pair is told, and what it tells.

use std::fmt;
use std::time::Duration;

use ib_wire::{Gid, Guid, Lid, Qpn};
use ipoib::net::ethernet::MacAddress;
use ipoib::net::probe::PROBE_LEN;

use super::loops::Sign;
use super::message::{Identity, Key, MessageError, Neighbour, Role, SegmentId, Side, SideSet};

/// Hellos that are awaited before a gateway forwards, and that may be lost before it counts as gone.
const LISTEN: u32 = 3;

/// For how long a hello may be on its way.
pub(super) const DELAY: Duration = Duration::from_millis(100);

/// What a segment's configuration says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Higher is better.
    pub priority: u8,
    /// Time between two hellos.
    pub hello: Duration,
    /// Which segment.
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

/// A gateway's own addresses: what comes from there was forwarded by it.
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

/// Something to send, without the header of its side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Transmit {
    /// A message, of type [`crate::forward::ETHERTYPE_HELLO`].
    Message(Side, Vec<u8>),
    /// The IPv4 packet of a probe, to all.
    Probe(Side, [u8; PROBE_LEN]),
}

/// Why a gateway's role changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Both sides are up.
    SidesUp,
    /// A side is down.
    SideDown,
    /// It ends.
    Leaving,
    /// Its operator drains it.
    Drained,
    /// Its operator has put it back into service.
    Undrained,
    /// It was drained, and no other gateway has taken over.
    NoSuccessor,
    /// There is no other one that forwards or could do better.
    Alone,
    /// The one that forwarded is silent or resigned.
    TakeOver,
    /// A better one forwards, claims, or is waited for.
    Better(Identity),
    /// Another one forwards that does not hear us.
    Deaf(Identity),
    /// Its own control lcore was silent for longer than its lease: another one may have taken over.
    Silent,
    /// Another one that could have forwarded found a loop: so it is looked for first.
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
            Self::Leaving => f.write_str("it ends"),
            Self::Drained => f.write_str("it is drained"),
            Self::Undrained => f.write_str("it is in service again"),
            Self::NoSuccessor => f.write_str("no other gateway has taken over: it is not drained any more"),
            Self::Alone => f.write_str("nobody else forwards"),
            Self::TakeOver => f.write_str("the other gateway is silent or has resigned"),
            Self::Better(who) => write!(f, "gateway {:016x} is to forward", who.guid.0),
            Self::Deaf(who) => write!(f, "gateway {:016x} forwards and does not hear us", who.guid.0),
            Self::Silent => f.write_str("its control lcore did not run for longer than its lease"),
            Self::PeerBlocked => f.write_str("another gateway has noticed a loop"),
            Self::Loop => f.write_str("our own packets came back"),
            Self::Quiet => f.write_str("what blocked it has stayed away"),
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
    /// If another one takes over; else it forwards again.
    HandOver,
    /// Whoever forwards then, or nobody.
    Alone,
}

/// Why nobody would forward in a gateway's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoSuccessor {
    /// None is there that could.
    #[error("no other gateway stands by that hears this one")]
    Alone,
    /// One is there, but not for long.
    #[error("the other gateway has not been there for long enough to know the hosts: again in a few seconds")]
    Cold,
}

/// Why another gateway between the same two networks is not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disbelief {
    /// Its messages are of another version, or made with another key.
    Message(MessageError),
    /// It names another partition.
    Segment,
}

impl fmt::Display for Disbelief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(error) => error.fmt(f),
            Self::Segment => f.write_str(
                "a gateway joins these two networks with another P_Key: that is to be the same on all gateways of a segment",
            ),
        }
    }
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The role changed.
    Role {
        /// What it was.
        from: Role,
        /// What it is.
        to: Role,
        /// Why.
        why: Why,
    },
    /// The time is over for which packets that hosts still sent here were forwarded after another gateway had taken over.
    HandedOver,
    /// Another gateway is there, or gone.
    Peer {
        /// Which.
        who: Identity,
        /// True if it is there.
        alive: bool,
    },
    /// Our own packets came back: the segment is blocked.
    Loop {
        /// How it was noticed.
        sign: Sign,
        /// Where they arrived.
        arrived: Side,
        /// For how long it is blocked at least.
        hold: Duration,
    },
    /// Hellos of ours come back more than once on the side that they were sent on: it has a loop of its own. Nothing is blocked for that:
    /// it would not end the loop, and whoever hears a hello can repeat it.
    Multiplied {
        /// The side.
        side: Side,
    },
    /// Another gateway that is not believed forwards between the same two networks: this one is blocked.
    Blocked {
        /// Which.
        by: Identity,
    },
    /// Another gateway that is not believed forwards between the same two networks and ranks worse: this one goes on.
    Rival {
        /// Which.
        who: Identity,
    },
    /// Another gateway is there, or gone, that is not believed.
    Stranger {
        /// Why; none if it is gone.
        why: Option<Disbelief>,
    },
    /// Another segment of this gateway is on the same network.
    Sibling {
        /// Of its InfiniBand port.
        guid: Guid,
        /// Where.
        side: Side,
    },
    /// Another gateway forwarded, or may have forwarded, at the same time as this one, which goes on. The
    /// caller announces all hosts again on both sides: some still send to the other gateway.
    AnnounceHosts,
    /// The forwarder told hosts that it knows: they are to be learnt as if they had been heard.
    Neighbours(Vec<Neighbour>),
}

/// Counts since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Messages sent.
    pub sent: u64,
    /// Messages of other gateways of this segment.
    pub received: u64,
    /// Bytes that were no message, or made with another key.
    pub rejected: u64,
    /// Copies of messages, and recordings.
    pub old: u64,
    /// Messages of other segments.
    pub other_segment: u64,
    /// Hellos for which there was no room.
    pub no_room: u64,
    /// Times that this gateway began to forward.
    pub takeovers: u64,
    /// Times that it stopped.
    pub resignations: u64,
    /// Hellos of ours that came back more than once on their own side.
    pub multiplied: u64,
    /// Messages of other segments of this gateway.
    pub siblings: u64,
    /// Hellos that look like ours and came on the other side without a signature, so they only made the gateway probe.
    pub suspected: u64,
    /// Signs of loops, and rivals that blocked the gateway.
    pub loops: u64,
}

/// Another gateway, as `ctl` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerInfo {
    /// Which.
    pub who: Identity,
    /// Its priority.
    pub priority: u8,
    /// Its role as it said last.
    pub role: Role,
    /// It was about to end, or drained, as it said last.
    pub leaves: bool,
    /// False if its lease is over.
    pub alive: bool,
    /// Where it is heard.
    pub heard: SideSet,
    /// Where it hears us, as it said last.
    pub hears_us: SideSet,
    /// Time since it was heard.
    pub age: Duration,
    /// Its Ethernet address.
    pub mac: MacAddress,
}
