//! Microseconds an event, from the rules to the published table, against the table's size. One line of JSON each.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use gidcache::rules::{Address, Binding, Event, Interface, Kind};
use gidcache::{DeviceTable, IfIndex, Manager, NoProvider, PortKind, PortSetup, RoceTypes, Rules, VlanId};
use ib_wire::PortNumber;

const PORT: PortNumber = PortNumber(1);

fn address(number: u32) -> Address {
    let local = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number));
    Address { local, prefix: 8, peer: local }
}

fn main() {
    let (Some(base), Some(vlan), Some(id)) = (IfIndex::new(1), IfIndex::new(2), VlanId::new(7)) else {
        return;
    };
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
    for entries in [16_u32, 256, 4096, 32_768] {
        let setup =
            PortSetup { number: PORT, len: entries as u16 + 16, kind: PortKind::Roce(RoceTypes::Both) };
        let table = match DeviceTable::new(&[setup], NoProvider, 7) {
            Ok(table) => table,
            Err(error) => return eprintln!("{error}"),
        };
        let mut rules = Rules::new();
        rules.bind(PORT, Binding::Index(base), RoceTypes::Both);
        rules.handle_event(&Event::Interface(interface(1)));
        rules.handle_event(&Event::Interface(upper.clone()));
        for number in 0..entries / 2 {
            rules.handle_event(&Event::Address(base, address(number)));
        }
        let mut manager = Manager::new(Arc::new(table), rules);
        let _ = manager.apply();
        let extra = address(1 << 23);
        let pairs: [(&str, [Event; 2]); 3] = [
            ("address", [Event::Address(base, extra), Event::AddressGone(base, extra)]),
            ("address of a VLAN", [Event::Address(vlan, extra), Event::AddressGone(vlan, extra)]),
            ("MAC address", [Event::Interface(interface(2)), Event::Interface(interface(1))]),
        ];
        for (what, pair) in &pairs {
            let start = Instant::now();
            for _ in 0..1000 {
                for event in pair {
                    manager.rules().handle_event(event);
                    let _ = manager.apply();
                }
            }
            let microseconds = start.elapsed().as_nanos() as f64 / 2e6;
            println!(
                r#"{{"benchmark":"gid-event","what":"{what}","entries":{entries},"us":{microseconds:.2}}}"#
            );
        }
    }
}
