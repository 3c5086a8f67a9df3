//! Events that the control lcore sends to the clients that subscribed to them (`ctl events`), and the checks
//! that produce them.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use dataplane::telemetry::{Feed, Reply};
use pmd::eth::{EthError, EthLink};
use pmd::hca::Backend;
use serde_json::{Value, json};

use super::GatewayControl;
use super::duties::SegmentDuty;
use crate::counter::SegmentTotals;
use crate::event::{Kind, What, object};
use crate::forward::SegmentIndex;
use ipoib::bucket::Bucket;
use ipoib::drop_reason::DropReason;

/// Events of one kind of one segment: rate per second, and burst. The network must not flood a client.
const LIMIT: (u32, u32) = (20, 200);

/// The event feed and its subscribers.
#[derive(Debug)]
pub(in crate::gateway) struct Events {
    feed: Feed,
    /// By segment (`None`: of no segment) and kind.
    limits: BTreeMap<(Option<u8>, Kind), Limit>,
    seen: Seen,
}

#[derive(Debug)]
struct Limit {
    bucket: Bucket,
    left_out: u64,
}

/// State of the ports and counters at the last check.
#[derive(Debug, Default)]
struct Seen {
    /// Indexed by [`crate::forward::EthernetIndex`].
    ethernets: Vec<EthLink>,
    srq_low: u64,
    /// Packets that the storm guards dropped, by segment.
    storms: BTreeMap<u8, u64>,
}

impl Seen {
    /// Packets that a segment's storm guard has dropped since the last check; zero at the first one.
    fn storm(&mut self, of: SegmentIndex, dropped: u64) -> u64 {
        dropped.saturating_sub(self.storms.insert(of.0, dropped).unwrap_or(dropped))
    }
}

fn lost(n: u64) -> Value {
    let text = format!("{n} events were lost: they came faster than they were read");
    object(SystemTime::now(), What::Lost, None, text, json!({ "lost": n }))
}

impl Events {
    pub(in crate::gateway) fn new() -> Self {
        Self { feed: Feed::new(lost), limits: BTreeMap::new(), seen: Seen::default() }
    }

    /// Subscribes a client to events of some kinds, or of all.
    pub(super) fn follow(&mut self, words: Option<&str>) -> Reply {
        let set = Kind::set(words);
        let kinds: Vec<&str> =
            Kind::ALL.iter().filter(|kind| set & kind.bit() != 0).map(|kind| kind.word()).collect();
        Reply::Follow(self.feed.follow(set | Kind::Gateway.bit(), json!({ "following": kinds })))
    }

    /// Sends an event, of a segment or of none, with its text and facts, unless the limit of its kind is
    /// reached.
    pub(super) fn report(
        &mut self,
        now: Instant,
        what: What,
        of: Option<&SegmentDuty>,
        said: impl FnOnce() -> (String, Value),
    ) {
        let kind = what.kind();
        if !self.feed.is_followed(kind.bit()) {
            return;
        }
        // Actions of an operator are always reported.
        let is_limited = !matches!(kind, Kind::Reload | Kind::Gateway);
        let (rate, burst) = LIMIT;
        let new = || Limit { bucket: Bucket::new(now, burst, rate), left_out: 0 };
        let limit = self.limits.entry((of.map(|duty| duty.index.0), kind)).or_insert_with(new);
        if is_limited && !limit.bucket.take(now) {
            limit.left_out += 1;
            return;
        }
        let (text, facts) = said();
        let segment = of.map(|duty| duty.name.as_str());
        self.feed.tell(kind.bit(), object(SystemTime::now(), what, segment, text, facts));
    }

    /// Reports the number of suppressed events, and of events that clients have lost.
    pub(super) fn settle(&mut self, now: Instant) {
        self.feed.settle();
        for ((_, kind), limit) in &mut self.limits {
            if limit.left_out > 0 && limit.bucket.take(now) {
                let n = std::mem::take(&mut limit.left_out);
                let text = format!("{n} events of kind {} were left out: they were too many", kind.word());
                let facts = json!({"left_out": n, "of": kind.word()});
                let event = object(SystemTime::now(), What::LeftOut, None, text, facts);
                self.feed.tell(kind.bit(), event);
            }
        }
    }

    /// The index of a removed segment becomes free: its counters do not apply to the next segment with that
    /// index.
    pub(super) fn forget_drops(&mut self, of: SegmentIndex) {
        self.seen.storms.remove(&of.0);
    }

