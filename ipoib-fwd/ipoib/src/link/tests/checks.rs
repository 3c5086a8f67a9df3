//! Helpers that set up and check a whole fabric.

use hca::QpState;

use super::fabric::{Fabric, ms};

impl Fabric {
    /// Connects nodes 0 and 1 in both directions.
    pub(super) fn connect(&mut self) {
        self.resolve(0, 1);
        self.run(ms(200));
        self.use_by(1, 0, 0);
        self.run(ms(200));
        self.assert_connected(0, 0, 1);
        self.assert_connected(1, 0, 0);
    }

    /// Clears the recorded events and requests.
    pub(super) fn forget_past(&mut self) {
        for node in &mut self.nodes {
            node.take_events();
        }
        self.requests.clear();
    }

    /// Asserts that `from` has a connection to `to` whose parameters agree with its other end.
    pub(super) fn assert_connected(&self, from: usize, worker: u8, to: usize) {
        let ip = self.nodes[to].ip;
        let qp = self.nodes[from].rc_to(ip, worker).unwrap_or_else(|| {
            panic!("{from} has no connection to {to}: {:#?}", self.nodes[from].link.connections(self.now))
        });
        let (receive, send) = (qp.receive.expect("RTR"), qp.send.expect("RTS"));
        assert_eq!(receive.av.dlid, self.nodes[to].facts.lid);
        let other = &self.nodes[to].qps[&receive.dest_qpn];
        assert!(other.passive);
        assert_eq!(other.state, QpState::Rts);
        let (there, back) = (other.receive.expect("RTR"), other.send.expect("RTS"));
        assert_eq!(there.rq_psn, send.sq_psn);
        assert_eq!(receive.rq_psn, back.sq_psn);
        assert_eq!(there.av.dlid, self.nodes[from].facts.lid);
        assert_eq!(self.nodes[from].qps[&there.dest_qpn].key, qp.key);
        let neighbour = self.nodes[from].table.get(ip).expect("neighbour");
        assert!(neighbour.ud.is_some());
        for n in [from, to] {
            assert_eq!(self.nodes[n].link.counters().connection_strays, 0, "node {n}");
        }
    }

    /// Asserts that nothing is left of a node's connections.
    pub(super) fn assert_clean(&self, n: usize) {
        let node = &self.nodes[n];
        assert!(node.qps.is_empty(), "{:?}", node.link.connections(self.now));
        assert!(node.slots.is_empty());
        assert_eq!(node.created, node.destroyed);
    }
}
