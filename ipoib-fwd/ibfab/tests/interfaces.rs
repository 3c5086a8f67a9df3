//! The interface of one host is set down, then deleted; the other hosts still talk.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod lab;

use std::path::Path;

use ibfab::config::FabricConfig;
use ibfab::host::Drop;
use ibfab::program::Options;
use lab::{Namespaces, Running, comes_back, is_silent, pings, run};

#[test]
fn an_interface_that_goes_down_or_is_deleted_takes_only_its_own_host_along() {
    let namespaces = match Namespaces::new(3) {
        Ok(namespaces) => namespaces,
        Err(reason) => {
            eprintln!("skipped: {reason}");
            return;
        }
    };
    let mut text = String::new();
    for (netns, n) in namespaces.0.iter().zip(1..) {
        text += &format!(
            "[[host]]\nname = \"h{n}\"\nnetns = \"{netns}\"\ntun = \"ib0\"\naddress = \"10.98.0.{n}/24\"\n"
        );
    }
    let fabric =
        Running::start(FabricConfig::parse(Path::new("test.toml"), &text).unwrap(), Options::default());
    let [one, two, three] = &namespaces.0[..] else { panic!() };
    let link = |arguments: &[&str]| {
        let out = run("ip", &[&["-n", one, "link"], arguments].concat());
        assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    assert!(pings(two, "10.98.0.1", "56", 1));

    link(&["set", "ib0", "down"]);
    assert!(is_silent(two, "10.98.0.1"));
    fabric.wait("a counted drop", |p| p.hosts()[0].counters().dropped(Drop::InterfaceDown) > 0);
    assert!(pings(two, "10.98.0.3", "56", 1));
    link(&["set", "ib0", "up"]);
    comes_back(one, "10.98.0.2", "56", 1);

    link(&["del", "ib0"]);
    fabric.wait("the host's exit", |p| !p.hosts()[0].is_up() && p.hosts()[0].is_stopped());
    assert!(is_silent(two, "10.98.0.1"));
    assert!(pings(two, "10.98.0.3", "56", 1) && pings(three, "10.98.0.2", "56", 1));
    assert_eq!(fabric.stop().lost_buffers, 0);
}
