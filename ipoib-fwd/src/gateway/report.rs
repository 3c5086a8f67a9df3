//! State of the gateway as text and JSON: answers for the control socket, lines for `--stats`, the final
//! report.

use std::time::{Instant, SystemTime};

use dataplane::latency::Summary;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::counter::{Totals, Traffic};
use ipoib::drop_reason::DropReason;

/// Histograms of times.
#[derive(Debug)]
pub(super) struct Times {
    /// Duration of a worker's busy iteration: a burst of up to 64 packets from Ethernet, two from InfiniBand.
    pub(super) service: Histogram<u64>,
    /// Those of the last whole second, and of the present one.
    recent: [Histogram<u64>; 2],
    /// From the first step of a connection setup to the last.
    pub(super) setup: Histogram<u64>,
}

impl Times {
    pub(super) fn new() -> Option<Self> {
        // Two digits, up to ten seconds, as the workers record.
        let new = || Histogram::new_with_bounds(1, 10_000_000_000, 2).ok();
        Some(Self { service: new()?, recent: [new()?, new()?], setup: new()? })
    }

    pub(super) fn add_service(&mut self, from_worker: &Histogram<u32>) {
        let [_, present] = &mut self.recent;
        for bucket in from_worker.iter_recorded() {
            let (ns, times) = (bucket.value_iterated_to(), bucket.count_since_last_iteration());
            self.service.saturating_record_n(ns, times);
            present.saturating_record_n(ns, times);
        }
    }

    /// Starts another second; workers have been queried for the last one.
    pub(super) fn pass_second(&mut self) {
        self.recent.swap(0, 1);
        self.recent[1].reset();
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "burst_service_ns": Summary::of(&self.service),
            "burst_service_last_second_ns": Summary::of(&self.recent[0]),
            "connection_setup_ns": Summary::of(&self.setup),
        })
    }
}

/// The process and its start. The PID alone is ambiguous: in a container, each process has PID 1.
pub(super) fn process((started, by_clock): (Instant, SystemTime), now: Instant) -> Value {
    let since_epoch = by_clock.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "started_unix_ms": since_epoch.as_millis() as u64,
        "up_ms": now.saturating_duration_since(started).as_millis() as u64,
    })
}

/// One line for `--stats`: rates since the previous line.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn processes_of_the_same_number_are_distinguished() {
        let (now, by_clock) = (Instant::now(), SystemTime::now());
        let of = |later| {
            let started = (now, by_clock + Duration::from_millis(later));
            [0, 50].map(|up| {
                process(started, now + Duration::from_millis(up))["started_unix_ms"].as_u64().unwrap()
            })
        };
        let ([one, same], [other, _]) = (of(0), of(7));
        assert_eq!((same, other), (one, one + 7));
        assert_eq!(process((now, by_clock), now + Duration::from_millis(50))["up_ms"], 50);
    }

    #[test]
    fn a_second_has_its_own_turns_and_all_are_kept() {
        let mut times = Times::new().unwrap();
        let mut of_worker = Histogram::<u32>::new_with_bounds(1, 10_000_000_000, 2).unwrap();
        of_worker.record_n(1000, 3).unwrap();
        times.add_service(&of_worker);
        let count = |times: &Times, name: &str| times.json()[name]["count"].as_u64().unwrap();
        assert_eq!(count(&times, "burst_service_last_second_ns"), 0);
        times.pass_second();
        times.add_service(&of_worker);
        assert_eq!(count(&times, "burst_service_last_second_ns"), 3);
        times.pass_second();
        times.pass_second();
        assert_eq!(
            (count(&times, "burst_service_last_second_ns"), count(&times, "burst_service_ns")),
            (0, 6)
        );
    }
}
