//! Announcements of the hosts of one side to the other side, at a pace that leaves room for all other work.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Announcements of one tick of the control loop.
pub(super) const PER_TICK: usize = 16;
/// The second round begins this long after the first: a broadcast may be lost.
const AGAIN: Duration = Duration::from_secs(1);

/// Announcements that are still to be sent.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    /// A copy of the table of Ethernet hosts; and those that are added one by one, at a limited rate.
    waiting: VecDeque<IpAddr>,
    /// All of them again, from this moment on.
    second: Option<(Instant, VecDeque<IpAddr>)>,
}

impl Announcements {
    /// Announces these hosts, in two rounds. Discards what is left of an earlier call: these are all hosts.
    pub(super) fn start(&mut self, now: Instant, hosts: impl Iterator<Item = IpAddr>) {
        self.waiting = hosts.collect();
        self.second = Some((now + AGAIN, self.waiting.clone()));
    }

    /// Announces one more host, twice like the others.
    pub(super) fn add(&mut self, now: Instant, host: IpAddr) {
        self.waiting.push_back(host);
        self.put_off(now, host);
    }

    /// Skips a host in this round and announces it once in the next one.
    pub(super) fn put_off(&mut self, now: Instant, host: IpAddr) {
        let (_, hosts) = self.second.get_or_insert_with(|| (now + AGAIN, VecDeque::new()));
        if !hosts.contains(&host) {
            hosts.push_back(host);
        }
    }

    /// Number of announcements still to be sent.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.second.as_ref().map_or(0, |(_, hosts)| hosts.len())
    }

    /// Returns the next host to announce. The list may be older than what is known of the host by now.
    pub(super) fn next(&mut self, now: Instant) -> Option<IpAddr> {
        if self.waiting.is_empty()
            && let Some((_, hosts)) = self.second.take_if(|(at, _)| *at <= now)
        {
            self.waiting = hosts;
        }
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(ip: IpAddr) -> u8 {
        let IpAddr::V4(ip) = ip else { panic!("all are IPv4 here") };
        ip.octets()[3]
    }

    fn taken(announcements: &mut Announcements, now: Instant) -> Vec<u8> {
        std::iter::from_fn(|| announcements.next(now)).map(last).collect()
    }

    #[test]
    fn each_is_announced_twice_and_a_new_start_forgets_the_old() {
        let (mut announcements, now) = (Announcements::default(), Instant::now());
        let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
        assert!(taken(&mut announcements, now).is_empty());
        announcements.start(now, [ip(1), ip(2)].into_iter());
        assert_eq!(taken(&mut announcements, now), [1, 2]);
        assert!(taken(&mut announcements, now + AGAIN / 2).is_empty());
        announcements.start(now + AGAIN / 2, [ip(3), ip(4)].into_iter());
        assert_eq!(announcements.next(now + AGAIN), Some(ip(3)));
        assert_eq!(taken(&mut announcements, now + AGAIN * 2), [4, 3, 4]);
        assert!(taken(&mut announcements, now + AGAIN * 9).is_empty());
    }

    #[test]
    fn one_that_is_put_off_is_announced_in_the_next_round() {
        let (mut announcements, now) = (Announcements::default(), Instant::now());
        announcements.put_off(now, IpAddr::from([10, 0, 0, 9]));
        assert!(taken(&mut announcements, now).is_empty());
        assert_eq!(taken(&mut announcements, now + AGAIN), [9]);
    }

    #[test]
    fn one_that_comes_later_is_announced_twice_too() {
        let (mut announcements, now) = (Announcements::default(), Instant::now());
        let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
        announcements.start(now, [ip(1)].into_iter());
        announcements.add(now, ip(2));
        assert_eq!(taken(&mut announcements, now), [1, 2]);
        assert_eq!(taken(&mut announcements, now + AGAIN), [1, 2]);
        announcements.add(now + AGAIN, ip(3));
        assert_eq!(taken(&mut announcements, now + AGAIN), [3]);
        announcements.add(now + AGAIN, ip(4));
        assert_eq!(taken(&mut announcements, now + AGAIN), [4]);
        assert_eq!(taken(&mut announcements, now + AGAIN * 2), [3, 4]);
        assert!(taken(&mut announcements, now + AGAIN * 9).is_empty());
    }
}
