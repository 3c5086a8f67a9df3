//! What ties a driver's queue to the device's object behind it.

use std::fmt::Debug;

use crate::hca::HcaError;

/// The device's object behind a queue that holds buffers.
pub trait Anchor: Send + Debug {
    /// Destroys the object: from now on the device has none of the buffers any more, and they may go home. On an error it may
    /// still have them: then they are better lost than in two hands.
    fn release(self: Box<Self>) -> Result<(), HcaError>;
}

/// An anchor, or nothing where somebody else answers for the device's having let go.
pub type Anchored = Option<Box<dyn Anchor>>;

pub(super) fn release(anchor: &mut Anchored) -> Result<(), HcaError> {
    anchor.take().map_or(Ok(()), Anchor::release)
}

/// As [`release`], for those who have nobody to tell but the log.
pub(super) fn let_go(anchor: &mut Anchored) -> bool {
    release(anchor).inspect_err(|e| tracing::warn!("{e}")).is_ok()
}
