//! Several datagram queue pairs on one worker's queues.

use std::time::Duration;

use ib_wire::{PKey, Psn, QKey, Qpn};
use pmd::hca::{Backend, Control, QpTransition, Queues, RcSlot, Source, UdConfig, UdDestination, UdSlot};

use super::Check;
use crate::bench::{Bench, Destination, How, QKEY, UD, WORKER, pattern};
use crate::lab::{Lab, Need, Outcome, hold, same, wrong};

/// Q_Keys of the queue pairs in slots 1 and 2.
const OTHER: [QKey; 2] = [QKey(0x1111), QKey(0x2222)];

pub(super) fn checks<L: Lab>() -> Vec<Check<L>> {
    vec![
        Check::new("each receives its own, and reports its slot", own),
        Check::new("each has its partition", partitions),
        Check::new("a connection reports its datagram queue pair", reported_ud),
        Check::new("a flood of datagrams does not use the connections' receives", flood),
        Check::new("one is added and removed while others have traffic", replaced),
        Check::new("a removed one returns everything outstanding", abandoned),
    ]
}

/// Creates another one at end 1, moves it from RESET to RTS and opens it.
fn add<L: Lab>(b: &mut Bench<'_, L>, slot: UdSlot, pkey_index: u16, qkey: QKey) -> Outcome<Qpn> {
    let port = b.lab.port();
    let end = &mut b.ends[1];
    let ud = end.hca.create_ud(&UdConfig { queues: WORKER, port, send_depth: 16 })?;
    let qpn = L::Hca::ud_qpn(&ud);
    for to in [
        QpTransition::UdToInit { pkey_index, qkey },
        QpTransition::UdToReceive,
        QpTransition::UdToSend { sq_psn: Psn::new(0) },
    ] {
        end.hca.modify_qp(qpn, &to)?;
    }
    if end.queues.insert_ud(slot, ud).is_err() {
        return wrong(format!("slot {} is already in use", slot.0));
    }
    end.queues.open_ud(slot);
    end.queues.refill();
    same!(end.queues.ud_qpn(slot), Some(qpn), "number of the one in slot {}", slot.0);
    Ok(qpn)
}

/// Returns a destination from end 0 to a queue pair of end 1.
fn to<L: Lab>(b: &mut Bench<'_, L>, qpn: Qpn, qkey: QKey) -> Outcome<Destination<L>> {
    let to = UdDestination { av: b.way(0, false)?, qpn, qkey: Some(qkey) };
    Ok(b.ends[0].hca.destination(b.lab.port(), &to)?)
}

fn own<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let posted = b.ends[1].queues.receives_posted().0;
    let mut all = vec![(UD, b.ends[1].ud, QKEY)];
    for (slot, qkey) in [UdSlot(1), UdSlot(2)].into_iter().zip(OTHER) {
        all.push((slot, add(b, slot, 0, qkey)?, qkey));
    }
    same!(b.ends[1].queues.receives_posted().0, posted, "receives, which are shared by all");
    for round in 0..40 {
        for (slot, qpn, qkey) in &all {
            let there = to(b, *qpn, *qkey)?;
            let bytes = pattern(100 + round, u64::from(slot.0));
            b.send_ud(0, &there, &bytes)?;
            let got = b.messages(1, 1)?;
            same!((got[0].qpn, got[0].ud, got[0].rc), (*qpn, Some(*slot), None), "the receiving queue pair");
            hold!(got[0].bytes == bytes && got[0].source != Source::Rc, "another message");
        }
    }
    // Each has its own Q_Key.
    let wrong_key = to(b, all[1].1, OTHER[1])?;
    b.send_ud(0, &wrong_key, b"no")?;
    let right = to(b, all[2].1, OTHER[1])?;
    b.send_ud(0, &right, b"yes")?;
    same!(b.messages(1, 1)?[0].bytes, b"yes", "data");
    // Each sends separately.
    for (slot, qpn, _) in &all {
        let back = b.to(1, false, QKEY)?;
        let buf = b.ends[1].buffer(b"back")?;
        b.ends[1].queues.send_ud(*slot, &back, buf)?;
        let got = b.messages(0, 1)?;
        let Source::Ud(from) = got[0].source else { return wrong("no datagram") };
        same!(from.qpn, *qpn, "the sender");
    }
    let nobody = b.ends[0].buffer(b"x")?;
    hold!(b.ends[0].queues.send_ud(UdSlot(5), &right, nobody).is_err(), "an empty slot accepts sends");
    same!(b.ends[0].queues.ud_qpn(UdSlot(5)), None, "number in an empty slot");
    Ok(())
}

fn partitions<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.need(Need::Partitions)?;
    b.start()?;
    b.lab.set_pkey(&mut b.ends[1].hca, 1, PKey(0x8001))?;
    b.lab.set_pkey(&mut b.ends[0].hca, 1, PKey(0x8001))?;
    let far = add(b, UdSlot(1), 1, QKEY)?;
    let there = to(b, far, QKEY)?;
    // The sender's queue pair is in the default partition and does not reach the one in the other partition.
    b.send_ud(0, &there, b"outsider")?;
    let first = b.to(0, false, QKEY)?;
    b.send_ud(0, &first, b"member")?;
    let got = b.messages(1, 1)?;
    same!((got[0].bytes.as_slice(), got[0].ud), (b"member".as_slice(), Some(UD)), "data and slot");
    // From the other partition to the same partition.
    let back = b.to(1, false, QKEY)?;
    let buf = b.ends[1].buffer(b"from the other")?;
    b.ends[1].queues.send_ud(UdSlot(1), &back, buf)?;
    b.linger(Duration::from_millis(10));
    same!(b.ends[0].messages.len(), 0, "messages of another partition");
    Ok(())
}

