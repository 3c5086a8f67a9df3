//! Latency that a gateway's worker adds, at parts of its own maximum rate and in a train of pings, by idle
//! policy.
//!
//! ```text
//!   main lcore                          worker lcore(s)
//!     generator ── net_memif ────────>  GatewayWorker ── mlx5 driver, software ConnectX ─┐
//!        └── mlx5 driver, software ConnectX <──────────── cable within the process ──────┘
//! ```
//!
//! The generator is an open loop: the schedule of the packets is drawn in advance, and the latency of a
//! packet counts from its scheduled time, even if it left late or earlier packets were delayed. A stop of the
//! worker or of the generator therefore appears in all packets that were scheduled meanwhile. The results
//! include the path between the two: they are upper bounds.

mod away;
mod generator;
mod rig;
mod watched;

use std::time::Duration;

use dataplane::worker::IdlePolicy;
use hdrhistogram::Histogram;

use crate::machine;
use crate::percentiles::{QUANTILES, Recorded, is_told, name_of};
use crate::rig::start_eal;
use crate::sample::{Figure, Sample};
use away::{Watch, waits};
use generator::{Heard, Pace};
use rig::{Rig, cycles, vdevs};

/// The directions of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    EthIb,
    IbEth,
    /// From Ethernet to InfiniBand and back.
    Ping,
}

impl Way {
    const fn text(self) -> &'static str {
        match self {
            Self::EthIb => "eth-ib",
            Self::IbEth => "ib-eth",
            Self::Ping => "ping",
        }
    }
}

/// Each of [`IdlePolicy`].
const POLICIES: [(IdlePolicy, &str); 3] =
    [(IdlePolicy::Poll, "poll"), (IdlePolicy::Pause, "pause"), (IdlePolicy::Sleep, "sleep")];
/// Percent of the maximum.
const PARTS: [u32; 3] = [10, 50, 90];
/// Pings per second, at even intervals.
const PINGS: f64 = 1000.0;
/// Arrivals per second in the observation of the machine, at even intervals.
const ARRIVALS: f64 = 1e7;
/// Duration of a train of pings, and of the observation of the machine, in units of another cell: their
/// events are rare.
const PING_SHARE: u32 = 4;
/// Number of measurements of each cell, in forward and reverse order.
const ROUNDS: u32 = 2;
/// Time until a worker follows an order.
const SETTLES: Duration = Duration::from_millis(3);
/// Interval in the search for a direction's maximum.
const LOOK: Duration = Duration::from_millis(100);

