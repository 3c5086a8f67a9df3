//! Messages on connections.

use std::time::Duration;

use ib_wire::Mtu;
use pmd::hca::{PostError, QpState, Queues, RcSlot, Source};
use pmd::mem::{Pool, PoolConfig};

use super::Check;
use crate::bench::{Bench, How, QKEY, UD, pattern};
use crate::lab::{Lab, Outcome, hold, same, wrong};

/// Length of IPoIB's largest message in bytes.
const LARGEST: usize = 65_524;

pub(super) fn checks<L: Lab>() -> Vec<Check<L>> {
    vec![
        Check::new("every size from 0 to 65,524", sizes),
        Check::new("every path MTU", mtus),
        Check::new("segments are gathered, too many are rejected", segments),
        Check::new("both directions at once, with datagrams", both_ways),
        Check::new("several connections are distinguished", several),
        Check::new("many in order, one completion for several, none waits", many),
        Check::new("a full send queue returns the buffer", full),
        Check::new("foreign memory is rejected, and the buffer returned", foreign),
        Check::new("slots without a connection, and passive ones, accept no data", no_connection),
        Check::new("a slot in use returns the queue pair", taken_slot),
        Check::new("data is received in RTR, before the RTU", before_rtu),
        Check::new("starting PSNs are respected", psn),
        Check::new("nothing posted before RTS is lost", early),
        Check::new("everything at once: connections both ways and datagrams, random lengths", at_once),
    ]
}

fn sizes<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let link = b.connect(0, How::default())?;
    let list = [0, 1, 3, 4, 44, 2047, 2048, 2049, 4095, 4096, 4097, 8192, 20_000, 0, LARGEST - 1, LARGEST];
    for (n, len) in list.into_iter().enumerate() {
        b.send_rc(0, &link, &pattern(len, n as u64))?;
        let got = b.messages(1, 1)?;
        same!(got[0].bytes.len(), len, "length");
        hold!(got[0].bytes == pattern(len, n as u64), "{len} bytes arrived changed");
        same!((got[0].source, got[0].qpn), (Source::Rc, link.qpn[1]), "source and queue pair");
        b.freed(0, n + 1)?;
    }
    hold!(b.ends.iter().all(|e| e.faults.is_empty()), "faults: {:?}", b.ends[0].faults);
    Ok(())
}

fn mtus<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    for (n, mtu) in [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096].into_iter().enumerate() {
        let link = b.connect(n as u16, How { mtu, ..How::default() })?;
        let m = mtu.bytes();
        for len in [m - 1, m, m + 1, 7 * m + 5] {
            b.send_rc(0, &link, &pattern(len, m as u64))?;
            let got = b.messages(1, 1)?;
            hold!(got[0].bytes == pattern(len, m as u64), "{len} bytes at MTU {m}: {}", got[0].bytes.len());
        }
    }
    Ok(())
}

fn segments<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let link = b.connect(0, How::default())?;
    let bytes = pattern(60_000, 3);
    let (mut most, mut sent) = (0, 0);
    for count in 1..64 {
        // Odd lengths, so that segments and packets have different boundaries.
        let len = (count * 937).min(bytes.len());
        let chain = b.ends[0].chain(&bytes[..len], len.div_ceil(count))?;
        let made = chain.segment_count();
        match b.ends[0].queues.send_rc(link.slot, chain) {
            Ok(()) => {
                same!(most + 1, count, "segments accepted, after some were rejected");
                most = count;
                sent += 1;
                let got = b.messages(1, 1)?;
                hold!(got[0].bytes == bytes[..len], "{made} segments arrived changed");
                b.freed(0, sent)?;
            }
            Err(refused) => {
                same!(refused.error, PostError::TooManySegments, "{made} segments");
                same!(refused.buf.segment_count(), made, "the returned buffer");
            }
        }
    }
    hold!(most >= 17, "only {most} segments are accepted: too few for 65,524 bytes");
    Ok(())
}

