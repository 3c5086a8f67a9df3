//! Model check of the mechanism with loom, using loom's atomics instead of the standard library's.

#[expect(
    clippy::duplicate_mod,
    dead_code,
    unreachable_pub,
    reason = "the same code, with the atomics of `sync` here"
)]
#[path = "epoch.rs"]
mod epoch;

mod sync {
    pub(super) use loom::sync::Arc;
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
}

use epoch::{Quiescence, Quiescent};
use sync::{Arc, AtomicU64, Ordering};

const VERSIONS: usize = 3;

/// Versions of a table: the published one, and the number of uses of each.
struct World {
    published: AtomicU64,
    uses: [AtomicU64; VERSIONS],
}

impl World {
    fn new() -> Arc<Self> {
        // All accesses are relaxed, so that only the mechanism orders them.
        Arc::new(Self { published: AtomicU64::new(0), uses: std::array::from_fn(|_| AtomicU64::new(0)) })
    }

    fn worker(&self, mut quiescent: Quiescent, turns: usize) {
        let mut held = 0;
        let use_it = |held: u64| self.uses[held as usize].fetch_add(1, Ordering::Relaxed);
        for _ in 0..turns {
            quiescent.pass(|| {
                // Dropping it is its last use.
                use_it(held);
                held = self.published.load(Ordering::Relaxed);
            });
            use_it(held);
        }
    }

    /// Publishes each version after the first. Returns, for each version, its number of uses when its grace
    /// period passed, if that was observed.
    fn publish(&self, control: &mut Quiescence, versions: usize) -> [Option<u64>; VERSIONS] {
        let mut last = [None; VERSIONS];
        for version in 1..versions {
            self.published.store(version as u64, Ordering::Relaxed);
            let grace = control.begin();
            if control.passed(grace) {
                for (old, uses) in last.iter_mut().zip(&self.uses).take(version) {
                    old.get_or_insert(uses.load(Ordering::Relaxed));
                }
            }
        }
        last
    }

    fn check(&self, last: [Option<u64>; VERSIONS]) {
        for (uses, last) in self.uses.iter().zip(last) {
            let uses = uses.load(Ordering::Relaxed);
            assert_eq!(last.unwrap_or(uses), uses, "it was used after it could be freed");
        }
    }
}

#[test]
fn what_has_passed_is_used_by_nobody() {
    loom::model(|| {
        let world = World::new();
        let mut control = Quiescence::new();
        let quiescent = control.join();
        let worker = loom::thread::spawn({
            let world = Arc::clone(&world);
            move || world.worker(quiescent, 3)
        });
        let last = world.publish(&mut control, 3);
        worker.join().unwrap();
        world.check(last);
        assert!(control.passed(control.newest()), "an ended worker uses nothing");
    });
}

#[test]
fn it_passes_when_both_workers_have() {
    // Without this bound, all interleavings of three threads take half a minute.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let world = World::new();
        let mut control = Quiescence::new();
        let workers = [control.join(), control.join()].map(|quiescent| {
            let world = Arc::clone(&world);
            loom::thread::spawn(move || world.worker(quiescent, 1))
        });
        let last = world.publish(&mut control, 2);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        world.check(last);
    });
}
