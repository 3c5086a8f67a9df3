//! The forwarding step on one worker lcore ([`crate::rig`]).

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::latency::{Summary, empty};
use dataplane::worker::{Handle, IdlePolicy, run as run_worker};
use ipoib_fwd::counter::Totals;
use pmd::eal;

use crate::frames::Load;
use crate::machine;
use crate::rig::{Rig, Sizes, Step, Way, clean, start_eal, text};
use crate::sample::{Figure, Sample, times};

/// Time before the measurement.
const WARM_UP: Duration = Duration::from_millis(400);

fn build(step: Step, load: &Load) -> Result<Rig, String> {
    // The port keeps a buffer per flow.
    let buffers = Sizes::GATEWAY.buffers + load.flows;
    // With few flows: a burst to one host, another one in flight, and sends without a completion, as in
    // `Sizes::lean`.
    let send_depth = if load.flows < 4 { 256 } else { Sizes::GATEWAY.send_depth };
    Rig::build(step, load, &step.port(0), Sizes { buffers, send_depth, ..Sizes::GATEWAY })
}

/// Runs a fixed number of iterations on this thread and without a clock; returns the number of forwarded
/// packets. For counts of instructions: those of startup and shutdown are independent of the number.
pub(crate) fn take_turns(step: Step, load: &Load, pcap: &Path, turns: u64) -> Result<Sample, String> {
    let _eal = start_eal(&[step.vdev(0, pcap)], machine::one_lcore(), machine::plain_memory())?;
    build(step, load)?.take_turns(turns)
}

/// Counters at one moment.
struct Reading {
    at: Instant,
    tsc: u64,
    packets: u64,
    sink_cycles: u64,
}

/// Runs the benchmark once in this process, which must not have started EAL.
pub(crate) fn run(step: Step, load: &Load, pcap: &Path, seconds: f64) -> Result<Sample, String> {
    let eal = start_eal(&[step.vdev(0, pcap)], machine::lcores(), machine::memory_arguments())?;
    let Rig { worker, reader, stats, port, pool, publisher: _publisher, .. } = build(step, load)?;
    let handle = Handle::new();
    handle.set_idle(IdlePolicy::Poll);
    let lcore = *eal.worker_lcores().first().ok_or("there is no worker lcore")?;
    let on_lcore = Arc::clone(&handle);
    let job = eal.launch(lcore, move || run_worker(worker, &on_lcore)).map_err(text)?;
    let read = || Reading {
        at: Instant::now(),
        tsc: eal::tsc(),
        packets: step.packets(&Totals::of([&reader])),
        sink_cycles: stats.cycles(),
    };
    std::thread::sleep(WARM_UP);
    let begin = read();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let end = read();
    handle.stop();
    let worker = job.join().map_err(text)?;

    let (queues, ethernets, mut recorder) = worker.into_parts();
    let summary = Summary::of(&recorder.swap(empty()));
    clean(Totals::of([&reader]), &stats)?;
    drop((queues, ethernets));
    let port_stats = port.stats();
    drop(port);

    let packets = (end.packets - begin.packets) as f64;
    if packets <= 0.0 {
        return Err(format!("no packet came through; the port says {port_stats:?}"));
    }
    let seconds = (end.at - begin.at).as_secs_f64();
    let cycles = (end.tsc - begin.tsc) as f64 / packets;
    let hz = eal::tsc_hz() as f64;
    let sink = (end.sink_cycles - begin.sink_cycles) as f64 / packets;
    let ns = |cycles: f64| cycles * 1e9 / hz;
    let mut notes = vec![times("service time of an iteration", &summary)];
    if step.way != Way::InfiniBandToEthernet {
        notes.push(format!(
            "{:.2} packets a doorbell, {:.1} a completion",
            stats.sends() as f64 / stats.doorbells().max(1) as f64,
            stats.sends() as f64 / stats.completions().max(1) as f64
        ));
    }
    notes.push(format!("{} packets compared with what they should be, byte by byte", stats.compared()));
    let outstanding = pool.in_use();
    if outstanding != 0 {
        notes.push(format!("{outstanding} buffers are not home"));
    }
    Ok(Sample {
        figures: vec![
            Figure::with_peer("", "Mpps", packets / seconds / 1e6),
            Figure::with_peer("without-sink", "Mpps", hz / (cycles - sink) / 1e6),
            Figure::new("time", "ns/packet", ns(cycles)),
            Figure::new("sink-time", "ns/packet", ns(sink)),
            Figure::new("cycles", "TSC cycles/packet", cycles),
            Figure::new("sink-cycles", "TSC cycles/packet", sink),
            Figure::new("turn-50", "ns/turn", summary.p50 as f64),
            Figure::new("turn-99", "ns/turn", summary.p99 as f64),
        ],
        notes,
        ..Sample::default()
    })
}
