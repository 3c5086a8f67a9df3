//! Datagrams.

use std::time::Duration;

use ib_wire::{PKey, QKey, Qpn};
use pmd::hca::{
    Backend, Checksum, Control, HcaError, LinkLayer, PostError, QpState, QpTransition, Queues, Source,
    UdDestination, UdSource,
};
use pmd::mem::{Pool, PoolConfig};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::Check;
use crate::bench::{Bench, Message, QKEY, UD, pattern};
use crate::lab::{Lab, Need, Outcome, hold, same, wrong};

pub(super) fn checks<L: Lab>() -> Vec<Check<L>> {
    vec![
        Check::new("every size from 0 to the MTU, both ways", sizes),
        Check::new("the completion reports the sender", sender),
        Check::new("the completion reports the source LID", source_lid),
        Check::new("a GRH is in front of the data", with_grh),
        Check::new("the completion reports a missing GRH", without_grh),
        Check::new("segments are gathered, too many are rejected", segments),
        Check::new("datagrams longer than the MTU never arrive", over_mtu),
        Check::new("a wrong Q_Key is dropped, and a changed one takes effect", qkey),
        Check::new("a controlled Q_Key in a send is replaced by the queue pair's own", controlled_qkey),
        Check::new("a send without a Q_Key uses the queue pair's own", own_qkey),
        Check::new("controlled Q_Keys need privilege", privilege),
        Check::new("a wrong P_Key is dropped", partition),
        Check::new("a wrong queue pair number is dropped", stray),
        Check::new("an empty receive queue drops, and continues when refilled", dry),
        Check::new("many in order, one completion for several", many),
        Check::new("a full send queue returns the buffer", full),
        Check::new("foreign memory is rejected, and the buffer returned", foreign),
        Check::new("nothing posted before RTS is lost", early),
        Check::new("closed, reset and opened again, it works as before", reopened),
        Check::new("IPv4 header checks are reported correctly", ipv4_headers),
    ]
}

fn source(message: &Message) -> Outcome<UdSource> {
    match message.source {
        Source::Ud(source) => Ok(source),
        Source::Rc | Source::RcInvalidated(_) => wrong("a datagram arrived as a message of a connection"),
    }
}

fn sizes<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let mtu = b.ends[0].hca.port(b.lab.port())?.active_mtu.bytes();
    for from in [0, 1] {
        let to = b.to(from, false, QKEY)?;
        for (n, len) in [0, 1, 3, 4, 44, 255, 1500, 2044, 2048, mtu - 4, mtu].into_iter().enumerate() {
            b.send_ud(from, &to, &pattern(len, n as u64))?;
            let got = b.messages(1 - from, 1)?;
            hold!(
                got[0].bytes == pattern(len, n as u64),
                "{len} bytes from end {from}: {}",
                got[0].bytes.len()
            );
        }
    }
    Ok(())
}

fn sender<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let to = b.to(0, false, QKEY)?;
    b.send_ud(0, &to, b"who?")?;
    let got = b.messages(1, 1)?;
    let from = source(&got[0])?;
    same!(got[0].qpn, b.ends[1].ud, "receiver");
    same!(from.qpn, b.ends[0].ud, "sender");
    same!((from.pkey_index, from.multicast), (0, false), "P_Key index and multicast");
    // At Ethernet ports mlx5 reports the kind of IP header in this field.
    if b.ends[1].hca.port(b.lab.port())?.link_layer == LinkLayer::InfiniBand {
        same!(from.sl.get(), 0, "service level");
    }
    Ok(())
}

fn source_lid<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.need(Need::SourceLid)?;
    b.start()?;
    let to = b.to(0, false, QKEY)?;
    b.send_ud(0, &to, b"where?")?;
    let got = b.messages(1, 1)?;
    same!(source(&got[0])?.slid, b.ends[0].hca.port(b.lab.port())?.lid, "source LID");
    Ok(())
}

