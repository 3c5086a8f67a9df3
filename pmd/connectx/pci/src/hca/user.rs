//! Users of the device: the driver tags a command with the user on whose behalf it is (`uid`), or whose own it is and that the driver only
//! passes on. What a user has made is that user's: no other can name it, and it ends with the user at the latest.

use std::collections::BTreeMap;

use tracing::warn;

use super::Hca;
use super::command::{Fault, Input, Output};
use super::numbers::Numbers;
use prm::command::CommandStatus;

/// The driver itself.
pub(super) const DRIVER: u16 = 0;
/// The driver's, for all users: mlx5_ib makes its sets of counters so.
const SHARED: u16 = 0xffff;
/// Largest binary logarithm of users.
pub(super) const LOG_MAX_USERS: u8 = 12;
/// Room for the output of a command that destroys.
const OUTPUT: usize = 16;

/// A kind of objects, in the order in which a user's end: none before what uses it.
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

/// What a command is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Subject {
    /// What only the driver may ask for.
    Device,
    /// What is there for all to know.
    Open,
    /// Makes an object, whose number the output tells.
    Makes(Kind),
    /// Is about an object, whose number the input tells.
    Uses(Kind),
    /// Ends it.
    Ends(Kind),
}

/// The users that there are, and what is theirs.
#[derive(Debug)]
pub(super) struct Users {
    numbers: Numbers,
    owners: BTreeMap<(Kind, u32), u16>,
}

impl Users {
    /// None yet; `1 << log` numbers, of which 0 is the driver's.
    pub(super) fn new(log: u8) -> Self {
        Self { numbers: Numbers::new(1, 1 << log.min(LOG_MAX_USERS)), owners: BTreeMap::new() }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// True for whom commands may come from, and that is not the driver.
    pub(super) const fn is_user(uid: u16) -> bool {
        !matches!(uid, DRIVER | SHARED)
    }

    /// An error if this user may not give such a command about the object of this number.
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
            Subject::Device => Err(Fault::new(CommandStatus::BadOperation, "this is the driver's alone")),
        }
    }

    /// An error if the object of this number is not the user's; the driver may name all.
    pub(super) fn check_own(&self, uid: u16, kind: Kind, number: u32) -> Result<(), Fault> {
        let own = !Self::is_user(uid) || self.owners.get(&(kind, number)) == Some(&uid);
        if own { Ok(()) } else { Err(Fault::resource(kind.name(), number)) }
    }

    /// An error if the object of this number is another user's. What the driver has made for all, users may name.
    pub(super) fn check_reach(&self, uid: u16, kind: Kind, number: u32) -> Result<(), Fault> {
        let others = self.owners.get(&(kind, number)).is_some_and(|owner| *owner != uid);
        if Self::is_user(uid) && others { Err(Fault::resource(kind.name(), number)) } else { Ok(()) }
    }

    /// A command has been carried out: `number` is that of the output for what makes objects, else that of the input.
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

    /// What is a user's, in the order in which it may end.
    fn of(&self, uid: u16) -> Vec<(Kind, u32)> {
        self.owners.iter().filter(|(_, owner)| **owner == uid).map(|(object, _)| *object).collect()
    }
}

impl Hca {
    pub(super) fn create_user(&mut self, _: &Input, output: &mut Output) -> Result<(), Fault> {
        let uid = self.objects.users.numbers.take().ok_or_else(|| Fault::exhausted("users"))?;
        output.set_number(uid)
    }

    /// Ends a user and what is left of the user's. What others still use becomes the driver's.
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
