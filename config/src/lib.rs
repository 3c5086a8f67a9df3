//! Configuration of the gateway: EAL command line and TOML file, validated.
//!
//! The command line has the form of any DPDK program, `PROGRAM [EAL arguments] -- [own arguments]`.
//! [`CommandLine`] splits it, and reads the required information from EAL's part without changing it.
//!
//! [`Config::load`] reads the TOML file into types that only hold valid values. [`ConfigFile`] keeps the
//! text, so that errors during startup can refer to it too. Every error contains the location, the problem
//! and a remedy.
//!
//! - [`Config::segments`] lists the joined networks.
//! - [`Config::difference`] computes the changes of a reload.
//! - [`Config::budget`] computes the required packet buffers.
#![forbid(unsafe_code)]

mod address;
mod bounds;
mod buffers;
mod change;
mod eal;
mod error;
mod faults;
mod file;
mod guid;
mod key;
mod lcore;
mod pair_key;
mod print;
mod raw;
mod resolve;
mod rings;
mod segment;
mod segments;
mod settings;
mod soft;
mod source;
mod unused;
mod value;
mod word;

pub use address::{Interface, Prefix, Route};
pub use buffers::{Budget, ConnectionShare, HELD_MESSAGES, PARKED_PACKETS, WAITING_FRAMES};
pub use change::{Change, Refused};
pub use eal::{CommandLine, EalArguments, Lcores, Warning, is_pci_address};
pub use error::{ConfigError, Place, nearest};
pub use file::ConfigFile;
pub use guid::Guid;
pub use lcore::{LcoreSet, MAX_LCORE};
pub use pair_key::PairKey;
pub use rings::frame_of;
pub use segment::{MAX_ROUTES, MAX_SEGMENTS, MAX_SUBNETS, PKey, Segment, SegmentName, VlanId};
pub use settings::{Buffers, Config, Ethernet, Gateway, InfiniBand, Overrides, Soft, SoftPort};
pub use unused::UnusedKey;
pub use word::{Cores, Driver, Idle, LogLevel, LongMessages, Mode, Privileges, Seccomp};

#[cfg(test)]
mod tests;
