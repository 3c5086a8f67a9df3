//! GID tables of ports: their contents, their users, and lookups.
//!
//! The crate does the work of the kernel's RoCE GID management in user space, for any device:
//!
//! * [`netlink`] – parses, lists and follows the kernel's links and addresses.
//! * [`rules`] – derives the required entries of RoCE ports from these events, without I/O.
//! * [`table`] – the tables of a device; a [`table::Provider`] is notified of each entry, and may be slow or
//!   fail.
//! * [`manager`] – combines rules and tables.
//! * [`query`], [`lookup`] – read the whole table, one slot, or the best match for a GID, from any thread,
//!   without locks or system calls. Other processes can do the same if the table's memory is shared.
//!
//! A table is published in memory ([`layout`]) that is never changed while it is in use. Readers therefore
//! never wait, and a maintainer that dies leaves its last table intact.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Instant;
//!
//! use gidcache::netlink::{Monitor, Turn};
//! use gidcache::rules::{Binding, Rules};
//! use gidcache::{DeviceTable, GidType, Manager, NoProvider, PortKind, PortSetup, Query, RoceTypes, gid_of_address};
//! use ib_wire::PortNumber;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A port that uses RoCE v2 over eth0, and a device that needs no notification of its GIDs.
//! let port = PortSetup { number: PortNumber(1), len: 256, kind: PortKind::Roce(RoceTypes::V2) };
//! let table = Arc::new(DeviceTable::new(&[port], NoProvider, 0)?);
//! let reader = table.reader()?; // any number of clones, in any threads
//!
//! let mut rules = Rules::new();
//! rules.bind(port.number, Binding::Name("eth0".into()), RoceTypes::V2);
//! let mut manager = Manager::new(table, rules);
//! let mut monitor = Monitor::new(Instant::now())?;
//! while !monitor.is_settled() {
//!     // In a program: whenever the monitor's descriptor is readable, and at its `poll_timeout`.
//!     while monitor.turn(Instant::now(), manager.rules())? == Turn::More {}
//! }
//! for (change, error) in manager.apply().failures {
//!     eprintln!("{change:?}: {error}"); // a full table, or an error of the device; tried again later
//! }
//! let own = gid_of_address("192.0.2.1".parse()?);
//! if let Some(entry) = reader.find(&Query::new(own).gid_type(GidType::RoceV2))? {
//!     println!("source GID index {}", entry.index);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! `examples/interface-gids.rs` is a complete program that follows an interface. [`DeviceTable::mirror`]
//! copies tables that others maintain, such as the kernel for a real device or a subnet manager.
#![forbid(unsafe_code)]

mod difference;
pub mod entry;
mod hash;
pub mod layout;
pub mod lookup;
pub mod manager;
pub mod netlink;
mod publication;
pub mod query;
pub mod rules;
mod sync;
pub mod table;

pub use difference::{Difference, differences};
pub use entry::{
    Attributes, Entry, GidType, IfIndex, Key, RoceTypes, Slot, VlanId, gid_of_address, ipv4_of_gid,
    link_local_gid,
};
pub use lookup::{Reader, Unsettled};
pub use manager::{Applied, Manager};
pub use publication::Maintainer;
pub use query::{Query, VlanMatch};
pub use rules::Rules;
pub use table::{
    Added, DeviceTable, Hold, NoProvider, PortKind, PortSetup, Provider, ProviderError, TableError,
};
