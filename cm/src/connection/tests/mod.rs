//! Two tables with the test between them.

mod hostile;
mod origin;
mod rows;
mod search;
mod simulation;

use std::time::{Duration, Instant};

use ib_wire::cm::{FlowLabel, Message};
use ib_wire::mad::Mad;
use ib_wire::sa::LifeTime;
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, Psn, Qpn, Rate, ServiceId, ServiceLevel};

use super::*;
use crate::Path;

const SERVICE: ServiceId = ServiceId(0x1000_0000_0000_0048);

/// Returns the path from node `from` to node `to`; nodes are their LIDs.
fn path(from: u16, to: u16) -> Path {
    Path {
        sgid: Gid::new(Gid::DEFAULT_PREFIX, Guid(from.into())),
        dgid: Gid::new(Gid::DEFAULT_PREFIX, Guid(to.into())),
        slid: Lid(from),
        dlid: Lid(to),
        pkey: PKey::DEFAULT,
        sl: ServiceLevel::new(0),
        mtu: Mtu::B2048,
        rate: Rate::new(3),
        life_time: LifeTime::new(18),
        flow_label: FlowLabel::new(0),
        hop_limit: 0,
        traffic_class: 0,
    }
}

fn table(node: u16) -> ConnectionTable {
    let mut table = ConnectionTable::new(Config::new(u64::from(node), Guid(u64::from(node) << 8)));
    table.listen(SERVICE).unwrap();
    table
}

fn qpn(n: u32) -> Qpn {
    Qpn::new(n)
}

/// A table at LID 1 that connects and one at LID 2 that listens.
struct Pair {
    now: Instant,
    a: ConnectionTable,
    b: ConnectionTable,
}

impl Pair {
    fn new() -> Self {
        Self { now: Instant::now(), a: table(1), b: table(2) }
    }

    fn dial(&mut self, qp: u32) -> ConnId {
        let request = ConnectRequest::ipoib(SERVICE, qpn(qp), path(1, 2), &[1, 2, 3]);
        self.a.connect(self.now, request).unwrap()
    }

    fn at_b(&mut self, mad: &Mad) {
        self.b.handle_mad(self.now, &arrived(mad, 1));
    }

    fn at_a(&mut self, mad: &Mad) {
        self.a.handle_mad(self.now, &arrived(mad, 2));
    }

    /// Delivers all datagrams in both directions until there are none.
    fn pump(&mut self) {
        loop {
            let (from_a, from_b) = (self.a.poll_transmit(), self.b.poll_transmit());
            if from_a.is_none() && from_b.is_none() {
                return;
            }
            from_a.iter().for_each(|m| self.at_b(m));
            from_b.iter().for_each(|m| self.at_a(m));
        }
    }

    /// The REQ has arrived at b. Also returns the datagram.
    fn requested(&mut self, qp: u32) -> (ConnId, ConnId, Mad) {
        let a = self.dial(qp);
        let req = self.a.poll_transmit().unwrap();
        self.at_b(&req);
        let Some(Event::Requested { id, .. }) = self.b.poll_event() else { panic!("no request") };
        (a, id, req)
    }

    /// The REP was sent by b and is in flight. Also returns the datagrams of REQ and REP.
    fn accepted(&mut self, qp: u32) -> (ConnId, ConnId, Mad, Mad) {
        let (a, b, req) = self.requested(qp);
        self.b.accept(self.now, b, &accept(qp + 0x1000)).unwrap();
        let rep = self.b.poll_transmit().unwrap();
        (a, b, req, rep)
    }

    /// Established at both ends. Also returns the datagrams of REQ, REP and RTU.
    fn established(&mut self, qp: u32) -> (ConnId, ConnId, [Mad; 3]) {
        let (a, b, req, rep) = self.accepted(qp);
        self.at_a(&rep);
        assert!(matches!(self.a.poll_event(), Some(Event::Replied { .. })));
        self.a.ready(self.now, a).unwrap();
        let rtu = self.a.poll_transmit().unwrap();
        self.at_b(&rtu);
        assert!(matches!(self.b.poll_event(), Some(Event::Established { .. })));
        (a, b, [req, rep, rtu])
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.a.handle_timeout(self.now);
        self.b.handle_timeout(self.now);
    }

    /// Lets all timers expire while all datagrams are lost.
    fn run_out(&mut self) {
        while let Some(at) = [self.a.poll_timeout(), self.b.poll_timeout()].into_iter().flatten().min() {
            self.now = self.now.max(at);
            self.wait(Duration::ZERO);
            while self.a.poll_transmit().is_some() || self.b.poll_transmit().is_some() {}
        }
    }
}

fn accept(qp: u32) -> AcceptParams {
    AcceptParams {
        local_qpn: qpn(qp),
        starting_psn: Psn::new(qp * 3),
        private_data: vec![9, 8, 7],
        srq: true,
        responder_resources: 0,
        initiator_depth: 0,
        rnr_retry_count: ib_wire::cm::RnrRetry::new(0),
    }
}

/// Returns a datagram as received, with the sender's LID.
fn arrived(mad: &Mad, from: u16) -> Mad {
    let mut mad = mad.clone();
    mad.peer.lid = Lid(from);
    mad
}

fn message(mad: &Mad) -> Message {
    Message::parse(&mad.bytes).unwrap().1
}

/// Returns the only datagram that a table sends.
fn only(table: &mut ConnectionTable) -> Message {
    let mad = table.poll_transmit().expect("a datagram");
    assert_eq!(table.poll_transmit(), None);
    message(&mad)
}

fn events(table: &mut ConnectionTable) -> Vec<Event> {
    std::iter::from_fn(|| table.poll_event()).collect()
}

fn assert_empty(table: &ConnectionTable) {
    assert!(table.is_empty(), "{} connections left", table.len());
    assert_eq!(table.index_sizes(), [0; 5]);
    assert_eq!(table.poll_timeout(), None);
}
