//! The end of a gateway: releases all resources and reports the counters.

use std::path::Path;

use pmd::hca::Backend;
use serde_json::{Value, json};

use super::control::GatewayControl;
use super::error::GatewayError;
use crate::counter::Totals;

/// The final counters of a gateway.
#[derive(Debug)]
pub struct Report {
    totals: Totals,
    times: Value,
    pub(super) buffers_outstanding: u32,
    memory: Value,
    srq_low: u64,
    failure: Option<GatewayError>,
}

impl Report {
    /// Formats the report for a person.
    #[must_use]
    pub fn text(&self) -> String {
        super::super::ctl::render(&self.json())
    }

    /// The error that stopped the gateway; `None` after a requested stop.
    #[must_use]
    pub const fn failure(&self) -> Option<&GatewayError> {
        self.failure.as_ref()
    }

    fn json(&self) -> Value {
        json!({
            "traffic": self.totals.traffic_json(),
            "drops": self.totals.drops_json(),
            "alarms": {"srq_low": self.srq_low},
            "times": self.times,
            "memory": self.memory,
            "buffers_outstanding": self.buffers_outstanding,
        })
    }

    /// Writes the report as JSON.
    pub fn write(&self, file: &Path) -> Result<(), GatewayError> {
        std::fs::write(file, format!("{:#}\n", self.json()))
            .map_err(|source| GatewayError::Report { path: file.to_owned(), source })
    }
}

impl<B: Backend> GatewayControl<B> {
    /// Releases all resources and sums the counters. The workers' queues are indexed by [`EndpointIndex`].
    pub(super) fn finish(mut self, queues: Vec<Vec<B::Queues>>) -> Result<Report, GatewayError> {
        let captured = std::mem::take(&mut self.recordings).finish();
        let report = Report {
            totals: self.totals(),
            times: self.times.json(),
            buffers_outstanding: 0,
            memory: memory(),
            srq_low: self.srq_low(),
            failure: self.failure,
        };
        self.kept.finish();
        drop(self.ethernets);
        let mut closed = Ok(report);
        for (endpoint, queues) in self.endpoints.into_list().into_iter().zip(queues) {
            // An endpoint that cannot be closed does not keep another one open.
            if let Err(error) = endpoint.close(queues) {
                closed = closed.and(Err(error.into()));
            }
        }
        captured?;
        closed
    }
}

/// Memory use of the process, in KiB.
fn memory() -> Value {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim_start_matches(':').trim().split(' ').next()?.parse::<u64>().ok()
    };
    json!({"resident_kib": kib("VmRSS"), "hugetlb_kib": kib("HugetlbPages")})
}