/// A separate measurement.
struct Cell {
    way: Way,
    policy: (IdlePolicy, &'static str),
    /// Percent of the direction's maximum; none for pings.
    part: u32,
    heard: Heard,
    /// Nanoseconds of the worker's busy iterations.
    turns: Histogram<u64>,
}

impl Cell {
    fn new(way: Way, policy: (IdlePolicy, &'static str), part: u32) -> Self {
        Self { way, policy, part, heard: Heard::default(), turns: histogram() }
    }

    fn name(&self, prefix: &str) -> String {
        let Self { way, policy: (_, policy), part, .. } = self;
        match way {
            Way::Ping => format!("{prefix}ping.{policy}"),
            Way::EthIb | Way::IbEth => format!("{prefix}{}.{policy}.{part}", way.text()),
        }
    }
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for way in [Way::EthIb, Way::IbEth] {
        for policy in POLICIES {
            cells.extend(PARTS.map(|part| Cell::new(way, policy, part)));
        }
    }
    cells.extend(POLICIES.map(|policy| Cell::new(Way::Ping, policy, 0)));
    cells
}

/// Runs all measurements with a number of workers.
fn measure(rig: &mut Rig, prefix: &str, seconds: f64, sample: &mut Sample) -> Result<(), String> {
    let mut maximum = |way| rig.maximum(way, LOOK);
    let maxima = [(Way::EthIb, maximum(Way::EthIb)?), (Way::IbEth, maximum(Way::IbEth)?)];
    for (way, most) in maxima {
        let name = format!("{prefix}{}.maximum", way.text());
        sample.figures.push(Figure::new(&name, "Mpps", most / 1e6));
    }
    let mut cells = cells();
    let shares: u32 = cells.iter().map(|cell| if cell.way == Way::Ping { PING_SHARE } else { 1 }).sum();
    // The observation of the machine has the duration of pings.
    let share = Duration::from_secs_f64(seconds / f64::from((shares + PING_SHARE) * 2 * ROUNDS));
    let mut looks = Vec::new();
    for _ in 0..ROUNDS {
        let order: Vec<usize> = (0..=cells.len()).chain((0..=cells.len()).rev()).collect();
        for at in order {
            let Some(cell) = cells.get_mut(at) else {
                looks.push(rig.look(share * PING_SHARE)?);
                continue;
            };
            rig.set_idle(cell.policy.0);
            std::thread::sleep(SETTLES);
            // Discards earlier iterations.
            rig.turns()?;
            let most = maxima.iter().find(|(way, _)| *way == cell.way).map(|(_, most)| *most);
            let (pace, time) = match most {
                Some(most) => (Pace::Random(most * f64::from(cell.part) / 100.0), share),
                None => (Pace::Even(PINGS), share * PING_SHARE),
            };
            rig.hear(cell.way, pace, time, &mut cell.heard)?;
            cell.turns.add(rig.turns()?).map_err(|e| e.to_string())?;
        }
    }
    for cell in &cells {
        tell(cell, prefix, rig, sample)?;
    }
    let slowest = maxima.iter().map(|(_, most)| *most).fold(f64::INFINITY, f64::min);
    tell_machine(&looks, prefix, slowest, sample)
}

const fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Adds percentiles; those with too few packets above are marked as guesses.
fn tell_times(name: &str, times: &Histogram<u64>, is_told: impl Fn(f64, u64) -> bool, sample: &mut Sample) {
    for quantile in QUANTILES {
        let value = times.value_at_quantile(quantile);
        let figure = Figure::new(&format!("{name}.{}", name_of(quantile)), "us", us(value));
        sample.figures.push(Figure { thin: !is_told(quantile, value), ..figure });
    }
}

/// Adds the results of a cell.
fn tell(cell: &Cell, prefix: &str, rig: &Rig, sample: &mut Sample) -> Result<(), String> {
    let name = cell.name(prefix);
    let Heard { times, lateness, lost } = &cell.heard;
    tell_times(&name, times, |quantile, _| is_told(times.len(), quantile), sample);
    sample.figures.push(Figure::new(&format!("{name}.packets"), "packets", times.len() as f64));
    sample.figures.push(Figure::new(&format!("{name}.lost"), "packets", *lost as f64));
    sample.histograms.push(Recorded::of(&name, times)?);
    let three = |of: &Histogram<u64>, middle| {
        let at = |quantile| us(of.value_at_quantile(quantile));
        format!(
            "50 % {:.1} us, {} % {:.1} us, at most {:.1} us",
            at(0.5),
            middle * 100.0,
            at(middle),
            us(of.max())
        )
    };
    let (late, turns) = (three(lateness, 0.99), three(&cell.turns, 0.999));
    sample.notes.push(format!(
        "{name}: {} packets, which left late by {late}; {} busy turns of {turns}",
        times.len(),
        cell.turns.len()
    ));
    if *lost > 0 {
        sample.notes.push(format!(
            "{name}: {lost} packets did not arrive and count as two seconds late; all that was {}",
            rig.drops()
        ));
    }
    Ok(())
}

/// Adds the delays of the machine alone: of a worker's processor, of both processors, and of both at parts of
/// the maximum.
fn tell_machine(
    looks: &[(Watch, Vec<Watch>)],
    prefix: &str,
    most: f64,
    sample: &mut Sample,
) -> Result<(), String> {
    let generators: Vec<&Watch> = looks.iter().map(|(generator, _)| generator).collect();
    let workers: Vec<&Watch> = looks.iter().flat_map(|(_, workers)| workers).collect();
    for (who, watches) in [("worker", &workers), ("generator", &generators)] {
        let name = |what: &str| format!("{prefix}machine.{who}.{what}");
        let gaps: Vec<f64> = watches.iter().flat_map(|watch| watch.gaps()).collect();
        let time: f64 = watches.iter().map(|watch| watch.time()).sum();
        let longest = gaps.iter().copied().fold(0.0, f64::max);
        sample.figures.extend([
            Figure::new(&name("gaps"), "a second", gaps.len() as f64 * 1e9 / time.max(1.0)),
            Figure::new(&name("away"), "% of the time", gaps.iter().sum::<f64>() * 100.0 / time.max(1.0)),
            Figure::new(&name("longest"), "us", longest / 1e3),
        ]);
    }
    let per_worker = looks.iter().map(|(_, workers)| workers.len()).max().unwrap_or(1).max(1) as f64;
    // The maximum was measured on this machine: it includes preemptions, which would count twice.
    let time: f64 = workers.iter().map(|watch| watch.time()).sum();
    let there = 1.0 - workers.iter().flat_map(|watch| watch.gaps()).sum::<f64>() / time.max(1.0);
    let service = cycles(Duration::from_secs(1)) as f64 * per_worker * there.max(0.0) / most;
    let loads = PARTS.map(|part| {
        let rate = most * f64::from(part) / 100.0 / per_worker;
        (part.to_string(), Pace::Random(rate), service)
    });
    let alone = [("worker", Pace::Even(ARRIVALS), 0.0), ("0", Pace::Even(ARRIVALS), 0.0)];
    let alone = alone.map(|(name, pace, service)| (name.to_owned(), pace, service));
    for (name, pace, service) in alone.into_iter().chain(loads) {
        let mut times = histogram();
        for (generator, workers) in looks {
            for worker in workers {
                // The worker's processor with a generator that is never preempted.
                let generator = if name == "worker" { &generator.without_gaps() } else { generator };
                waits(generator, worker, pace, service, &mut times);
            }
        }
        // The number of preemptions decides how reliable a percentile is, not that of arrivals.
        let others: &[&Watch] = if name == "worker" { &[] } else { &generators };
        let gaps: Vec<f64> = workers.iter().chain(others).flat_map(|watch| watch.gaps()).collect();
        let is_told = |quantile, value: u64| {
            quantile >= 1.0 || gaps.iter().filter(|gap| **gap > value as f64).count() >= 10
        };
        let drawn =
            |quantile: &f64| *quantile < 1.0 && is_told(*quantile, times.value_at_quantile(*quantile));
        let until = QUANTILES.into_iter().filter(drawn).fold(0.0, f64::max);
        let name = format!("{prefix}machine.{name}");
        tell_times(&name, &times, is_told, sample);
        sample.histograms.push(Recorded::of(&name, &times)?.until(until));
    }
    Ok(())
}

/// Runs the benchmark once in this process, which must not have started EAL.
pub(crate) fn run(seconds: f64) -> Result<Sample, String> {
    let workers: Vec<u8> = [1, 2].into_iter().filter(|n| *n == 1 || machine::has_lcores(*n)).collect();
    let most = workers.last().copied().unwrap_or(1);
    // Queried before EAL pins this thread to one of them.
    let (alone, processors) = (machine::has_lcores(1), machine::processors().len());
    let eal = start_eal(&vdevs(&workers), machine::lcores_of(most), machine::memory_arguments())?;
    let mut sample = Sample::default();
    for (index, workers) in workers.iter().copied().enumerate() {
        let prefix = if workers == 1 { String::new() } else { format!("{workers}-workers.") };
        let mut rig = Rig::start(&eal, index, workers)?;
        let share = seconds / f64::from(most);
        let measured = measure(&mut rig, &prefix, share, &mut sample);
        // Workers stop in any case; their resources must outlive them.
        rig.end().and(measured)?;
    }
    if !alone {
        sample.notes.push(
            "worker and generator share a processor: the results are those of its scheduler".to_owned(),
        );
    }
    for missing in workers.len()..2 {
        sample.notes.push(format!(
            "not measured with {} workers: they and the generator poll, each on a processor of its own, and here are {processors}; those that \
             shared one would wait for the scheduler's slices of milliseconds, and the results would be these",
            missing + 1
        ));
    }
    Ok(sample)
}

/// A histogram of nanoseconds up to ten seconds, with three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 10_000_000_000, 3)
        .or_else(|_| Histogram::new(3))
        .unwrap_or_else(|_| std::process::abort())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_has_a_name_of_its_own() {
        let mut names: Vec<String> = cells().iter().map(|cell| cell.name("")).collect();
        assert!(names.contains(&"ib-eth.sleep.90".to_owned()) && names.contains(&"ping.poll".to_owned()));
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!((names.len(), all), (21, 21));
    }
}
