//! Rates and shares between two snapshots, and their history.

use std::collections::VecDeque;

use super::snapshot::{Counted, Counts, Process, Segment, Snapshot, Worker};

/// Maximum number of snapshots in the history.
const MAX_HISTORY: usize = 240;

/// Rows of the traffic table: the title, and the paths whose sum they show.
pub(super) const TRAFFIC: [(&str, &[&str]); 6] = [
    ("from Ethernet", &["eth_receive"]),
    ("to InfiniBand, RC", &["ib_rc_transmit"]),
    ("to InfiniBand, UD", &["ib_ud_unicast_transmit", "ib_ud_multicast_transmit"]),
    ("from InfiniBand", &["ib_rc_receive", "ib_ud_unicast_receive", "ib_ud_multicast_receive"]),
    ("to Ethernet", &["eth_transmit"]),
    ("to control lcore", &["punt"]),
];

/// Rates per second; `None` while there is only one snapshot.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Rate {
    pub(super) packets: Option<f64>,
    pub(super) bits: Option<f64>,
}

/// A drop reason with its rate and total.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Drops {
    pub(super) reason: String,
    pub(super) rate: Option<f64>,
    pub(super) total: u64,
}

/// Rates of a segment.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct SegmentRates {
    pub(super) to_infiniband: Rate,
    pub(super) to_ethernet: Rate,
    pub(super) punt: Rate,
    pub(super) drops: Option<f64>,
}

/// Rates of a worker.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct WorkerRates {
    /// Fractions of the time.
    pub(super) busy: Option<f64>,
    pub(super) rest: Option<f64>,
    pub(super) turns: Option<f64>,
    /// Packets received in a busy iteration.
    pub(super) burst: Option<f64>,
    /// Packets by [`TRAFFIC`].
    pub(super) packets: [Option<f64>; TRAFFIC.len()],
}

/// The data of a page.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Model {
    pub(super) now: Snapshot,
    /// Seconds between the two snapshots.
    pub(super) seconds: Option<f64>,
    /// By [`TRAFFIC`].
    pub(super) traffic: [Rate; TRAFFIC.len()],
    pub(super) drops: Vec<Drops>,
    pub(super) device_drops: Vec<Drops>,
    /// All drops.
    pub(super) drop_rate: Option<f64>,
    /// As [`Snapshot::segments`] and [`Snapshot::workers`].
    pub(super) segments: Vec<SegmentRates>,
    pub(super) workers: Vec<WorkerRates>,
    /// Drops of the requested segment.
    pub(super) detail: Vec<Drops>,
}

/// Packets per second, by [`TRAFFIC`], at the last snapshots, the newest last.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    rows: [VecDeque<f64>; TRAFFIC.len()],
}

impl History {
    /// Adds a snapshot's rates.
    pub(super) fn add(&mut self, model: &Model) {
        for (row, rate) in self.rows.iter_mut().zip(&model.traffic) {
            if let Some(packets) = rate.packets {
                row.push_back(packets);
            }
            if row.len() > MAX_HISTORY {
                row.pop_front();
            }
        }
    }

    /// The last `n` values of a row.
    pub(super) fn last(&self, row: usize, n: usize) -> Vec<f64> {
        let all = self.rows.get(row);
        all.map(|all| all.iter().skip(all.len().saturating_sub(n)).copied().collect()).unwrap_or_default()
    }
}

/// The previous snapshot and the seconds since; none if there is none, or if it is from another process.
struct Since<'a> {
    before: Option<&'a Snapshot>,
    seconds: f64,
}

impl Since<'_> {
    /// The increase per second. A value that has decreased was reset, for instance by a segment that was
    /// added again.
    fn rate(&self, before: impl FnOnce(&Snapshot) -> Option<u64>, now: u64) -> Option<f64> {
        let before = self.before.map(before)?.unwrap_or(0);
        let more = now.checked_sub(before).unwrap_or(now);
        Some(more as f64 / self.seconds)
    }

    fn counted(&self, before: impl Fn(&Snapshot) -> Option<Counted>, now: Counted) -> Rate {
        let packets = self.rate(|all| before(all).map(|c| c.packets), now.packets);
        let bytes = self.rate(|all| before(all).map(|c| c.bytes), now.bytes);
        Rate { packets, bits: bytes.map(|bytes| bytes * 8.0) }
    }

    /// Drops, sorted by rate and then by total.
    fn drops(&self, now: &Counts, before: impl Fn(&Snapshot) -> Option<&Counts>) -> Vec<Drops> {
        let row = |(reason, total): (&String, &u64)| {
            // A reason that was missing before had not occurred.
            let count = |all: &Snapshot| Some(before(all)?.get(reason).copied().unwrap_or_default());
            let rate = self.before.and_then(&count).and_then(|_| self.rate(count, *total));
            Drops { reason: reason.clone(), rate, total: *total }
        };
        let mut all: Vec<Drops> = now.iter().map(row).collect();
        all.sort_by(|a, b| {
            let rates = b.rate.unwrap_or(0.0).total_cmp(&a.rate.unwrap_or(0.0));
            rates.then(b.total.cmp(&a.total)).then(a.reason.cmp(&b.reason))
        });
        all
    }
}

