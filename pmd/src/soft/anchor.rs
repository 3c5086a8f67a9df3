//! Device objects that may still access the buffers of the driver's queues.

use std::sync::Arc;

use connectx::engine::Engine;
use ib_wire::Qpn;
use parking_lot::Mutex;

use crate::hca::{HcaError, QpTransition};
use crate::mlx5::anchor::Anchor;

/// The object behind a driver queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Object {
    /// A queue pair.
    Pair(Qpn),
    /// A shared receive queue with all queue pairs that use it.
    Shared(u32),
}

/// Makes the device release an object's buffers. Until then any thread may advance the device.
#[derive(Debug)]
pub(super) struct SoftAnchor {
    engine: Arc<Mutex<Engine>>,
    object: Object,
}

impl SoftAnchor {
    pub(super) fn boxed(engine: &Arc<Mutex<Engine>>, object: Object) -> Box<dyn Anchor> {
        Box::new(Self { engine: engine.clone(), object })
    }
}

impl Anchor for SoftAnchor {
    fn release(self: Box<Self>) -> Result<(), HcaError> {
        let mut engine = self.engine.lock();
        let released = match self.object {
            Object::Pair(qpn) => engine.modify_qp(qpn, &QpTransition::ToReset),
            Object::Shared(number) => engine.reset_users_of_srq(number),
        };
        match released {
            // An object that no longer exists has no buffers.
            Err(HcaError::NotFound { .. }) => Ok(()),
            other => other,
        }
    }
}
