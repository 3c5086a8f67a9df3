//! Latency that a gateway's worker adds, at parts of its own maximum and in a train of pings, by what it does when it is idle.
//!
//! ```text
//!   main lcore                          worker lcore(s)
//!     generator ── net_memif ────────>  GatewayWorker ── mlx5 driver, software ConnectX ─┐
//!        └── mlx5 driver, software ConnectX <──────────── cable within the process ──────┘
//! ```
//!
//! The generator is an open loop: when each packet is to leave is drawn beforehand, and its latency counts from then, however late it left
//! and whatever became of the packets before it. So a stop of the worker, or of the generator, shows in all packets that were to leave
//! meanwhile. What is between the two is in the figures, too: they are bounds from above.

mod generator;
mod rig;

use std::time::Duration;

use dataplane::worker::IdlePolicy;
use hdrhistogram::Histogram;

use crate::machine;
use crate::percentiles::{QUANTILES, Recorded, name_of};
use crate::rig::start_eal;
use crate::sample::{Figure, Sample};
use generator::{Heard, Pace};
use rig::{Rig, vdevs};

/// The ways of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    EthIb,
    IbEth,
    /// From Ethernet there and back again.
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
/// Pings a second, evenly.
const PINGS: f64 = 1000.0;
/// Of the time of a run, what a train of pings has, in times of what another cell has: they are few.
const PING_SHARE: u32 = 4;
/// Each cell is measured so often, in an order there and back again.
const ROUNDS: u32 = 2;
/// Until a worker does as it is told.
const SETTLES: Duration = Duration::from_millis(3);
/// For each way's maximum.
const LOOK: Duration = Duration::from_millis(100);

/// What is measured for itself.
struct Cell {
    way: Way,
    policy: (IdlePolicy, &'static str),
    /// Percent of the way's maximum; none for pings.
    part: u32,
    heard: Heard,
}

impl Cell {
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
            cells.extend(PARTS.map(|part| Cell { way, policy, part, heard: Heard::default() }));
        }
    }
    cells.extend(POLICIES.map(|policy| Cell { way: Way::Ping, policy, part: 0, heard: Heard::default() }));
    cells
}

/// Everything with so many workers.
fn measure(rig: &mut Rig, prefix: &str, seconds: f64, sample: &mut Sample) -> Result<(), String> {
    let mut maximum = |way| rig.maximum(way, LOOK);
    let maxima = [(Way::EthIb, maximum(Way::EthIb)?), (Way::IbEth, maximum(Way::IbEth)?)];
    for (way, most) in maxima {
        let name = format!("{prefix}{}.maximum", way.text());
        sample.figures.push(Figure::new(&name, "Mpps", most / 1e6));
    }
    let mut cells = cells();
    let shares: u32 = cells.iter().map(|cell| if cell.way == Way::Ping { PING_SHARE } else { 1 }).sum();
    let share = Duration::from_secs_f64(seconds / f64::from(shares * 2 * ROUNDS));
    for _ in 0..ROUNDS {
        let order: Vec<usize> = (0..cells.len()).chain((0..cells.len()).rev()).collect();
        for at in order {
            let Some(cell) = cells.get_mut(at) else { continue };
            rig.set_idle(cell.policy.0);
            std::thread::sleep(SETTLES);
            let most = maxima.iter().find(|(way, _)| *way == cell.way).map(|(_, most)| *most);
            let (pace, time) = match most {
                Some(most) => (Pace::Random(most * f64::from(cell.part) / 100.0), share),
                None => (Pace::Even(PINGS), share * PING_SHARE),
            };
            rig.hear(cell.way, pace, time, &mut cell.heard)?;
        }
    }
    for cell in &cells {
        let name = cell.name(prefix);
        let Heard { times, lateness, lost, .. } = &cell.heard;
        let us = |ns: u64| ns as f64 / 1e3;
        for quantile in QUANTILES {
            let figure = us(times.value_at_quantile(quantile));
            sample.figures.push(Figure::new(&format!("{name}.{}", name_of(quantile)), "us", figure));
        }
        sample.figures.push(Figure::new(&format!("{name}.lost"), "packets", *lost as f64));
        sample.histograms.push(Recorded::of(&name, times)?);
        sample.notes.push(format!(
            "{name}: {} packets, which left late by 50 % {:.1} us, 99 % {:.1} us, at most {:.1} us",
            times.len(),
            us(lateness.value_at_quantile(0.5)),
            us(lateness.value_at_quantile(0.99)),
            us(lateness.max())
        ));
        if *lost > 0 {
            sample.notes.push(format!(
                "{name}: {lost} packets did not arrive and count as two seconds late; all that was {}",
                rig.drops()
            ));
        }
    }
    Ok(())
}

/// Runs the benchmark once in this process, which must not have started EAL.
pub(crate) fn run(seconds: f64) -> Result<Sample, String> {
    let workers: Vec<u8> = [1, 2].into_iter().filter(|n| *n == 1 || machine::has_lcores(*n)).collect();
    let most = workers.last().copied().unwrap_or(1);
    // Asked before EAL pins this thread to one of them.
    let (alone, processors) = (machine::has_lcores(1), machine::processors().len());
    let eal = start_eal(&vdevs(&workers), machine::lcores_of(most), machine::memory_arguments())?;
    let mut sample = Sample::default();
    for (index, workers) in workers.iter().copied().enumerate() {
        let prefix = if workers == 1 { String::new() } else { format!("{workers}-workers.") };
        let mut rig = Rig::start(&eal, index, workers)?;
        let share = seconds / f64::from(most);
        let measured = measure(&mut rig, &prefix, share, &mut sample);
        // Workers end in any case: what they forward with goes after them.
        rig.end().and(measured)?;
    }
    if !alone {
        sample
            .notes
            .push("worker and generator share a processor: the figures are its scheduler's".to_owned());
    }
    for missing in workers.len()..2 {
        sample.notes.push(format!(
            "not measured with {} workers: they and the generator poll, each on a processor of its own, and here are {processors}; those that \
             shared one would wait for the scheduler's slices of milliseconds, and the figures would be of these",
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
