//! Configuration of the gateway: EAL command line and TOML file, validated.
//!
//! The command line is that of any DPDK program, `PROGRAM [EAL arguments] -- [own arguments]`: [`CommandLine`] splits it
//! and reads from EAL's part what we need to know, without changing it. The file is TOML: [`Config::load`] reads it into
//! types that hold legal values only. Every error says where, what is wrong, and what to do about it.
#![forbid(unsafe_code)]

mod eal;
mod error;
mod lcore;
mod raw;
mod resolve;
mod settings;

pub use eal::{CommandLine, EalArguments, Lcores, Warning};
pub use error::{ConfigError, Place};
pub use lcore::{LcoreSet, MAX_LCORE};
pub use settings::{
    Buffers, Config, Driver, Ethernet, Gateway, Guid, Idle, InfiniBand, Ipv4Interface, Mode, Overrides, Soft,
    SoftPort,
};

#[cfg(test)]
mod tests;
