//! What the driver's queues outlive: the device's objects that may still read or fill their buffers.

use std::sync::Arc;

use connectx::engine::Engine;
use ib_wire::Qpn;
use parking_lot::Mutex;

use crate::hca::{HcaError, QpTransition};
use crate::mlx5::anchor::Anchor;

/// The object behind one of the driver's queues.
#[derive(Clone, Copy, Debug)]
pub(super) enum Object {
    /// A queue pair.
    Pair(Qpn),
    /// A shared receive queue, with all queue pairs that fill it.
    Shared(u32),
}

/// Makes the device let go of an object's buffers; any thread may give the device a turn until then.
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
            // What is gone has no buffers.
            Err(HcaError::NotFound { .. }) => Ok(()),
            other => other,
        }
    }
}
