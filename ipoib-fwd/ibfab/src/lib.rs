//! The software InfiniBand fabric: subnet manager and administration, switch, virtual hosts.
#![forbid(unsafe_code)]

pub mod arguments;
pub mod check;
pub mod config;
pub mod fabric;
pub mod host;
pub mod nap;
pub mod program;
pub mod report;
mod sa;
mod service;
pub mod sm;
pub mod subnet;
pub mod switch;
