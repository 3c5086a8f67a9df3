//! The gateway: workers between an Ethernet port and an IPoIB link, and their control lcore.

mod board;
mod control;
mod cut;
mod frames;
mod gids;
mod punts;
mod report;
mod segment_parts;
mod start;
mod tag;
mod usage;
mod worker;

pub use start::{GatewayError, Report, Start};
pub use worker::{Cause, GatewayCommand, GatewayNote, GatewayWorker};
