//! What ties a driver's queue to the device's object behind it.

use std::fmt::Debug;

/// The device's object behind a queue that holds buffers.
pub trait Anchor: Send + Debug {
    /// Destroys the object: from now on the device has none of the buffers any more, and they may go home. False if somebody
    /// else keeps it alive: then they are better lost than in two hands.
    fn release(self: Box<Self>) -> bool;
}

/// An anchor, or nothing where somebody else answers for the device's having let go.
pub type Anchored = Option<Box<dyn Anchor>>;

pub(super) fn release(anchor: &mut Anchored) -> bool {
    anchor.take().is_none_or(Anchor::release)
}
