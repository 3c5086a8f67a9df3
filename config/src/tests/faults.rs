//! All errors of a file at once.

use proptest::prelude::*;

use super::*;

fn examine(text: &str, workers: Option<u32>) -> (Config, Vec<String>) {
    let (config, errors) = ConfigFile::of(text).examine(&Overrides::default(), workers);
    (config, errors.iter().map(ToString::to_string).collect())
}

pub(super) fn complaints(text: &str) -> Vec<String> {
    examine(text, None).1
}

#[test]
fn every_mistake_is_reported_in_file_order_and_the_rest_is_read() {
    let text = r#"
[gateway]
adress = "10.77.0.254/24"
idle = "never"
hello-ms = 7
[ehternet]
port = "a"
[ethernet]
mtu = "1500"
rx-descriptors = 64
[infiniband]
port = 300
srq-depth = 32
srq-low = 40
[infiniband.soft]
ports = [{ link = "tcp:/1", mtu = 1000 }, { link = "shm:/2", mtu = 1000 }]
[buffers]
data-room = 3000
[[segment]]
name = "a b"
vlan = 100
[[segment]]
vlan = 100
pkey = 0x8001
[[segment]]
vlan = 100
pkey = 0x7fff
[[segment]]
vlan = 100
pkey = 0x8002
[[segment.route]]
to = "0.0.0.0/0"
via = "10.0.0.1"
"#;
    let (config, all) = examine(text, Some(1));
    let starts = [
        "gateway.toml:3:1: unknown key `adress`; did you mean `address`?",
        "gateway.toml:4:8: `never` is none of",
        "gateway.toml:5:12: hello-ms = 7 is out of range",
        "gateway.toml:6:2: unknown key `ehternet`",
        "gateway.toml:9:7: invalid type: string",
        "gateway.toml:12:8: port = 300 is out of range",
        "gateway.toml:14:11: srq-low = 40 is out of range",
        "gateway.toml:16:19: `tcp:/1` is not the URL of a link",
        "gateway.toml:16:68: 1000 is not an InfiniBand MTU",
        "gateway.toml:18:13: data-room = 3000 is not a multiple of 64",
        "gateway.toml:20:8: `a b` is not a valid segment name",
        "gateway.toml:27:8: P_Key 0x7fff is limited membership",
        "gateway.toml:33:7: the route to 0.0.0.0/0 has an unreachable router",
    ];
    assert_eq!(all.len(), starts.len(), "{all:#?}");
    for (said, start) in all.iter().zip(starts) {
        assert!(said.starts_with(start), "{said}\n{start}");
    }
    assert_eq!((config.ethernet.rx_descriptors, config.infiniband.srq_depth), (64, 32));
    assert_eq!(config.segments.len(), 4);
}

#[test]
fn segments_without_errors_of_their_own_are_held_against_each_other() {
    let text = "[[segment]]\nvlan = 1\npkey = 0x8001\n[[segment]]\nvlan = 1\npkey = 0x8002\n\
                [[segment]]\nvlan = 2\npkey = 0x8002\n[[segment]]\nvlan = 2\npkey = 0\n";
    let all = complaints(text);
    assert_eq!(all.len(), 3, "{all:#?}");
    assert!(all[0].contains("VLAN 1 is") && all[1].contains("P_Key 0x8002 on port 1"), "{all:#?}");
    assert!(all[2].starts_with("gateway.toml:12:8: P_Key 0x0000"), "{all:#?}");
}

#[test]
fn syntax_errors_are_reported_alone() {
    let all = complaints("[gateway]\nidle = \nhello-ms = 7\nlog = = 3\n");
    assert_eq!(all.len(), 2, "{all:#?}");
    assert!(all[0].starts_with("gateway.toml:2:") && all[1].starts_with("gateway.toml:4:"), "{all:#?}");
}

#[test]
fn all_broken_promises_are_reported_if_nothing_else_is_wrong() {
    let text = "[infiniband]\nmax-connections = 2\n[buffers]\ncount = 30000\n";
    assert_eq!(complaints(text), [""; 0]);
    let (_, all) = examine(text, Some(4));
    assert_eq!(all.len(), 2, "{all:#?}");
    assert!(all[0].starts_with("gateway.toml:2:1: infiniband.max-connections: "), "{all:#?}");
    assert!(all[1].starts_with("gateway.toml:4:1: buffers.count: 30000 are too few"), "{all:#?}");
}