fn with_grh<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let to = b.to(0, true, QKEY)?;
    b.send_ud(0, &to, b"global")?;
    let got = b.messages(1, 1)?;
    hold!(source(&got[0])?.has_grh, "the completion reports no GRH");
    let grh = &got[0].grh;
    same!(grh[0] >> 4, 6, "IP version of the GRH");
    same!(grh[8..24], b.gid(0)?.0, "source GID");
    same!(grh[24..40], b.gid(1)?.0, "destination GID");
    same!(got[0].bytes, b"global", "data");
    Ok(())
}

fn without_grh<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.need(Need::NoGrh)?;
    b.start()?;
    let to = b.to(0, false, QKEY)?;
    b.send_ud(0, &to, b"local")?;
    let got = b.messages(1, 1)?;
    hold!(!source(&got[0])?.has_grh, "the completion reports a GRH");
    Ok(())
}

fn segments<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let to = b.to(0, false, QKEY)?;
    let bytes = pattern(1920, 5);
    for count in [1, 2, 3, 4, 6, 40] {
        let chain = b.ends[0].chain(&bytes, bytes.len().div_ceil(count))?;
        same!(chain.segment_count(), count, "segments made");
        match b.ends[0].queues.send_ud(UD, &to, chain) {
            Ok(()) => {
                hold!(count < 40, "{count} segments are accepted");
                let got = b.messages(1, 1)?;
                hold!(got[0].bytes == bytes, "{count} segments arrive as {} bytes", got[0].bytes.len());
            }
            Err(refused) => {
                hold!(count > 2, "{count} segments are rejected");
                same!(refused.error, PostError::TooManySegments, "{count} segments");
                same!(refused.buf.segment_count(), count, "the returned buffer");
            }
        }
    }
    Ok(())
}

/// IBA C10-93.1.1: no packet, and no error. Devices that complete with an error stop in SQE.
fn over_mtu<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let to = b.to(0, false, QKEY)?;
    let mtu = b.ends[0].hca.port(b.lab.port())?.active_mtu.bytes();
    b.send_ud(0, &to, &pattern(mtu + 1, 1))?;
    b.freed(0, 1)?;
    if b.ends[0].state(b.ends[0].ud)? == QpState::Sqe {
        let ud = b.ends[0].ud;
        b.ends[0].hca.modify_qp(ud, &QpTransition::RecoverSend)?;
    }
    b.send_ud(0, &to, b"next")?;
    let got = b.messages(1, 1)?;
    same!(got[0].bytes, b"next", "what arrived");
    b.freed(0, 2)
}

fn qkey<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let (right, other) = (b.to(0, false, QKEY)?, b.to(0, false, QKey(0x1234))?);
    for _ in 0..3 {
        b.send_ud(0, &other, b"other")?;
    }
    b.send_ud(0, &right, b"right")?;
    let got = b.messages(1, 1)?;
    same!((got.len(), &got[0].bytes[..]), (1, &b"right"[..]), "with the first Q_Key");
    let ud = b.ends[1].ud;
    b.ends[1].hca.modify_qp(ud, &QpTransition::UdQKey(QKey(0x1234)))?;
    b.send_ud(0, &right, b"right")?;
    b.send_ud(0, &other, b"other")?;
    let got = b.messages(1, 1)?;
    same!((got.len(), &got[0].bytes[..]), (1, &b"other"[..]), "with the second Q_Key");
    same!(b.ends[1].state(ud)?, QpState::Rts, "state");
    b.freed(0, 6)
}

fn controlled_qkey<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.need(Need::ControlledQKey)?;
    b.start()?;
    let to = b.to(0, false, QKey(0x8765_4321))?;
    b.send_ud(0, &to, b"own")?;
    same!(b.messages(1, 1)?[0].bytes, b"own", "data");
    Ok(())
}

fn own_qkey<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    const OTHER: QKey = QKey(0x1234);
    b.need(Need::ControlledQKey)?;
    b.start()?;
    let to = b.to(0, false, None)?;
    b.send_ud(0, &to, b"the same")?;
    same!(b.messages(1, 1)?[0].bytes, b"the same", "data");
    let [near, far] = [b.ends[0].ud, b.ends[1].ud];
    b.ends[1].hca.modify_qp(far, &QpTransition::UdQKey(OTHER))?;
    b.send_ud(0, &to, b"another's")?;
    b.freed(0, 2)?;
    // The prepared destination follows the queue pair.
    b.ends[0].hca.modify_qp(near, &QpTransition::UdQKey(OTHER))?;
    b.send_ud(0, &to, b"the same again")?;
    let got = b.messages(1, 1)?;
    same!((got.len(), &got[0].bytes[..]), (1, &b"the same again"[..]), "what arrived");
    Ok(())
}

