//! What segments tell, in the log.

use std::time::Instant;

use crate::forward::Side;
use crate::segment::Happening;
use ipoib::bucket::Bucket;

/// Lines of the log about addresses in dispute, per second and at once: the network must not fill the disk.
const NEWS: (u32, u32) = (1, 20);

/// What segments tell, for the log.
#[derive(Debug)]
pub(in crate::gateway) struct News {
    limit: Bucket,
}

impl News {
    pub(in crate::gateway) fn new(now: Instant) -> Self {
        Self { limit: Bucket::new(now, NEWS.1, NEWS.0) }
    }

    pub(super) fn tell(&mut self, now: Instant, segment: &str, happening: Happening) {
        if !self.limit.take(now) {
            return;
        }
        let name = |side| match side {
            Side::Ethernet => "Ethernet",
            Side::InfiniBand => "InfiniBand",
        };
        match happening {
            Happening::AddressMoved { ip, to } => tracing::info!("{segment}: {ip} has moved to {}", name(to)),
            Happening::Conflict { ip, owner } => {
                tracing::warn!(
                    "{segment}: {ip} is claimed by another host: its owner on {} answers for it",
                    name(owner)
                );
            }
            Happening::HeldDown { ip, owner } => {
                tracing::error!("{segment}: {ip} moves too often: it stays on {} for now", name(owner));
            }
        }
    }
}
