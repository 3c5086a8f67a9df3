//! The transitions of a queue pair use the values of REQ and REP (IBA 12.9.5, 12.6.5, 12.6.8).

use ib_wire::cm::{Message, RejectReason, Reply, Request};
use ib_wire::sa::{PathRecord, SaMad, attribute};
use ib_wire::{Mtu, TimeoutCode};

use super::fabric::{Fabric, ms, secs};

fn handshake(f: &Fabric) -> (Box<Request>, Box<Reply>) {
    let (mut req, mut rep) = (None, None);
    for mad in &f.cm_mads {
        match Message::parse(&mad.bytes) {
            Ok((_, Message::Request(request))) => req = Some(Box::new(request)),
            Ok((_, Message::Reply(reply))) => rep = Some(Box::new(reply)),
            _ => {}
        }
    }
    (req.expect("a REQ"), rep.expect("a REP"))
}

#[test]
fn both_ends_take_psns_mtu_and_timeout_from_the_messages() {
    for seed in 1..4 {
        let mut f = Fabric::new(seed);
        f.add(1, |_| {});
        f.add(1, |_| {});
        f.run(ms(100));
        f.resolve(0, 1);
        f.run(ms(200));
        let (req, rep) = handshake(&f);
        let active = f.nodes[0].qps.values().find(|q| !q.passive).expect("active");
        let (receive, send) = (active.receive.expect("RTR"), active.send.expect("RTS"));
        // The starting PSN of a message is the first PSN that its receiver sends.
        assert_eq!((send.sq_psn, receive.rq_psn), (rep.starting_psn, req.starting_psn));
        assert_eq!(receive.dest_qpn, rep.local_qpn);
        assert_eq!(req.path_mtu.mtu(), Some(receive.path_mtu));
        // Life time for both directions, or the peer's delay if it is longer.
        let life = req.primary.ack_timeout;
        assert!(send.timeout >= life.code().max(rep.target_ack_delay.code()), "{send:?}");
        assert!(send.timeout <= life.code().max(rep.target_ack_delay.code()) + 1, "{send:?}");

        let passive = f.nodes[1].qps.values().find(|q| q.passive).expect("passive");
        let (receive, send) = (passive.receive.expect("RTR"), passive.send.expect("RTS"));
        assert_eq!((send.sq_psn, receive.rq_psn), (req.starting_psn, rep.starting_psn));
        assert_eq!(receive.dest_qpn, req.local_qpn);
        assert_eq!(Some(receive.path_mtu), req.path_mtu.mtu());
        assert_eq!(TimeoutCode::new(send.timeout), req.primary.ack_timeout);
    }
}

#[test]
fn a_path_mtu_that_our_port_does_not_have_is_rejected() {
    let mut f = Fabric::new(1);
    f.add(1, |_| {});
    f.add(1, |_| {});
    f.nodes[1].facts.mtu = Mtu::B2048;
    let (facts, now) = (f.nodes[1].facts, f.now);
    f.nodes[1].link.handle_port(now, facts);
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(ms(200));
    assert!(f.nodes[1].link.cm_counters().rejects_sent(RejectReason::InvalidMtu) >= 1);
    assert_eq!(f.nodes[0].link.counters().dial_rejected_for_good, 0);
    // The path's MTU was out of date: once the path is looked up again the connection comes up.
    let forge = |bytes: &mut [u8; 256]| {
        let mut answer = SaMad::parse(bytes);
        if let Some(path) =
            answer.record::<PathRecord>().filter(|_| answer.header.attribute == attribute::PATH_RECORD)
        {
            answer = SaMad::answer(&answer, &PathRecord { mtu: Mtu::B2048.into(), ..path });
            *bytes = *answer.to_bytes();
        }
    };
    f.forge = Some(Box::new(forge));
    f.run(secs(3));
    f.assert_connected(0, 0, 1);
}