fn both_ways<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    const ROUNDS: u64 = 12;
    b.start()?;
    let link = b.connect(0, How { passive: false, ..How::default() })?;
    let to = [b.to(0, false, QKEY)?, b.to(1, false, QKEY)?];
    let lengths = [0, 100, 5000, LARGEST, 1, 1500, 30_000];
    for round in 0..ROUNDS {
        let len = |from: u64| lengths[(round + 3 * from) as usize % lengths.len()];
        for from in 0..2 {
            let seed = round * 2 + from;
            b.send_rc(from as usize, &link, &pattern(len(from), seed))?;
            b.send_ud(from as usize, &to[from as usize], &pattern(1000, seed + 5000))?;
        }
        for at in 0..2_usize {
            let seed = round * 2 + 1 - at as u64;
            for message in b.messages(at, 2)? {
                let expected = match message.source {
                    Source::Rc | Source::RcInvalidated(_) => pattern(len(1 - at as u64), seed),
                    Source::Ud(_) => pattern(1000, seed + 5000),
                };
                hold!(message.bytes == expected, "round {round}, end {at}: {:?}", message.source);
            }
        }
    }
    b.freed(0, 2 * ROUNDS as usize)?;
    b.freed(1, 2 * ROUNDS as usize)
}

fn several<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let mut links = Vec::new();
    for slot in 0..6 {
        links.push(b.connect(slot, How { psn: [slot.into(), 9], ..How::default() })?);
    }
    for round in 0..5_u64 {
        for (n, link) in links.iter().enumerate() {
            b.send_rc(0, link, &pattern(500 + 100 * n, round))?;
        }
        let mut got = b.messages(1, links.len())?;
        for (n, link) in links.iter().enumerate() {
            let Some(at) = got.iter().position(|m| m.qpn == link.qpn[1]) else {
                return wrong(format!("nothing on connection {n}"));
            };
            let message = got.swap_remove(at);
            hold!(message.bytes == pattern(500 + 100 * n, round), "round {round}, connection {n}");
        }
    }
    Ok(())
}

fn many<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    const COUNT: usize = 203;
    b.start()?;
    let link = b.connect(0, How::default())?;
    let mut got = Vec::new();
    for sent in 0..COUNT {
        let buf = b.ends[0].buffer(&pattern(sent * 7, sent as u64))?;
        let mut refused = b.ends[0].queues.send_rc(link.slot, buf).err();
        while let Some(again) = refused.take() {
            same!(again.error, PostError::Full, "error");
            b.turn();
            refused = b.ends[0].queues.send_rc(link.slot, again.buf).err();
        }
    }
    while got.len() < COUNT {
        got.extend(b.messages(1, 1)?);
    }
    for (n, message) in got.iter().enumerate() {
        hold!(message.bytes == pattern(n * 7, n as u64), "message {n}");
    }
    b.freed(0, COUNT)?;
    same!(b.ends[0].queues.rc_outstanding(link.slot), 0, "sends outstanding");
    hold!(b.ends.iter().all(|e| e.faults.is_empty()), "faults: {:?}", b.ends[0].faults);
    Ok(())
}

fn full<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let link = b.connect(0, How::default())?;
    let mut taken = 0;
    loop {
        let buf = b.ends[0].buffer(&pattern(60, taken))?;
        match b.ends[0].queues.send_rc(link.slot, buf) {
            Ok(()) => taken += 1,
            Err(refused) => {
                same!(refused.error, PostError::Full, "error");
                hold!(refused.buf.data() == pattern(60, taken), "the returned buffer");
                break;
            }
        }
        hold!(taken < 1 << 16, "the send queue never fills up");
    }
    hold!(taken >= 63, "only {taken} of 64 sends fit");
    let mut got = Vec::new();
    while got.len() < taken as usize {
        got.extend(b.messages(1, 1)?);
    }
    b.freed(0, taken as usize)?;
    for (n, message) in got.iter().enumerate() {
        hold!(message.bytes == pattern(60, n as u64), "message {n}");
    }
    b.send_rc(0, &link, b"room again")?;
    same!(b.messages(1, 1)?[0].bytes, b"room again", "data");
    Ok(())
}

fn foreign<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let link = b.connect(0, How::default())?;
    let config = PoolConfig { count: 4, data_room: 2048, cache: 0, socket: -1 };
    let Ok(pool) = Pool::create("conformance-strange", &config) else {
        return wrong("no memory for another pool");
    };
    let Some(tail) = pool.copy_from_slice(b"foreign") else { return wrong("the pool is empty") };
    let mut chain = b.ends[0].buffer(b"ours")?;
    chain.append_chain(tail);
    match b.ends[0].queues.send_rc(link.slot, chain) {
        Ok(()) => return wrong("unregistered memory was accepted"),
        Err(refused) => {
            same!(refused.error, PostError::NotRegistered, "error");
            same!((refused.buf.len(), refused.buf.segment_count()), (11, 2), "the returned buffer");
        }
    }
    b.send_rc(0, &link, b"ours")?;
    same!(b.messages(1, 1)?[0].bytes, b"ours", "data");
    Ok(())
}

