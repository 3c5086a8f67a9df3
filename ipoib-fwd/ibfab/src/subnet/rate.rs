//! Static rates: the rate of a link, and the order of rate codes.

use ib_wire::Rate;
use ib_wire::smp::{LinkWidth, PortInfo};

/// Gb/s times ten by rate code (IBA table 220), from code 2.
const RATES: [u16; 17] =
    [25, 100, 300, 50, 200, 400, 600, 800, 1200, 140, 560, 1120, 1680, 250, 1000, 2000, 3000];

/// 10 Gb/s: the default for a link that reports no rate.
const ASSUMED: Rate = Rate::new(3);

/// Returns a code's rate in Gb/s times ten; `None` for codes without a rate.
#[must_use]
pub(crate) fn speed(rate: Rate) -> Option<u16> {
    RATES.get(usize::from(rate.code()).checked_sub(2)?).copied()
}

/// Returns the code of a rate in Gb/s.
#[must_use]
pub(crate) fn rate_of_gbits(gbits: f64) -> Option<Rate> {
    (2..=18).map(Rate::new).find(|&rate| speed(rate).is_some_and(|s| f64::from(s) == gbits * 10.0))
}

/// Returns the slower of two rates.
#[must_use]
pub(crate) fn slower(a: Rate, b: Rate) -> Rate {
    if speed(a) <= speed(b) { a } else { b }
}

/// Returns the rate of a port's link, from its active width and speed.
#[must_use]
pub(crate) fn of_port(info: &PortInfo) -> Rate {
    let lanes = match info.width_active {
        LinkWidth::X1 => 1,
        LinkWidth::X4 => 4,
        LinkWidth::X8 => 8,
        LinkWidth::X12 => 12,
        _ => return ASSUMED,
    };
    let lane = match (info.speed_ext_active.get(), info.speed_active.get()) {
        (2, _) => 250,
        (1, _) => 140,
        (_, 4) => 100,
        (_, 2) => 50,
        (_, 1) => 25,
        _ => return ASSUMED,
    };
    let wanted = lanes * lane;
    // The fastest code that the link can carry.
    (2..=18)
        .map(Rate::new)
        .filter(|&r| speed(r).is_some_and(|s| s <= wanted))
        .max_by_key(|&r| speed(r))
        .unwrap_or(ASSUMED)
}
