//! The general services of an HCA port. Its QP1 has one owner, regardless of the number of links.
//!
//! ```text
//!  datagrams of QP1 ─> Port ─┬─ SubnAdm: Sa              (matched by transaction ID)
//!                            ├─ ComMgt:  ConnectionTable (by service ID, communication ID, queue pair)
//!                            └─ others:  a response if IBA requires one
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

/// Maximum number of queued responses for unsupported services. Further ones are omitted.
const MAX_ANSWERS: usize = 32;

/// Disposition of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// A response from subnet administration, or a notice that the response takes longer.
    Administration,
    /// Passed to the connection table, which has its own counters.
    Connection,
    /// A request for an unsupported service, which was rejected.
    Refused,
    /// Ignored: late, malformed, or without a response.
    Ignored,
}

/// The services of one port. `U` identifies the user that joins or leaves a group.
#[derive(Debug)]
pub struct Port<U> {
    /// Requests to subnet administration.
    pub sa: Sa<U>,
    /// Connections.
    pub connections: ConnectionTable,
    answers: VecDeque<Mad>,
}

impl<U: Copy + Eq> Port<U> {
    /// Creates a port without connections or requests.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let seed = Identifiers::new(&mut Random::new(config.seed)).derive(Label::Administration);
        Self { sa: Sa::new(seed), connections: ConnectionTable::new(config), answers: VecDeque::new() }
    }

    /// Handles a datagram received by QP1.
    pub fn handle_mad(&mut self, now: Instant, mad: &Mad) -> Taken {
        self.handle_mad_for(now, mad, self.connections.subnet().origin(&mad.peer))
    }

    /// Like [`Self::handle_mad`], but connections that the datagram initiates count against the share of
    /// `payer`.
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

    /// Returns the next datagram to send from QP1.
    pub fn poll_transmit(&mut self) -> Option<Mad> {
        self.sa
            .poll_transmit()
            .or_else(|| self.connections.poll_transmit())
            .or_else(|| self.answers.pop_front())
    }

    /// Returns the time at which [`Port::handle_timeout`] must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.sa.poll_timeout(), self.connections.poll_timeout()].into_iter().flatten().min()
    }

    /// Handles the passage of time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.sa.handle_timeout(now);
        self.connections.handle_timeout(now);
    }
}

#[cfg(test)]
mod tests;