fn privilege<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.need(Need::Privileges)?;
    b.start()?;
    let key = QKey(0x8000_0b1b);
    let ud = b.ends[0].ud;
    // On a separate thread: after a change of credentials the kernel does not let a thread ring a soft
    // device's doorbell.
    let hca = &mut b.ends[0].hca;
    let without = std::thread::scope(|scope| {
        let without = || {
            let mut fewer = capabilities(None).ok()?;
            fewer.effective.contains(CapabilitySet::NET_RAW).then_some(())?;
            fewer.effective.remove(CapabilitySet::NET_RAW);
            set_capabilities(None, fewer).ok()?;
            Some(hca.modify_qp(ud, &QpTransition::UdQKey(key)))
        };
        scope.spawn(without).join().ok().flatten()
    });
    let Some(without) = without else { return wrong("this check has to run with CAP_NET_RAW") };
    match without {
        Err(HcaError::Environment(text)) => hold!(text.contains("CAP_NET_RAW"), "no remedy: {text}"),
        other => return wrong(format!("without CAP_NET_RAW: {other:?}")),
    }
    b.ends[0].hca.modify_qp(ud, &QpTransition::UdQKey(key))?;
    // The queue pair's Q_Key and the send's are equal, so the datagram passes in any case.
    let to = b.to(1, false, key)?;
    let far = b.ends[1].ud;
    b.ends[1].hca.modify_qp(far, &QpTransition::UdQKey(key))?;
    b.send_ud(1, &to, b"controlled")?;
    same!(b.messages(0, 1)?[0].bytes, b"controlled", "data");
    Ok(())
}

fn partition<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.need(Need::Partitions)?;
    b.start()?;
    let to = b.to(0, false, QKEY)?;
    b.lab.set_pkey(&mut b.ends[1].hca, 0, PKey(0x8001))?;
    b.send_ud(0, &to, b"outsider")?;
    b.freed(0, 1)?;
    b.linger(Duration::from_millis(20));
    same!(b.ends[1].messages.len(), 0, "messages of another partition");
    b.lab.set_pkey(&mut b.ends[1].hca, 0, PKey::DEFAULT)?;
    b.send_ud(0, &to, b"member")?;
    same!(b.messages(1, 1)?[0].bytes, b"member", "data");
    Ok(())
}

fn stray<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let qpn = Qpn::new(b.ends[1].ud.get() ^ 0x55_5500);
    let nobody = UdDestination { av: b.way(0, false)?, qpn, qkey: Some(QKEY) };
    let nobody = b.ends[0].hca.destination(b.lab.port(), &nobody)?;
    let to = b.to(0, false, QKEY)?;
    b.send_ud(0, &nobody, b"stray")?;
    b.send_ud(0, &to, b"known")?;
    let got = b.messages(1, 1)?;
    same!((got.len(), &got[0].bytes[..]), (1, &b"known"[..]), "what arrived");
    b.freed(0, 2)
}

fn dry<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    b.ends[1].refill = false;
    let to = b.to(0, false, QKEY)?;
    let posted = b.ends[1].queues.receives_posted().0 as usize;
    same!(posted, 64, "receives posted");
    for n in 0..posted + 7 {
        b.send_ud(0, &to, &(n as u32).to_be_bytes())?;
        b.freed(0, n + 1)?;
    }
    let got = b.messages(1, posted)?;
    b.linger(Duration::from_millis(20));
    same!((got.len(), b.ends[1].messages.len()), (posted, 0), "datagrams received");
    same!(got[posted - 1].bytes, (posted as u32 - 1).to_be_bytes(), "the last one");
    same!(b.ends[1].queues.receives_posted().0, 0, "receives left");
    b.ends[1].refill = true;
    b.turn();
    b.send_ud(0, &to, b"again")?;
    same!(b.messages(1, 1)?[0].bytes, b"again", "data");
    hold!(b.ends[1].faults.is_empty(), "faults: {:?}", b.ends[1].faults);
    Ok(())
}

