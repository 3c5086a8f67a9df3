//! Reloads of the configuration and their effect on the links of a node's port: links are removed and added.

use ib_wire::sa::LifeTime;
use ib_wire::{PKey, Qpn};

use std::time::Duration;

use super::fabric::{Fabric, Parcel, ms, secs};
use super::node::BESIDE;
use crate::link::{Action, LinkIndex, LinkSettings, Neighbours};

/// The partition of second links.
const OTHER: PKey = PKey(0x8001);

impl Fabric {
    /// Adds a link again that an earlier reload has removed, if that one has drained. It gets its own
    /// datagram queue pairs, and so another address. Returns false if the old link has not drained.
    pub(super) fn add_again(&mut self, n: usize, seed: u64) -> bool {
        let (now, node) = (self.now, &mut self.nodes[n]);
        let Some(old) = node.link.0.remove(now, LinkIndex(0)) else { return false };
        assert!(node.qps.is_empty() && node.slots.is_empty() && node.attached.is_empty(), "{}", node.ip);
        assert_eq!(node.created, node.destroyed);
        let mut settings = LinkSettings { seed, ..old.settings().clone() };
        let count = settings.workers.len() as u32;
        for worker in &mut settings.workers {
            let qpn = worker.ud_qpn.get();
            worker.ud_qpn = Qpn::new(qpn & !0x7f | (qpn + count) & 0x7f);
        }
        node.link.0.add(now, settings).expect("settings");
        for set in [&mut node.created, &mut node.destroyed] {
            set.clear();
        }
        node.opened.clear();
        node.tables.clear();
        (node.table, node.state) = (Neighbours::default(), None);
        // The old tables are no longer reported as released.
        self.parcels.retain(|_, (to, parcel)| *to != n || !matches!(parcel, Parcel::Quiescent(_)));
        self.change_port(n, |_| {});
        true
    }

    /// Adds a segment in its own partition to the node, or starts to remove it.
    pub(super) fn toggle_beside(&mut self, n: usize) {
        let (now, node) = (self.now, &mut self.nodes[n]);
        match node.link.0.link_mut(BESIDE) {
            Some(link) => link.shutdown(now),
            None => {
                let ud_qpn = Qpn::new(node.link.settings().workers[0].ud_qpn.get() | 0x80);
                let settings = LinkSettings::new(OTHER, ud_qpn, self.random.next());
                assert_eq!(node.link.0.add(now, settings), Ok(BESIDE));
                self.change_port(n, |_| {});
            }
        }
    }

    /// Removes the second links that have drained.
    pub(super) fn remove_beside(&mut self, n: usize) {
        if self.nodes[n].link.0.remove(self.now, BESIDE).is_some() {
            assert!(self.nodes[n].attached_beside.is_empty());
        }
    }

    /// Executes the device's actions for the second link, which has no peer.
    pub(super) fn perform_beside(&mut self, n: usize, index: LinkIndex, action: Action) {
        let (now, node) = (self.now, &mut self.nodes[n]);
        match action {
            Action::AttachMulticast { mgid, mlid, .. } => {
                assert!(node.attached_beside.insert((mgid, mlid)), "attached twice");
            }
            Action::DetachMulticast { mgid, mlid, .. } => {
                assert!(node.attached_beside.remove(&(mgid, mlid)), "detached a group that was not attached");
            }
            Action::Publish(p) => {
                node.link.0.link_mut(index).expect("it published").handle_quiescent(now, p.generation);
            }
            Action::CreateRc { .. } => panic!("it has no peer"),
            _ => {}
        }
    }
}

/// The time after which a removed link's index and partition are free: as documented in docs/manual/pairs.md.
#[test]
fn a_link_makes_room_within_the_times_that_the_manual_names() {
    let time = |connected: bool, administration: bool| -> Duration {
        let mut f = Fabric::new(3);
        for _ in 0..2 {
            f.add(1, |_| {});
        }
        // The times that subnet managers configure by default.
        f.life_time = LifeTime::new(18);
        f.run(ms(100));
        if connected {
            f.connect();
        }
        f.sa_up = administration;
        let begin = f.now;
        f.nodes[0].link.shutdown(begin);
        while !f.add_again(0, 7) {
            f.run(ms(50));
            assert!(f.now - begin < secs(60), "it never goes");
        }
        f.now - begin
    };
    assert!(time(false, true) <= secs(1));
    let with_connections = time(true, true);
    assert!((secs(1)..=ms(5500)).contains(&with_connections), "{with_connections:?}");
    // The groups are left, too.
    assert!(
        (secs(1)..=secs(10)).contains(&time(true, false)),
        "{:?} {:?}",
        time(false, false),
        time(true, false)
    );
}
