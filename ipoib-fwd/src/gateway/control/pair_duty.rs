//! A segment's state in a pair: the state machine, and the limits of its log.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::event::What;
use crate::segment::pair::{Pair, Side, SideSet};

/// Shortest time between two warnings of a kind.
const COMPLAINTS: Duration = Duration::from_secs(30);

/// Warnings that packets from the network can trigger, and when they may be repeated. Each kind has its own
/// limit: anybody can send bad hellos, which must not suppress the other warnings.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    bad_hello: Option<Instant>,
    sibling: Option<Instant>,
    multiplied: Option<Instant>,
}

impl Complaints {
    /// True if a warning of this kind may be reported now; notes that it is.
    pub(super) fn take(&mut self, now: Instant, what: What) -> bool {
        let after = match what {
            What::BadHello => &mut self.bad_hello,
            What::Sibling => &mut self.sibling,
            What::Multiplied => &mut self.multiplied,
            _ => return true,
        };
        let is_due = after.is_none_or(|after| now >= after);
        if is_due {
            *after = Some(now + COMPLAINTS);
        }
        is_due
    }
}

/// The state machine and the state that goes with it.
#[derive(Debug)]
pub(in crate::gateway) struct PairDuty {
    pub(in crate::gateway) pair: Pair,
    pub(super) link_due: Instant,
    /// The end of the lease that workers have; `None`: that of the previous segment with its index.
    pub(super) lease: Option<Option<Instant>>,
    pub(super) complaints: Complaints,
}

impl PairDuty {
    pub(in crate::gateway) fn new(now: Instant, pair: Pair) -> Self {
        Self { pair, link_due: now, lease: None, complaints: Complaints::default() }
    }
}

fn sides(sides: SideSet) -> Vec<&'static str> {
    Side::BOTH.into_iter().filter(|side| sides.has(*side)).map(Side::name).collect()
}

impl PairDuty {
    /// For `ctl links` and `ctl stats`.
    pub(super) fn json(&self, now: Instant) -> Value {
        let pair = &self.pair;
        let n = pair.statistics();
        let peers: Vec<Value> = pair
            .peers(now)
            .map(|p| {
                json!({
                    "guid": format!("{:016x}", p.who.guid.0), "priority": p.priority, "role": p.role.name(),
                    "alive": p.alive, "leaves": p.leaves, "heard_on": sides(p.heard).join(" "), "hears_us_on": sides(p.hears_us).join(" "),
                    "age_ms": p.age.as_millis() as u64, "mac": p.mac.to_string(),
                })
            })
            .collect();
        json!({
            "role": pair.role().name(),
            "since_ms": now.saturating_duration_since(pair.since()).as_millis() as u64,
            "guid": format!("{:016x}", pair.identity().guid.0),
            "priority": pair.priority(),
            "hands_over": pair.hands_over(),
            "blocked_for_ms": pair.blocked_until(now).map(|until| until.duration_since(now).as_millis() as u64),
            "takeovers": n.takeovers, "resignations": n.resignations, "loops": n.loops, "multiplied": n.multiplied,
            "hellos": {"sent": n.sent, "received": n.received, "rejected": n.rejected, "old": n.old,
                       "other_segment": n.other_segment, "no_room": n.no_room, "siblings": n.siblings, "suspected": n.suspected},
            "stranger": pair.stranger().map(|(why, heard, since)| json!({
                "why": why.to_string(), "heard_on": sides(heard).join(" "),
                "since_ms": now.saturating_duration_since(since).as_millis() as u64,
            })),
            "peers": peers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_hellos_without_end_silence_no_other_alarm() {
        let (mut complaints, start) = (Complaints::default(), Instant::now());
        let (mut bad, mut others) = (0, Vec::new());
        for second in 0..60 {
            let now = start + Duration::from_secs(second);
            bad += (0..1000).filter(|_| complaints.take(now, What::BadHello)).count();
            if second == 29 {
                others = [What::Sibling, What::Multiplied, What::Loop]
                    .map(|what| complaints.take(now, what))
                    .into();
            }
        }
        assert_eq!((bad, others), (2, vec![true; 3]));
        // Other kinds have limits, too; a loop, which blocks the segment, is always reported.
        let mut again = |at: u64, what| complaints.take(start + Duration::from_secs(at), what);
        let repeated = [(58, What::Sibling), (58, What::Loop), (58, What::Multiplied), (59, What::Sibling)];
        assert_eq!(repeated.map(|(at, what)| again(at, what)), [false, true, false, true]);
    }
}
