//! Synchronization of the forwarder's hosts to standby gateways, which unicast ARP never reaches.
//!
//! All hosts are sent in rounds, and new hosts go first: some pages with each hello. A gateway that missed a
//! page gets it in the next round.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::message::{Neighbour, PER_PAGE};

/// Maximum number of pages with one hello: 4096 hosts on each side are sent in some ten seconds.
const PAGES: usize = 8;
/// Shortest time of a round.
pub(in crate::segment) const ROUND: Duration = Duration::from_secs(3);
/// Maximum number of waiting new hosts. Others are left to the next round.
const MOST_NEWS: usize = PAGES * PER_PAGE;

/// Hosts that are still to be sent.
#[derive(Debug)]
pub(super) struct Sync {
    round: VecDeque<Neighbour>,
    news: VecDeque<Neighbour>,
    next_round: Instant,
}

impl Sync {
    pub(super) const fn new(now: Instant) -> Self {
        Self { round: VecDeque::new(), news: VecDeque::new(), next_round: now }
    }

    /// Starts a new round: a gateway is there that knows no hosts.
    pub(super) fn restart(&mut self, now: Instant) {
        self.round.clear();
        self.news.clear();
        self.next_round = now;
    }

    /// True if a new round is due: [`Self::begin`] needs all hosts.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.round.is_empty() && now >= self.next_round
    }

    pub(super) fn begin(&mut self, now: Instant, hosts: impl Iterator<Item = Neighbour>) {
        self.next_round = now + ROUND;
        self.round = hosts.collect();
    }

    pub(super) fn note(&mut self, host: Neighbour) {
        // The rest of the round is sent after the new hosts, and would report the old location.
        self.round.iter_mut().filter(|known| known.ip == host.ip).for_each(|known| *known = host);
        if let Some(known) = self.news.iter_mut().find(|known| known.ip == host.ip) {
            *known = host;
        } else if self.news.len() < MOST_NEWS {
            self.news.push_back(host);
        }
    }

    /// The pages that are sent with one hello.
    pub(super) fn pages(&mut self) -> impl Iterator<Item = Vec<Neighbour>> {
        let mut left = PAGES;
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let news = self.news.len().min(PER_PAGE);
            let mut page: Vec<_> = self.news.drain(..news).collect();
            page.extend(self.round.drain(..(PER_PAGE - news).min(self.round.len())));
            (!page.is_empty()).then_some(page)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ipoib::net::ethernet::MacAddress;

    use super::super::message::Place;
    use super::*;

    #[test]
    fn a_host_that_moves_during_a_round_is_sent_with_its_new_location() {
        let now = Instant::now();
        let host = |n: u32, mac: u8| Neighbour {
            ip: Ipv4Addr::from_bits(0x0a4d_0000 + n).into(),
            place: Place::Ethernet(MacAddress([2, 0, 0, 0, 0, mac])),
        };
        let mut sync = Sync::new(now);
        sync.begin(now, (0..100).map(|n| host(n, 1)));
        sync.note(host(70, 2));
        let sent: Vec<_> = sync.pages().flatten().filter(|known| known.ip == host(70, 2).ip).collect();
        assert_eq!(sent, [host(70, 2); 2]);
    }

    #[test]
    fn news_of_a_host_take_the_place_of_those_that_wait_even_where_no_more_can() {
        let now = Instant::now();
        let host = |n: u32, mac: u8| Neighbour {
            ip: Ipv4Addr::from_bits(0x0a4d_0000 + n).into(),
            place: Place::Ethernet(MacAddress([2, 0, 0, 0, 0, mac])),
        };
        let mut sync = Sync::new(now);
        (0..=MOST_NEWS as u32).for_each(|n| sync.note(host(n, 1)));
        sync.note(host(7, 2));
        let sent: Vec<_> = sync.pages().flatten().collect();
        assert_eq!((sent.len(), sent[7]), (MOST_NEWS, host(7, 2)));
    }
}
