//! A segment's part in a pair: the machine, and what is told of it.

use std::time::Instant;

use serde_json::{Value, json};

use crate::segment::pair::{Pair, Side, SideSet};

/// The machine and what goes with it.
#[derive(Debug)]
pub(in crate::gateway) struct PairDuty {
    pub(in crate::gateway) pair: Pair,
    pub(super) link_due: Instant,
    pub(super) complain_after: Instant,
}

impl PairDuty {
    pub(in crate::gateway) fn new(now: Instant, pair: Pair) -> Self {
        Self { pair, link_due: now, complain_after: now }
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
                       "other_segment": n.other_segment, "no_room": n.no_room, "siblings": n.siblings},
            "stranger": pair.stranger().map(|(why, heard, since)| json!({
                "why": why.to_string(), "heard_on": sides(heard).join(" "),
                "since_ms": now.saturating_duration_since(since).as_millis() as u64,
            })),
            "peers": peers,
        })
    }
}
