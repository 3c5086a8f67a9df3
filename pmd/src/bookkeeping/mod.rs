//! Bookkeeping of a worker's queue pairs, independent of the driver.

mod credit;
mod health;
mod numbers;
mod places;
mod progress;
mod stale;
mod work;

pub(crate) use credit::Credit;
pub(crate) use health::{Completed, Health};
pub(crate) use numbers::{Numbers, Place};
pub(crate) use places::Places;
pub(crate) use progress::{Mark, Progress};
pub(crate) use stale::{Reading, Removed, StaleNumbers};
pub(crate) use work::{Operation, Work};