#[test]
fn a_hostile_file_is_done_with_soon() {
    let keys: String = (0..200_000).map(|i| format!("k{i} = 1\n")).collect();
    let broken = "= ]\n".repeat(500_000);
    let segments = "[[segment]]\nvlan = 5000\n".repeat(100_000);
    for text in [keys.as_str(), &broken, &segments, "\0", &"[a]\n".repeat(1_000_000), &"a.".repeat(1_000_000)]
    {
        let all = complaints(text);
        assert!((1..=50).contains(&all.len()), "{}", all.len());
        assert!(all.iter().all(|said| said.len() < 2500));
    }
}

/// A measurement, valid on an idle machine.
mod timing {
    use std::time::{Duration, Instant};

    #[test]
    #[ignore = "timing: measured by scripts/test --full timing"]
    fn hostile_files_take_at_most_a_minute() {
        let begin = Instant::now();
        super::a_hostile_file_is_done_with_soon();
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    }
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let directory = std::env::temp_dir().join(format!("config-fifo-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let fifo = directory.join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    for path in [fifo.as_path(), &directory, Path::new("/dev/null"), Path::new("/dev/zero")] {
        let error = ConfigFile::read(path).unwrap_err().to_string();
        assert!(error.contains("cannot be read: not a regular file; specify a readable file"), "{error}");
    }
    let loops = directory.join("loop");
    std::os::unix::fs::symlink(&loops, &loops).unwrap();
    assert!(ConfigFile::read(&loops).unwrap_err().to_string().contains("cannot be read"));
    std::fs::write(directory.join("binary"), [0xff, 0xfe]).unwrap();
    assert!(ConfigFile::read(&directory.join("binary")).is_err());
    std::fs::remove_dir_all(&directory).unwrap();
}

proptest! {
    /// A file is invalid exactly if an error is found, and otherwise both results are equal.
    #[test]
    fn fail_fast_and_collected_results_agree(
        lines in prop::collection::vec(prop::sample::select(vec![
            "[gateway]", "[ethernet]", "[infiniband]", "[infiniband.soft]", "[buffers]", "[[segment]]", "[[segment.route]]",
            "address = \"10.0.0.1/8\"", "idle = \"poll\"", "idle = 3", "mtu = 1400", "mtu = 9999", "vlan = 7", "vlan = 8", "vlan = 0",
            "pkey = 0x8001", "pkey = 0x8002", "pkey = 1", "port = 2", "ports = [{ link = \"shm:/a\" }]", "ports = [7]", "ports = []",
            "name = \"x\"", "name = \"y\"", "to = \"0.0.0.0/0\"", "via = \"10.0.0.2\"", "via = \"11.0.0.2\"", "count = 9", "driver = \"soft\"",
            "nonsense = 1", "garbage",
        ]), 0..14),
    ) {
        let text = lines.join("\n");
        let (config, all) = examine(&text, None);
        match parse(&text) {
            Ok(right) => {
                prop_assert_eq!(all, [""; 0]);
                prop_assert_eq!(config, right);
            }
            Err(error) => prop_assert!(all.contains(&error.to_string()), "{error}\n{all:#?}"),
        }
    }
}

#[test]
fn a_wrong_destination_of_a_route_is_one_error() {
    for (to, via) in [("10.0.0.1/8", "10.77.0.1"), ("0.0.0.0/0", "10.77.0"), ("10.0.0.1/8", "x")] {
        let text = format!(
            "[[segment]]\naddress = \"10.77.0.254/24\"\n[[segment.route]]\nto = \"{to}\"\nvia = \"{via}\"\n"
        );
        let all = complaints(&text);
        assert!(all.iter().all(|said| !said.contains("the route has no")), "{all:#?}");
        assert_eq!(all.len(), usize::from(to != "0.0.0.0/0") + usize::from(via != "10.77.0.1"), "{all:#?}");
    }
}
