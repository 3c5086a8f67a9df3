//! Environment of the devices under test, outside of the device abstraction: opening two devices, their
//! limitations, and external actions.

use std::fmt;

use ib_wire::{Gid, Lid, PKey, PortNumber};
use pmd::hca::{Backend, HcaError, MemoryWork, PostError, Refused};

/// A feature that not every device supports or exposes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// Completions report the source LID.
    SourceLid,
    /// Datagrams can be sent without a GRH.
    NoGrh,
    /// The P_Key table can be changed.
    Partitions,
    /// A send with a controlled Q_Key carries the queue pair's own (IBA 10.2.5).
    ControlledQKey,
    /// Unprivileged programs cannot use controlled Q_Keys.
    Privileges,
    /// A message that is too long ends as in IBA 9.9.2.4: length error at the responder, invalid request at
    /// the requester.
    LengthStatus,
    /// GIDs can be added from outside while the device is open.
    GidChange,
    /// The port can be made to fail and recover.
    PortEvents,
    /// Memory can be registered from a send queue.
    FastRegistration,
    /// A key's own bounds are checked, not those of the underlying region.
    KeyBounds,
    /// A SEND that invalidates a key reports it to the receiver, and to the sender on failure.
    RemoteInvalidate,
    /// A key can cover many pieces of memory.
    LongLists,
    /// The device carries management datagrams of the test.
    Management,
}

/// Reason why a check did not succeed.
pub(crate) enum Failure {
    /// A requirement was violated.
    Wrong(String),
    /// The device does not support it, for this reason.
    Lacks(Need, &'static str),
}

/// Result of a check.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

pub(crate) fn wrong<T>(text: impl Into<String>) -> Outcome<T> {
    Err(Failure::Wrong(text.into()))
}

impl From<HcaError> for Failure {
    fn from(e: HcaError) -> Self {
        use std::error::Error as _;
        let mut text = e.to_string();
        let mut at = e.source();
        while let Some(cause) = at {
            text = format!("{text}: {cause}");
            at = cause.source();
        }
        Self::Wrong(text)
    }
}

impl From<Refused> for Failure {
    fn from(e: Refused) -> Self {
        Self::Wrong(format!("a buffer was rejected: {}", e.error))
    }
}

impl From<PostError> for Failure {
    fn from(e: PostError) -> Self {
        Self::Wrong(format!("a post was rejected: {e}"))
    }
}

/// Fails the check, with the values, if they differ.
macro_rules! same {
    ($left:expr, $right:expr, $($what:tt)+) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            return $crate::lab::wrong(format!("{}: {left:?} instead of {right:?}", format_args!($($what)+)));
        }
    }};
}

/// Fails the check if a condition does not hold.
macro_rules! hold {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            return $crate::lab::wrong(format!($($what)+));
        }
    };
}

pub(crate) use {hold, same};

/// Two devices on one link, with external control over them.
pub(crate) trait Lab {
    /// The backend.
    type Hca: Backend<Queues: MemoryWork> + Send;

    /// Name in the output.
    fn name(&self) -> String;

    /// Opens both ends with active ports.
    fn open(&mut self) -> Result<[Self::Hca; 2], HcaError>;

    /// Returns the linked port of each device.
    fn port(&self) -> PortNumber {
        PortNumber(1)
    }

    /// Returns the reason why a feature is not supported, or `None` if it is.
    fn lacks(&self, need: Need) -> Option<&'static str>;

    /// Sets an entry of an end's P_Key table.
    fn set_pkey(&mut self, _hca: &mut Self::Hca, _index: u16, _key: PKey) -> Outcome {
        wrong("this device's P_Keys cannot be set")
    }

    /// Adds or removes a GID of end 0.
    fn change_gid(&mut self, _hcas: [&mut Self::Hca; 2], _add: bool) -> Outcome<Gid> {
        wrong("this device's GIDs cannot be changed")
    }

    /// Makes this end's port join a multicast group and returns the group's LID. Returns `None` if nothing
    /// routes, so that every datagram arrives.
    fn join(&mut self, _hca: &mut Self::Hca, _mgid: Gid) -> Outcome<Option<Lid>> {
        Ok(None)
    }

    /// Makes the port leave the group.
    fn leave(&mut self, _hca: &mut Self::Hca, _mgid: Gid) -> Outcome {
        Ok(())
    }

    /// Unplugs or plugs the cable of end 0.
    fn plug(&mut self, _hcas: [&mut Self::Hca; 2], _in_place: bool) -> Outcome {
        wrong("this device's cable cannot be pulled")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(text) => f.write_str(text),
            Self::Lacks(need, why) => write!(f, "{need:?}: {why}"),
        }
    }
}
