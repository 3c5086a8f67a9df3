//! Ownership of the device object behind a driver queue.

use std::fmt::Debug;

use crate::hca::HcaError;

/// The device object behind a queue that holds buffers.
pub trait Anchor: Send + Debug {
    /// Destroys the object. Afterwards the device no longer uses the buffers, and they may return to their
    /// pool.
    ///
    /// # Errors
    ///
    /// On an error the device may still use the buffers. The caller must leak them rather than reuse them.
    fn release(self: Box<Self>) -> Result<(), HcaError>;
}

/// An optional anchor. `None` means that another owner guarantees that the device has released the buffers.
pub type Anchored = Option<Box<dyn Anchor>>;

pub(super) fn release(anchor: &mut Anchored) -> Result<(), HcaError> {
    anchor.take().map_or(Ok(()), Anchor::release)
}

/// Calls [`release`] and logs the error, for callers that cannot return it.
pub(super) fn let_go(anchor: &mut Anchored) -> bool {
    release(anchor).inspect_err(|e| tracing::warn!("{e}")).is_ok()
}