fn reported_ud<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    add(b, UdSlot(3), 0, OTHER[0])?;
    for (slot, place) in [(0, UD), (1, UdSlot(3))] {
        let link = b.connect(slot, How { beside: place, ..How::default() })?;
        b.send_rc(0, &link, b"hello")?;
        let got = b.messages(1, 1)?;
        same!((got[0].qpn, got[0].ud, got[0].source), (link.qpn[1], Some(place), Source::Rc), "what came");
        same!(got[0].rc, Some(link.slot), "the connection");
    }
    Ok(())
}

fn flood<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let far = add(b, UdSlot(1), 0, OTHER[0])?;
    let link = b.connect(0, How::default())?;
    let there = to(b, far, OTHER[0])?;
    b.ends[1].refill = false;
    let before = b.ends[1].queues.receives_posted().1;
    for n in 0..300 {
        let mut buf = Some(b.ends[0].buffer(&pattern(500, n))?);
        b.until("room to send", |b| {
            buf = buf.take().and_then(|buf| b.ends[0].queues.send_ud(UD, &there, buf).err()).map(|no| no.buf);
            buf.is_none()
        })?;
    }
    b.freed(0, 300)?;
    b.linger(Duration::from_millis(10));
    hold!(b.ends[1].messages.len() >= 16, "the flood did not arrive");
    b.ends[1].messages.clear();
    same!(b.ends[1].queues.receives_posted().1, before, "the connections' receives");
    for n in 0..u64::from(before) {
        b.send_rc(0, &link, &pattern(3000, n))?;
        let got = b.messages(1, 1)?;
        hold!(got[0].bytes == pattern(3000, n), "message {n} came changed");
    }
    Ok(())
}

fn replaced<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    const PLACE: UdSlot = UdSlot(1);
    b.start()?;
    let posted = b.ends[1].queues.receives_posted().0;
    let first = b.to(0, false, QKEY)?;
    for round in 0..25_u64 {
        let qpn = add(b, PLACE, 0, OTHER[0])?;
        let there = to(b, qpn, OTHER[0])?;
        for n in 0..10 {
            b.send_ud(0, &there, &pattern(60, n))?;
            b.send_ud(0, &first, &pattern(70, round))?;
        }
        b.until("both receive their datagrams", |b| {
            [UD, PLACE].iter().all(|place| b.ends[1].messages.iter().any(|m| m.ud == Some(*place)))
        })?;
        // More datagrams are in flight when it is removed.
        for n in 0..10 {
            b.send_ud(0, &there, &pattern(60, n))?;
        }
        b.ends[0].queues.ring();
        b.ends[0].queues.turn();
        let end = &mut b.ends[1];
        end.hca.modify_qp(qpn, &QpTransition::ToError)?;
        end.queues.close_ud(PLACE);
        b.until("everything returned", |b| b.ends[1].queues.ud_outstanding(PLACE) == 0)?;
        let end = &mut b.ends[1];
        let Some(ud) = end.queues.remove_ud(PLACE) else { return wrong("the queue pair is missing") };
        end.hca.destroy_ud(ud)?;
        hold!(end.hca.qp_state(qpn).is_err(), "a destroyed queue pair has a state");
        end.messages.clear();
        b.send_ud(0, &first, b"still here")?;
        b.until("the first one's datagram", |b| b.ends[1].messages.iter().any(|m| m.bytes == b"still here"))?;
        b.ends[1].messages.clear();
    }
    b.until("all receives posted", |b| b.ends[1].queues.receives_posted().0 >= posted)
}

fn abandoned<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    for round in 0..5_u64 {
        let qpn = add(b, UdSlot(1), 0, OTHER[0])?;
        let there = to(b, qpn, OTHER[0])?;
        for n in 0..5 {
            b.send_ud(0, &there, &pattern(60, n))?;
            let back = b.to(1, false, QKEY)?;
            let buf = b.ends[1].buffer(&pattern(50, round))?;
            b.ends[1].queues.send_ud(UdSlot(1), &back, buf)?;
        }
        b.ends[0].queues.ring();
        b.ends[1].queues.ring();
        let end = &mut b.ends[1];
        let Some(ud) = end.queues.remove_ud(UdSlot(1)) else { return wrong("the queue pair is missing") };
        end.hca.destroy_ud(ud)?;
        b.linger(Duration::from_millis(2));
    }
    // The slot is usable again, and so are the connections' receives.
    let link = b.connect(0, How::default())?;
    same!(link.slot, RcSlot(0), "slot of the connection");
    b.ends[1].messages.clear();
    b.send_rc(0, &link, b"and on")?;
    b.until("a message", |b| b.ends[1].messages.iter().any(|m| m.bytes == b"and on"))
}
