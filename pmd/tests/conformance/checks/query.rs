//! Queries of device and port attributes.

use std::collections::BTreeMap;

use ib_wire::{Gid, Mtu, PKey, PortNumber};
use pmd::hca::{Control, HcaError, PortState};

use super::Check;
use crate::bench::Bench;
use crate::lab::{Lab, Outcome, hold, same};

pub(super) fn checks<L: Lab>() -> Vec<Check<L>> {
    vec![
        Check::new("the device reports its attributes", device),
        Check::new("the port is active and has an address", port),
        Check::new("missing ports are an error", no_port),
        Check::new("GIDs: the first exists, beyond the table is an error", gids),
        Check::new("GIDs: the whole table equals its individual entries", gid_table),
        Check::new("P_Keys: the first is the default, beyond the table is an error", pkeys),
        Check::new("missing queue pairs are an error", no_queue_pair),
    ]
}

fn device<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let [one, other] = [b.ends[0].hca.device(), b.ends[1].hca.device()];
    hold!(!one.name.is_empty() && one.name != other.name, "names: {:?}, {:?}", one.name, other.name);
    hold!(one.ports >= 1 && one.max_qp > 8 && one.max_wr >= 64, "limits: {one:?}");
    hold!(one.max_srq_sge >= 17, "no room for a message of 65,524 bytes: {one:?}");
    hold!(one.node_guid.0 != 0 && one.node_guid != other.node_guid, "node GUID {}", one.node_guid);
    Ok(())
}

fn port<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    for end in &b.ends {
        let port = end.hca.port(b.lab.port())?;
        same!(port.state, PortState::Active, "state");
        hold!(port.active_mtu >= Mtu::B2048 && port.active_mtu <= port.max_mtu, "MTU: {port:?}");
        hold!(port.gid_table_len >= 1 && port.pkey_table_len >= 1, "tables: {port:?}");
        same!(port.guid, end.hca.gid(b.lab.port(), 0)?.id(), "GUID and first GID");
    }
    Ok(())
}

fn no_port<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let hca = &b.ends[0].hca;
    for number in [0, hca.device().ports + 1, 255] {
        let answer = hca.port(PortNumber(number));
        hold!(matches!(answer, Err(HcaError::NotFound { .. })), "port {number}: {answer:?}");
        hold!(hca.gid(PortNumber(number), 0).is_err(), "a GID of port {number}");
        hold!(hca.pkey(PortNumber(number), 0).is_err(), "a P_Key of port {number}");
    }
    Ok(())
}

fn gids<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let port = b.lab.port();
    hold!(b.gid(0)? != Gid::ZERO && b.gid(0)? != b.gid(1)?, "GIDs {} and {}", b.gid(0)?, b.gid(1)?);
    let len = b.ends[0].hca.port(port)?.gid_table_len;
    b.ends[0].hca.gid(port, len - 1)?;
    for index in [len, len.saturating_add(1000), u16::MAX] {
        hold!(b.ends[0].hca.gid(port, index).is_err(), "entry {index} of {len} is there");
    }
    Ok(())
}

fn gid_table<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let port = b.lab.port();
    let hca = &b.ends[0].hca;
    let table = hca.gids()?;
    let mut by_index = BTreeMap::new();
    for entry in table.iter().filter(|entry| entry.port == port) {
        hold!(by_index.insert(entry.index, *entry).is_none(), "entry {} twice", entry.index);
    }
    let len = hca.port(port)?.gid_table_len;
    hold!(by_index.keys().all(|index| *index < len), "entries beyond {len}: {by_index:?}");
    // Tables of RoCE ports are long and filled from the start.
    for index in (0..len.min(32)).chain([len - 1]) {
        let (entry, expected) = (hca.gid_entry(port, index)?, by_index.get(&index).copied());
        same!(entry, expected, "entry {index} alone and in the table");
        same!(hca.gid(port, index)?, entry.map_or(Gid::ZERO, |entry| entry.gid()), "GID {index}");
    }
    hold!(by_index.contains_key(&0), "no first entry: {by_index:?}");
    for index in [len, u16::MAX] {
        hold!(hca.gid_entry(port, index).is_err(), "entry {index} of {len} is there");
    }
    let nowhere = PortNumber(200);
    hold!(hca.gid_entry(nowhere, 0).is_err(), "an entry of a port that does not exist");
    hold!(hca.gid(nowhere, 0).is_err() && hca.pkey(nowhere, 0).is_err(), "its GID and P_Key");
    Ok(())
}

fn pkeys<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let port = b.lab.port();
    let hca = &b.ends[0].hca;
    same!(hca.pkey(port, 0)?, PKey::DEFAULT, "first P_Key");
    let len = hca.port(port)?.pkey_table_len;
    hca.pkey(port, len - 1)?;
    for index in [len, u16::MAX] {
        hold!(hca.pkey(port, index).is_err(), "entry {index} of {len} is there");
    }
    Ok(())
}

fn no_queue_pair<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let nobody = ib_wire::Qpn::new(0xab_cdef);
    let hca = &mut b.ends[0].hca;
    hold!(matches!(hca.qp_state(nobody), Err(HcaError::NotFound { .. })), "its state");
    let change = hca.modify_qp(nobody, &pmd::hca::QpTransition::ToError);
    hold!(matches!(change, Err(HcaError::NotFound { .. })), "its change: {change:?}");
    Ok(())
}
