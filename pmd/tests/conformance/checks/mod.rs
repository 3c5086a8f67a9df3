//! The checks, by subject.

mod chain;
mod connection;
mod datagram;
mod error;
mod event;
mod life;
mod management;
mod multicast;
mod query;
mod registration;
mod several;
mod shared;
mod state;

use pmd::hca::QueuesConfig;

use crate::bench::Bench;
use crate::lab::{Lab, Outcome};

/// A check. It gets fresh queues on newly opened devices.
pub(crate) struct Check<L: Lab> {
    /// Subject and requirement.
    pub(crate) name: &'static str,
    /// Changes the sizes of the queues.
    pub(crate) sizes: fn(&mut QueuesConfig),
    /// The check.
    pub(crate) run: fn(&mut Bench<'_, L>) -> Outcome,
}

impl<L: Lab> Check<L> {
    fn new(name: &'static str, run: fn(&mut Bench<'_, L>) -> Outcome) -> Self {
        Self { name, sizes: |_| (), run }
    }

    fn sized(
        name: &'static str,
        sizes: fn(&mut QueuesConfig),
        run: fn(&mut Bench<'_, L>) -> Outcome,
    ) -> Self {
        Self { name, sizes, run }
    }
}

/// All subjects and their checks, in execution order.
pub(crate) fn all<L: Lab>() -> Vec<(&'static str, Vec<Check<L>>)> {
    vec![
        ("query", query::checks()),
        ("datagram", datagram::checks()),
        ("several", several::checks()),
        ("multicast", multicast::checks()),
        ("connection", connection::checks()),
        ("shared", shared::checks()),
        ("error", error::checks()),
        ("registration", registration::checks()),
        ("chain", chain::checks()),
        ("state", state::checks()),
        ("life", life::checks()),
        ("management", management::checks()),
        ("event", event::checks()),
    ]
}
