//! Selectors of an MTU, a rate or a life time: greater than, less than, exactly, largest available (IBA
//! 15.2.5.16).

use ib_wire::sa::{McMask, McMemberRecord, MtuCode, Selector};
use ib_wire::{Mtu, Rate};

use crate::subnet::{slower, speed};

/// True if `have` matches a selector and a value.
pub(crate) fn selected<T: Ord>(selector: Selector, have: &T, wanted: &T) -> bool {
    match selector {
        Selector::Greater => have > wanted,
        Selector::Less => have < wanted,
        Selector::Exactly => have == wanted,
        Selector::Best | Selector::Other(_) => true,
    }
}

/// Returns the MTU of a new group: the requested one, 2048 by default, and none that the port does not
/// support.
pub(crate) fn choose_mtu(wanted: &McMemberRecord, mask: McMask, port: Mtu) -> Option<Mtu> {
    if !mask.contains(McMask::MTU_SELECTOR | McMask::MTU) {
        return Some(port.min(Mtu::B2048));
    }
    let possible = (1..=port.code()).rev().filter_map(Mtu::from_code);
    possible.into_iter().find(|&m| selected(wanted.mtu_selector, &MtuCode::from(m), &wanted.mtu))
}

/// Returns the rate of a new group: the requested one, 10 Gb/s by default, and none that the port does not
/// support.
pub(crate) fn choose_rate(wanted: &McMemberRecord, mask: McMask, port: Rate) -> Option<Rate> {
    if !mask.contains(McMask::RATE_SELECTOR | McMask::RATE) {
        return Some(slower(port, Rate::new(3)));
    }
    let possible = (2..=18).map(Rate::new).filter(|&r| speed(r) <= speed(port));
    possible
        .filter(|r| selected(wanted.rate_selector, &speed(*r), &speed(wanted.rate)))
        .max_by_key(|&r| speed(r))
}
