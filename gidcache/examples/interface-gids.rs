//! Prints the GIDs that a RoCE port on an interface of this host would have, and their changes:
//! `interface-gids eth0`.
//!
//! It needs no RDMA device and no privileges. For a real device, replace [`NoProvider`] with a
//! [`Provider`](gidcache::Provider). Other threads may look up entries while this loop runs.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gidcache::netlink::{Monitor, Turn};
use gidcache::rules::{Binding, Rules};
use gidcache::{DeviceTable, Manager, NoProvider, PortKind, PortSetup, RoceTypes, differences, ipv4_of_gid};
use ib_wire::PortNumber;

/// Slots of the table. Additional addresses are reported and added when a slot becomes free.
const SLOTS: u16 = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("usage: interface-gids INTERFACE")?;
    let port = PortNumber(1);
    let setup = PortSetup { number: port, len: SLOTS, kind: PortKind::Roce(RoceTypes::Both) };
    let table = Arc::new(DeviceTable::new(&[setup], NoProvider, 0)?);
    let reader = table.reader()?;
    let mut rules = Rules::new();
    rules.bind(port, Binding::Name(name), RoceTypes::Both);
    let mut manager = Manager::new(table, rules);
    let mut monitor = Monitor::new(Instant::now())?;
    let mut before = Vec::new();
    loop {
        while monitor.turn(Instant::now(), manager.rules())? == Turn::More {}
        // Until the first list is complete, unwanted entries are not known.
        if monitor.is_settled() {
            for (change, error) in manager.apply().failures {
                eprintln!("{change:?}: {error}");
            }
            // Any thread may do this without waiting for this one.
            let mut entries = Vec::new();
            reader.entries(&mut entries)?;
            for change in differences(&before, &entries) {
                let (sign, entry) = (if change.is_addition() { '+' } else { '-' }, change.entry());
                let address =
                    ipv4_of_gid(entry.gid()).map_or_else(String::new, |address| address.to_string());
                let interface = entry.attributes.key.ifindex.map_or(0, |ifindex| ifindex.get());
                println!(
                    "{sign} {:3}  {:39}  {address:15}  {}  interface {interface}",
                    entry.index,
                    entry.gid(),
                    entry.gid_type()
                );
            }
            before = entries;
        }
        // A program with an event loop waits for the monitor's descriptor and `poll_timeout` instead.
        std::thread::sleep(Duration::from_millis(20));
    }
}
