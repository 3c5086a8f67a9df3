//! The forwarding step with one worker and with two at once. Each has its own processor and its own queues on
//! one port; they share one pool of buffers and one set of tables, as in the gateway. Slices alternate: one
//! works while the other one idles, then both work; each of the two has slices alone.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use dataplane::worker::Worker as _;
use ipoib_fwd::counter::Totals;
use pmd::eal;

use crate::frames::Load;
use crate::machine;
use crate::rig::{Ground, Hand, Sizes, Step, Way, clean, start_eal, text};
use crate::sample::{Figure, Sample};
use crate::series::Spread;

/// Duration of a slice.
const SLICE: Duration = Duration::from_millis(10);
/// Time until a worker follows an order.
const SETTLES: Duration = Duration::from_millis(1);
/// Time before the measurement, with both workers.
const WARM_UP: Duration = Duration::from_millis(200);

// Orders to a worker.
const REST: u8 = 0;
const WORK: u8 = 1;
const END: u8 = 2;

/// Both directions, with connections.
const STEPS: [(Step, &str); 2] = [(Step::ETH_IB_RC, "eth-ib"), (Step::IB_ETH_RC, "ib-eth")];

/// Working workers of a slice: the first one alone, both, the other one alone, in forward and reverse order.
const TURNS: [[u8; 2]; 4] = [[WORK, REST], [WORK, WORK], [WORK, WORK], [REST, WORK]];

/// Follows orders until the end.
fn obey(mut hand: Hand, order: &AtomicU8) -> Hand {
    loop {
        match order.load(Ordering::Relaxed) {
            WORK => {
                for _ in 0..8 {
                    hand.worker.turn();
                }
            }
            END => return hand,
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

/// EAL's argument for a port with a queue for each worker.
fn vdev(step: Step, n: usize, workers: usize, pcap: &Path) -> String {
    match step.way {
        Way::InfiniBandToEthernet => format!("{},no-rx=1", step.port(n)),
        Way::EthernetToInfiniBand | Way::Both => {
            let files = format!(",rx_pcap={}", pcap.display()).repeat(workers);
            format!("{}{files},infinite_rx=1", step.port(n))
        }
    }
}

/// Millions of packets per second, of one worker and of all.
struct Rates {
    one: f64,
    all: f64,
}

fn measure(eal: &eal::Eal, step: Step, port: &str, workers: u8, seconds: f64) -> Result<Rates, String> {
    let lcores = eal.worker_lcores();
    let Ground { pool, port, publisher, hands, .. } =
        Ground::new(step, &Load::PLAIN, port, Sizes::GATEWAY, workers)?;
    let (mut jobs, mut readers, mut orders) = (Vec::new(), Vec::new(), Vec::new());
    for (hand, lcore) in hands.into_iter().zip(&lcores) {
        readers.push((hand.worker.counters().reader(), Arc::clone(&hand.stats)));
        let order = Arc::new(AtomicU8::new(REST));
        orders.push(Arc::clone(&order));
        jobs.push(eal.launch(*lcore, move || obey(hand, &order)).map_err(text)?);
    }
    let tell = |words: &[u8]| {
        for (order, word) in orders.iter().zip(words) {
            order.store(*word, Ordering::Relaxed);
        }
    };
    let packets = || step.packets(&Totals::of(readers.iter().map(|(reader, _)| reader)));
    tell(&[WORK; 2]);
    std::thread::sleep(WARM_UP);
    let (mut one, mut all) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < seconds || all.is_empty() {
        for words in TURNS {
            let words = words.get(..orders.len()).unwrap_or(&words);
            tell(words);
            std::thread::sleep(SETTLES);
            let (before, start) = (packets(), Instant::now());
            std::thread::sleep(SLICE);
            let rate = (packets() - before) as f64 / start.elapsed().as_secs_f64() / 1e6;
            match words.iter().filter(|word| **word == WORK).count() {
                0 => {}
                n if n == orders.len() => all.push(rate),
                _ => one.push(rate),
            }
        }
    }
    tell(&[END; 2]);
    for (job, (reader, stats)) in jobs.into_iter().zip(&readers) {
        let hand = job.join().map_err(text)?;
        clean(Totals::of([reader]), stats)?;
        drop(hand.worker.into_parts());
    }
    drop((port, publisher, pool));
    let median = |rates: &[f64]| Spread::of(rates).map_or(0.0, |spread| spread.median);
    let all = median(&all);
    Ok(Rates { one: if one.is_empty() { all } else { median(&one) }, all })
}

/// Runs the benchmark once in this process, which must not have started EAL.
pub(crate) fn run(pcap: &Path, seconds: f64) -> Result<Sample, String> {
    let workers = machine::processors().len().min(2) as u8;
    let vdevs = STEPS.iter().enumerate().map(|(n, (step, _))| vdev(*step, n, workers.into(), pcap));
    let vdevs: Vec<String> = vdevs.collect();
    let eal = start_eal(&vdevs, machine::worker_lcores(workers), machine::memory_arguments())?;
    let mut sample = Sample::default();
    for (n, (step, name)) in STEPS.iter().enumerate() {
        let rates = measure(&eal, *step, &step.port(n), workers, seconds / STEPS.len() as f64)
            .map_err(|e| format!("{name}: {e}"))?;
        if rates.one <= 0.0 || rates.all <= 0.0 {
            return Err(format!("{name}: no packet came through"));
        }
        sample.figures.push(Figure::new(&format!("{name}.1"), "Mpps", rates.one));
        if workers > 1 {
            let both = Figure::new(&format!("{name}.{workers}"), "Mpps", rates.all);
            sample.figures.push(both.beside(&format!("{name}.1"), rates.one));
        }
    }
    if workers < 2 {
        sample.notes.push("not measured with 2 workers: there is one processor".to_owned());
    }
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_port_has_a_queue_for_each_worker() {
        let file = PathBuf::from("/tmp/x.pcap");
        assert_eq!(
            vdev(Step::ETH_IB_RC, 0, 2, &file),
            "net_pcap0,rx_pcap=/tmp/x.pcap,rx_pcap=/tmp/x.pcap,infinite_rx=1"
        );
        assert_eq!(vdev(Step::IB_ETH_RC, 1, 2, &file), "net_null1,no-rx=1");
    }

    #[test]
    fn each_is_alone_as_often_as_the_other_and_both_are_in_the_middle() {
        let alone = |at: usize| TURNS.iter().filter(|w| w[at] == WORK && w[1 - at] == REST).count();
        assert_eq!((alone(0), alone(1)), (1, 1));
        assert_eq!(TURNS[1], TURNS[2]);
        assert_eq!(TURNS[1], [WORK, WORK]);
    }
}
