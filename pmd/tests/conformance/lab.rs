//! What a device under test is, apart from the seam: how two are had, what they cannot do, and what happens outside of them.

use std::fmt;

use ib_wire::{Gid, Lid, PKey, PortNumber};
use pmd::hca::{Backend, HcaError, MemoryWork, PostError, Refused};

/// Something that not every device can do or show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// Completions tell the source LID.
    SourceLid,
    /// Datagrams can go without a GRH.
    NoGrh,
    /// The P_Key table can be changed.
    Partitions,
    /// A send with a controlled Q_Key carries the queue pair's own (IBA 10.2.5).
    ControlledQKey,
    /// Controlled Q_Keys are kept from the unprivileged.
    Privileges,
    /// A message that is too long ends as IBA 9.9.2.4 has it: length error at the responder, invalid request at the requester.
    LengthStatus,
    /// GIDs can be added from outside while the device is open.
    GidChange,
    /// The port can be made to fail and come back.
    PortEvents,
    /// Memory can be registered from a send queue.
    FastRegistration,
    /// A key's bounds are looked at, not those of the region underneath.
    KeyBounds,
    /// A SEND that invalidates a key says so at its receiver, and at its sender if it could not.
    RemoteInvalidate,
    /// A key can name many pieces of memory.
    LongLists,
    /// The device carries management datagrams of ours.
    Management,
}

/// Why a check did not end well.
pub(crate) enum Failure {
    /// Something was not as it has to be.
    Wrong(String),
    /// The device cannot do it, for this reason.
    Lacks(Need, &'static str),
}

/// What a check comes to.
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
        Self::Wrong(format!("a buffer was refused: {}", e.error))
    }
}

impl From<PostError> for Failure {
    fn from(e: PostError) -> Self {
        Self::Wrong(format!("a post was refused: {e}"))
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

/// Fails the check if something does not hold.
macro_rules! hold {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            return $crate::lab::wrong(format!($($what)+));
        }
    };
}

pub(crate) use {hold, same};

/// Two devices on one link, and the hands that reach around them.
pub(crate) trait Lab {
    /// The backend.
    type Hca: Backend<Queues: MemoryWork> + Send;

    /// What to call it in the output.
    fn name(&self) -> String;

    /// Opens both ends, their ports active.
    fn open(&mut self) -> Result<[Self::Hca; 2], HcaError>;

    /// The port of each device that is linked.
    fn port(&self) -> PortNumber {
        PortNumber(1)
    }

    /// Why it cannot do this; `None` if it can.
    fn lacks(&self, need: Need) -> Option<&'static str>;

    /// An entry of an end's P_Key table becomes this.
    fn set_pkey(&mut self, _hca: &mut Self::Hca, _index: u16, _key: PKey) -> Outcome {
        wrong("this device's P_Keys cannot be set")
    }

    /// Gives end 0 another GID, or takes it away.
    fn change_gid(&mut self, _hcas: [&mut Self::Hca; 2], _add: bool) -> Outcome<Gid> {
        wrong("this device's GIDs cannot be changed")
    }

    /// Has this end's port join a multicast group; the group's LID. `None` where nobody routes, so that every datagram comes.
    fn join(&mut self, _hca: &mut Self::Hca, _mgid: Gid) -> Outcome<Option<Lid>> {
        Ok(None)
    }

    /// Has it leave the group again.
    fn leave(&mut self, _hca: &mut Self::Hca, _mgid: Gid) -> Outcome {
        Ok(())
    }

    /// Pulls the cable of end 0, or puts it back.
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
