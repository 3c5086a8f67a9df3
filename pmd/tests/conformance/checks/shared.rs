//! The shared receive queue: limit and exhaustion.

use std::time::{Duration, Instant};

use pmd::hca::{AsyncEvent, QpFault, QpState, Queues, WcStatus};

use super::Check;
use crate::bench::{Bench, How, Link, WORKER, pattern};
use crate::lab::{Lab, Outcome, hold, same};

const LIMIT: u32 = 8;

pub(super) fn checks<L: Lab>() -> Vec<Check<L>> {
    vec![
        Check::sized(
            "the limit event is raised below the limit, once, and again later",
            |s| s.srq_limit = LIMIT,
            limit,
        ),
        Check::new("empty, without RNR retries: the connection ends, all sends are returned", dry),
        Check::new("empty, with RNR retries: the message arrives when there is room", patient),
        Check::new("RNR retries and their timer are respected", counted),
        Check::new("empty: connections that send nothing do not end", apart),
    ]
}

fn send_small<L: Lab>(b: &mut Bench<'_, L>, link: &Link, count: usize) -> Outcome {
    for n in 0..count {
        b.send_rc(0, link, &[n as u8])?;
        b.messages(1, 1)?;
    }
    Ok(())
}

fn limit<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    const REACHED: AsyncEvent = AsyncEvent::SrqLimitReached(WORKER);
    b.start()?;
    let link = b.connect(0, How::default())?;
    let depth = b.ends[1].queues.receives_posted().1;
    same!(depth, 32, "entries posted");
    b.ends[1].refill = false;
    send_small(b, &link, (depth - LIMIT) as usize)?;
    b.linger(Duration::from_millis(20));
    same!(b.ends[1].queues.receives_posted().1, LIMIT, "entries left");
    same!(b.ends[1].count(REACHED), 0, "events at the limit");
    send_small(b, &link, 1)?;
    b.until("the event below the limit", |b| b.ends[1].count(REACHED) == 1)?;
    b.ends[1].refill = true;
    b.turn();
    same!(b.ends[1].queues.receives_posted().1, depth, "entries after a refill");
    // It is armed again, if necessary after a while.
    b.linger(Duration::from_millis(1100));
    same!(b.ends[1].count(REACHED), 1, "events above the limit");
    b.ends[1].refill = false;
    send_small(b, &link, (depth - LIMIT) as usize + 1)?;
    b.until("the second event", |b| b.ends[1].count(REACHED) == 2)
}

fn dry<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let link = b.connect(0, How { rnr_retry: 0, ..How::default() })?;
    b.ends[1].refill = false;
    let depth = b.ends[1].queues.receives_posted().1 as usize;
    send_small(b, &link, depth)?;
    same!(b.ends[1].queues.receives_posted().1, 0, "entries left");
    for n in 0..5 {
        b.send_rc(0, &link, &pattern(3000, n))?;
    }
    b.freed(0, depth + 5)?;
    b.until("the end of the flush", |b| b.ends[0].faults_of(link.qpn[0]).len() >= 2)?;
    b.linger(Duration::from_millis(5));
    same!(
        b.ends[0].faults_of(link.qpn[0]),
        [QpFault::Send(WcStatus::RnrRetryExceeded), QpFault::Flushed],
        "faults of the sender"
    );
    same!(b.ends[0].state(link.qpn[0])?, QpState::Err, "state of the sender");
    same!(b.ends[1].messages.len(), 0, "messages");
    same!(b.ends[0].queues.rc_outstanding(link.slot), 0, "sends outstanding");
    let buf = b.ends[0].buffer(b"too late")?;
    hold!(b.ends[0].queues.send_rc(link.slot, buf).is_err(), "a connection in error accepts data");
    // The responder is unchanged: another connection works once there is room.
    hold!(b.ends[1].faults.is_empty(), "faults of the receiver: {:?}", b.ends[1].faults);
    b.ends[1].refill = true;
    let other = b.connect(1, How { rnr_retry: 0, ..How::default() })?;
    b.turn();
    b.send_rc(0, &other, b"room")?;
    same!(b.messages(1, 1)?[0].bytes, b"room", "data");
    Ok(())
}

fn patient<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let link = b.connect(0, How { rnr_timer: 12, ..How::default() })?;
    b.ends[1].refill = false;
    let depth = b.ends[1].queues.receives_posted().1 as usize;
    send_small(b, &link, depth)?;
    b.send_rc(0, &link, &pattern(10_000, 1))?;
    b.send_rc(0, &link, &pattern(20_000, 2))?;
    b.linger(Duration::from_millis(30));
    same!(b.ends[1].messages.len(), 0, "messages while empty");
    b.ends[1].refill = true;
    let got = b.messages(1, 2)?;
    hold!(
        got[0].bytes == pattern(10_000, 1) && got[1].bytes == pattern(20_000, 2),
        "messages arrived changed"
    );
    hold!(b.ends[0].faults.is_empty(), "faults: {:?}", b.ends[0].faults);
    b.freed(0, depth + 2)
}

fn counted<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    // Code 24 is 40.96 ms (IBA table 45). Each retry waits at least that long.
    const WAIT: Duration = Duration::from_micros(40_960);
    b.start()?;
    for (slot, retries) in [(0, 0), (1, 2)] {
        let link = b.connect(slot, How { rnr_timer: 24, rnr_retry: retries, ..How::default() })?;
        b.ends[1].refill = false;
        if slot == 0 {
            let depth = b.ends[1].queues.receives_posted().1 as usize;
            send_small(b, &link, depth)?;
        }
        let start = Instant::now();
        b.send_rc(0, &link, b"nobody listens")?;
        b.until("the sender gives up", |b| !b.ends[0].faults_of(link.qpn[0]).is_empty())?;
        let took = start.elapsed();
        same!(
            b.ends[0].faults_of(link.qpn[0])[0],
            QpFault::Send(WcStatus::RnrRetryExceeded),
            "with {retries} retries"
        );
        // A quarter less for devices with coarse clock ticks.
        hold!(took >= WAIT * u32::from(retries) * 3 / 4, "{retries} retries took {took:?} only");
    }
    Ok(())
}

fn apart<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let hasty = b.connect(0, How { rnr_retry: 0, ..How::default() })?;
    let silent = b.connect(1, How { rnr_retry: 0, ..How::default() })?;
    b.ends[1].refill = false;
    let depth = b.ends[1].queues.receives_posted().1 as usize;
    send_small(b, &hasty, depth)?;
    b.send_rc(0, &hasty, b"one too many")?;
    b.until("the first connection ends", |b| !b.ends[0].faults_of(hasty.qpn[0]).is_empty())?;
    b.ends[1].refill = true;
    b.turn();
    send_small(b, &silent, 3)?;
    same!(b.ends[0].faults_of(silent.qpn[0]), [], "faults of the second connection");
    same!(b.ends[0].state(silent.qpn[0])?, QpState::Rts, "its state");
    Ok(())
}