fn sum_of<T: Copy>(paths: &[&str], of: impl Fn(&str) -> Option<T>, add: impl Fn(T, T) -> T) -> Option<T> {
    paths.iter().filter_map(|path| of(path)).reduce(add)
}

fn together(a: Counted, b: Counted) -> Counted {
    Counted { packets: a.packets.saturating_add(b.packets), bytes: a.bytes.saturating_add(b.bytes) }
}

impl Model {
    /// Creates the model of a snapshot and its predecessor, if there is one.
    pub(super) fn new(before: Option<&Snapshot>, now: Snapshot) -> Self {
        // A restarted process counts from zero.
        let same = |before: &&Snapshot| {
            let id = |process: &Process| (process.pid, process.started_unix_ms);
            id(&before.process) == id(&now.process) && before.process.up_ms < now.process.up_ms
        };
        let before = before.filter(same);
        let passed = before.map(|before| now.process.up_ms - before.process.up_ms);
        let since = Since { before, seconds: passed.unwrap_or(1).max(1) as f64 * 1e-3 };

        let traffic = TRAFFIC.map(|(_, paths)| {
            let of = |all: &Snapshot| sum_of(paths, |path| all.traffic.get(path).copied(), together);
            since.counted(of, of(&now).unwrap_or_default())
        });
        let all_drops = |all: &Snapshot| all.drops.values().fold(0, |sum: u64, n| sum.saturating_add(*n));
        let detail = now.detail.as_ref().map(|detail| {
            let same = |all: &Snapshot| all.detail.as_ref().is_some_and(|old| old.segment == detail.segment);
            since.drops(&detail.drops, |all| all.detail.as_ref().filter(|_| same(all)).map(|old| &old.drops))
        });
        Self {
            seconds: before.map(|_| since.seconds),
            traffic,
            drops: since.drops(&now.drops, |all| Some(&all.drops)),
            device_drops: since.drops(&now.device_drops, |all| Some(&all.device_drops)),
            drop_rate: since.rate(|all| Some(all_drops(all)), all_drops(&now)),
            segments: now.segments.iter().map(|segment| segment_rates(&since, segment)).collect(),
            workers: now.workers.iter().map(|worker| worker_rates(&since, worker)).collect(),
            detail: detail.unwrap_or_default(),
            now,
        }
    }

    /// The segments with their rates.
    pub(super) fn segments(&self) -> impl Iterator<Item = (&Segment, &SegmentRates)> {
        self.now.segments.iter().zip(&self.segments)
    }

    /// The workers with their rates.
    pub(super) fn workers(&self) -> impl Iterator<Item = (&Worker, &WorkerRates)> {
        self.now.workers.iter().zip(&self.workers)
    }
}

fn segment_rates(since: &Since<'_>, now: &Segment) -> SegmentRates {
    let old = |all: &Snapshot| all.segments.iter().find(|old| old.name == now.name).cloned();
    let counted = |of: fn(&Segment) -> Counted| since.counted(|all| old(all).map(|old| of(&old)), of(now));
    SegmentRates {
        to_infiniband: counted(|segment| segment.to_infiniband),
        to_ethernet: counted(|segment| segment.to_ethernet),
        punt: counted(|segment| segment.punt),
        drops: since.rate(|all| old(all).map(|old| old.drops), now.drops),
    }
}

