//! Report of a device's counters and objects, for people and programs.

use std::collections::BTreeMap;

use connectx::cable::{CableEnd, FaultCounters};
use connectx::engine::Engine;
use connectx::{Activity, DropReason};
use hca::PortNumber;
use serde::Serialize;

use super::{Hca, Objects};

/// Counters by name, including those that are 0.
pub type Counts = BTreeMap<&'static str, u64>;

/// Counters since power-on, and current objects.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Commands, events, doorbells.
    pub device: Counts,
    /// Objects that the driver has created and not destroyed.
    pub objects: Counts,
    /// The guest's memory: mapped regions, their bytes, and memory ranges that rings and keys name.
    pub memory: Counts,
    /// Activity of the transport.
    pub activity: Counts,
    /// Packets that the transport dropped, by reason.
    pub drops: Counts,
    /// By port.
    pub ports: Vec<PortReport>,
}

/// Counters of a port's cable.
#[derive(Clone, Default, Debug, Serialize)]
pub struct PortReport {
    /// Counters of the cable itself.
    pub cable: Counts,
    /// Faults injected into sent packets; empty without faults.
    pub sent_faults: Counts,
    /// Faults injected into received packets.
    pub received_faults: Counts,
}

/// Counters of former engines: each reset creates a new one.
#[derive(Clone, Default, Debug)]
pub(super) struct Past {
    activity: Counts,
    drops: Counts,
    ports: Vec<PortReport>,
}

fn add(sums: &mut Counts, counts: impl IntoIterator<Item = (&'static str, u64)>) {
    for (name, n) in counts {
        *sums.entry(name).or_default() += n;
    }
}

impl PortReport {
    fn add(&mut self, cable: &CableEnd) {
        add(&mut self.cable, cable.counters().iter());
        let (sent, received) = cable.fault_counters().unzip();
        add(&mut self.sent_faults, sent.iter().flat_map(FaultCounters::iter));
        add(&mut self.received_faults, received.iter().flat_map(FaultCounters::iter));
    }
}

impl Past {
    /// Adds the counters of an engine.
    pub(super) fn add(&mut self, engine: &Engine) {
        let counters = engine.counters();
        add(&mut self.activity, Activity::ALL.map(|did| (did.name(), counters.activity(did))));
        add(&mut self.drops, DropReason::ALL.map(|why| (why.name(), counters.drops(why))));
        let count = engine.config().ports.len();
        self.ports.resize_with(count, PortReport::default);
        for (number, port) in (1..).map(PortNumber).zip(&mut self.ports) {
            if let Some(cable) = engine.cable(number) {
                port.add(cable);
            }
        }
    }
}

impl Objects {
    pub(super) fn counts(&self) -> Counts {
        let Self {
            eqs,
            eq_numbers: _,
            cqs,
            srqs,
            qps,
            keys,
            pds,
            uars,
            xrcds,
            counter_sets,
            users,
            octowords: _,
            bus: _,
        } = self;
        [
            ("event_queues", eqs.len()),
            ("completion_queues", cqs.len()),
            ("shared_receive_queues", srqs.len()),
            ("queue_pairs", qps.len()),
            ("memory_keys", keys.len()),
            ("protection_domains", pds.len()),
            ("doorbell_pages", uars.len()),
            ("xrc_domains", xrcds.len()),
            ("counter_sets", counter_sets.len()),
            ("users", users.len()),
        ]
        .map(|(name, n)| (name, n as u64))
        .into()
    }
}

impl Hca {
    /// Returns its counters and objects.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut all = self.past.clone();
        all.add(&self.engine);
        let Past { activity, drops, ports } = all;
        Report {
            device: self.counters.iter().collect(),
            objects: self.objects.counts(),
            memory: self.memory.counts(),
            activity,
            drops,
            ports,
        }
    }
}
