//! Against the kernel: soft-RoCE devices over real interfaces that `ip` drives by random sequences. After each step our table is
//! what a simple reference makes of `ip -j addr`, and the kernel's table in sysfs is what ours is, entry for entry.
//!
//! Only for the laboratory's machine (`scripts/lab gids`): it works in the network namespace where it is started.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod difference;
mod host;
mod scenario;
mod sequence;
#[path = "../host/mod.rs"]
mod state;
mod sysfs;

/// Set in the laboratory: `seeds=FIRST-LAST steps=N`.
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
