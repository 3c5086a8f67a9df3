//! Conditions that hold once all gateways and networks are well.

use super::super::*;
use super::Day;
use super::gateway::{Gateway, place};
use super::town::{self, HOSTS};
use ipoib::net::ipv4;

impl Day {
    pub(super) fn is_known(&self, g: usize, h: usize) -> bool {
        let host = &self.town.hosts[h];
        let known = self.town.slots[g].life.as_ref().map(|gateway| gateway.known(self.town.now));
        let mut places = known.into_iter().flatten().filter(|known| known.ip == host.ip);
        places.next().is_some_and(|at| town::is_same(at.place, place(host.side, host.n)))
            && places.next().is_none()
    }

    pub(super) fn forwarders(&self) -> Vec<usize> {
        let forwards = |g: &usize| self.town.slots[*g].life.as_ref().is_some_and(Gateway::forwards);
        (0..3).filter(forwards).collect()
    }

    /// The one that forwards.
    pub(super) fn forwarder(&self) -> usize {
        let all = self.forwarders();
        let roles = self
            .town
            .slots
            .each_ref()
            .map(|slot| slot.life.as_ref().map(|life| life.describe(self.town.now)));
        assert_eq!(all.len(), 1, "{roles:?}");
        all[0]
    }

    /// Live honest hosts whose addresses are on the link.
    pub(super) fn honest(&self) -> Vec<usize> {
        let gateway = self.town.slots.iter().find_map(|slot| slot.life.as_ref()).unwrap();
        let settings = &gateway.segment.own.settings;
        let is_there = |h: &usize| {
            let host = &self.town.hosts[*h];
            host.alive && settings.is_on_link(host.ip) && ipv4::is_unicast(host.ip)
        };
        (0..HOSTS).filter(is_there).collect()
    }

    /// The gateway knows all of these hosts where they are, and no gateway for a host.
    pub(super) fn assert_known(&self, g: usize, why: &str) {
        let gateway = self.town.slots[g].life.as_ref().unwrap();
        let known = gateway.known(self.town.now);
        for h in self.honest() {
            let host = &self.town.hosts[h];
            let places: Vec<_> = known.iter().filter(|k| k.ip == host.ip).map(|k| k.place).collect();
            if gateway.segment.owners.is_held(host.ip.into()) || self.is_contested(g, host.ip) {
                continue;
            }
            let [at] = places[..] else {
                panic!("{why}: gateway {g} knows {} at {places:?}, it is {host:?}", host.ip);
            };
            assert!(
                town::is_same(at, place(host.side, host.n)),
                "{why}: gateway {g} has {} at {at}, it is {host:?}",
                host.ip
            );
        }
    }

    /// Liars have answered while an address was being proven, so neither side is believed for ten seconds. At
    /// a takeover all hosts are proven that were only reported, by a station without a key.
    fn is_contested(&self, g: usize, ip: Ipv4Addr) -> bool {
        let gateway = self.town.slots[g].life.as_ref().unwrap();
        gateway.segment.owners.is_contested(self.town.now, ip.into())
    }

    /// A gateway that was taken for a host before its first hello is no host any more.
    pub(super) fn assert_no_gateway(&self, g: usize) {
        for host in self.town.slots[g].life.as_ref().unwrap().known(self.town.now) {
            let of_gateway = (0..3).any(|other| town::is_of(host.place, town::GATEWAY + other));
            assert!(!of_gateway, "gateway {g} takes a gateway for a host: {host:?}");
        }
    }

    /// Each of these hosts requests each other one, up to three times, a second apart as ARP implementations
    /// do. A host that has moved recently is verified, and of its own requests in the meantime only the last
    /// is kept. One answer comes: of that host, or of the gateway that forwards.
    pub(super) fn all_hosts_find_each_other(&mut self, g: usize, every: usize) {
        self.town.forget_answers();
        let honest = self.honest();
        let of = |(i, from): (usize, &usize)| {
            let others = honest.iter().filter(|to| *to != from).skip(i % every).step_by(every);
            others.map(|to| (*from, *to)).collect::<Vec<_>>()
        };
        let mut pairs: Vec<_> = honest.iter().enumerate().flat_map(of).collect();
        pairs.retain(|(_, to)| !self.is_contested(g, self.town.hosts[*to].ip));
        for _ in 0..3 {
            for (from, to) in &pairs {
                let target = self.town.hosts[*to].ip;
                if !self.town.hosts[*from].answers.contains_key(&target) {
                    self.town.request(*from, target);
                    self.town.run(ms(20));
                }
            }
            self.town.run(secs(1));
        }
        for (from, to) in pairs {
            let (from, to) = (&self.town.hosts[from], &self.town.hosts[to]);
            let answers = from.answers.get(&to.ip).map_or(&[][..], |answers| &answers[..]);
            let n = if from.side == to.side { to.n } else { town::GATEWAY + g as u16 };
            let right = answers.len() == 1 && town::is_of(answers[0], n);
            assert!(right, "{from:?} requested {to:?}, {n} should answer: {answers:?}");
        }
    }
}
