//! The general services of one HCA port: its QP1 has one owner, whatever number of links use it.
//!
//! ```text
//!  datagrams of QP1 ─> Port ─┬─ SubnAdm: Sa            (answers find their asker by transaction id)
//!                            ├─ ComMgt:  ConnectionTable (by service id, communication id, queue pair)
//!                            └─ others:  an answer where IBA wants one
//! ```

mod paths;
mod sa;
mod unsupported;

use std::collections::VecDeque;
use std::time::Instant;

use ib_wire::mad::{Mad, MgmtClass};
use ib_wire::sa::CLASS_VERSION;

use crate::Origin;
use crate::connection::{Config, ConnectionTable};
use crate::random::{Identifiers, Label, Random};

pub use paths::{Ask, PathKey, PathQuery};
pub use sa::{Outcome, PATIENCE, Sa, SaEvent};

/// Answers to datagrams of services that we do not have which may wait to be sent; more are left out.
const MAX_ANSWERS: usize = 32;

/// What became of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// It answered a request to subnet administration, or said that the answer takes longer.
    Administration,
    /// It went to the connection table, which has its own counters.
    Connection,
    /// It asked for a service that is not here, and was told so.
    Refused,
    /// It is of no use: late, malformed, or a message that nobody answers.
    Ignored,
}

/// The services of one port. `U` says on whose behalf a group is joined or left.
#[derive(Debug)]
pub struct Port<U> {
    /// Requests to subnet administration.
    pub sa: Sa<U>,
    /// Connections.
    pub connections: ConnectionTable,
    answers: VecDeque<Mad>,
}

impl<U: Copy + Eq> Port<U> {
    /// A port without connections or requests.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let seed = Identifiers::new(&mut Random::new(config.seed)).derive(Label::Administration);
        Self { sa: Sa::new(seed), connections: ConnectionTable::new(config), answers: VecDeque::new() }
    }

    /// Takes a datagram that QP1 received.
    pub fn handle_mad(&mut self, now: Instant, mad: &Mad) -> Taken {
        self.handle_mad_for(now, mad, self.connections.subnet().origin(&mad.peer))
    }

    /// The same, if a connection that it begins is to count in the share of `payer`.
    pub fn handle_mad_for(&mut self, now: Instant, mad: &Mad, payer: Origin) -> Taken {
        let header = mad.header();
        match header.class {
            MgmtClass::ComMgt => {
                self.connections.handle_mad_for(now, mad, payer);
                Taken::Connection
            }
            MgmtClass::SubnAdm if header.class_version == CLASS_VERSION && header.method.is_response() => {
                if self.sa.handle_mad(now, mad) {
                    Taken::Administration
                } else {
                    Taken::Ignored
                }
            }
            _ => match unsupported::answer(mad) {
                Some(answer) if self.answers.len() < MAX_ANSWERS => {
                    self.answers.push_back(answer);
                    Taken::Refused
                }
                _ => Taken::Ignored,
            },
        }
    }

    /// The next datagram to send from QP1.
    pub fn poll_transmit(&mut self) -> Option<Mad> {
        self.sa
            .poll_transmit()
            .or_else(|| self.connections.poll_transmit())
            .or_else(|| self.answers.pop_front())
    }

    /// When [`Port::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.sa.poll_timeout(), self.connections.poll_timeout()].into_iter().flatten().min()
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.sa.handle_timeout(now);
        self.connections.handle_timeout(now);
    }
}

#[cfg(test)]
mod tests;
