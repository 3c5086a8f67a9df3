//! What goes into and comes out of the SA client.

use std::time::Duration;

use ib_wire::mad::MadStatus;
use ib_wire::sa::{McMemberRecord, Notice};
use ib_wire::{Gid, Lid, PKey, ServiceLevel};

use crate::Path;
use crate::agent::Attempts;

/// Sizes and identity of a client.
#[derive(Clone, Debug)]
pub struct Config {
    /// Transaction ids derive from it.
    pub seed: u64,
    /// The partition of the link.
    pub pkey: PKey,
    /// Index, in the port's table, of the P_Key that MADs go out with.
    pub pkey_index: u16,
    /// Traffic class that paths are asked for.
    pub traffic_class: u8,
    /// Most paths in the cache; the oldest goes first.
    pub max_paths: usize,
    /// Most groups.
    pub max_groups: usize,
    /// Most requests outstanding.
    pub max_outstanding: usize,
    /// Patience with the SA.
    pub attempts: Attempts,
}

impl Config {
    /// Linux's patience and a gateway's sizes.
    #[must_use]
    pub const fn new(seed: u64, pkey: PKey) -> Self {
        Self {
            seed,
            pkey,
            pkey_index: 0,
            traffic_class: 0,
            max_paths: 8192,
            max_groups: 1024,
            max_outstanding: 128,
            attempts: Attempts { timeout: Duration::from_secs(1), tries: 4 },
        }
    }
}

/// What the client has to know of its port while that is active.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SaPort {
    /// The port's GID at index 0.
    pub gid: Gid,
    /// The port's LID.
    pub lid: Lid,
    /// LID of the subnet manager.
    pub sm_lid: Lid,
    /// Service level towards it.
    pub sm_sl: ServiceLevel,
}

/// How to join a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JoinKind {
    /// The broadcast group of the link; its record gives the attributes of all others, which wait for it.
    Broadcast,
    /// As full member.
    Full,
    /// To send only; as full member if the SA does not know send-only full members.
    SendOnly,
}

/// How far a group is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupState {
    /// Waits for the port, the broadcast group or the back-off.
    Waiting,
    /// The SA has been asked.
    Joining,
    /// Joined.
    Joined(McMemberRecord),
}

/// What a path lookup found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The path.
    Known(Path),
    /// The SA has been asked; [`Event::Path`] or [`Event::PathFailed`] follows.
    Pending,
}

/// Why the SA gave no answer that is of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// No answer.
    #[error("subnet administration does not answer")]
    TimedOut,
    /// It refused.
    #[error("subnet administration refuses with status 0x{:04x}", .0.0)]
    Refused(MadStatus),
    /// The record in the answer cannot be used.
    #[error("the record in the answer cannot be used")]
    BadRecord,
    /// The port went down, or another subnet manager came.
    #[error("the port is not active")]
    PortDown,
    /// Too many requests are outstanding.
    #[error("too many requests are outstanding")]
    Busy,
}

/// Why a call was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SaError {
    /// The port is not active.
    #[error("the port is not active")]
    PortDown,
    /// Too many requests are outstanding.
    #[error("too many requests are outstanding")]
    Busy,
    /// As many groups as the client takes.
    #[error("the client has its {0} groups")]
    GroupsFull(usize),
    /// Not a multicast GID.
    #[error("{0} is not a multicast GID")]
    NotMulticast(Gid),
}

/// Something that the owner of a client has to know.
#[derive(Clone, Debug)]
pub enum Event {
    /// A path was found. The key is the GID that was asked for, whatever the record says.
    Path {
        /// The GID that was asked for.
        dgid: Gid,
        /// The path.
        path: Path,
    },
    /// A path was not found.
    PathFailed {
        /// The GID that was asked for.
        dgid: Gid,
        /// Why.
        failure: Failure,
    },
    /// What was known of the way to this GID is no longer valid; ask again when it is needed.
    PathInvalid {
        /// The GID; `None` = all.
        dgid: Option<Gid>,
    },
    /// A group is joined, for the first time or anew; its MLID may differ from before.
    Joined {
        /// The group's record.
        record: McMemberRecord,
    },
    /// A membership is gone: attachments are to be dropped. It will be renewed by itself.
    Lost {
        /// The group.
        mgid: Gid,
    },
    /// A join failed; the next try comes by itself.
    JoinFailed {
        /// The group.
        mgid: Gid,
        /// Why.
        failure: Failure,
        /// Tries in vain so far.
        failures: u32,
        /// Time until the next.
        retry_in: Duration,
    },
    /// The SA reports an event that was subscribed to.
    Notice {
        /// The event.
        notice: Box<Notice>,
    },
}