fn no_connection<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let link = b.connect(2, How::default())?;
    for (end, slot) in [(0, RcSlot(1)), (0, RcSlot(u16::MAX)), (1, link.slot)] {
        let buf = b.ends[end].buffer(b"nowhere")?;
        match b.ends[end].queues.send_rc(slot, buf) {
            Ok(()) => return wrong(format!("slot {} of end {end} takes data", slot.0)),
            Err(refused) => {
                same!(refused.error, PostError::NoConnection, "error");
                same!(refused.buf.data(), b"nowhere", "the returned buffer");
            }
        }
    }
    same!(b.ends[0].queues.post_drain(RcSlot(1)), Err(PostError::NoConnection), "drain request");
    hold!(b.ends[0].queues.remove_rc(RcSlot(1)).is_none(), "an empty slot is not empty");
    same!(b.ends[0].queues.rc_outstanding(RcSlot(u16::MAX)), 0, "outstanding nowhere");
    Ok(())
}

fn taken_slot<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    use pmd::hca::{Backend, RcConfig};
    b.start()?;
    let link = b.connect(0, How::default())?;
    let config = RcConfig {
        queues: crate::bench::WORKER,
        port: b.lab.port(),
        beside: UD,
        send_depth: 4,
        passive: false,
    };
    for slot in [link.slot, RcSlot(u16::MAX)] {
        let rc = b.ends[0].hca.create_rc(&config)?;
        let qpn = L::Hca::rc_qpn(&rc);
        match b.ends[0].queues.insert_rc(slot, rc) {
            Ok(()) => return wrong(format!("slot {} was assigned twice, or does not exist", slot.0)),
            Err(rc) => {
                same!(L::Hca::rc_qpn(&rc), qpn, "the returned queue pair");
                b.ends[0].hca.destroy_rc(rc)?;
            }
        }
    }
    b.send_rc(0, &link, b"still there")?;
    same!(b.messages(1, 1)?[0].bytes, b"still there", "data");
    Ok(())
}

fn before_rtu<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let how = How { far: QpState::Rtr, ..How::default() };
    let link = b.connect(0, how)?;
    b.send_rc(0, &link, &pattern(9000, 1))?;
    let got = b.messages(1, 1)?;
    hold!(got[0].bytes == pattern(9000, 1), "the message arrived changed");
    same!(b.ends[1].state(link.qpn[1])?, QpState::Rtr, "state");
    use pmd::hca::Control;
    b.ends[1].hca.modify_qp(link.qpn[1], &crate::bench::rc_to_send(how.psn[1], &how))?;
    b.send_rc(0, &link, &pattern(9000, 2))?;
    hold!(b.messages(1, 1)?[0].bytes == pattern(9000, 2), "the second message arrived changed");
    b.freed(0, 2)
}

/// The responder treats a PSN ahead of the expected one as a loss, and never acknowledges it.
fn psn<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let how = How { timeout: 8, retry: 1, expected: Some([0x100, 0]), psn: [0x105, 0], ..How::default() };
    let link = b.connect(0, how)?;
    b.send_rc(0, &link, b"too far ahead")?;
    b.until("the sender gives up", |b| !b.ends[0].faults_of(link.qpn[0]).is_empty())?;
    b.linger(Duration::from_millis(2));
    same!(b.ends[1].messages.len(), 0, "messages received");
    use pmd::hca::{QpFault, WcStatus};
    same!(
        b.ends[0].faults_of(link.qpn[0]),
        [QpFault::Send(WcStatus::RetryExceeded), QpFault::Flushed],
        "faults"
    );
    // Each direction has its own PSNs.
    let how = How { passive: false, psn: [0x7f_ffff, 0xff_ffff], ..How::default() };
    let link = b.connect(1, how)?;
    for n in 0..4 {
        b.send_rc(0, &link, &pattern(5000, n))?;
        b.send_rc(1, &link, &pattern(6000, n))?;
        hold!(b.messages(1, 1)?[0].bytes == pattern(5000, n), "message {n} to end 1");
        hold!(b.messages(0, 1)?[0].bytes == pattern(6000, n), "message {n} to end 0");
    }
    Ok(())
}

