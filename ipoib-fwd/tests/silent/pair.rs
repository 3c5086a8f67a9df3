//! Two gateways that receive each other's hellos immediately.

use std::time::{Duration, Instant};

use ib_wire::{Gid, Guid, Lid};
use ipoib::net::ethernet::MacAddress;
use ipoib_fwd::segment::pair::{Identity, Pair, Role, SegmentId, Settings, Side, Station, Transmit};

/// A gateway and the messages that it has sent.
pub(crate) struct Gateway {
    pub(crate) pair: Pair,
}

impl Gateway {
    pub(crate) fn new(now: Instant, number: u8) -> Self {
        let settings =
            Settings { priority: 100, hello: Duration::from_millis(300), segment: SegmentId(1), key: None };
        let guid = Guid(number.into());
        let station = Station {
            mac: MacAddress([2, 0, 0, 0, 0, number]),
            lid: Lid(number.into()),
            gid: Gid::new(Gid::DEFAULT_PREFIX, guid),
            qpns: Vec::new(),
        };
        let mut pair = Pair::new(now, settings, Identity { guid, instance: number.into() }, station);
        Side::BOTH.into_iter().for_each(|side| pair.handle_side(now, side, true));
        Self { pair }
    }

    pub(crate) fn role(&self) -> Role {
        self.pair.role()
    }

    pub(crate) fn due(&self) -> Instant {
        self.pair.poll_timeout()
    }
}

/// Advances the time of the gateways whose control lcores run; they receive each other's messages.
pub(crate) fn step(now: Instant, running: &mut [&mut Gateway]) {
    for gateway in &mut *running {
        gateway.pair.handle_timeout(now);
    }
    let sent: Vec<(usize, Side, Vec<u8>)> = running
        .iter_mut()
        .enumerate()
        .flat_map(|(from, gateway)| {
            std::iter::from_fn(|| gateway.pair.poll_transmit()).map(move |t| (from, t)).collect::<Vec<_>>()
        })
        .filter_map(|(from, transmit)| match transmit {
            Transmit::Message(side, bytes) => Some((from, side, bytes)),
            Transmit::Probe(..) => None,
        })
        .collect();
    for (from, side, bytes) in sent {
        for (to, gateway) in running.iter_mut().enumerate() {
            if to != from {
                gateway.pair.handle_message(now, side, &bytes).unwrap();
            }
        }
    }
}
