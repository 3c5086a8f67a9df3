//! Who may still use it: how the control lcore knows that no worker can reach a thing any more.
//!
//! ```text
//!   control lcore                                   each worker, several times a turn
//!     take it out of the tables                       read the epoch
//!     begin(): epoch + 1 ──> Grace          ──>       if it is another: let go of old tables, take new ones,
//!     …                                     <──         say that it has passed this epoch
//!     passed(grace)? free it, or use its number anew
//! ```
//!
//! All that workers look at (tables, and what tables name: connections' slots, links' datagram queue pairs, numbers of segments and
//! neighbours) is given up in this way. What a worker owns (a queue pair's hot half, buffers) it hands back over its ring instead.
//!
//! While nothing is published the worker's part is one load from a cache line that nobody writes.

mod epoch;
#[cfg(test)]
mod loom_tests;

pub use epoch::{Grace, Quiescence, Quiescent};

/// What the mechanism is made of; loom's tests compile it with loom's.
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
        /// A grace has passed when each worker that was there has been at its quiescent point since, or has ended.
        #[test]
        fn it_passes_when_all_have(steps in prop::collection::vec(step(), 0..100)) {
            let mut control = Quiescence::new();
            // Each worker, and the graces that it has not passed.
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