/// A device may send it or drop it. The buffer is not lost in either case.
fn early<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    for (slot, far) in [(0, QpState::Reset), (1, QpState::Init), (2, QpState::Rtr)] {
        // End 1 is early.
        let how = How { passive: false, far, ..How::default() };
        let link = b.connect(slot, how)?;
        let before = b.ends[1].freed;
        let mut taken = 0;
        for n in 0..3 {
            let buf = b.ends[1].buffer(&pattern(2000, n))?;
            taken += usize::from(b.ends[1].queues.send_rc(link.slot, buf).is_ok());
        }
        b.linger(Duration::from_millis(5));
        let back = b.ends[1].freed - before;
        hold!(back <= taken, "{back} buffers returned of {taken}, in {far:?}");
        b.ends[0].messages.clear();
    }
    Ok(())
}

/// Each message starts with its connection and its number on that connection.
fn at_once<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    const LINKS: usize = 4;
    const MESSAGES: u32 = 60;
    b.start()?;
    let mut links = Vec::new();
    for slot in 0..LINKS as u16 {
        let psn = [0xff_ff00 + u32::from(slot), u32::from(slot)];
        // Half a second: on a busy machine the outstanding data takes longer than the usual timeout, and
        // early retransmissions increase the load.
        let how = How { passive: false, psn, mtu: Mtu::B1024, timeout: 17, ..How::default() };
        links.push(b.connect(slot, how)?);
    }
    let to = [b.to(0, false, QKEY)?, b.to(1, false, QKEY)?];
    let seed = |at: usize, n: u32| (at as u64) << 32 | u64::from(n);
    let bytes = |at: usize, n: u32| {
        // Usually short, sometimes of maximum length.
        let dice = pattern(4, seed(at, n) ^ 0x5555);
        let most = [200, 1500, 5000, LARGEST - 8][usize::from(dice[0] & 3)];
        let len = usize::from(u16::from_le_bytes([dice[1], dice[2]])) % most;
        let mut bytes = pattern(8 + len, seed(at, n));
        bytes[..8].copy_from_slice(&seed(at, n).to_be_bytes());
        bytes
    };
    // Sent and received messages, by direction and connection.
    let (mut sent, mut received) = ([0; 2 * LINKS], [0; 2 * LINKS]);
    let mut datagrams = 0;
    let end = std::time::Instant::now() + 2 * crate::bench::LIMIT;
    while received != [MESSAGES; 2 * LINKS] {
        hold!(std::time::Instant::now() < end, "received so far: {received:?}; sent: {sent:?}");
        for at in 0..2 * LINKS {
            if sent[at] < MESSAGES {
                // All of it may be outstanding.
                let Ok(buf) = b.ends[at % 2].buffer(&bytes(at, sent[at])) else { continue };
                match b.ends[at % 2].queues.send_rc(links[at / 2].slot, buf) {
                    Ok(()) => sent[at] += 1,
                    Err(refused) => {
                        same!(refused.error, PostError::Full, "error; faults: {:?}", b.ends[at % 2].faults)
                    }
                }
            }
        }
        for from in [0, 1] {
            // Datagrams may be lost, but must not be changed.
            let Ok(buf) = b.ends[from].buffer(&pattern(700, 7)) else { continue };
            drop(b.ends[from].queues.send_ud(UD, &to[from], buf));
        }
        b.turn();
        for to in [0, 1] {
            for message in std::mem::take(&mut b.ends[to].messages) {
                if message.source != Source::Rc {
                    hold!(message.bytes == pattern(700, 7), "a datagram arrived changed");
                    datagrams += 1;
                    continue;
                }
                let Some(link) = links.iter().position(|l| l.qpn[to] == message.qpn) else {
                    return wrong(format!("a message on {}, which is not a connection", message.qpn));
                };
                let at = 2 * link + (1 - to);
                let expected = bytes(at, received[at]);
                let (length, whole) = (message.bytes.len(), expected.len());
                hold!(
                    message.bytes == expected,
                    "message {} of {at}: {length} bytes of {whole}",
                    received[at]
                );
                received[at] += 1;
            }
        }
    }
    hold!(datagrams > 0, "no datagram arrived");
    hold!(b.ends.iter().all(|e| e.faults.is_empty()), "faults: {:?}", b.ends[0].faults);
    Ok(())
}
