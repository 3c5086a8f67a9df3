//! Life cycle of queue pairs on a shared receive queue (IBA 10.3.1), destroyed in any order.

use std::time::Duration;

use pmd::hca::{
    AsyncEvent, Backend, Control, PostError, QpFault, QpState, QpTransition, Queues, RcConfig, RcSlot,
};

use super::Check;
use crate::bench::{Bench, How, Link, QKEY, UD, WORKER, pattern};
use crate::lab::{Lab, Outcome, hold, same, wrong};

pub(super) fn checks<L: Lab>() -> Vec<Check<L>> {
    vec![
        Check::new("error, last entry once, drain request once, destroyed", drained),
        Check::new("under load: no message after the drain request, no entry lost", drained_under_load),
        Check::new("a drain request of an active queue pair", drained_active),
        Check::new("destroyed during messages, all buffers are freed", amid),
        Check::new("queues destroyed with connections in their table", table),
        Check::new("created and destroyed two hundred times, none is left", again),
        Check::new("more than the queues have room for is an error", too_many),
        Check::new("queues with an existing number are an error", twice),
    ]
}

fn take_down<L: Lab>(b: &mut Bench<'_, L>, end: usize, link: &Link) -> Outcome {
    let qpn = link.qpn[end];
    b.ends[end].hca.modify_qp(qpn, &QpTransition::ToError)?;
    let last = AsyncEvent::LastWqeReached(qpn);
    b.until("the last entry's event", |b| b.ends[end].count(last) > 0)?;
    b.ends[end].queues.post_drain(link.slot)?;
    b.until("the drain request's completion", |b| b.ends[end].faults_of(qpn).contains(&QpFault::Drained))
}

fn destroy<L: Lab>(b: &mut Bench<'_, L>, end: usize, link: &Link) -> Outcome {
    let Some(rc) = b.ends[end].queues.remove_rc(link.slot) else { return wrong("the queue pair is missing") };
    Ok(b.ends[end].hca.destroy_rc(rc)?)
}

fn drained<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let link = b.connect(0, How::default())?;
    b.send_rc(0, &link, b"hello")?;
    b.messages(1, 1)?;
    take_down(b, 1, &link)?;
    // To the error state again: nothing is reported again.
    b.ends[1].hca.modify_qp(link.qpn[1], &QpTransition::ToError)?;
    b.linger(Duration::from_millis(20));
    same!(b.ends[1].count(AsyncEvent::LastWqeReached(link.qpn[1])), 1, "events of the last entry");
    let drains = b.ends[1].faults_of(link.qpn[1]).iter().filter(|f| **f == QpFault::Drained).count();
    same!(drains, 1, "completions of the drain request");
    destroy(b, 1, &link)?;
    hold!(b.ends[1].hca.qp_state(link.qpn[1]).is_err(), "a destroyed queue pair has a state");
    same!(b.ends[1].queues.receives_posted().1, 32, "entries of the shared queue");
    Ok(())
}

fn drained_under_load<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    for round in 0..4_u16 {
        // Seven retries are infinite for soft-RoCE.
        let link = b.connect(round, How { timeout: 10, retry: 6, ..How::default() })?;
        let mut sent = 0;
        while b.ends[1].messages.len() < 5 {
            hold!(b.ends[0].faults_of(link.qpn[0]).is_empty(), "the sender gave up before five messages");
            // Keep some sends unacknowledged at all times.
            for _ in 0..3 {
                let buf = b.ends[0].buffer(&pattern(20_000, sent))?;
                sent += u64::from(b.ends[0].queues.send_rc(link.slot, buf).is_ok());
            }
            b.turn();
        }
        take_down(b, 1, &link)?;
        b.ends[1].messages.clear();
        b.linger(Duration::from_millis(2));
        let late = b.ends[1].messages.iter().filter(|m| m.qpn == link.qpn[1]).count();
        same!(late, 0, "messages after the drain request, round {round}");
        destroy(b, 1, &link)?;
        // Acknowledged or given up: a sender whose sends were all acknowledged has not noticed the loss yet.
        b.until("nothing is outstanding", |b| b.ends[0].queues.rc_outstanding(link.slot) == 0)?;
        let buf = b.ends[0].buffer(b"is there a peer?")?;
        // Rejected if the sender has failed by now.
        drop(b.ends[0].queues.send_rc(link.slot, buf));
        b.until("the sender gives up", |b| b.ends[0].faults_of(link.qpn[0]).contains(&QpFault::Flushed))?;
        same!(b.ends[0].queues.rc_outstanding(link.slot), 0, "sends outstanding, round {round}");
        b.turn();
        same!(b.ends[1].queues.receives_posted().1, 32, "entries of the shared queue, round {round}");
    }
    Ok(())
}

