//! Two connection tables as peers of each other: REQ, REP, RTU; DREQ, DREP; and the end of TIMEWAIT.

use std::time::{Duration, Instant};

use cm::Path;
use cm::connection::{AcceptParams, Config, ConnId, ConnectRequest, ConnectionTable, Event};
use ib_wire::cm::FlowLabel;
use ib_wire::mad::Mad;
use ib_wire::sa::LifeTime;
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, Psn, Qpn, Rate, ServiceId, ServiceLevel};

use super::Clock;
use crate::pair::text;

const SERVICE: ServiceId = ServiceId(0x0100_0000_0000_0048);
/// Connections that are opened at once.
const ROUND: u32 = 64;

/// Connections per second.
pub(super) struct Rates {
    pub(super) active: f64,
    pub(super) passive: f64,
    /// Both ends together.
    pub(super) ended: f64,
    /// At one end.
    pub(super) expired: f64,
}

/// The path from a node to another; nodes are their LIDs.
fn path(from: u16, to: u16) -> Path {
    let gid = |lid: u16| Gid::new(Gid::DEFAULT_PREFIX, Guid(lid.into()));
    Path {
        sgid: gid(from),
        dgid: gid(to),
        slid: Lid(from),
        dlid: Lid(to),
        pkey: PKey::DEFAULT,
        sl: ServiceLevel::new(0),
        mtu: Mtu::B4096,
        rate: Rate::new(3),
        life_time: LifeTime::new(18),
        flow_label: FlowLabel::new(0),
        hop_limit: 0,
        traffic_class: 0,
    }
}

struct Pair {
    now: Instant,
    dials: ConnectionTable,
    listens: ConnectionTable,
    next: u32,
}

impl Pair {
    fn new() -> Result<Self, String> {
        let table = |node: u16| ConnectionTable::new(Config::new(node.into(), Guid(node.into())));
        let mut listens = table(2);
        listens.listen(SERVICE).map_err(text)?;
        Ok(Self { now: Instant::now(), dials: table(1), listens, next: 1 })
    }

    /// Messages of one end, as the other end receives them.
    fn sent(by: &mut ConnectionTable, lid: u16, into: &mut Vec<Mad>) {
        into.clear();
        while let Some(mut mad) = by.poll_transmit() {
            mad.peer.lid = Lid(lid);
            into.push(mad);
        }
    }

    /// Opens `ROUND` connections.
    fn connect(&mut self, active: &mut Clock, passive: &mut Clock) -> Result<Vec<ConnId>, String> {
        let now = self.now;
        let first = self.next;
        // 24 bits; 0 and 1 are not used for connections.
        self.next = if first > 0x70_0000 { 2 } else { first + ROUND };
        let (dials, listens) = (&mut self.dials, &mut self.listens);
        let mut mads = Vec::new();
        active.measure(|| -> Result<(), String> {
            for n in first..first + ROUND {
                let request = ConnectRequest::ipoib(SERVICE, Qpn::new(n + 1), path(1, 2), &[0; 8]);
                dials.connect(now, request).map_err(text)?;
            }
            Self::sent(dials, 1, &mut mads);
            Ok(())
        })?;
        passive.measure(|| -> Result<(), String> {
            let mut n = first;
            for mad in &mads {
                listens.handle_mad(now, mad);
                while let Some(event) = listens.poll_event() {
                    let Event::Requested { id, request } = event else { continue };
                    n += 1;
                    let with = AcceptParams::ipoib(Qpn::new(n), Psn::new(n), &request, &[0; 8]);
                    listens.accept(now, id, &with).map_err(text)?;
                }
            }
            Self::sent(listens, 2, &mut mads);
            Ok(())
        })?;
        let ids = active.measure(|| -> Result<Vec<ConnId>, String> {
            let mut ids = Vec::with_capacity(ROUND as usize);
            for mad in &mads {
                dials.handle_mad(now, mad);
                while let Some(event) = dials.poll_event() {
                    let Event::Replied { id, .. } = event else { continue };
                    dials.ready(now, id).map_err(text)?;
                    ids.push(id);
                }
            }
            Self::sent(dials, 1, &mut mads);
            Ok(ids)
        })?;
        let established = passive.measure(|| {
            mads.iter().for_each(|mad| listens.handle_mad(now, mad));
            std::iter::from_fn(|| listens.poll_event())
                .filter(|event| matches!(event, Event::Established { .. }))
                .count()
        });
        if ids.len() == ROUND as usize && established == ids.len() {
            Ok(ids)
        } else {
            Err(format!("of {ROUND} connections {} were answered, {established} established", ids.len()))
        }
    }

    /// Closes them at both ends, up to TIMEWAIT.
    fn end(&mut self, ids: &[ConnId]) -> Result<(), String> {
        let mut mads = Vec::new();
        for id in ids {
            self.dials.disconnect(self.now, *id).map_err(text)?;
        }
        Self::sent(&mut self.dials, 1, &mut mads);
        mads.iter().for_each(|mad| self.listens.handle_mad(self.now, mad));
        Self::sent(&mut self.listens, 2, &mut mads);
        mads.iter().for_each(|mad| self.dials.handle_mad(self.now, mad));
        while self.dials.poll_event().is_some() {}
        while self.listens.poll_event().is_some() {}
        Ok(())
    }

    /// Lets an hour pass; returns the number of expired connections of the active end.
    fn expire(&mut self, expired: &mut Clock) -> u64 {
        self.now += Duration::from_secs(3600);
        let (now, dials) = (self.now, &mut self.dials);
        let before = dials.len();
        expired.measure(|| {
            dials.handle_timeout(now);
            while dials.poll_event().is_some() {}
        });
        self.listens.handle_timeout(now);
        while self.listens.poll_event().is_some() {}
        (before - dials.len()) as u64
    }
}

/// Runs with `beside` permanent connections.
pub(super) fn run(seconds: f64, beside: u32) -> Result<Rates, String> {
    let mut pair = Pair::new()?;
    let mut unused = (Clock::new(), Clock::new());
    for _ in 0..beside / ROUND {
        pair.connect(&mut unused.0, &mut unused.1)?;
    }
    let [mut active, mut passive, mut ended, mut expired] = [const { Clock::new() }; 4];
    let (mut made, mut gone) = (0, 0);
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        let mut ids = Vec::new();
        for _ in 0..16 {
            ids.extend(pair.connect(&mut active, &mut passive)?);
        }
        made += ids.len() as u64;
        ended.measure(|| pair.end(&ids))?;
        gone += pair.expire(&mut expired);
    }
    if gone != made {
        return Err(format!("{made} connections were made and ended, {gone} have gone"));
    }
    Ok(Rates {
        active: active.rate(made),
        passive: passive.rate(made),
        ended: ended.rate(made),
        expired: expired.rate(gone),
    })
}