fn worker_rates(since: &Since<'_>, now: &Worker) -> WorkerRates {
    let old = |all: &Snapshot| all.workers.iter().find(|old| old.name == now.name).cloned();
    let rate = |of: fn(&Worker) -> u64| since.rate(|all| old(all).map(|old| of(&old)), of(now));
    let packets = TRAFFIC.map(|(_, paths)| {
        let of =
            |worker: &Worker| sum_of(paths, |path| worker.packets.get(path).copied(), u64::saturating_add);
        since.rate(|all| old(all).and_then(|old| of(&old)), of(now).unwrap_or_default())
    });
    let turns = rate(|worker| worker.busy_turns);
    let received: f64 = TRAFFIC
        .iter()
        .zip(packets)
        .filter(|((name, _), _)| name.starts_with("from"))
        .filter_map(|(_, packets)| packets)
        .sum();
    // An iteration is counted at its end, so its time may exceed the interval.
    let share = |of: fn(&Worker) -> u64| rate(of).map(|ns| (ns * 1e-9).min(1.0));
    WorkerRates {
        busy: share(|worker| worker.busy_ns),
        rest: share(|worker| worker.rest_ns),
        turns,
        burst: turns.filter(|turns| *turns > 0.0).map(|turns| received / turns),
        packets,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::sample;

    #[test]
    fn rates_are_the_increase_between_two_snapshots() {
        let [before, now] = sample::moments();
        let model = Model::new(Some(&before), now.clone());
        assert_eq!(model.seconds, Some(2.0));
        // 2000 packets of 1000 bytes each in 2 s.
        assert_eq!(model.traffic[0], Rate { packets: Some(1000.0), bits: Some(8e6) });
        // The sum of two paths: 10 and 30 in 2 s.
        assert_eq!(model.traffic[2].packets, Some(20.0));
        let drops: Vec<_> = model.drops.iter().map(|d| (d.reason.as_str(), d.rate, d.total)).collect();
        let wanted = [("storm", Some(50.0), 100), ("ipv6", Some(0.5), 8), ("truncated", Some(0.0), 5000)];
        assert_eq!(drops, wanted, "sorted by rate");
        assert_eq!(model.drop_rate, Some(50.5));
        let (segment, rates) = model.segments().next().unwrap();
        assert_eq!(
            (segment.name.as_str(), rates.to_infiniband.packets, rates.drops),
            ("storage", Some(1000.0), Some(50.5))
        );
        let (_, worker) = model.workers().next().unwrap();
        assert_eq!((worker.busy, worker.rest, worker.turns), (Some(0.25), Some(0.5), Some(100.0)));
        assert_eq!(worker.burst, Some(10.0));
        assert_eq!(model.detail[0].rate, Some(50.0));
    }

    #[test]
    fn there_is_no_rate_without_a_previous_snapshot_or_after_a_restart() {
        let [before, now] = sample::moments();
        let nothing = |model: Model| {
            assert_eq!((model.seconds, model.drop_rate, model.traffic), (None, None, Default::default()));
            assert!(model.drops.iter().chain(&model.detail).all(|d| d.rate.is_none()));
            assert!(
                model.segments.iter().all(|s| s.drops.is_none())
                    && model.workers.iter().all(|w| w.busy.is_none())
            );
        };
        nothing(Model::new(None, now.clone()));
        // A restart with the same or another process ID, or two queries at the same time.
        let mut other = now.clone();
        other.process.pid += 1;
        nothing(Model::new(Some(&before), other));
        // In a container each process has ID 1, and the later one may have run for longer when it is queried.
        let mut restarted = now.clone();
        restarted.process.started_unix_ms += 1;
        nothing(Model::new(Some(&before), restarted));
        nothing(Model::new(Some(&now), before.clone()));
        nothing(Model::new(Some(&now), now.clone()));
        // The detail of another segment does not count as a previous snapshot.
        let mut elsewhere = before;
        elsewhere.detail.as_mut().unwrap().segment = "lab".to_owned();
        assert_eq!(Model::new(Some(&elsewhere), now).detail[0].rate, None);
    }

    #[test]
    fn counters_that_decrease_or_overflow_are_handled() {
        let [mut before, mut now] = sample::moments();
        before.segments[0].to_infiniband.packets = u64::MAX;
        now.drops.insert("storm".to_owned(), u64::MAX);
        now.drops.insert("ipv6".to_owned(), u64::MAX);
        now.workers[0].busy_ns = u64::MAX;
        let model = Model::new(Some(&before), now);
        assert_eq!(model.segments[0].to_infiniband.packets, Some(1250.0), "a segment that was added again");
        assert!(model.drop_rate.is_some_and(f64::is_finite));
        assert_eq!(model.workers[0].busy, Some(1.0));
    }

    #[test]
    fn history_keeps_the_last_snapshots() {
        let [before, now] = sample::moments();
        let model = Model::new(Some(&before), now);
        let mut history = History::default();
        history.add(&Model::default());
        assert!(history.last(0, 10).is_empty());
        for _ in 0..2 * MAX_HISTORY {
            history.add(&model);
        }
        assert_eq!((history.last(0, 3), history.last(0, 9999).len()), (vec![1000.0; 3], MAX_HISTORY));
        assert!(history.last(99, 1).is_empty());
    }
}
