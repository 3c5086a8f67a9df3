//! Datagrams of rtnetlink, from the parser to a table: no panic, no duplicate, and a full dump repairs
//! everything.

use std::sync::Arc;
use std::time::Instant;

use gidcache::netlink::Session;
use gidcache::rules::Binding;
use gidcache::{DeviceTable, IfIndex, Manager, NoProvider, PortKind, PortSetup, RoceTypes, Rules};
use ib_wire::PortNumber;

/// One input.
pub fn run(bytes: &[u8]) {
    let port = PortNumber(1);
    let setup = PortSetup { number: port, len: 16, kind: PortKind::Roce(RoceTypes::Both) };
    let table = DeviceTable::new(&[setup], NoProvider, 1).expect("sixteen slots");
    let mut rules = Rules::new();
    rules.bind(port, Binding::Index(IfIndex::new(1).expect("not 0")), RoceTypes::Both);
    let mut manager = Manager::new(Arc::new(table), rules);
    let now = Instant::now();
    let mut session = Session::new(now, 1);
    session.handle_timeout(now);
    for datagram in bytes.chunks(512) {
        session.handle_datagram(now, datagram);
        while let Some(notice) = session.poll_notice() {
            notice.tell(manager.rules());
        }
        let _ = manager.apply();
        let mut keys: Vec<_> = manager.table().entries().iter().map(|entry| entry.attributes.key).collect();
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }
    manager.rules().begin_scan();
    manager.rules().end_scan();
    let applied = manager.apply();
    assert!(applied.failures.is_empty());
    assert!(manager.table().entries().is_empty());
}
