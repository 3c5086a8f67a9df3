//! Cases in which the kernel's table depends on its history and ours does not. After recreating the device
//! (`rdma link delete`, `rdma link add`), both tables must be equal.

use std::collections::BTreeSet;

use gidcache::ipv4_of_gid;

use crate::state::{Links, Row, index};
use crate::sysfs::Device;

/// A device over a bond: on failover the kernel deletes all of the bond's entries and does not add the port's
/// own again.
pub(crate) const OWN_LOST: &str = "own GID lost at fail-over";
/// The address existed before it became the port's own; the kernel then has it twice.
pub(crate) const OWN_TWICE: &str = "own GID twice";
/// The kernel deletes an address's entry although the address still exists with another prefix.
pub(crate) const TWO_PREFIXES: &str = "address with two prefixes";
/// When the last usable slave is lost, the kernel's tables stay; after recreating the device, all slaves have
/// the bond's entries.
pub(crate) const NO_FIT_SLAVE: &str = "no fit slave";

/// Returns the reason for a difference between the tables, if it is one of these.
pub(crate) fn explain(
    what: &str,
    device: &Device,
    links: &Links,
    theirs: &[Row],
    mine: &BTreeSet<Row>,
) -> Option<&'static str> {
    let more = theirs.iter().filter(|row| !mine.contains(row)).map(|row| (row, true));
    let less = mine.iter().filter(|row| !theirs.contains(row)).map(|row| (row, false));
    let mut why = None;
    for (row, more) in more.chain(less) {
        let (port, gid, of, vlan, default) = *row;
        let over_bond = links.get("bond0").is_some() && device.netdev == "bond0";
        let no_fit_slave = links.bond_of(device.netdev).is_some_and(|bond| {
            let on_bond = links.get("bond0.9").is_some_and(|vlan| index(vlan) == of);
            bond["linkinfo"]["info_data"]["active_slave"].is_null() && (index(bond) == of || on_bond)
        });
        let deleted = ipv4_of_gid(gid).is_some_and(|v4| what.contains(&format!("addr del {v4}/")));
        why = Some(if !more && default && over_bond {
            OWN_LOST
        } else if more && !default && mine.contains(&(port, gid, of, vlan, true)) {
            OWN_TWICE
        } else if !more && deleted {
            TWO_PREFIXES
        } else if no_fit_slave {
            NO_FIT_SLAVE
        } else {
            return None;
        });
    }
    why
}
