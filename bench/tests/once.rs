//! Benchmarks that need their own EAL, each run once and briefly: all values are present, and nothing is
//! lost. They run in parallel, so none may rely on hugepages that another one may take.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test")]
use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

/// Output of a benchmark: values by name, and the whole document.
fn once(words: &[&str]) -> (BTreeMap<String, f64>, Value) {
    let name = words.join(" ");
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(words)
        .args(["--once", "--seconds", "0.1", "--no-huge"])
        .output()
        .unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {text}\n{errors}");
    let line = text.lines().find(|line| line.starts_with('{')).unwrap();
    let sample: Value = serde_json::from_str(line).unwrap();
    let figure = |f: &Value| (f["part"].as_str().unwrap().to_owned(), f["value"].as_f64().unwrap());
    (sample["figures"].as_array().unwrap().iter().map(figure).collect(), sample)
}

#[test]
fn latency_tells_of_every_way_part_and_policy_and_loses_nothing() {
    let (figures, sample) = once(&["latency"]);
    assert!(figures["eth-ib.maximum"] > 0.0 && figures["ib-eth.maximum"] > 0.0, "{figures:?}");
    let cells: Vec<&str> = figures.keys().filter_map(|name| name.strip_suffix(".lost")).collect();
    assert!(cells.len() >= 21, "{cells:?}");
    for cell in &cells {
        let of = |what: &str| figures[&format!("{cell}.{what}")];
        assert_eq!(of("lost"), 0.0, "{cell}");
        let all = ["p50", "p90", "p99", "p99.9", "p99.99", "max"].map(of);
        assert!(all[0] > 0.0 && all.is_sorted(), "{cell}: {all:?}");
    }
    // The jitter of the machine: on one and on both processors, and at each load.
    for load in ["worker", "0", "10", "50", "90"] {
        let all = ["p50", "p99.99", "max"].map(|what| figures[&format!("machine.{load}.{what}")]);
        assert!(all.is_sorted(), "{load}: {all:?}");
    }
    assert!(figures["machine.worker.longest"] > 0.0 && figures["machine.generator.gaps"] > 0.0);
    assert_eq!(sample["histograms"].as_array().unwrap().len(), cells.len() + 5);
    assert_eq!(figures.keys().filter(|name| name.ends_with(".packets")).count(), cells.len());
}

#[test]
fn scale_tells_of_every_point() {
    // Each in a process with this number of ports.
    let parts = ["connections,neighbours", "flows,segments,frame"];
    let figures: BTreeMap<String, f64> =
        parts.into_iter().flat_map(|part| once(&["scale", "--only", part]).0).collect();
    for point in [
        "connections.10000",
        "connections.ib-eth.10000",
        "flows.ib-eth.100000",
        "segments.ib-eth.1",
        "neighbours.eth-ib.100000",
        "neighbours.ib-eth.100000",
        "segments.128",
        "frame.eth-ib.1514",
        "frame.eth-ib-ud.1514",
        "frame.ib-eth-ud.1514",
    ] {
        assert!(figures[point] > 0.0, "{point}: {figures:?}");
    }
    // The promised memory of an idle connection.
    let connection = figures["connections.10000.memory"];
    assert!((1024.0..8192.0).contains(&connection), "{connection} bytes");
}

#[test]
fn workers_are_measured_alone_and_both_at_once() {
    let (figures, sample) = once(&["workers"]);
    let two = std::thread::available_parallelism().unwrap().get() > 1;
    for step in ["eth-ib", "ib-eth"] {
        assert!(figures[&format!("{step}.1")] > 0.0, "{figures:?}");
        assert_eq!(figures.contains_key(&format!("{step}.2")), two, "{figures:?}");
    }
    assert_eq!(sample["notes"].as_array().unwrap().is_empty(), two, "{sample}");
}
