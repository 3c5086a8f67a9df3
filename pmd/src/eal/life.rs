//! Reference count of EAL's memory. Cleaning EAL up unmaps the memory, so it happens only without users.

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
    /// [`begin`] was called: EAL is starting, or failed to start.
    Starting,
    /// Started.
    Running,
    /// Cleaned up, or its [`super::Eal`] was dropped while its memory was in use. Final.
    Over,
}

static LIFE: Mutex<Life> = Mutex::new(Life { stage: Stage::Fresh, holds: 0 });

/// Keeps EAL's memory mapped. Pools, ports and jobs hold one.
#[derive(Debug)]
pub(crate) struct Hold(());

impl Hold {
    /// Returns `None` unless EAL is running.
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

/// Claims the single start of this process. Returns false if it was claimed before.
pub(super) fn begin() -> bool {
    let mut life = LIFE.lock();
    let fresh = life.stage == Stage::Fresh;
    if fresh {
        life.stage = Stage::Starting;
    }
    fresh
}

/// Marks EAL as started.
pub(super) fn started() {
    LIFE.lock().stage = Stage::Running;
}

/// Runs `clean_up` and returns true, unless EAL's memory is in use.
pub(super) fn end(clean_up: impl FnOnce()) -> bool {
    let mut life = LIFE.lock();
    life.stage = Stage::Over;
    let free = life.holds == 0;
    // Under the lock, so that no hold is taken meanwhile. Afterwards none can be taken either.
    if free {
        clean_up();
    }
    free
}
