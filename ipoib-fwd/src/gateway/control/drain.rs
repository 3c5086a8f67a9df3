//! `ctl drain`, `ctl health`: taking the gateway out of service and back, and whether it could forward.

use std::time::Instant;

use dataplane::telemetry::Answer;
use pmd::hca::Backend;
use serde_json::{Value, json};

use super::GatewayControl;
use super::service::Readiness;
use crate::event::What;
use crate::segment::pair::{Drain, Role};

/// Why a drained segment does not forward.
const DRAINED: &str = "it is drained: ipoib-fwd ctl drain --undo";

/// The reason why a segment could not forward now; `None` if it could, or does.
fn trouble(readiness: &Readiness, is_drained: bool) -> Option<String> {
    let role = match readiness {
        // Both reasons are reported: either may remain when the other ends.
        Readiness::Waits(why) if is_drained => return Some(format!("{DRAINED}; it waits, too: {why}")),
        Readiness::Waits(why) => return Some(format!("it waits: {why}")),
        Readiness::Settled(role) | Readiness::Coming(role) => role,
    };
    let why = match role {
        Role::Drained => DRAINED,
        Role::Blocked => {
            "it is blocked by a loop, or by another gateway that it does not believe: see `stranger` in ipoib-fwd ctl links"
        }
        Role::Listening => "it listens whether there are other gateways",
        Role::Forwarding | Role::Standby => {
            return matches!(readiness, Readiness::Coming(_)).then(|| "its link comes up".to_owned());
        }
    };
    Some(why.to_owned())
}

/// The row of a segment that a reload has added and that is not running: the device refuses it, or it waits
/// for a free index or partition.
fn not_at_work(name: &str, why: &str) -> Value {
    json!({"segment": name, "healthy": false, "role": null, "hands_over": false, "why": format!("it waits: {why}")})
}

impl<B: Backend> GatewayControl<B> {
    /// Takes the gateway out of service (all of its segments or none), or puts it back.
    pub(super) fn drain(&mut self, now: Instant, word: Option<&str>) -> Answer {
        let how = match word {
            None => Some(Drain::HandOver),
            Some("undo") => None,
            Some(_) => Some(Drain::Alone),
        };
        let drained = how.is_some();
        if how == Some(Drain::HandOver) {
            let of = |duty: &super::duties::SegmentDuty| {
                let pair = &duty.duty.pair;
                let why = pair.successor(now).err().filter(|_| pair.could_forward())?;
                Some(format!("{}: {why}", duty.name))
            };
            let lonely: Vec<String> = self.segments.iter().filter_map(of).collect();
            if let Some(first) = lonely.first() {
                let more =
                    if lonely.len() > 1 { format!(", and {} more", lonely.len() - 1) } else { String::new() };
                return Err(format!(
                    "{first}{more}. Nothing is drained; --alone (/drain,alone) drains nevertheless, and then no gateway forwards"
                ));
            }
        }
        self.maker.drained = drained;
        let mut hands_over = false;
        let indices: Vec<_> = self.indices().collect();
        for at in indices {
            if let Some(duty) = self.segments.at_mut(at) {
                let pair = &mut duty.duty.pair;
                match how {
                    Some(how) => hands_over |= pair.drain(now, how) == Drain::HandOver,
                    None => pair.set_drained(now, None),
                }
            }
            self.carry_out_pair(now, at);
        }
        let (what, text) = match how {
            None => (What::Undrained, "the gateway is in service again"),
            Some(_) if hands_over => (What::Drained, "the gateway is drained: another one should forward"),
            Some(_) => (What::Drained, "the gateway is drained, although no other one may forward"),
        };
        tracing::info!(event = what.journal(), "{text}");
        self.events.report(now, what, None, || (text.to_owned(), Value::Null));
        Ok(json!({ "drained": drained, "segments": self.health_rows() }))
    }

    /// Whether each segment could forward.
    pub(super) fn health(&mut self) -> Value {
        let rows = self.health_rows();
        let healthy = rows.iter().all(|row| row["healthy"] == true);
        json!({ "healthy": healthy, "segments": rows })
    }

    fn health_rows(&mut self) -> Vec<Value> {
        let readiness = self.readiness();
        let row = |(duty, (name, readiness)): (&super::duties::SegmentDuty, &(String, Readiness))| {
            let pair = &duty.duty.pair;
            let why = trouble(readiness, pair.is_drained());
            json!({
                "segment": name, "healthy": why.is_none(), "role": pair.role().name(), "hands_over": pair.hands_over(),
                "why": why,
            })
        };
        let coming = self.reloader.coming().map(|(name, _, why)| not_at_work(name, &why));
        self.segments.iter().zip(&readiness).map(row).chain(coming).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_that_could_forward_is_healthy_and_others_say_why_not() {
        assert_eq!(trouble(&Readiness::Settled(Role::Forwarding), false), None);
        assert_eq!(trouble(&Readiness::Settled(Role::Standby), false), None);
        for (readiness, why) in [
            (Readiness::Settled(Role::Drained), "--undo"),
            (Readiness::Settled(Role::Blocked), "loop"),
            (Readiness::Coming(Role::Listening), "listens"),
            (Readiness::Coming(Role::Standby), "comes up"),
            (Readiness::Waits("its P_Key".to_owned()), "its P_Key"),
        ] {
            assert!(trouble(&readiness, false).is_some_and(|text| text.contains(why)), "{readiness:?}");
        }
        let both = trouble(&Readiness::Waits("gw0 has no link".to_owned()), true).unwrap();
        assert!(both.contains("--undo") && both.contains("it waits, too: gw0 has no link"), "{both}");
    }
}
