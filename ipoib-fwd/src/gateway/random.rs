//! Seeds and names of this run.

use std::hash::{BuildHasher as _, RandomState};

/// A number that no other host can guess.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
