//! Two virtual hosts over one switch, each in a network namespace of its own: the kernels' own ping and TCP.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod lab;

use std::path::Path;

use ibfab::config::FabricConfig;
use ibfab::program::Options;
use lab::{Namespaces, Running, ping, pings, stream};

fn config(namespaces: &Namespaces, mode: &str) -> FabricConfig {
    let mut text = String::from("[fabric]\nmtu = 4096\n");
    for (netns, n) in namespaces.0.iter().zip(1..) {
        text += &format!(
            "[[host]]\nname = \"h{n}\"\nnetns = \"{netns}\"\ntun = \"ib0\"\naddress = \"10.98.0.{n}/24\"\n\
             mtu = {}\nmode = \"{mode}\"\n",
            if mode == "connected" { 65520 } else { 4092 }
        );
    }
    FabricConfig::parse(Path::new("test.toml"), &text).unwrap()
}

/// One test, since EAL can be initialized once in a process.
#[test]
fn hosts_communicate_in_both_modes() {
    let namespaces = match Namespaces::new(3) {
        Ok(namespaces) => namespaces,
        Err(reason) => {
            eprintln!("skipped: {reason}");
            return;
        }
    };
    let config = FabricConfig {
        hosts: {
            let mut hosts = config(&namespaces, "connected").hosts;
            let datagram = config(&namespaces, "datagram").hosts;
            hosts.truncate(2);
            hosts.extend(datagram.into_iter().skip(2));
            hosts
        },
        ..config(&namespaces, "connected")
    };
    let fabric = Running::start(config, Options::default());
    let [one, two, three] = &namespaces.0[..] else { panic!() };
    // Without any state, one packet and no second try. The first packet needs the ARP query and the path, and
    // a connection because of its size. Then in the other direction.
    assert!(pings(one, "10.98.0.2", "56", 1), "the first packet arrives");
    assert!(pings(three, "10.98.0.1", "65000", 1), "a datagram host sends fragments");
    assert!(pings(two, "10.98.0.3", "56", 1));
    assert!(pings(two, "10.98.0.1", "65000", 1));
    // Connected mode in both directions, with small packets and the largest ones.
    ping(one, "10.98.0.2", "56");
    ping(two, "10.98.0.1", "65000");
    let rate = stream(one, two, "10.98.0.2:5000", 16 << 20);
    println!("connected: {:.2} Gbit/s", rate / 1e9);
    // To and from a host with datagram mode only.
    ping(one, "10.98.0.3", "56");
    ping(three, "10.98.0.2", "4000");
    let rate = stream(three, one, "10.98.0.1:5000", 4 << 20);
    println!("datagram: {:.2} Gbit/s", rate / 1e9);
    let rate = stream(one, three, "10.98.0.3:5000", 4 << 20);
    println!("connected to datagram: {:.2} Gbit/s", rate / 1e9);

    let outcome = fabric.stop();
    let [one, two, three] = &outcome.hosts[..] else { panic!() };
    assert!(one.rc_sent.bytes > 16 << 20 && two.rc_received.bytes > 16 << 20, "{one:?} {two:?}");
    assert!(two.rc_sent.packets > 5 && one.rc_received.packets > 5, "a connection in each direction");
    assert_eq!((three.rc_sent.packets, three.rc_received.packets), (0, 0), "datagram only");
    assert!(three.ud_sent.bytes > 4 << 20, "{three:?}");
    assert_eq!(outcome.lost_buffers, 0);
}
