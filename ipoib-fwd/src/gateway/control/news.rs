//! What segments tell, in the log.

use std::time::Instant;

use serde_json::{Value, json};

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
        let (event, text, _) = said(happening);
        match happening {
            Happening::AddressMoved { .. } => tracing::info!(segment, event, "{segment}: {text}"),
            Happening::Conflict { .. } => tracing::warn!(segment, event, "{segment}: {text}"),
            Happening::HeldDown { .. } => tracing::error!(segment, event, "{segment}: {text}"),
        }
    }
}

/// What an event is called, what it says, and what is known of it.
pub(super) fn said(happening: Happening) -> (&'static str, String, Value) {
    let name = |side| match side {
        Side::Ethernet => "Ethernet",
        Side::InfiniBand => "InfiniBand",
    };
    match happening {
        Happening::AddressMoved { ip, to } => {
            let text = format!("{ip} has moved to {}", name(to));
            ("moved", text, json!({"address": ip, "side": name(to)}))
        }
        Happening::Conflict { ip, owner } => {
            let owner = name(owner);
            let text = format!("{ip} is claimed by another host: its owner on {owner} answers for it");
            ("disputed", text, json!({"address": ip, "side": owner}))
        }
        Happening::HeldDown { ip, owner } => {
            let owner = name(owner);
            let text = format!("{ip} moves too often: it stays on {owner} for now");
            ("held-down", text, json!({"address": ip, "side": owner}))
        }
    }
}
