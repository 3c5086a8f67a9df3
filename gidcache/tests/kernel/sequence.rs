//! Random sequences of commands.

use std::collections::VecDeque;
use std::time::Instant;

use ib_wire::PortNumber;

use crate::host::Host;
use crate::state::{Random, ip, plain_ipv6, sysctl};
use crate::sysfs::Device;

/// veth, veth, dummy, and devices on the bond and the bridge.
pub(crate) const DEVICES: [Device; 5] = [
    Device { name: "rxa", port: PortNumber(1), netdev: "a0" },
    Device { name: "rxb", port: PortNumber(2), netdev: "b0" },
    Device { name: "rxd", port: PortNumber(3), netdev: "d0" },
    Device { name: "rxo", port: PortNumber(4), netdev: "bond0" },
    Device { name: "rxr", port: PortNumber(5), netdev: "br0" },
];
const OFTEN: [&str; 11] =
    ["a0", "b0", "d0", "bond0", "br0", "a0.7", "bond0.9", "bond0", "a0", "bond0", "bond0.9"];
const NAMES: [&str; 11] = ["a0", "b0", "d0", "bond0", "br0", "a0.7", "q0", "b0.8", "bond0.9", "br0.10", "m0"];

pub(crate) fn run(seed: u64, steps: usize) {
    let start = Instant::now();
    clean();
    plain_ipv6();
    // Every third sequence enables duplicate address detection for IPv6, with short delays.
    if seed.is_multiple_of(3) {
        for conf in ["all", "default"] {
            sysctl(&format!("ipv6/conf/{conf}/accept_dad"), "1");
            sysctl(&format!("ipv6/conf/{conf}/router_solicitation_delay"), "0");
        }
        sysctl("ipv6/neigh/default/retrans_time_ms", "10");
    }
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for command in [
        "link add a0 type veth peer name a1",
        "link add b0 type veth peer name b1",
        "link add d0 type dummy",
        "link set a1 up",
        "link set b1 up",
    ] {
        assert!(ip(command), "{command}");
    }
    let mut host = Host::new(&DEVICES);
    host.settle("start");
    let mut done = 0;
    let mut next = VecDeque::new();
    for step in 0..steps {
        if next.is_empty() {
            next.extend(commands(&mut random));
        }
        let Some(command) = next.pop_front() else { continue };
        // A command that the kernel rejects changes nothing.
        if ip(&command) {
            done += 1;
            host.settle(&format!("seed {seed} step {step}: ip {command}"));
        }
    }
    // Compare the complete tables once.
    host.looked_at = crate::host::SLOTS;
    host.settle("the end");
    assert!(done * 4 > steps, "{done} of {steps} commands succeeded");
    println!(
        "ok      seed {seed}: {steps} commands, {done} succeeded, {:?}, {:.1} s",
        host.found,
        start.elapsed().as_secs_f64()
    );
    clean();
}

pub(crate) fn clean() {
    for name in NAMES.iter().chain(&["a1", "b1"]) {
        ip(&format!("link del {name}"));
    }
    while DEVICES.iter().any(Device::exists) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Returns the next step: one command, or a few that belong together.
fn commands(random: &mut Random) -> Vec<String> {
    let port = random.pick(&["a0", "b0", "d0"]);
    let veth = random.pick(&["a", "b"]);
    let names = random.pick(&[NAMES, OFTEN]);
    let name = random.pick(&names);
    let one = match random.below(28) {
        0 => format!("link add {veth}0 index {} type veth peer name {veth}1", 100 + random.below(3)),
        1 => format!("link add d0 index {} type dummy", 100 + random.below(3)),
        2 if random.below(2) == 0 => format!("link del {name}"),
        2 => "link add link a0 name a0.7 type vlan id 7".into(),
        3 => random
            .pick(&[
                "link add link a0.7 name q0 type vlan id 70",
                "link add link b0 name b0.8 type vlan id 8",
                "link add link br0 name br0.10 type vlan id 10",
            ])
            .into(),
        4 | 5 => "link add link bond0 name bond0.9 type vlan id 9".into(),
        6 => format!("link add link {port} name m0 type macvlan"),
        7 => "link add br0 type bridge".into(),
        8 => format!(
            "link add bond0 type bond miimon 10 mode {}",
            random.pick(&["active-backup", "active-backup", "balance-rr", "802.3ad"])
        ),
        9..=11 => {
            let bond = "link add bond0 type bond miimon 10 mode active-backup";
            let slave = [format!("link set {port} down"), format!("link set {port} master bond0")];
            let up = "link set bond0 up";
            return [bond.into()].into_iter().chain(slave).chain([up.into()]).collect();
        }
        12 => format!("link set {port} master br0"),
        13 => format!("link set {port} nomaster"),
        14 => format!("link set bond0 type bond active_slave {port}"),
        15 => format!("link set {name} address 02:00:00:00:00:{:02x}", random.below(16)),
        16 => format!("link set {name} down"),
        17 => format!("link set {name} up"),
        18 => format!("link set {veth}1 {}", random.pick(&["up", "down"])),
        19 => format!("addr del 10.0.0.{}/24 dev {name}", random.below(4)),
        20 => format!("addr del 2001:db8::{}/64 dev {name}", random.below(4)),
        21 => format!("addr add 2001:db8::{}/64 dev {name}", random.below(4)),
        // The same address twice, with different prefixes.
        22 => format!("addr {} 10.0.0.{}/16 dev {port}", random.pick(&["add", "del"]), random.below(4)),
        _ => format!("addr add 10.0.0.{}/24 dev {name}", random.below(4)),
    };
    vec![one]
}
