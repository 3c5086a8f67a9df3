//! The cache of path records: path queries with their answers, and cached paths.

use std::time::Instant;

use cm::connection::Config;
use cm::port::{Ask, Outcome, PathKey, PathQuery, Port, SaEvent};
use ib_wire::mad::{Mad, MadAddress};
use ib_wire::sa::{PathRecord, SaMad};
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, ServiceLevel};

use super::Clock;

const SM: MadAddress = MadAddress::gsi(Lid(1), ServiceLevel::new(0));

/// Paths per second.
pub(super) struct Rates {
    pub(super) asked: f64,
    pub(super) cached: f64,
}

fn query(number: u64) -> PathQuery {
    let gid = |number| Gid::new(Gid::DEFAULT_PREFIX, Guid(number));
    let key = PathKey { pkey: PKey::DEFAULT, dgid: gid(number + 10) };
    PathQuery { sm: SM, key, sgid: gid(1), traffic_class: 0 }
}

fn answer(asked: &Mad) -> Result<Mad, String> {
    let request = SaMad::parse(&asked.bytes);
    let record: PathRecord = request.record().ok_or("a request without a record")?;
    let record = PathRecord { dlid: Lid(7), mtu: Mtu::B4096.into(), ..record };
    Ok(Mad { peer: SM, bytes: SaMad::answer(&request, &record).to_bytes() })
}

fn granted(port: &mut Port<u32>) -> u64 {
    std::iter::from_fn(|| port.sa.poll_event())
        .filter(|event| matches!(event, SaEvent::Path { outcome: Outcome::Granted(_), .. }))
        .count() as u64
}

/// Runs with `number` paths in the cache.
pub(super) fn run(seconds: f64, number: u64) -> Result<Rates, String> {
    let now = Instant::now();
    let mut port: Port<u32> = Port::new(Config::new(7, Guid(1)));
    let (mut asked, mut cached) = (Clock::new(), Clock::new());
    let (mut answers, mut hits) = (0, 0);
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        asked.measure(|| (0..number).for_each(|n| port.sa.ask_path(now, query(n), Ask::Unknown)));
        // Some queries are outstanding at once, the others wait for them.
        loop {
            let sent: Vec<Mad> = asked.measure(|| std::iter::from_fn(|| port.poll_transmit()).collect());
            if sent.is_empty() {
                break;
            }
            let back = sent.iter().map(answer).collect::<Result<Vec<_>, _>>()?;
            answers += asked.measure(|| {
                back.iter().for_each(|mad| {
                    port.handle_mad(now, mad);
                });
                granted(&mut port)
            });
        }
        hits += cached.measure(|| {
            (0..number).for_each(|n| port.sa.ask_path(now, query(n), Ask::Unknown));
            granted(&mut port)
        });
        if hits != answers || port.sa.paths() as u64 != number {
            return Err(format!("{answers} paths were answered, {hits} found, {} kept", port.sa.paths()));
        }
        (0..number).for_each(|n| port.sa.forget_path(now, query(n).key));
    }
    Ok(Rates { asked: asked.rate(answers), cached: cached.rate(hits) })
}
