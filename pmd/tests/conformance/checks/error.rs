//! Errors that end a connection, and the fate of its buffers.

use std::time::{Duration, Instant};

use pmd::hca::{Backend, Control, QpFault, QpState, QpTransition, Queues, WcStatus};

use super::Check;
use crate::bench::{Bench, How, Link, pattern};
use crate::lab::{Lab, Need, Outcome, hold, same, wrong};

pub(super) fn checks<L: Lab>() -> Vec<Check<L>> {
    vec![
        Check::sized(
            "a message longer than the receive ends the connection",
            |s| s.srq_message = 4096,
            length,
        ),
        Check::sized(
            "the completions of both ends report the reason",
            |s| s.srq_message = 4096,
            length_status,
        ),
        Check::new("a missing peer uses up all retries and their time, and ends the connection", gone),
        Check::new("a peer in error acts like a missing one", peer_in_error),
        Check::new("error: every send is flushed once, and the flush is reported once", flush),
        Check::new("sends posted after the error are returned too", behind),
        Check::new("datagrams: error flushes sends, and no shared receives", datagram),
    ]
}

fn too_long<L: Lab>(b: &mut Bench<'_, L>) -> Outcome<Link> {
    b.start()?;
    let link = b.connect(0, How::default())?;
    b.send_rc(0, &link, &pattern(4096, 1))?;
    hold!(b.messages(1, 1)?[0].bytes == pattern(4096, 1), "the longest message arrived changed");
    b.send_rc(0, &link, &pattern(4097, 2))?;
    b.send_rc(0, &link, &pattern(100, 3))?;
    b.until("the sender's error", |b| b.ends[0].faults_of(link.qpn[0]).len() >= 2)?;
    Ok(link)
}

fn length<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let link = too_long(b)?;
    let faults = b.ends[0].faults_of(link.qpn[0]);
    hold!(matches!(faults[..], [QpFault::Send(_), QpFault::Flushed]), "faults of the sender: {faults:?}");
    b.freed(0, 3)?;
    b.until("the receiver's error", |b| !b.ends[1].faults_of(link.qpn[1]).is_empty())?;
    same!(b.ends[1].faults_of(link.qpn[1]).len(), 1, "faults of the receiver");
    same!(b.ends[1].messages.len(), 0, "messages");
    same!(b.ends[1].state(link.qpn[1])?, QpState::Err, "state of the receiver");
    b.turn();
    same!(b.ends[1].queues.receives_posted().1, 32, "entries of the shared queue");
    let other = b.connect(1, How::default())?;
    b.send_rc(0, &other, &pattern(4096, 4))?;
    hold!(b.messages(1, 1)?[0].bytes == pattern(4096, 4), "another connection");
    Ok(())
}

fn length_status<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.need(Need::LengthStatus)?;
    let link = too_long(b)?;
    b.until("the receiver's error", |b| !b.ends[1].faults_of(link.qpn[1]).is_empty())?;
    let sender = b.ends[0].faults_of(link.qpn[0]);
    same!(sender[0], QpFault::Send(WcStatus::RemoteInvalidRequest), "the sender's status");
    same!(
        b.ends[1].faults_of(link.qpn[1]),
        [QpFault::Receive(WcStatus::LocalLength)],
        "faults of the receiver"
    );
    Ok(())
}

fn give_up<L: Lab>(b: &mut Bench<'_, L>, link: &Link, how: How) -> Outcome {
    let start = Instant::now();
    for n in 0..3 {
        b.send_rc(0, link, &pattern(3000, n))?;
    }
    b.until("the sender gives up", |b| !b.ends[0].faults_of(link.qpn[0]).is_empty())?;
    let took = start.elapsed();
    // IBA 9.7.6.1.3: 4.096 µs · 2^timeout, initially and for each retry; devices may take up to four times as
    // long. A quarter less for devices with coarse clock ticks.
    let least = Duration::from_nanos(4096 << how.timeout) * (u32::from(how.retry) + 1) * 3 / 4;
    hold!(took >= least, "it took {took:?}, less than {least:?}");
    b.until("the flush", |b| b.ends[0].faults_of(link.qpn[0]).len() >= 2)?;
    same!(
        b.ends[0].faults_of(link.qpn[0]),
        [QpFault::Send(WcStatus::RetryExceeded), QpFault::Flushed],
        "faults"
    );
    same!(b.ends[0].state(link.qpn[0])?, QpState::Err, "state");
    Ok(())
}

