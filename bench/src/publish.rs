//! Cost of the control lcore to publish a changed neighbour to all workers, by size of the table and number
//! of workers.

use std::time::Instant;

use dataplane::table::Publisher;
use ipoib::link::RcPath;
use ipoib::net::ethernet::MacAddress;
use ipoib_fwd::forward::{
    Draft, EthNeighbour, EthernetIndex, IbNeighbour, MAX_NEIGHBOURS, RcPaths, SegmentIndex, Settings, Tables,
};
use pmd::hca::RcSlot;

use crate::rig::destination;
use crate::sample::{Figure, Sample};

const SIZES: [u32; 2] = [16, 4096];
const WORKERS: [u8; 2] = [1, 4];
/// Publications per round, which is long enough for a clock.
const ROUND: u32 = 64;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Publishes successive changes of hosts, in a table of `entries` on each side; returns microseconds per
/// publication.
fn publications(entries: u32, workers: u8, seconds: f64) -> Result<f64, String> {
    let settings = Settings::new(MacAddress([2, 0, 0, 0, 0, 0xfe]));
    let mut segment = Draft::new(0x5eed, settings, MAX_NEIGHBOURS, workers);
    let host = |n: u32, slot: u16| {
        let path = Some(RcPath { slot: RcSlot(slot), mtu: 65_524 });
        let rc = RcPaths::new(&vec![path; workers.into()]);
        let ip = std::net::Ipv4Addr::from(0x0a4d_0000 + n % entries);
        (ip, IbNeighbour { ud: Some(destination(1)), rc, dial: true })
    };
    for n in 0..entries {
        let (ip, neighbour) = host(n, 0);
        segment.set_ib(ip, neighbour).map_err(|e| e.to_string())?;
        let mac = MacAddress([2, 1, 0, 0, (n >> 8) as u8, n as u8]);
        segment.set_eth(ip, EthNeighbour { mac }).map_err(|e| e.to_string())?;
    }
    let mut tables = Tables::default();
    tables.join_vlan(EthernetIndex(0), 0, Some(SegmentIndex(0)));
    tables.set_segment(SegmentIndex(0), Some(segment.table().clone()));
    let mut publisher = Publisher::new(tables.clone());
    let mut readers: Vec<_> = (0..workers).map(|_| publisher.reader()).collect();
    let (mut rounds, mut n) = (Vec::new(), 0u32);
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        let round = Instant::now();
        for _ in 0..ROUND {
            n = n.wrapping_add(1);
            // Far from the previous one.
            let (ip, neighbour) = host(n.wrapping_mul(2_654_435_761) >> 7, n as u16);
            segment.set_ib(ip, neighbour).map_err(|e| e.to_string())?;
            tables.set_segment(SegmentIndex(0), Some(segment.table().clone()));
            publisher.publish(tables.clone());
            for reader in &mut readers {
                let _ = std::hint::black_box(reader.refresh());
            }
        }
        rounds.push(round.elapsed().as_nanos() as f64 / 1e3 / f64::from(ROUND));
    }
    Ok(median(rounds))
}

pub(crate) fn run(seconds: f64) -> Result<Sample, String> {
    let mut sample = Sample::default();
    for workers in WORKERS {
        for entries in SIZES {
            let time = publications(entries, workers, seconds / (SIZES.len() * WORKERS.len()) as f64)?;
            let part = format!("{entries}-entries-{workers}-workers");
            sample.figures.push(Figure::new(&part, "us/publication", time));
        }
    }
    Ok(sample)
}
