//! Memory reclamation (QSBR): the control lcore detects that no worker can reach an object any more.
//!
//! ```text
//!   control lcore                                   each worker, several times per iteration
//!     unpublish the object                            read the epoch
//!     begin(): epoch + 1 ──> Grace          ──>       if it has changed: drop old tables, take new ones,
//!     …                                     <──         report a quiescent state in this epoch
//!     passed(grace)? free it, or reuse its number
//! ```
//!
//! This covers everything that workers read: tables, and the slots that tables refer to (connections,
//! datagram queue pairs, segment and neighbor numbers). Objects that a worker owns (the data path of a queue
//! pair, buffers) are returned over its ring instead.
//!
//! While nothing is published, a worker's part is one load from a cache line that nobody writes.

mod epoch;
#[cfg(test)]
mod loom_tests;

pub use epoch::{Grace, Quiescence, Quiescent};

/// Primitives of the mechanism. The loom tests compile it with loom's.
mod sync {
    pub(super) use std::sync::Arc;
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Begin,
        Pass(usize),
        End(usize),
        Join,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Begin),
            6 => (0..4usize).prop_map(Step::Pass),
            1 => (0..4usize).prop_map(Step::End),
            1 => Just(Step::Join),
        ]
    }

    proptest! {
        /// A grace period has passed when each worker that existed at its start has reported a quiescent
        /// state since, or has ended.
        #[test]
        fn it_passes_when_all_have(steps in prop::collection::vec(step(), 0..100)) {
            let mut control = Quiescence::new();
            // Each worker, and the grace periods that it has not passed.
            let mut workers: Vec<(Option<Quiescent>, Vec<Grace>)> = Vec::new();
            let mut begun = Vec::new();
            for step in steps {
                match step {
                    Step::Begin => {
                        let grace = control.begin();
                        begun.push(grace);
                        workers.iter_mut().filter(|(w, _)| w.is_some()).for_each(|(_, open)| open.push(grace));
                    }
                    Step::Pass(at) => {
                        if let Some((Some(worker), open)) = workers.get_mut(at) {
                            let mut renewed = false;
                            worker.pass(|| renewed = true);
                            prop_assert_eq!(renewed, !open.is_empty());
                            open.clear();
                        }
                    }
                    Step::End(at) => {
                        if let Some((worker, open)) = workers.get_mut(at) {
                            *worker = None;
                            open.clear();
                        }
                    }
                    Step::Join => workers.push((Some(control.join()), Vec::new())),
                }
                for grace in &begun {
                    let open = workers.iter().any(|(_, open)| open.contains(grace));
                    prop_assert_eq!(control.passed(*grace), !open);
                }
                prop_assert!(begun.last().is_none_or(|last| *last == control.newest()));
            }
        }
    }
}