fn many<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    const COUNT: usize = 300;
    b.start()?;
    let to = b.to(0, false, QKEY)?;
    let mut got = Vec::new();
    // No more outstanding sends than receives: a datagram without a receive is lost.
    for sent in 0..COUNT {
        b.send_ud(0, &to, &pattern(100 + sent, sent as u64))?;
        if sent % 16 == 15 || sent + 1 == COUNT {
            got.extend(b.messages(1, sent % 16 + 1)?);
            b.freed(0, sent + 1)?;
        }
    }
    same!(got.len(), COUNT, "datagrams received");
    for (n, message) in got.iter().enumerate() {
        hold!(message.bytes == pattern(100 + n, n as u64), "datagram {n}");
    }
    hold!(b.ends[0].faults.is_empty(), "faults: {:?}", b.ends[0].faults);
    Ok(())
}

fn full<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let to = b.to(0, false, QKEY)?;
    let mut taken = 0;
    loop {
        let buf = b.ends[0].buffer(&pattern(60, taken))?;
        match b.ends[0].queues.send_ud(UD, &to, buf) {
            Ok(()) => taken += 1,
            Err(refused) => {
                same!(refused.error, PostError::Full, "error");
                hold!(refused.buf.data() == pattern(60, taken), "the returned buffer");
                break;
            }
        }
        hold!(taken < 1 << 16, "the send queue never fills up");
    }
    // One slot may be reserved by the driver.
    hold!(taken >= 63, "only {taken} of 64 sends fit");
    b.freed(0, taken as usize)?;
    let got = b.messages(1, 64.min(taken as usize))?;
    for (n, message) in got.iter().enumerate() {
        hold!(message.bytes == pattern(60, n as u64), "datagram {n}");
    }
    b.linger(Duration::from_millis(5));
    b.ends[1].messages.clear();
    b.send_ud(0, &to, b"room again")?;
    same!(b.messages(1, 1)?[0].bytes, b"room again", "data");
    Ok(())
}

fn foreign<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let config = PoolConfig { count: 4, data_room: 2048, cache: 0, socket: -1 };
    let Ok(pool) = Pool::create("conformance-foreign", &config) else {
        return wrong("no memory for another pool");
    };
    let Some(buf) = pool.copy_from_slice(b"foreign") else { return wrong("the pool is empty") };
    let to = b.to(0, false, QKEY)?;
    match b.ends[0].queues.send_ud(UD, &to, buf) {
        Ok(()) => wrong("unregistered memory was accepted"),
        Err(refused) => {
            same!(refused.error, PostError::NotRegistered, "error");
            same!(refused.buf.data(), b"foreign", "the returned buffer");
            b.send_ud(0, &to, b"ours")?;
            same!(b.messages(1, 1)?[0].bytes, b"ours", "data");
            Ok(())
        }
    }
}

/// A device may send it or drop it. The buffer is not lost in either case.
fn early<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.ends[1].open_ud(QKEY)?;
    b.ends[1].queues.refill();
    let to = b.to(0, false, QKEY)?;
    let mut taken = 0;
    let mut post = |b: &mut Bench<'_, L>| -> Outcome {
        let buf = b.ends[0].buffer(b"early")?;
        taken += usize::from(b.ends[0].queues.send_ud(UD, &to, buf).is_ok());
        b.linger(Duration::from_millis(3));
        Ok(())
    };
    post(b)?;
    let ud = b.ends[0].ud;
    for to in [QpTransition::UdToInit { pkey_index: 0, qkey: QKEY }, QpTransition::UdToReceive] {
        b.ends[0].hca.modify_qp(ud, &to)?;
        b.ends[0].queues.open_ud(UD);
        post(b)?;
    }
    b.ends[0].hca.modify_qp(ud, &QpTransition::UdToSend { sq_psn: ib_wire::Psn::new(0) })?;
    b.linger(Duration::from_millis(10));
    hold!(b.ends[0].freed <= taken, "{} buffers returned of {taken}", b.ends[0].freed);
    // Datagrams pass now, whatever happened to the earlier ones.
    b.ends[1].messages.clear();
    b.send_ud(0, &to, b"in time")?;
    b.until("a datagram after RTS", |b| b.ends[1].messages.iter().any(|m| m.bytes == b"in time"))
}

