//! Who still needs EAL's memory. Ending EAL unmaps it, so that EAL ends only when nobody does.

use std::sync::Arc;

use parking_lot::Mutex;

struct Life {
    stage: Stage,
    holds: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Not started.
    Fresh,
    /// [`begin`] was called: EAL starts, or has refused to.
    Starting,
    /// Started.
    Running,
    /// Ended, or its [`super::Eal`] was dropped while somebody needed its memory. For good.
    Over,
}

static LIFE: Mutex<Life> = Mutex::new(Life { stage: Stage::Fresh, holds: 0 });

/// As long as one exists, EAL's memory stays. Pools, ports and jobs have one.
#[derive(Debug)]
pub(crate) struct Hold(());

impl Hold {
    /// `None` unless EAL runs.
    pub(crate) fn take() -> Option<Arc<Self>> {
        let mut life = LIFE.lock();
        if life.stage != Stage::Running {
            return None;
        }
        life.holds += 1;
        Some(Arc::new(Self(())))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        LIFE.lock().holds -= 1;
    }
}

/// Claims the one start of this process; false if it was claimed before.
pub(super) fn begin() -> bool {
    let mut life = LIFE.lock();
    let fresh = life.stage == Stage::Fresh;
    if fresh {
        life.stage = Stage::Starting;
    }
    fresh
}

/// EAL has started.
pub(super) fn started() {
    LIFE.lock().stage = Stage::Running;
}

/// EAL is to end: runs `clean_up`, unless somebody holds its memory. True if it ran.
pub(super) fn end(clean_up: impl FnOnce()) -> bool {
    let mut life = LIFE.lock();
    life.stage = Stage::Over;
    let free = life.holds == 0;
    // Under the lock, so that nobody takes a hold meanwhile; nobody could after it, either.
    if free {
        clean_up();
    }
    free
}
