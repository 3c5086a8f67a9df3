//! What ends a connection, and what comes of its buffers.

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
        Check::sized("the completions of both ends say why", |s| s.srq_message = 4096, length_status),
        Check::new("a peer that is gone costs the retries, no less time, and the connection", gone),
        Check::new("a peer in error is as one that is gone", peer_in_error),
        Check::new("error: every send is flushed once, and that is told once", flush),
        Check::new("what is posted behind the error comes back, too", behind),
        Check::new("datagrams: error flushes sends, and no shared receives", datagram),
    ]
}

fn too_long<L: Lab>(b: &mut Bench<'_, L>) -> Outcome<Link> {
    b.start()?;
    let link = b.connect(0, How::default())?;
    b.send_rc(0, &link, &pattern(4096, 1))?;
    hold!(b.messages(1, 1)?[0].bytes == pattern(4096, 1), "the longest message came changed");
    b.send_rc(0, &link, &pattern(4097, 2))?;
    b.send_rc(0, &link, &pattern(100, 3))?;
    b.until("the sender's error", |b| b.ends[0].faults_of(link.qpn[0]).len() >= 2)?;
    Ok(link)
}

fn length<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let link = too_long(b)?;
    let told = b.ends[0].faults_of(link.qpn[0]);
    hold!(matches!(told[..], [QpFault::Send(_), QpFault::Flushed]), "faults of the sender: {told:?}");
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
    // IBA 9.7.6.1.3: 4.096 µs · 2^timeout, once and for each retry; devices may take up to four times as long. A quarter less for
    // those whose clock has coarse ticks.
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
        let Some(rc) = b.ends[1].queues.remove_rc(link.slot) else { return wrong("the queue pair is gone") };
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

/// A connection whose sends nobody answers for a second.
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
    same!(b.ends[0].freed, 0, "buffers that came back before the error");
    let outstanding = b.ends[0].queues.rc_outstanding(link.slot);
    hold!(outstanding >= SENDS as usize, "{outstanding} sends outstanding of {SENDS}");
    b.ends[0].hca.modify_qp(link.qpn[0], &QpTransition::ToError)?;
    b.freed(0, SENDS as usize)?;
    b.linger(Duration::from_millis(10));
    same!(b.ends[0].faults_of(link.qpn[0]), [QpFault::Flushed], "what is told");
    same!(b.ends[0].freed, SENDS as usize, "buffers that came back");
    same!(b.ends[0].queues.rc_outstanding(link.slot), 0, "sends outstanding");
    Ok(())
}

fn behind<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let link = unanswered(b)?;
    b.send_rc(0, &link, b"before")?;
    b.ends[0].hca.modify_qp(link.qpn[0], &QpTransition::ToError)?;
    // The worker has not heard of it yet.
    let mut taken = 1;
    for n in 0..4 {
        let buf = b.ends[0].buffer(&pattern(100, n))?;
        taken += usize::from(b.ends[0].queues.send_rc(link.slot, buf).is_ok());
    }
    same!(taken, 5, "sends that were taken");
    b.freed(0, taken)?;
    b.linger(Duration::from_millis(5));
    same!(b.ends[0].faults_of(link.qpn[0]), [QpFault::Flushed], "what is told");
    let buf = b.ends[0].buffer(b"after")?;
    hold!(b.ends[0].queues.send_rc(link.slot, buf).is_err(), "a connection in error takes data");
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
    // Receives that are shared stay; a queue pair's own come back.
    b.until("receives back, or kept", |b| [0, 64].contains(&b.ends[0].queues.receives_posted().0))?;
    b.linger(Duration::from_millis(5));
    same!((b.ends[0].messages.len(), b.ends[1].messages.len()), (0, 0), "messages");
    same!(b.ends[0].faults_of(ud), [QpFault::Flushed], "what is told");
    same!(b.ends[0].state(ud)?, QpState::Err, "state");
    Ok(())
}
