//! The device's clock: what its register and completions tell.

use std::time::Duration;

/// Ticks in a millisecond: of a nanosecond each.
pub const CLOCK_KHZ: u64 = 1_000_000;

/// What it tells at that age.
#[must_use]
pub const fn ticks(age: Duration) -> u64 {
    age.as_nanos() as u64
}
