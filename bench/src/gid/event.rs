//! One event, from the rules to the published table, against the table's size.

use std::sync::Arc;
use std::time::Instant;

use gidcache::rules::{Address, Binding, Event, Interface, Kind};
use gidcache::{
    DeviceTable, IfIndex, Manager, NoProvider, PortKind, PortSetup, RoceTypes, Rules, VlanId, ipv4_of_gid,
};

use super::{PORT, attributes, median, text};
use crate::sample::{Figure, Sample};

const SIZES: [u16; 5] = [16, 64, 256, 1024, 4096];

fn address(number: u32) -> Result<Address, String> {
    let local = ipv4_of_gid(attributes(number).key.gid).ok_or("not an address")?.into();
    Ok(Address { local, prefix: 8, peer: local })
}

pub(crate) fn run(seconds: f64) -> Result<Sample, String> {
    let base = IfIndex::new(1).ok_or("no interface")?;
    let vlan = IfIndex::new(2).ok_or("no interface")?;
    let id = VlanId::new(7).ok_or("no VLAN")?;
    let interface = |mac: u8| Interface {
        index: base,
        name: "eth0".into(),
        mac: Some([2, 0, 0, 0, 0, mac]),
        kind: Kind::Other,
        master: None,
        lower: None,
    };
    let upper = Interface {
        index: vlan,
        name: "eth0.7".into(),
        kind: Kind::Vlan(id),
        lower: Some(base),
        ..interface(1)
    };
    let extra = address(1 << 21)?;
    let pairs: [(&str, [Event; 2]); 3] = [
        ("address", [Event::Address(base, extra), Event::AddressGone(base, extra)]),
        ("vlan-address", [Event::Address(vlan, extra), Event::AddressGone(vlan, extra)]),
        ("mac", [Event::Interface(interface(2)), Event::Interface(interface(1))]),
    ];
    let mut sample = Sample::default();
    let mut of_least = [0.0; 3];
    for entries in SIZES {
        let setup = PortSetup { number: PORT, len: entries + 16, kind: PortKind::Roce(RoceTypes::Both) };
        let table = DeviceTable::new(&[setup], NoProvider, 7).map_err(text)?;
        let mut rules = Rules::new();
        rules.bind(PORT, Binding::Index(base), RoceTypes::Both);
        rules.handle_event(&Event::Interface(interface(1)));
        rules.handle_event(&Event::Interface(upper.clone()));
        // Once for each type.
        for number in 0..u32::from(entries) / 2 {
            rules.handle_event(&Event::Address(base, address(number)?));
        }
        let mut manager = Manager::new(Arc::new(table), rules);
        manager.apply();
        for ((what, pair), least) in pairs.iter().zip(&mut of_least) {
            let mut rounds = Vec::new();
            let start = Instant::now();
            while start.elapsed().as_secs_f64() < seconds / (SIZES.len() * pairs.len()) as f64 {
                let round = Instant::now();
                for event in pair {
                    manager.rules().handle_event(event);
                    let applied = manager.apply();
                    if !applied.failures.is_empty() {
                        return Err(format!("{} changes failed", applied.failures.len()));
                    }
                }
                rounds.push(round.elapsed().as_nanos() as f64 / 2e3);
            }
            let microseconds = median(rounds);
            sample.figures.push(Figure::new(&format!("{what}-{entries}"), "us/event", microseconds));
            if entries == 16 {
                *least = microseconds;
            }
            if entries == 4096 && *least > 0.0 {
                let part = format!("{what}-4096-to-16");
                sample.figures.push(Figure::new(&part, "times", microseconds / *least));
            }
        }
    }
    Ok(sample)
}
