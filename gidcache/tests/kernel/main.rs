//! Comparison with the kernel: soft-RoCE devices on real interfaces, which random sequences of `ip` commands
//! change.
//!
//! After each step our table must match a simple reference computed from `ip -j addr`. The kernel's table in
//! sysfs must match ours, entry by entry.
//!
//! Only for the test VM (`scripts/lab gids`): it changes the network namespace in which it is started.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod difference;
mod host;
mod scenario;
mod sequence;
#[path = "../host/mod.rs"]
mod state;
mod sysfs;

/// Set in the test VM: `seeds=FIRST-LAST steps=N`.
const LAB: &str = "GIDCACHE_LAB";

fn lab() -> Option<String> {
    let lab = std::env::var(LAB).ok();
    if lab.is_none() {
        eprintln!("skipped: for the laboratory only (scripts/lab gids)");
    }
    lab
}

#[test]
fn scenarios() {
    if lab().is_some() {
        scenario::run();
    }
}

#[test]
fn sequences() {
    let Some(lab) = lab() else { return };
    let word = |name: &str| lab.split_whitespace().find_map(|word| word.strip_prefix(name));
    let (first, last) = word("seeds=").and_then(|seeds| seeds.split_once('-')).unwrap();
    let steps = word("steps=").unwrap().parse().unwrap();
    for seed in first.parse::<u64>().unwrap()..=last.parse().unwrap() {
        sequence::run(seed, steps);
    }
}
