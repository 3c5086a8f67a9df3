//! Hostile files cause one short error in linear time. Quadratic time would take hours here, and the test
//! runner would abort.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

/// Returns the only complaint, which must be short.
fn short_complaint(text: &str) -> String {
    let complaint = complaint(text);
    assert!(complaint.len() < 2500, "{} bytes of complaint", complaint.len());
    complaint
}

#[test]
fn too_many_segments_are_one_error() {
    let all = |n| {
        (0..n).fold(String::new(), |mut text, i| {
            let _ = write!(text, "[[segment]]\nvlan = {}\npkey = {}\n", i % 4094 + 1, 0x8001 + i % 0x7fff);
            text
        })
    };
    assert_eq!(parse(&all(MAX_SEGMENTS)).unwrap().segments.len(), MAX_SEGMENTS);
    assert_eq!(
        complaint(&all(MAX_SEGMENTS + 1)),
        "gateway.toml:385:1: 129 segments; keep at most 128 of them"
    );
    assert_eq!(
        short_complaint(&all(100_000)),
        "gateway.toml:385:1: 100000 segments; keep at most 128 of them"
    );
    assert!(short_complaint(&"[[segment]]\n".repeat(1_000_000)).contains("longer than 4194304 bytes"));
}

#[test]
fn too_many_routes_and_subnets_are_one_error() {
    let routes = |n: u32| {
        (0..n).fold("[gateway]\n[[segment]]\nsubnets = [\"10.0.0.0/8\"]\n".to_owned(), |mut text, i| {
            let (a, b) = (i / 256, i % 256);
            let _ = write!(text, "[[segment.route]]\nto = \"11.{a}.{b}.0/24\"\nvia = \"10.0.0.1\"\n");
            text
        })
    };
    assert_eq!(parse(&routes(256)).unwrap().segments[0].routes.len(), MAX_ROUTES);
    assert_eq!(
        short_complaint(&routes(60_000)),
        "gateway.toml:772:1: segment `pkeyffff` has 60000 routes; keep at most 256; one shorter prefix can cover many"
    );
    let subnets: Vec<String> = (0..65).map(|i| format!("\"10.{i}.0.0/16\"")).collect();
    assert_eq!(
        complaint(&format!("[[segment]]\nsubnets = [{}]\n", subnets.join(", "))),
        "gateway.toml:2:11: subnets has 65 entries; write at most 64; one shorter prefix can cover many"
    );
}

#[test]
fn the_full_configuration_is_read() {
    let text = (0..128).fold(String::new(), |mut text, s| {
        let _ = write!(
            text,
            "[[segment]]\nvlan = {}\npkey = {}\nsubnets = [\"10.0.0.0/8\"]\n",
            s + 1,
            0x8001 + s
        );
        for r in 0..256 {
            let _ = write!(text, "[[segment.route]]\nto = \"11.0.{r}.0/24\"\nvia = \"10.0.0.1\"\n");
        }
        text
    });
    let config = parse(&text).unwrap();
    assert_eq!(config.segments.iter().map(|s| s.routes.len()).sum::<usize>(), MAX_SEGMENTS * MAX_ROUTES);
    assert_eq!(config.difference(&config).unwrap(), Change::default());
}

#[test]
fn long_and_deep_texts_are_one_short_error() {
    let long = "x".repeat(3 << 20);
    for text in [
        format!("{long} = 1\n"),
        format!("[gateway]\n{long} = 1\n"),
        format!("[gateway]\nidle = \"{long}\"\n"),
        format!("[gateway]\naddress = \"{long}/24\"\n"),
        format!("[gateway]\ncontrol-socket = \"{long}\"\n"),
        format!("[infiniband.soft]\nports = [{{ link = \"{long}\" }}]\n"),
        format!("[infiniband.soft]\nnode-guid = \"{long}\"\n"),
        format!("[[segment]]\nname = \"{long}\"\n"),
        format!("[[segment]]\nsubnets = [\"{long}\"]\n"),
        format!("[[segment.route]]\nto = \"0.0.0.0/0\"\nvia = \"{long}\"\n"),
        format!("[gateway]\nidle = {}\n", "[".repeat(1 << 20)),
        format!("[gateway]\nidle = {}\n", "{a=".repeat(1 << 20)),
        format!("[{}]\n", ["a"; 1 << 20].join(".")),
        format!("{}\n", ["a"; 1 << 20].join(".")),
        format!("[infiniband.soft]\nports = [{}]\n", "{ link = \"shm:/a\" },".repeat(100_000)),
    ] {
        let shown: String = text.chars().take(60).collect();
        let complaint = short_complaint(&text);
        assert!(complaint.starts_with("gateway.toml:"), "{shown}: {complaint}");
    }
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "(\\[?(gateway|ethernet|infiniband|buffers)?\\]?[\\n =\"a-z0-9ä{}-]{0,12}){0,6}") {
        let _ = parse(&text);
    }
}