/// The gateway does this when the partition changes.
fn reopened<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    for round in 0..4_u64 {
        let (to, back) = (b.to(0, false, QKEY)?, b.to(1, false, QKEY)?);
        for n in 0..100 {
            let seed = round * 1000 + n;
            b.send_ud(0, &to, &pattern(80, seed))?;
            b.send_ud(1, &back, &pattern(90, seed))?;
            let got = [b.messages(1, 1)?, b.messages(0, 1)?];
            hold!(got[0][0].bytes == pattern(80, seed), "round {round}, datagram {n} to end 1");
            hold!(got[1][0].bytes == pattern(90, seed), "round {round}, datagram {n} to end 0");
        }
        // One is in flight or waiting when the queue pair is reset.
        b.send_ud(0, &to, b"lost or not")?;
        b.ends[0].queues.ring();
        for at in [0, 1] {
            let end = &mut b.ends[at];
            end.queues.close_ud(UD);
            end.hca.modify_qp(end.ud, &QpTransition::ToError)?;
            b.until("everything back", |b| b.ends[at].queues.ud_outstanding(UD) == 0)?;
            let end = &mut b.ends[at];
            let refused =
                end.pool.alloc().and_then(|buf| end.queues.send_ud(UD, [&to, &back][at], buf).err());
            hold!(refused.is_some(), "a closed queue pair accepts sends");
            end.hca.modify_qp(end.ud, &QpTransition::ToReset)?;
            same!(end.hca.qp_state(end.ud)?, QpState::Reset, "state");
            end.open_ud(QKEY)?;
        }
        b.linger(Duration::from_millis(5));
        for end in &mut b.ends {
            end.messages.clear();
        }
    }
    Ok(())
}

/// Only a valid header is reported as valid, and always by a device that claims to check.
fn ipv4_headers<L: Lab>(b: &mut Bench<'_, L>) -> Outcome {
    b.start()?;
    let to = b.to(0, false, QKEY)?;
    // IPoIB messages with a plain header and with options.
    let mut plain =
        vec![8, 0, 0, 0, 0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0x66, 0xce, 10, 0, 0, 1, 10, 0, 0, 2];
    plain.extend([0, 9, 0, 9, 0, 8, 0, 0]);
    let mut options =
        vec![8, 0, 0, 0, 0x46, 0, 0, 24, 0, 1, 0, 0, 64, 17, 0x64, 0xd1, 10, 0, 0, 1, 10, 0, 0, 2];
    options.extend([1, 1, 0, 0]);
    let flipped = |m: &[u8], at: usize, by: u8| {
        let mut m = m.to_vec();
        m[at] ^= by;
        m
    };
    let wrong = [
        flipped(&plain, 20, 1),
        flipped(&options, 24, 1),
        flipped(&plain, 4, 0x10),
        flipped(&plain, 0, 0x80),
    ];
    let short = plain[..20].to_vec();
    let looks = b.ends[1].hca.device().checks_ipv4
        && b.ends[1].hca.port(b.lab.port())?.link_layer == LinkLayer::InfiniBand;
    let right = [plain, options].map(|m| (m, if looks { Checksum::Good } else { Checksum::Unknown }));
    let wrong = wrong.into_iter().chain([short]).map(|m| (m, Checksum::Unknown));
    for (message, expected) in right.into_iter().chain(wrong) {
        b.send_ud(0, &to, &message)?;
        let got = b.messages(1, 1)?;
        hold!(got[0].bytes == message, "{:x?}", got[0].bytes);
        hold!(got[0].checksum == expected, "{:?} for {message:x?}", got[0].checksum);
    }
    Ok(())
}
