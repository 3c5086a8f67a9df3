//! Checks that numbers in the documents match the code.

use std::path::Path;

use config::{Config, HELD_MESSAGES, MAX_ROUTES, MAX_SEGMENTS, MAX_SUBNETS, PARKED_PACKETS, WAITING_FRAMES};
use dataplane::capture::Bounds;
use dataplane::telemetry::{MAX_ANSWER, MAX_CLIENTS, MAX_FOLLOWERS};
use ipoib_fwd::forward::MAX_NEIGHBOURS;

/// Formats a number as in the documents: 65,535.
fn grouped(number: impl TryInto<u64>) -> String {
    let Ok(number) = number.try_into() else { panic!("a bound is a positive number") };
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn parse(text: &str) -> Config {
    Config::parse(Path::new("gateway.toml"), text).unwrap()
}

/// The largest valid value of a key.
fn largest(legal: impl Fn(u32) -> bool) -> u32 {
    // The limits of all keys are far lower.
    let (mut low, mut high) = (0, 1 << 20);
    while low + 1 < high {
        let middle = (low + high) / 2;
        if legal(middle) { low = middle } else { high = middle }
    }
    low
}

/// The largest valid max-connections for this number of workers on a software device.
fn soft_connections(workers: u32) -> u32 {
    const SOFT: &str = "[infiniband.soft]\nports = [{ link = \"shm:/a\" }]\n";
    let is_legal = |n: u32| {
        let text = format!("[infiniband]\nmax-connections = {}\n{SOFT}", n.max(2));
        Config::parse(Path::new("gateway.toml"), &text).is_ok_and(|config| config.check(workers).is_ok())
    };
    largest(is_legal)
}

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn bounds_in_the_documents_are_those_of_the_code() {
    let legal = |section: &'static str, key: &'static str| {
        largest(move |n| {
            Config::parse(Path::new("gateway.toml"), &format!("[{section}]\n{key} = {}\n", n.max(576)))
                .is_ok()
        })
    };
    let connections = grouped(legal("infiniband", "max-connections"));
    let one = soft_connections(1);
    assert_eq!(soft_connections(2), 2 * one);
    // The configuration's limit is that of the device, less a datagram queue pair for each segment.
    let pairs = u32::try_from(connectx::engine::MAX_QPS).unwrap();
    assert_eq!(one, pairs - u32::try_from(MAX_SEGMENTS).unwrap());
    let (one, pairs) = (grouped(one), grouped(pairs));
    let mib = |bytes: u64| (bytes >> 20).to_string();
    let captures = Bounds::default();
    let limits = [
        format!("| segments | {MAX_SEGMENTS}; as many on one port"),
        format!("on each side | {} |", grouped(MAX_NEIGHBOURS as u64)),
        format!("| other subnets of a segment | {MAX_SUBNETS} |"),
        format!("| routes of a segment | {MAX_ROUTES} |"),
        format!(
            "| connections | {connections}, `infiniband.max-connections`; on a software ConnectX {one} for each worker on a port, of {pairs} queue pairs that all workers share |"
        ),
        format!(
            "| {} bytes by connection, {} by datagram |",
            grouped(legal("infiniband", "receive-mtu")),
            grouped(4096_u32 - 4)
        ),
        format!("| {} bytes, `ethernet.mtu` |", grouped(legal("ethernet", "mtu"))),
        format!(
            "| {MAX_CLIENTS} clients at a time and one more of root's, {MAX_FOLLOWERS} of them that follow something, answers of {} MiB;",
            mib(MAX_ANSWER as u64)
        ),
        format!(
            "| {} files of {} MiB, of each kind of packets; {} of {} MiB if",
            Bounds::MOST_FILES,
            mib(Bounds::MOST_SIZE),
            captures.files,
            mib(captures.size)
        ),
    ];
    let config = Config::default();
    let reserve = u64::from(config.buffers.receive_reserve);
    assert_eq!(
        (reserve, 100 * reserve / (100 - reserve)),
        (25, 33),
        "a quarter of all is a third of the others"
    );
    let sends = parse("[infiniband]\nmax-connections = 65535\n").budget(1).sends;
    let others = u32::from(config.ethernet.tx_descriptors)
        + WAITING_FRAMES
        + config.infiniband.ud_send_depth
        + HELD_MESSAGES;
    let sizing = [
        format!("rounded up: {} by default)", config.segments_per_message()),
        format!("`ethernet.tx-descriptors` + {WAITING_FRAMES} F |"),
        format!("at most {} F |", grouped(sends - others)),
        format!("| {HELD_MESSAGES} F |"),
        format!("| messages of the control lcore | {} |", config.budget(1).messages),
        format!(
            "`buffers.cache` x {}",
            f64::from(config.budget(1).caches) / f64::from(config.buffers.cache) / 2.0
        ),
        format!("| {PARKED_PACKETS} x (F + S) |"),
        format!("with {reserve}, the default, a third of the other parts' sum"),
        format!(
            "is at most {connections}; on a software ConnectX {one} for each worker on a port, of {pairs} queue pairs that all workers share"
        ),
        format!("up to {} on each side", grouped(MAX_NEIGHBOURS as u64)),
        format!("Segments: up to {MAX_SEGMENTS},"),
    ];
    // Each frame of an AF_PACKET port contains the kernel's header: this is the longest valid frame.
    let af_packet = |data_room: u16| grouped(config::frame_of("net_af_packet0", data_room) - 88);
    let faq = [
        format!("by default up to {}.", af_packet(config.buffers.data_room)),
        format!("`[buffers] data-room = 16384` packets of up to {} bytes", af_packet(16_384)),
    ];
    for (name, all) in [
        ("docs/manual/limits.md", limits.as_slice()),
        ("docs/configuration.md", sizing.as_slice()),
        ("docs/faq.md", faq.as_slice()),
    ] {
        let text = document(name);
        for words in all {
            assert!(text.contains(words.as_str()), "{name} does not say: {words}");
        }
    }
}
