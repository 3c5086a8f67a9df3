//! GID tables: lookups, events, and the whole table of a real device.

mod event;
mod lookup;
mod query;

use std::net::Ipv4Addr;

use gidcache::{Attributes, GidType, IfIndex, Key, gid_of_address};
use ib_wire::PortNumber;

pub(crate) use self::event::run as run_event;
pub(crate) use self::lookup::run as run_lookup;
pub(crate) use self::query::{has_device, run as run_query};

const PORT: PortNumber = PortNumber(1);

/// An entry of an address in 10.0.0.0/8.
fn attributes(number: u32) -> Attributes {
    let gid = gid_of_address(Ipv4Addr::from(0x0a00_0000 | number).into());
    Attributes { key: Key { gid, gid_type: GidType::RoceV2, ifindex: IfIndex::new(3) }, vlan: None }
}

/// The median; 0 without values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
