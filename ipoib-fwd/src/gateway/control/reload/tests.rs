//! Links of new segments: all or none; keys that change live.

use super::*;
use ib_wire::Qpn;

/// A device that has room for so many links.
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

fn settings(n: u16) -> impl Iterator<Item = (EndpointIndex, LinkSettings)> {
    (0..n).map(|n| (EndpointIndex(0), LinkSettings::new(PKey(0x8001 + n), Qpn::new(0), 1)))
}

#[test]
fn all_links_are_made_or_none() {
    let mut device = Device { room: 4, links: vec![LinkIndex(90)], made: 0 };
    assert_eq!(add_all(&mut device, settings(2)).unwrap(), [LinkIndex(0), LinkIndex(1)]);
    let failed = add_all(&mut device, settings(3)).unwrap_err();
    assert_eq!((failed.at, failed.undone), (1, vec![LinkIndex(2)]));
    assert!(failed.why.contains("no queue pair"));
    assert_eq!(device.links, [LinkIndex(90), LinkIndex(0), LinkIndex(1)], "what was there before stays");
}

#[test]
fn every_key_that_may_change_has_something_that_changes_it() {
    let keys = config::Config::live_keys();
    assert!(keys.len() >= 8, "{keys:?}");
    for key in keys {
        assert!(Live::of(&key).is_some(), "{key}");
    }
    assert_eq!(Live::of("gateway.hello-ms"), None);
}
