//! Links of new segments: all of them are made, or none, and few in one iteration of the control loop.
//!
//! A link has a queue pair on each worker, and each of these takes the device some commands. A
//! hundred links made at once would keep the control lcore from its hellos for longer than another
//! gateway waits for them. New links do not come up before their segments are there; then they are
//! released, again one after the other.

use std::collections::VecDeque;
use std::time::Instant;

use ipoib::link::{LinkIndex, LinkSettings};
use pmd::hca::Backend;

use crate::forward::EndpointIndex;
use crate::gateway::control::ports::Endpoints;

/// Links that are made in one iteration.
pub(super) const AT_ONCE: usize = 1;

/// Where links are made. They are held.
pub(super) trait Links {
    fn add(&mut self, port: EndpointIndex, settings: LinkSettings) -> Result<LinkIndex, String>;
    fn remove(&mut self, port: EndpointIndex, link: LinkIndex);
}

impl<B: Backend> Links for (Instant, &mut Endpoints<B>) {
    fn add(&mut self, port: EndpointIndex, settings: LinkSettings) -> Result<LinkIndex, String> {
        let endpoint = self.1.at(port).ok_or("its port is not open; restart needed")?;
        endpoint.add_link_held(self.0, settings).map_err(|e| e.to_string())
    }

    fn remove(&mut self, port: EndpointIndex, link: LinkIndex) {
        if let Some(endpoint) = self.1.at(port) {
            endpoint.remove_link(self.0, link);
        }
    }
}

/// Links that are being made.
#[derive(Debug)]
pub(super) struct NewLinks {
    wanted: VecDeque<(EndpointIndex, LinkSettings)>,
    made: Vec<(EndpointIndex, LinkIndex)>,
}

/// Progress of creating links.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// Some are still to be created.
    More,
    /// All are created.
    Made(Vec<LinkIndex>),
    /// The device refuses the link with this index, and the earlier ones must be removed.
    Refused { at: usize, why: String },
}

impl NewLinks {
    /// Links with these settings, each on its port.
    pub(super) fn new(wanted: impl Iterator<Item = (EndpointIndex, LinkSettings)>) -> Self {
        Self { wanted: wanted.collect(), made: Vec::new() }
    }

    /// Creates the next few links.
    pub(super) fn step(&mut self, links: &mut impl Links) -> Progress {
        for _ in 0..AT_ONCE {
            let Some((port, settings)) = self.wanted.pop_front() else { break };
            match links.add(port, settings) {
                Ok(link) => self.made.push((port, link)),
                Err(why) => return Progress::Refused { at: self.made.len(), why },
            }
        }
        if self.wanted.is_empty() {
            Progress::Made(self.made.iter().map(|(_, link)| *link).collect())
        } else {
            Progress::More
        }
    }

    /// Removes the links that were created; returns them in their order.
    pub(super) fn undo(self, links: &mut impl Links) -> Vec<LinkIndex> {
        for (port, link) in &self.made {
            links.remove(*port, *link);
        }
        self.made.into_iter().map(|(_, link)| link).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_wire::{PKey, Qpn};

    /// A device with room for `room` links.
    struct Device {
        room: usize,
        links: Vec<LinkIndex>,
        made: u16,
    }

    impl Links for Device {
        fn add(&mut self, _: EndpointIndex, _: LinkSettings) -> Result<LinkIndex, String> {
            if self.links.len() == self.room {
                return Err("no queue pair is left".to_owned());
            }
            self.links.push(LinkIndex(self.made));
            self.made += 1;
            Ok(LinkIndex(self.made - 1))
        }

        fn remove(&mut self, _: EndpointIndex, link: LinkIndex) {
            self.links.retain(|l| *l != link);
        }
    }

    fn new(n: u16) -> NewLinks {
        let settings = |n| (EndpointIndex(0), LinkSettings::new(PKey(0x8001 + n), Qpn::new(0), 1));
        NewLinks::new((0..n).map(settings))
    }

    #[test]
    fn all_links_are_made_or_none() {
        let mut device = Device { room: 4, links: vec![LinkIndex(90)], made: 0 };
        let mut two = new(2);
        assert_eq!(two.step(&mut device), Progress::More);
        assert_eq!(two.step(&mut device), Progress::Made(vec![LinkIndex(0), LinkIndex(1)]));
        let mut three = new(3);
        assert_eq!(three.step(&mut device), Progress::More);
        let why = "no queue pair is left".to_owned();
        assert_eq!(three.step(&mut device), Progress::Refused { at: 1, why });
        assert_eq!(three.undo(&mut device), [LinkIndex(2)]);
        assert_eq!(device.links, [LinkIndex(90), LinkIndex(0), LinkIndex(1)], "what was there before stays");
        assert_eq!(new(0).step(&mut device), Progress::Made(Vec::new()));
    }

    #[test]
    fn the_control_lcore_does_other_work_between_links() {
        let mut device = Device { room: 200, links: Vec::new(), made: 0 };
        let mut all = new(127);
        for n in 1..127 {
            assert_eq!(all.step(&mut device), Progress::More);
            assert_eq!(device.links.len(), n * AT_ONCE);
        }
        assert!(matches!(all.step(&mut device), Progress::Made(links) if links.len() == 127));
    }
}
