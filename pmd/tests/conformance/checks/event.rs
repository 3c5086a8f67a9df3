//! Asynchronous events of ports.

use ib_wire::Gid;
use pmd::hca::{AsyncEvent, Control, PortState};

use super::Check;
use crate::bench::{Bench, How, QKEY};
use crate::lab::{Lab, Need, Outcome, hold, same};

pub(super) fn checks<L: Lab>() -> Vec<Check<L>> {
    vec![
        Check::new("added and removed GIDs are reported", gid_change),
        Check::new("port failure and recovery are reported; traffic passes again", port),
    ]
}

fn has_gid<L: Lab>(b: &Bench<'_, L>, gid: Gid) -> Outcome<bool> {
    let port = b.lab.port();
    let hca = &b.ends[0].hca;
    // Tables of RoCE ports are long and filled from the start.
    for index in 0..hca.port(port)?.gid_table_len.min(32) {
        if hca.gid(port, index)? == gid {
            return Ok(true);
        }
    }
    Ok(false)
}

fn gid_change<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.need(Need::GidChange)?;
    b.start()?;
    b.turn();
    let change = AsyncEvent::GidChange(b.lab.port());
    for add in [true, false] {
        b.ends[0].events.clear();
        let [one, other] = &mut b.ends;
        let gid = b.lab.change_gid([&mut one.hca, &mut other.hca], add)?;
        b.until("the GID's event", |b| b.ends[0].count(change) > 0)?;
        same!(has_gid(b, gid)?, add, "{gid} is in the table");
    }
    let to = b.to(0, true, QKEY)?;
    b.send_ud(0, &to, b"the first GID is unchanged")?;
    b.messages(1, 1)?;
    Ok(())
}

fn port<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.need(Need::PortEvents)?;
    b.start()?;
    let port = b.lab.port();
    b.turn();
    b.ends[0].events.clear();
    for in_place in [false, true] {
        let [one, other] = &mut b.ends;
        b.lab.plug([&mut one.hca, &mut other.hca], in_place)?;
        let event = if in_place { AsyncEvent::PortActive(port) } else { AsyncEvent::PortError(port) };
        b.until("the port's event", |b| b.ends[0].count(event) > 0)?;
        let active = b.ends[0].hca.port(port)?.state == PortState::Active;
        same!(active, in_place, "the port is active");
    }
    hold!(b.ends[0].count(AsyncEvent::Fatal) == 0, "events: {:?}", b.ends[0].events);
    b.linger(std::time::Duration::from_millis(20));
    let to = b.to(0, false, QKEY)?;
    b.send_ud(0, &to, b"back")?;
    b.until("a datagram", |b| b.ends[1].messages.iter().any(|m| m.bytes == b"back"))?;
    b.ends[1].messages.clear();
    let link = b.connect(0, How::default())?;
    b.send_rc(0, &link, b"connected")?;
    same!(b.messages(1, 1)?[0].bytes, b"connected", "data");
    Ok(())
}
