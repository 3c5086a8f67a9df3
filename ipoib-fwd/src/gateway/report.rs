//! What the gateway shows of itself: answers for the control socket, lines for `--stats`, the report at its end.

use dataplane::latency::Summary;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::counter::{Totals, Traffic};
use ipoib::drop_reason::DropReason;

/// Times that the gateway keeps.
#[derive(Debug)]
pub(super) struct Times {
    /// Duration of a worker's busy turn: a burst of up to 32 packets each way.
    pub(super) service: Histogram<u64>,
    /// From the first step of a connection to its last.
    pub(super) setup: Histogram<u64>,
}

impl Times {
    pub(super) fn new() -> Option<Self> {
        // Two digits, up to ten seconds, as the workers record.
        let new = || Histogram::new_with_bounds(1, 10_000_000_000, 2).ok();
        Some(Self { service: new()?, setup: new()? })
    }

    pub(super) fn add_service(&mut self, from_worker: &Histogram<u32>) {
        for bucket in from_worker.iter_recorded() {
            self.service.saturating_record_n(bucket.value_iterated_to(), bucket.count_since_last_iteration());
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "burst_service_ns": Summary::of(&self.service),
            "connection_setup_ns": Summary::of(&self.setup),
        })
    }
}

/// One line for `--stats`: rates since the line before.
pub(super) fn line(before: &Totals, now: &Totals, seconds: f64) -> String {
    let rate = |paths: &[Traffic]| {
        let packets: u64 = paths.iter().map(|&p| now.packets(p) - before.packets(p)).sum();
        let bytes: u64 = paths.iter().map(|&p| now.bytes(p) - before.bytes(p)).sum();
        format!("{:.0} pps {:.3} Gbit/s", packets as f64 / seconds, bytes as f64 * 8e-9 / seconds)
    };
    let drops: u64 = DropReason::ALL.iter().map(|&r| now.drops(r) - before.drops(r)).sum();
    format!(
        "to IB: RC {}, UD {}; from IB: RC {}, UD {}; drops {drops}",
        rate(&[Traffic::IbRcTransmit]),
        rate(&[Traffic::IbUdUnicastTransmit, Traffic::IbUdMulticastTransmit]),
        rate(&[Traffic::IbRcReceive]),
        rate(&[Traffic::IbUdUnicastReceive, Traffic::IbUdMulticastReceive]),
    )
}
