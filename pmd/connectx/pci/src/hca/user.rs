//! Users of the device. The driver tags a command with the user (`uid`) on whose behalf it sends or forwards
//! the command.
//!
//! Objects created by a user belong to that user. No other user can name them, and they are destroyed with
//! the user at the latest.

use std::collections::BTreeMap;

use tracing::warn;

use super::Hca;
use super::command::{Fault, Input, Output};
use super::numbers::Numbers;
use prm::command::CommandStatus;

/// The driver itself.
pub(super) const DRIVER: u16 = 0;
/// Objects of the driver for all users: mlx5_ib creates its sets of counters with this.
const SHARED: u16 = 0xffff;
/// Largest binary logarithm of users.
pub(super) const LOG_MAX_USERS: u8 = 12;
/// Size of the output of a destroy command.
const OUTPUT: usize = 16;

/// Kinds of objects, in the order of their destruction: every kind after those that use it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    Pair,
    SharedQueue,
    CompletionQueue,
    Key,
    Counters,
    Domain,
    XrcDomain,
    Uar,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Pair => "queue pair",
            Self::SharedQueue => "shared receive queue",
            Self::CompletionQueue => "completion queue",
            Self::Key => "memory key",
            Self::Counters => "set of counters",
            Self::Domain => "protection domain",
            Self::XrcDomain => "XRC domain",
            Self::Uar => "doorbell page",
        }
    }

    fn destroy(self) -> fn(&mut Hca, &Input, &mut Output) -> Result<(), Fault> {
        match self {
            Self::Pair => Hca::destroy_qp,
            Self::SharedQueue => Hca::end_shared_queue,
            Self::CompletionQueue => Hca::destroy_cq,
            Self::Key => Hca::destroy_key,
            Self::Counters => Hca::dealloc_counters,
            Self::Domain => Hca::dealloc_pd,
            Self::XrcDomain => Hca::dealloc_xrcd,
            Self::Uar => Hca::dealloc_uar,
        }
    }
}

/// The subject of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Subject {
    /// Reserved for the driver.
    Device,
    /// Open to all users.
    Open,
    /// Creates an object, whose number is in the output.
    Makes(Kind),
    /// Uses an object, whose number is in the input.
    Uses(Kind),
    /// Destroys an object, whose number is in the input.
    Ends(Kind),
}

/// The users and their objects.
#[derive(Debug)]
pub(super) struct Users {
    numbers: Numbers,
    owners: BTreeMap<(Kind, u32), u16>,
}

impl Users {
    /// Creates an empty table of `1 << log` numbers, of which 0 is the driver's.
    pub(super) fn new(log: u8) -> Self {
        Self { numbers: Numbers::new(1, 1 << log.min(LOG_MAX_USERS)), owners: BTreeMap::new() }
    }

    /// Number of users.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// True for the number of a user other than the driver.
    pub(super) const fn is_user(uid: u16) -> bool {
        !matches!(uid, DRIVER | SHARED)
    }

    /// An error if the user may not send this command about the object with this number.
    pub(super) fn check(&self, uid: u16, subject: Subject, number: u32) -> Result<(), Fault> {
        if !Self::is_user(uid) {
            return Ok(());
        }
        if !self.numbers.has(uid.into()) {
            return Err(Fault::resource("user", uid.into()));
        }
        match subject {
            Subject::Open | Subject::Makes(_) => Ok(()),
            Subject::Uses(kind) | Subject::Ends(kind) => self.check_own(uid, kind, number),
            Subject::Device => Err(Fault::new(CommandStatus::BadOperation, "reserved for the driver")),
        }
    }

    /// An error if the object does not belong to the user. The driver may name all objects.
    pub(super) fn check_own(&self, uid: u16, kind: Kind, number: u32) -> Result<(), Fault> {
        let own = !Self::is_user(uid) || self.owners.get(&(kind, number)) == Some(&uid);
        if own { Ok(()) } else { Err(Fault::resource(kind.name(), number)) }
    }

    /// An error if the object belongs to another user. Users may name the driver's shared objects.
    pub(super) fn check_reach(&self, uid: u16, kind: Kind, number: u32) -> Result<(), Fault> {
        let others = self.owners.get(&(kind, number)).is_some_and(|owner| *owner != uid);
        if Self::is_user(uid) && others { Err(Fault::resource(kind.name(), number)) } else { Ok(()) }
    }

    /// Records a command that succeeded. `number` is from the output of a creating command, otherwise from
    /// the input.
    pub(super) fn keep(&mut self, uid: u16, subject: Subject, number: u32) {
        match subject {
            Subject::Makes(kind) if Self::is_user(uid) => {
                self.owners.insert((kind, number), uid);
            }
            Subject::Ends(kind) => {
                self.owners.remove(&(kind, number));
            }
            _ => {}
        }
    }

    /// A user's objects, in the order of their destruction.
    fn of(&self, uid: u16) -> Vec<(Kind, u32)> {
        self.owners.iter().filter(|(_, owner)| **owner == uid).map(|(object, _)| *object).collect()
    }
}

impl Hca {
    pub(super) fn create_user(&mut self, _: &Input, output: &mut Output) -> Result<(), Fault> {
        let uid = self.objects.users.numbers.take().ok_or_else(|| Fault::exhausted("users"))?;
        output.set_number(uid)
    }

    /// Destroys a user and the user's remaining objects. Objects still in use become the driver's.
    pub(super) fn destroy_user(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let number = input.number() & u32::from(u16::MAX);
        if !self.objects.users.numbers.give_back(number) {
            return Err(Fault::resource("user", number));
        }
        for (kind, object) in self.objects.users.of(number as u16) {
            let ended = kind.destroy()(self, &Input::about(object), &mut Output::of(OUTPUT));
            if let Err(fault) = ended {
                warn!("the {} {object:#x} outlives user {number}: {}", kind.name(), fault.why);
            }
            self.objects.users.keep(DRIVER, Subject::Ends(kind), object);
        }
        Ok(())
    }
}
