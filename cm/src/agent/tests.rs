use ib_wire::mad::{MadAddress, MadStatus, Method};
use ib_wire::{ServiceLevel, sa};

use super::*;

const TRIES: Attempts = Attempts { timeout: Duration::from_secs(1), tries: 3 };

fn request(lid: u16) -> Mad {
    let mad = sa::SaMad::request(Method::Get, Tid(0), sa::PathMask::DGID.bits(), &sa::PathRecord::default());
    Mad { peer: MadAddress::gsi(Lid(lid), ServiceLevel::new(0)), bytes: mad.to_bytes() }
}

fn with(mad: &Mad, change: impl FnOnce(&mut MadHeader)) -> Mad {
    let mut out = mad.clone();
    let mut header = out.header();
    change(&mut header);
    header.put(&mut out.bytes);
    out
}

/// Returns a response: the same bytes with the response method.
fn answer(mad: &Mad) -> Mad {
    let response = mad.header().method.response().unwrap();
    Mad { peer: mad.peer.reply(), ..with(mad, |h| h.method = response) }
}

#[test]
fn a_lost_request_is_sent_again_and_then_given_up() {
    let mut agent = Agent::new(1, 4);
    let t = Instant::now();
    let id = agent.request(t, request(1), TRIES).unwrap();
    let first = agent.poll_transmit().unwrap();
    for n in 1..3 {
        assert_eq!(agent.poll_timeout(), Some(t + Duration::from_secs(n)));
        agent.handle_timeout(t + Duration::from_secs(n));
        assert_eq!(agent.poll_transmit().as_ref(), Some(&first), "the same datagram again");
        assert_eq!(agent.poll_expired(), None);
    }
    agent.handle_timeout(t + Duration::from_secs(3));
    assert_eq!((agent.poll_transmit(), agent.poll_expired()), (None, Some(id)));
    assert_eq!((agent.outstanding(), agent.poll_timeout()), (0, None));
}

#[test]
fn a_response_is_matched_by_the_lower_half_of_its_tid_and_only_once() {
    let mut agent = Agent::new(1, 4);
    let id = agent.request(Instant::now(), request(1), TRIES).unwrap();
    let sent = agent.poll_transmit().unwrap();
    let response = with(&answer(&sent), |h| h.tid.0 = h.tid.0 & 0xffff_ffff | 7 << 40);
    assert_eq!(agent.handle_mad(&response), Handled::Response(id));
    assert_eq!(agent.handle_mad(&response), Handled::Stray, "a duplicate");
    assert_eq!(agent.poll_timeout(), None);
}

#[test]
fn what_is_not_the_answer_is_not_taken() {
    let mut agent = Agent::new(1, 4);
    let id = agent.request(Instant::now(), request(1), TRIES).unwrap();
    let sent = agent.poll_transmit().unwrap();
    let good = answer(&sent);
    assert_eq!(agent.handle_mad(&sent), Handled::Unsolicited, "a request");
    let strays = [
        with(&good, |h| h.tid.0 ^= 1),
        with(&good, |h| h.class = MgmtClass::Perf),
        with(&good, |h| h.method = Method::DeleteResp),
        with(&good, |h| h.attribute = 0x38),
        Mad { peer: MadAddress { lid: Lid(9), ..good.peer }, ..good.clone() },
    ];
    for stray in &strays {
        assert_eq!(agent.handle_mad(stray), Handled::Stray);
    }
    assert_eq!(agent.handle_mad(&with(&good, |h| h.status = MadStatus::BUSY)), Handled::Busy);
    assert_eq!(agent.handle_mad(&good), Handled::Response(id));
}

#[test]
fn the_number_outstanding_is_bounded() {
    let mut agent = Agent::new(1, 2);
    let t = Instant::now();
    let first = agent.request(t, request(1), TRIES).unwrap();
    agent.request(t, request(1), TRIES).unwrap();
    assert_eq!(agent.request(t, request(1), TRIES), Err(AgentError::Full(2)));
    agent.cancel(first);
    assert!(agent.request(t, request(1), TRIES).is_ok());
}