    /// Ends the feed: no events follow.
    pub(super) fn end(&mut self) {
        self.feed.end();
    }
}

impl<B: Backend> GatewayControl<B> {
    /// Checks the Ethernet ports. Their initial state is not reported.
    pub(super) fn watch_ethernets(&mut self, now: Instant) {
        let Self { events, ethernets, .. } = self;
        let links = ethernets.iter().map(|end| end.port.link()).collect::<Vec<_>>();
        let before = std::mem::replace(&mut events.seen.ethernets, links.clone());
        for ((end, EthLink { up, gone, .. }), was) in ethernets.iter().zip(links).zip(before) {
            let name = end.port.name();
            if gone && !was.gone {
                let text = EthError::Gone(name.to_owned()).to_string();
                let what = What::InterfaceGone;
                tracing::error!(event = what.journal(), "{text}");
                events.report(now, what, None, || (text, json!({ "port": name })));
            }
            if up != was.up {
                let what = if up { What::Up } else { What::Down };
                let word = what.word();
                tracing::info!(event = what.journal(), "{name}: link {word}");
                let said = || (format!("Ethernet port {name} is {word}"), json!({"port": name, "up": up}));
                events.report(now, what, None, said);
            }
        }
    }

    /// Checks for alarms, once a second.
    pub(super) fn watch_alarms(&mut self, now: Instant) {
        let srq_low = self.srq_low();
        let before = std::mem::replace(&mut self.events.seen.srq_low, srq_low);
        if srq_low > before {
            let n = srq_low - before;
            let text =
                format!("shared receive queues ran low {n} times: peers send faster than workers receive");
            self.events.report(now, What::SrqLow, None, || (text, json!({ "times": n })));
        }
        let Self { events, segments, segment_readers, .. } = self;
        for duty in segments.iter() {
            let dropped = SegmentTotals::of(segment_readers.iter(), duty.index).drops(DropReason::Storm);
            let n = events.seen.storm(duty.index, dropped);
            if n > 0 {
                let text = format!("the storm guard has dropped {n} packets to groups or to all in a second");
                events.report(now, What::Storm, Some(duty), || (text, json!({ "packets": n })));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// The values in a client's queue, by kind.
    fn queued(events: &mut Events, run: impl FnOnce(&mut Events)) -> u64 {
        assert!(!events.feed.is_followed(!0));
        let Reply::Follow(client) = events.follow(Some("address")) else { panic!("no subscription") };
        run(events);
        client.waiting() as u64
    }

    #[test]
    fn what_a_segment_that_is_gone_dropped_is_no_alarm_of_the_next() {
        let mut events = Events::new();
        let (one, other) = (SegmentIndex(1), SegmentIndex(2));
        assert_eq!([0, 10, 10].map(|all| events.seen.storm(one, all)), [0, 10, 0]);
        assert_eq!([5, 6].map(|all| events.seen.storm(other, all)), [0, 1]);
        // The guard counts until the segment is gone; then another segment has its index.
        events.forget_drops(one);
        assert_eq!([50, 53].map(|all| events.seen.storm(one, all)), [0, 3]);
        assert_eq!(events.seen.storm(other, 8), 2);
    }

    #[test]
    fn a_neighbour_that_makes_events_without_end_makes_a_bounded_number() {
        let (mut events, now) = (Events::new(), Instant::now());
        let move_often = |events: &mut Events, at: Instant, n: u32| {
            for _ in 0..n {
                events.report(at, What::Moved, None, || (String::new(), Value::Null));
            }
        };
        move_often(&mut events, now, 1000);
        assert!(events.limits.is_empty(), "nobody follows");
        let n = queued(&mut events, |events| {
            move_often(events, now, 1000);
            events.report(now, What::Up, None, || panic!("is not followed"));
            events.settle(now);
        });
        assert_eq!(n, u64::from(LIMIT.1));
        let left_out: u64 = events.limits.values().map(|limit| limit.left_out).sum();
        assert_eq!(left_out, 800);
        events.feed.settle();
        // When there is room again, it is reported once how many were left out.
        let n = queued(&mut events, |events| {
            events.settle(now + Duration::from_secs(1));
            events.settle(now + Duration::from_secs(1));
        });
        assert_eq!(n, 1);
    }
}
