//! A host at a port that requires a GRH, as that of an SR-IOV function, and one at an ordinary port: the
//! kernels' own ping and TCP.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod lab;

use std::path::Path;

use ibfab::config::FabricConfig;
use ibfab::program::Options;
use lab::{Namespaces, Running, pings, stream};

/// One test, since EAL can be initialized once in a process.
#[test]
fn a_virtual_port_is_reached_in_both_modes() {
    let namespaces = match Namespaces::new(4) {
        Ok(namespaces) => namespaces,
        Err(reason) => {
            println!("skipped: {reason}");
            return;
        }
    };
    let mut text = String::from("[fabric]\nmtu = 4096\nhop_limit = 1\n");
    for ((netns, n), (mode, mtu, grh)) in namespaces.0.iter().zip(1..).zip([
        ("connected", 65520, true),
        ("connected", 65520, false),
        ("datagram", 4092, true),
        ("datagram", 4092, false),
    ]) {
        text += &format!(
            "[[host]]\nname = \"h{n}\"\nnetns = \"{netns}\"\ntun = \"ib0\"\naddress = \"10.98.0.{n}/24\"\n\
             mtu = {mtu}\nmode = \"{mode}\"\ngrh_required = {grh}\n"
        );
    }
    let config = FabricConfig::parse(Path::new("test.toml"), &text).unwrap();
    let fabric = Running::start(config, Options::default());
    let [one, two, three, four] = &namespaces.0[..] else { panic!() };
    // Without any state; large packets by connections if both ends have them.
    for (from, to) in [(one, "10.98.0.2"), (two, "10.98.0.1"), (three, "10.98.0.4"), (four, "10.98.0.3")] {
        assert!(pings(from, to, "56", 3), "to {to}");
        assert!(pings(from, to, "30000", 3), "to {to}");
    }
    assert!(pings(one, "10.98.0.3", "4000", 3), "between two virtual ports");
    stream(two, one, "10.98.0.1:5000", 4 << 20);
    let outcome = fabric.stop();
    let [one, two, ..] = &outcome.hosts[..] else { panic!() };
    assert!(
        two.rc_sent.bytes > 4 << 20 && one.rc_received.bytes > 4 << 20,
        "by a connection: {one:?} {two:?}"
    );
}
