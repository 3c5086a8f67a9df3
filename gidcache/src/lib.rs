//! GID tables of ports: which GIDs a port has, who may use them, and how they are found.
//!
//! What the kernel's RoCE GID management does, in user space and for anybody's devices:
//!
//! * [`netlink`] – links and addresses as the kernel tells of them, parsed, listed and followed.
//! * [`rules`] – which entries a RoCE port shall have, from these events, without I/O.
//! * [`table`] – the tables of a device; a [`table::Provider`] is told of each entry and may be slow or refuse.
//! * [`manager`] – rules and tables put together.
//! * [`query`], [`lookup`] – the whole table in one call, one slot, or the best match for a GID: from any thread, without
//!   locks or system calls, and from other processes where the table's memory is shared.
//!
//! A table is published in words of memory ([`layout`]) that are never changed while they are in use, so that nobody
//! waits, and a maintainer that dies leaves its last table whole.
#![forbid(unsafe_code)]

mod difference;
pub mod entry;
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
