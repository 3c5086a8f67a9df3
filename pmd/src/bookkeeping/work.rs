//! Memory work on a send queue that awaits a result.

use crate::hca::{ChainSend, Outcome, WcStatus};
use crate::mem::key::{PageList, RegisteredKey};

/// A posted operation.
#[derive(Debug)]
pub(crate) enum Operation<P> {
    Register(RegisteredKey<P>, PageList<P>),
    Invalidate(RegisteredKey<P>),
    Transfer(P),
    /// The key owns the chain.
    Chain(RegisteredKey<P>, PageList<P>),
}

/// A posted operation with the poster's ticket.
#[derive(Debug)]
pub(crate) struct Work<P> {
    pub(crate) ticket: u32,
    pub(crate) operation: Operation<P>,
}

impl<P> Work<P> {
    /// Returns the buffer that is the source or destination of the data.
    pub(crate) const fn payload(&self) -> Option<&P> {
        match &self.operation {
            Operation::Transfer(buf) => Some(buf),
            Operation::Register(..) | Operation::Invalidate(_) | Operation::Chain(..) => None,
        }
    }
}

impl<P> Operation<P> {
    /// Returns the list that the device reads for the operation.
    pub(crate) const fn list(&mut self) -> Option<&mut PageList<P>> {
        match self {
            Self::Register(_, list) | Self::Chain(_, list) => Some(list),
            Self::Invalidate(_) | Self::Transfer(_) => None,
        }
    }

    /// Converts the completed work to its result.
    pub(crate) fn ended(self, status: WcStatus) -> Outcome<P> {
        let done = status == WcStatus::Success;
        match self {
            Self::Register(key, list) if done => Outcome::Registered(key, list),
            Self::Register(key, list) => Outcome::NotRegistered(key.abandon(), list),
            Self::Invalidate(key) if done => {
                let (key, memory) = key.freed();
                Outcome::Invalidated(key, memory)
            }
            Self::Invalidate(key) => Outcome::NotInvalidated(key.abandon()),
            Self::Transfer(buf) => Outcome::Transferred(buf),
            Self::Chain(key, list) if done => match key.freed() {
                (key, Some(buf)) => Outcome::ChainSent(ChainSend { key, list, buf }),
                // It was posted with a list.
                (key, None) => Outcome::Invalidated(key, None),
            },
            Self::Chain(key, list) => Outcome::ChainNotSent(key.abandon(), list),
        }
    }
}
