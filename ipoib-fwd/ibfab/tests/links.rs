//! Links are added and removed while endpoints carry traffic: each in its partition, with datagram queue
//! pairs of its own on every worker.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod device;
mod ends;

use std::time::Duration;

use endpoint::LinkWorker;
use ends::World;
use ib_wire::{PKey, Qpn};
use ipoib::link::{LinkIndex, LinkSettings};
use pmd::eal::Eal;
use pmd::hca::{Control, Queues, UdSlot};

#[test]
fn links_come_and_go_while_others_carry_traffic() {
    let words =
        ["test", "--no-huge", "--no-shconf", "--no-pci", "--no-telemetry", "--log-level=4", "-m", "160"];
    let _eal = Eal::init(words.map(str::to_owned)).unwrap();
    let (mut w, pools) = World::new("[[partition]]\npkey = 0x8001\n[[partition]]\npkey = 0x8002\nmtu = 2048");
    let (first, second) = (LinkIndex(0), LinkIndex(1));
    w.run("the first link", |w, _| w.ends.iter().all(|end| end.is_up(first)));
    w.connect(first);
    let now = w.now();
    let kept = w.ends[0].live(now, first);

    // A second one, in another partition.
    for end in &mut w.ends {
        assert_eq!(end.add(now, 0x8001), second);
    }
    w.run("the second link", |w, _| w.ends.iter().all(|end| end.is_up(second)));
    w.connect(second);
    for end in &mut w.ends {
        let all: Vec<_> = [first, second].iter().flat_map(|link| end.datagrams(*link)).collect();
        assert_eq!(all.len(), 4);
        assert!(all.iter().all(|qpn| all.iter().filter(|other| *other == qpn).count() == 1), "{all:?}");
        let table = end.endpoint.link_at(second).unwrap().table();
        let second = |ip| matches!(ip, std::net::IpAddr::V4(ip) if ip.octets()[1] == 1);
        assert!(table.len() == 1 && table.iter().all(|n| second(n.ip)));
        assert_eq!(end.endpoint.device_errors().0, 0, "{:?}", end.endpoint.device_errors());
    }
    assert_eq!(w.ends[0].live(now, first), kept);

    // It is removed on one end. While its queue pairs come back, another one gets a slot, and is removed,
    // too.
    let gone = w.ends[0].datagrams(second);
    assert!(w.ends[0].endpoint.remove_link(w.now(), second));
    w.run("its end in the port", |w, _| w.ends[0].endpoint.link_at(second).is_none());
    assert_eq!(w.ends[0].removed, [], "its slot is not free yet");
    let beside = w.ends[0].add(w.now(), 0x8007);
    assert_eq!(beside, LinkIndex(2));
    assert!(w.ends[0].endpoint.remove_link(w.now(), beside));
    w.run("both ends", |w, _| w.ends[0].removed.len() == 2);
    w.ends[0].removed.retain(|link| *link != beside);
    assert_eq!(w.ends[0].removed, [second]);
    assert!(w.ends[0].endpoint.link_at(second).is_none());
    for qpn in gone {
        assert!(w.ends[0].endpoint.hca().qp_state(qpn).is_err(), "{qpn} is left");
    }
    for worker in &mut w.ends[0].workers {
        assert_eq!(worker.queues().ud_qpn(UdSlot(1)), None);
        assert!(worker.queues().ud_qpn(UdSlot(0)).is_some());
    }
    assert_eq!(w.ends[0].live(w.now(), first), kept, "the first link's connections live on");
    assert!(!w.ends[0].endpoint.remove_link(w.now(), second), "there is none");
    assert_eq!(w.ends[0].endpoint.device_errors().0, 0, "{:?}", w.ends[0].endpoint.device_errors());

    // A link in a third partition, with another MTU, reuses its slot.
    let now = w.now();
    assert_eq!(w.ends[0].add(now, 0x8002), second);
    assert!(w.ends[0].endpoint.add_link(now, LinkSettings::new(PKey(0x8002), Qpn::default(), 1)).is_err());
    w.run("a third link", |w, _| w.ends[0].is_up(second));
    assert_eq!(w.ends[0].endpoint.link_at(second).unwrap().state().ud_mtu, 2048);
    // A link whose partition does not exist waits, and is removed without having been up.
    let third = w.ends[0].add(w.now(), 0x8007);
    w.run_for(Duration::from_millis(300), |_| ());
    assert!(!w.ends[0].is_up(third));
    assert!(w.ends[0].endpoint.remove_link(w.now(), third));
    w.run("its end", |w, _| w.ends[0].removed == [second, third]);
    assert_eq!(w.ends[0].live(w.now(), first), kept);

    let World { ends, .. } = w;
    for end in ends {
        let queues = end.workers.into_iter().map(LinkWorker::into_queues).collect();
        drop(end.endpoint.close(queues).unwrap());
    }
    assert!(pools.iter().all(|pool| pool.in_use() == 0));
}
