//! The device's clock: the value of its register and of completion timestamps.

use std::time::Duration;

/// Ticks in a millisecond; a tick is a nanosecond.
pub const CLOCK_KHZ: u64 = 1_000_000;

/// Clock value of a device of that age.
#[must_use]
pub const fn ticks(age: Duration) -> u64 {
    age.as_nanos() as u64
}
