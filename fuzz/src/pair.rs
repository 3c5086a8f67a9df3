//! Messages between gateways, and the state machine that receives them.
use std::time::{Duration, Instant};

use ib_wire::{Gid, Guid, Lid};
use ipoib::net::ethernet::MacAddress;
use ipoib::net::probe::probe_nonce;
use ipoib_fwd::segment::pair::message::Message;
use ipoib_fwd::segment::pair::{Identity, Pair, SegmentId, Settings, Side, Station};

/// One input.
pub fn run(bytes: &[u8]) {
    if let Ok(message) = Message::parse(bytes, None) {
        assert_eq!(Message::parse(&message.to_bytes(None), None), Ok(message));
    }
    let mut now = Instant::now();
    let settings =
        Settings { priority: 100, hello: Duration::from_millis(300), segment: SegmentId(0), key: None };
    let station = Station { mac: MacAddress::ZERO, lid: Lid(1), gid: Gid::ZERO, qpns: Vec::new() };
    let mut pair = Pair::new(now, settings, Identity { guid: Guid(5), instance: 5 }, station);
    for side in Side::BOTH {
        pair.handle_side(now, side, true);
    }
    // Messages, each after its length, with some time between them.
    let mut rest = bytes;
    while let Some((&[length, wait], more)) = rest.split_first_chunk::<2>() {
        let (message, more) = more.split_at(usize::from(length).min(more.len()));
        rest = more;
        now += Duration::from_millis(u64::from(wait) * 4);
        let side = if wait & 1 == 0 { Side::Ethernet } else { Side::InfiniBand };
        let _ = pair.handle_message(now, side, message);
        if let Some(nonce) = probe_nonce(message) {
            pair.handle_probe(now, side, nonce);
        }
        pair.handle_timeout(now);
        assert!(pair.poll_timeout() > now);
        while pair.poll_event().is_some() {}
        while pair.poll_transmit().is_some() {}
        assert!(pair.peers(now).count() <= 8);
    }
}
