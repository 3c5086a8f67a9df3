//! The application: the forwarding decisions, the segments, and the gateway that runs them.
#![forbid(unsafe_code)]

pub mod check;
pub mod command;
pub mod counter;
pub mod ctl;
pub mod event;
pub mod forward;
pub mod gateway;
pub mod gids;
pub mod glossary;
pub mod init;
pub mod kept;
pub mod metrics;
pub mod options;
pub mod page;
pub mod segment;
pub mod setting;
mod state_directory;
pub mod terminal;
pub mod top;
pub mod trace;
