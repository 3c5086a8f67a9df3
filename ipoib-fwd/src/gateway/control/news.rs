//! Events of segments, for the log.

use std::net::IpAddr;
use std::time::Instant;

use serde_json::{Value, json};

use crate::event::What;
use crate::segment::Happening;
use crate::segment::pair::Place;
use ipoib::bucket::Bucket;

/// Log lines about addresses in dispute: rate per second, and burst. The network must not fill the disk.
const NEWS: (u32, u32) = (1, 20);

/// Logs events of segments, with a limit.
#[derive(Debug)]
pub(in crate::gateway) struct News {
    limit: Bucket,
}

impl News {
    pub(in crate::gateway) fn new(now: Instant) -> Self {
        Self { limit: Bucket::new(now, NEWS.1, NEWS.0) }
    }

    pub(super) fn log(&mut self, now: Instant, segment: &str, happening: Happening) {
        // Known hosts are reported once when the gateway starts to forward, whatever hosts do.
        if !matches!(happening, Happening::KnownHosts { .. }) && !self.limit.take(now) {
            return;
        }
        let (what, text, _) = said(happening);
        let event = what.journal();
        match happening {
            Happening::AddressMoved { .. } | Happening::KnownHosts { .. } => {
                tracing::info!(segment, event, "{segment}: {text}");
            }
            Happening::Conflict { .. } => tracing::warn!(segment, event, "{segment}: {text}"),
            Happening::OwnAddressClaimed { .. } => tracing::error!(segment, event, "{segment}: {text}"),
            Happening::OwnAddressOfPeer { .. } => tracing::error!(segment, event, "{segment}: {text}"),
            Happening::HeldDown { .. } => tracing::error!(segment, event, "{segment}: {text}"),
        }
    }
}

/// The code, the text and the facts of an event.
pub(super) fn said(happening: Happening) -> (What, String, Value) {
    let at = |place: Place| format!("{place} on {}", place.side().name());
    let facts = |ip: IpAddr, place: Place| json!({"address": ip, "side": place.side().name(), "hardware_address": place.to_string()});
    match happening {
        Happening::AddressMoved { ip, to } => {
            (What::Moved, format!("{ip} has moved to {}", at(to)), facts(ip, to))
        }
        Happening::Conflict { ip, owner, claimant } => {
            let text =
                format!("{ip} is claimed by {}: its owner, {}, answers for it", at(claimant), at(owner));
            let facts = json!({
                "address": ip, "side": owner.side().name(), "hardware_address": owner.to_string(),
                "claimant": {"side": claimant.side().name(), "hardware_address": claimant.to_string()},
            });
            (What::Disputed, text, facts)
        }
        Happening::OwnAddressClaimed { ip, claimant } => {
            let text = format!("{ip}, the gateway's own address, is claimed by {}", at(claimant));
            (What::OwnAddressClaimed, text, facts(ip, claimant))
        }
        Happening::OwnAddressOfPeer { ip, peer } => {
            let text = format!(
                "{ip}, the gateway's own address, is also that of the gateway at {}: give each gateway its own gateway.address",
                at(peer)
            );
            (What::OwnAddressClaimed, text, facts(ip, peer))
        }
        Happening::KnownHosts { queried, answered } => {
            let text = format!("{answered} of {queried} known hosts answered");
            (What::KnownHosts, text, json!({"queried": queried, "answered": answered}))
        }
        Happening::HeldDown { ip, owner } => {
            let text = format!("{ip} moves too often: it stays with {} for now", at(owner));
            (What::HeldDown, text, facts(ip, owner))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_wire::ipoib::{AddressFlags, HardwareAddress};
    use ib_wire::{Gid, Guid, Qpn};
    use ipoib::net::ethernet::MacAddress;

    #[test]
    fn an_address_in_dispute_is_reported_with_both_owners() {
        let ip = IpAddr::from([10, 0, 0, 7]);
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_0001));
        let hardware = HardwareAddress { flags: AddressFlags::RC, qpn: Qpn::new(0x48), gid };
        let (owner, claimant) =
            (Place::Ethernet(MacAddress([2, 0, 0, 0, 0, 9])), Place::InfiniBand(hardware));
        let (what, text, facts) = said(Happening::Conflict { ip, owner, claimant });
        assert_eq!(what, What::Disputed);
        let of_claimant = "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:00:01";
        assert_eq!(
            text,
            format!(
                "10.0.0.7 is claimed by {of_claimant} on InfiniBand: its owner, 02:00:00:00:00:09 on Ethernet, answers for it"
            )
        );
        assert_eq!(
            (&facts["side"], &facts["hardware_address"]),
            (&json!("Ethernet"), &json!("02:00:00:00:00:09"))
        );
        assert_eq!(facts["claimant"], json!({"side": "InfiniBand", "hardware_address": of_claimant}));
    }
}
