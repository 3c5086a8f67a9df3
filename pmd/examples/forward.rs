//! A layer-2 forwarder: a frame received on one of two Ethernet ports is sent on the other one, unchanged.
//!
//! It shows the parts of a DPDK application: the environment abstraction layer (EAL) with its arguments, a
//! pool of packet buffers, ports with one queue pair for each worker lcore, and workers that poll in bursts.
//! Frames are not copied: an [`Mbuf`] moves from the receive burst to the transmit burst, and the driver
//! frees it when it is sent.
//!
//! ```text
//! cargo run --release -p pmd --example forward -- EAL-ARGUMENTS -- PORT PORT [FRAMES]
//!
//! sudo target/release/examples/forward -l 0,1 --vdev net_af_packet0,iface=veth0 --vdev net_af_packet1,iface=veth1 \
//!     -- net_af_packet0 net_af_packet1
//! ```
//!
//! `-l 0,1` means one control lcore and one worker. The program exits after FRAMES frames of each worker, if
//! given, or at the end of its input (Ctrl-D). It then prints the port counters.
//!
//! [`Mbuf`]: pmd::mem::Mbuf
#![allow(clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pmd::eal::Eal;
use pmd::eth::{Burst, EthConfig, EthPort, EthQueue};
use pmd::mem::{Pool, PoolConfig};

const USAGE: &str = "usage: forward EAL-ARGUMENTS -- PORT PORT [FRAMES]";

/// Receive and transmit descriptors of a queue.
const DESCRIPTORS: u16 = 1024;

/// A worker's result.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Frames that the other port accepted.
    forwarded: u64,
    /// Frames dropped because the other port's queue was full.
    dropped: u64,
}

/// One queue of each port, used only by this thread.
struct Worker {
    queues: [EthQueue; 2],
    bursts: [Burst; 2],
    tally: Tally,
}

impl Worker {
    /// Forwards until a stop is requested or the requested number of frames was forwarded.
    fn run(mut self, stop: &AtomicBool, wanted: Option<u64>) -> Tally {
        while !stop.load(Ordering::Relaxed) && wanted.is_none_or(|wanted| self.tally.forwarded < wanted) {
            self.turn();
        }
        self.tally
    }

    /// Forwards one burst in each direction.
    fn turn(&mut self) {
        let [one, other] = &mut self.queues;
        for ((from, to), burst) in [(0, 1), (1, 0)].into_iter().zip(&mut self.bursts) {
            let (receive, transmit) =
                if from < to { (&mut *one, &mut *other) } else { (&mut *other, &mut *one) };
            if receive.rx_burst(burst) == 0 {
                continue;
            }
            self.tally.forwarded += transmit.tx_burst(burst) as u64;
            // Drop the frames for which there was no descriptor, as a switch would. Their buffers return to
            // the pool.
            self.tally.dropped += burst.len() as u64;
            burst.clear();
        }
    }
}

/// The program's own arguments, after EAL's.
struct Options {
    ports: [String; 2],
    frames: Option<u64>,
}

impl Options {
    fn parse(words: &[String]) -> Result<Self, Box<dyn Error>> {
        let (ports, frames) = match words {
            [one, other] => ([one, other], None),
            [one, other, frames] => ([one, other], Some(frames.parse().map_err(|_| USAGE)?)),
            _ => return Err(USAGE.into()),
        };
        Ok(Self { ports: ports.map(String::clone), frames })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let split = arguments.iter().position(|word| word == "--").ok_or(USAGE)?;
    let (for_eal, own) = arguments.split_at(split);
    let options = Options::parse(own.get(1..).unwrap_or_default())?;

    let eal = Eal::init(for_eal.iter().cloned())?;
    let lcores = eal.worker_lcores();
    let workers = u16::try_from(lcores.len())?;
    if workers == 0 {
        return Err("no worker lcore: specify at least two lcores, such as -l 0,1".into());
    }
    // Both queues of each port and worker may be full at the same time.
    let count = 4 * u32::from(DESCRIPTORS) * u32::from(workers) + 1024;
    let pool = Pool::create("forward", &PoolConfig { count, data_room: 2048, cache: 256, socket: -1 })?;
    let config = EthConfig {
        queues: workers,
        rx_descriptors: DESCRIPTORS,
        tx_descriptors: DESCRIPTORS,
        mtu: 1500,
        promiscuous: true,
        offloads: false,
    };
    let [one, other] = options.ports;
    let (one, one_queues) = EthPort::start(Some(&one), &config, &pool)?;
    let (other, other_queues) = EthPort::start(Some(&other), &config, &pool)?;

    let stop = Arc::new(AtomicBool::new(false));
    let mut jobs = Vec::new();
    for (lcore, queues) in lcores.into_iter().zip(one_queues.into_iter().zip(other_queues)) {
        let worker =
            Worker { queues: queues.into(), bursts: [Burst::new(), Burst::new()], tally: Tally::default() };
        let stop = Arc::clone(&stop);
        jobs.push(eal.launch(lcore, move || worker.run(&stop, options.frames))?);
    }
    if options.frames.is_none() {
        println!("forwarding between {} and {}; press Ctrl-D to stop", one.name(), other.name());
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
        stop.store(true, Ordering::Relaxed);
    }
    for job in jobs {
        let lcore = job.lcore();
        let Tally { forwarded, dropped } = job.join()?;
        println!("lcore {}: {forwarded} forwarded, {dropped} dropped", lcore.0);
    }
    for port in [&one, &other] {
        let stats = port.stats();
        println!(
            "{}: {} received, {} sent, {} missed",
            port.name(),
            stats.received,
            stats.sent,
            stats.missed
        );
    }
    Ok(())
}
