//! A client of subnet administration for one port and one partition: paths, multicast groups, subscriptions.
//!
//! Joins and subscriptions are wishes: they are renewed after everything that makes the SA forget them, with a
//! back-off from 1 s to 16 s while it refuses. Path queries are single questions with a cached answer.

mod api;
mod client;
mod groups;
mod paths;

pub use api::{Config, Event, Failure, GroupState, JoinKind, Lookup, SaError, SaPort};
pub use client::SaClient;

#[cfg(test)]
mod tests;
