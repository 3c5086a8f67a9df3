//! The connection table: hostile datagrams between calls of the owner and the passing of time. The table
//! stays bounded, and is empty once everything has timed out.

use std::time::{Duration, Instant};

use cm::Path;
use cm::connection::{AcceptParams, Config, ConnId, ConnectRequest, ConnectionTable, Event};
use ib_wire::mad::{MAD_LEN, Mad, MadAddress};
use ib_wire::sa::{LifeTime, PathRecord};
use ib_wire::{Guid, Lid, Mtu, Psn, Qpn, ServiceId, ServiceLevel};

const MAX: usize = 8;
const SERVICE: ServiceId = ServiceId(0x1000_0000_0000_0048);

fn path() -> Option<Path> {
    let record = PathRecord {
        dlid: Lid(2),
        slid: Lid(1),
        mtu: Mtu::B2048.into(),
        life_time: LifeTime::new(18),
        ..PathRecord::default()
    };
    Path::from_record(&record)
}

/// One input.
pub fn run(bytes: &[u8]) {
    let Some(path) = path() else { return };
    let mut now = Instant::now();
    let config = Config { max_connections: MAX, max_transmit: 32, ..Config::new(1, Guid(1)) };
    let mut table = ConnectionTable::new(config);
    let _ = table.listen(SERVICE);
    let mut ids: Vec<ConnId> = Vec::new();
    let mut qpn = 0x100;
    for step in bytes.chunks(24) {
        let (Some(&op), Some(&arg)) = (step.first(), step.get(1)) else { break };
        let picked = ids.get(usize::from(arg) % ids.len().max(1)).copied();
        qpn += 1;
        match (op % 8, picked) {
            (0, _) => {
                let request = ConnectRequest::ipoib(SERVICE, Qpn::new(qpn), path, &[]);
                ids.extend(table.connect(now, request));
            }
            (1, _) => now += Duration::from_millis(u64::from(arg) * 100),
            (2, Some(id)) => {
                let _ = table.disconnect(now, id);
            }
            (3, Some(id)) => {
                let _ = table.abandon(now, id);
            }
            _ => {
                // A message of any type, its ids taken from the table or from the input.
                let mut mad = [0; MAD_LEN];
                for (to, from) in mad.iter_mut().skip(24).zip(step.iter().cycle()) {
                    *to = *from;
                }
                let [version, class, class_version, method, ..] = &mut mad;
                (*version, *class, *class_version, *method) = (1, 7, 2, 3);
                if let Some(attribute) = mad.get_mut(17) {
                    *attribute = 0x10 + (op >> 4) % 11;
                }
                let field = if op >> 4 == 0 { SERVICE.0.to_be_bytes() } else { [arg; 8] };
                if let Some(to) = mad.get_mut(32..40) {
                    to.copy_from_slice(&field);
                }
                if let (true, Some(id), Some(to)) = (op >> 4 != 0, picked, mad.get_mut(28..32)) {
                    to.copy_from_slice(&id.comm_id().0.to_be_bytes());
                }
                let peer = MadAddress::gsi(Lid(3), ServiceLevel::new(0));
                table.handle_mad(now, &Mad { peer, bytes: Box::new(mad) });
            }
        }
        table.handle_timeout(now);
        while let Some(event) = table.poll_event() {
            match event {
                Event::Requested { id, request } => {
                    ids.push(id);
                    let with = AcceptParams::ipoib(Qpn::new(qpn), Psn::new(1), &request, &[]);
                    assert_eq!(table.accept(now, id, &with), Ok(()));
                }
                Event::Replied { id, .. } => assert_eq!(table.ready(now, id), Ok(())),
                Event::Released { id } => ids.retain(|known| *known != id),
                _ => {}
            }
        }
        assert!(table.len() <= MAX);
        if op & 8 != 0 {
            while table.poll_transmit().is_some() {}
        }
    }
    for id in ids {
        let _ = table.abandon(now, id);
    }
    while let Some(at) = table.poll_timeout() {
        table.handle_timeout(at);
        while table.poll_transmit().is_some() {}
    }
    assert!(table.is_empty());
}
