//! Fuzz targets, one module for each family of parsers. Each takes any bytes and asserts invariants.
//!
//! `cargo fuzz` runs them (`fuzz_targets/`), and `cargo test` replays their corpora with variations.

pub mod answer;
pub mod cable;
pub mod completion;
pub mod config;
pub mod connection;
pub mod control;
pub mod ethernet;
pub mod fabric;
pub mod forward;
pub mod http;
pub mod ipoib;
pub mod kept;
pub mod mad;
pub mod netlink;
pub mod packet;
pub mod pair;
pub mod pci;
pub mod request;
pub mod roce;
pub mod segment;
pub mod smp;
pub mod table;
pub mod transport;
pub mod uevent;
pub mod umr;
pub mod url;
pub mod vfio;

/// A target: takes any bytes, and panics if an invariant fails.
pub type Target = fn(&[u8]);

/// All targets, by the names of their corpora.
pub const TARGETS: &[(&str, Target)] = &[
    ("completion", completion::run),
    ("config", config::run),
    ("connection", connection::run),
    ("control", control::run),
    ("ethernet", ethernet::run),
    ("request", request::run),
    ("answer", answer::run),
    ("fabric", fabric::run),
    ("forward", forward::run),
    ("http", http::run),
    ("ipoib", ipoib::run),
    ("kept", kept::run),
    ("mad", mad::run),
    ("netlink", netlink::run),
    ("packet", packet::run),
    ("pair", pair::run),
    ("pci", pci::run),
    ("roce", roce::run),
    ("smp", smp::run),
    ("transport", transport::run),
    ("cable", cable::run),
    ("segment", segment::run),
    ("table", table::run),
    ("uevent", uevent::run),
    ("umr", umr::run),
    ("url", url::run),
    ("vfio", vfio::run),
];