fn gone<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    for (slot, retry) in [(0, 0), (1, 3)] {
        let how = How { timeout: 13, retry, ..How::default() };
        let link = b.connect(slot, how)?;
        let Some(rc) = b.ends[1].queues.remove_rc(link.slot) else {
            return wrong("the queue pair is missing");
        };
        b.ends[1].hca.destroy_rc(rc)?;
        give_up(b, &link, how)?;
    }
    b.freed(0, 6)?;
    same!(b.ends[1].messages.len(), 0, "messages");
    Ok(())
}

fn peer_in_error<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let how = How { timeout: 13, retry: 0, ..How::default() };
    let link = b.connect(0, how)?;
    b.ends[1].hca.modify_qp(link.qpn[1], &QpTransition::ToError)?;
    give_up(b, &link, how)?;
    b.freed(0, 3)?;
    same!(b.ends[1].messages.len(), 0, "messages");
    Ok(())
}

/// Creates a connection whose sends are not acknowledged for a second.
fn unanswered<L: Lab>(b: &mut Bench<'_, L>) -> Outcome<Link> {
    b.start()?;
    b.connect(0, How { timeout: 18, far: QpState::Init, ..How::default() })
}

fn flush<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    const SENDS: u64 = 21;
    let link = unanswered(b)?;
    for n in 0..SENDS {
        b.send_rc(0, &link, &pattern(2500, n))?;
    }
    b.linger(Duration::from_millis(10));
    same!(b.ends[0].freed, 0, "buffers returned before the error");
    let outstanding = b.ends[0].queues.rc_outstanding(link.slot);
    hold!(outstanding >= SENDS as usize, "{outstanding} sends outstanding of {SENDS}");
    b.ends[0].hca.modify_qp(link.qpn[0], &QpTransition::ToError)?;
    b.freed(0, SENDS as usize)?;
    b.linger(Duration::from_millis(10));
    same!(b.ends[0].faults_of(link.qpn[0]), [QpFault::Flushed], "the reported faults");
    same!(b.ends[0].freed, SENDS as usize, "returned buffers");
    same!(b.ends[0].queues.rc_outstanding(link.slot), 0, "sends outstanding");
    Ok(())
}

fn behind<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let link = unanswered(b)?;
    b.send_rc(0, &link, b"before")?;
    b.ends[0].hca.modify_qp(link.qpn[0], &QpTransition::ToError)?;
    // The worker has not been notified yet.
    let mut taken = 1;
    for n in 0..4 {
        let buf = b.ends[0].buffer(&pattern(100, n))?;
        taken += usize::from(b.ends[0].queues.send_rc(link.slot, buf).is_ok());
    }
    same!(taken, 5, "accepted sends");
    b.freed(0, taken)?;
    b.linger(Duration::from_millis(5));
    same!(b.ends[0].faults_of(link.qpn[0]), [QpFault::Flushed], "the reported faults");
    let buf = b.ends[0].buffer(b"after")?;
    hold!(b.ends[0].queues.send_rc(link.slot, buf).is_err(), "a connection in error accepts data");
    Ok(())
}

fn datagram<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    same!(b.ends[0].queues.receives_posted().0, 64, "receives posted");
    b.ends[0].refill = false;
    let ud = b.ends[0].ud;
    b.ends[0].hca.modify_qp(ud, &QpTransition::ToError)?;
    let to = b.to(0, false, crate::bench::QKEY)?;
    for _ in 0..3 {
        b.send_ud(0, &to, b"flushed")?;
    }
    b.freed(0, 3)?;
    // Shared receives stay; a queue pair's own are returned.
    b.until("receives returned or kept", |b| [0, 64].contains(&b.ends[0].queues.receives_posted().0))?;
    b.linger(Duration::from_millis(5));
    same!((b.ends[0].messages.len(), b.ends[1].messages.len()), (0, 0), "messages");
    same!(b.ends[0].faults_of(ud), [QpFault::Flushed], "the reported faults");
    same!(b.ends[0].state(ud)?, QpState::Err, "state");
    Ok(())
}