fn drained_active<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let link = b.connect(0, How { timeout: 18, far: QpState::Init, ..How::default() })?;
    for n in 0..6 {
        b.send_rc(0, &link, &pattern(3000, n))?;
    }
    b.ends[0].queues.ring();
    take_down(b, 0, &link)?;
    b.freed(0, 6)?;
    let faults = b.ends[0].faults_of(link.qpn[0]);
    let count = |fault| faults.iter().filter(|f| **f == fault).count();
    same!((count(QpFault::Drained), count(QpFault::Flushed)), (1, 1), "reported faults: {faults:?}");
    same!(b.ends[0].queues.rc_outstanding(link.slot), 0, "sends outstanding");
    let buf = b.ends[0].buffer(b"too late")?;
    match b.ends[0].queues.send_rc(link.slot, buf) {
        Err(refused) => same!(refused.error, PostError::NoConnection, "error"),
        Ok(()) => return wrong("a drained connection accepts data"),
    }
    destroy(b, 0, &link)
}

fn amid<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let to = b.to(0, false, QKEY)?;
    for n in 0..4_u16 {
        let link = b.connect(n, How { timeout: 18, ..How::default() })?;
        for seed in 0..6 {
            b.send_rc(0, &link, &pattern(60_000, seed))?;
            b.send_ud(0, &to, &pattern(2000, seed))?;
        }
        b.turn();
        match n {
            // The receiver during a message; then the sender.
            0 => {
                destroy(b, 1, &link)?;
                b.turn();
                destroy(b, 0, &link)?;
            }
            // The sender first.
            1 => destroy(b, 0, &link)?,
            // Without a state transition, directly after the post.
            2 => {
                b.send_rc(0, &link, b"without a doorbell")?;
                destroy(b, 0, &link)?;
            }
            // Together with everything else, by `Bench::close`.
            _ => {}
        }
    }
    Ok(())
}

fn table<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    // `Bench::close` empties the table. This leaves a queue pair outside of it, as after an early exit of a
    // worker.
    let link = b.connect(1, How { timeout: 18, far: QpState::Init, ..How::default() })?;
    for seed in 0..6 {
        b.send_rc(0, &link, &pattern(60_000, seed))?;
    }
    b.turn();
    drop(b.ends[0].queues.remove_rc(link.slot));
    b.linger(Duration::from_millis(2));
    Ok(())
}

fn again<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    for n in 0..200 {
        let link = b.connect(0, How { psn: [n, n + 1], ..How::default() })?;
        if n % 20 == 0 {
            b.send_rc(0, &link, &pattern(5000, n.into()))?;
            hold!(b.messages(1, 1)?[0].bytes == pattern(5000, n.into()), "connection {n}");
        }
        destroy(b, 0, &link)?;
        destroy(b, 1, &link)?;
        b.turn();
    }
    b.until("all entries posted", |b| b.ends[1].queues.receives_posted().1 == 32)
}

/// More queue pairs than slots may exist, but not be in use. A request that can never fit is rejected when
/// the queues are created.
fn too_many<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let port = b.lab.port();
    let config = RcConfig { queues: WORKER, port, beside: UD, send_depth: 1, passive: true };
    for slot in 0..9 {
        let rc = b.ends[0].hca.create_rc(&config)?;
        match b.ends[0].queues.insert_rc(RcSlot(slot), rc) {
            Ok(()) => hold!(slot < 8, "a ninth one in eight slots"),
            Err(rc) => {
                hold!(slot == 8, "slot {slot} of 8 is not free");
                b.ends[0].hca.destroy_rc(rc)?;
            }
        }
    }
    let elsewhere = RcConfig { queues: pmd::hca::QueuesId(77), ..config };
    hold!(b.ends[0].hca.create_rc(&elsewhere).is_err(), "missing queues accept a connection");
    let pool = b.ends[0].pool.clone();
    let most = b.ends[0].hca.device().max_qp;
    let huge = pmd::hca::QueuesConfig {
        id: pmd::hca::QueuesId(5),
        max_rc: most.max(1 << 22),
        ..crate::bench::sizes()
    };
    match b.ends[0].hca.create_queues(&huge, &pool) {
        Err(e) => hold!(e.to_string().contains("max-connections"), "no remedy: {e}"),
        Ok(_) => return wrong("more connections than the device can have"),
    }
    Ok(())
}

fn twice<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    let config = crate::bench::sizes();
    let pool = b.ends[0].pool.clone();
    hold!(b.ends[0].hca.create_queues(&config, &pool).is_err(), "made twice");
    Ok(())
}
