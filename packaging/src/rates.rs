//! Rates and bounds in the manual are those of the code. Most are private there: their
//! values are read from the sources.

use std::path::Path;

/// Numbers of one row of `docs/manual/limits.md`: its text with `{}` for each of
/// them, and where they come from.
type Row = (&'static str, &'static [Constant]);

/// A constant, by its file and name.
type Constant = (&'static str, &'static str);

const SEGMENT: &str = "ipoib-fwd/src/segment/";
const LINK: &str = "ipoib-fwd/ipoib/src/link/";

const ROWS: &[Row] = &[
    ("since a port's P_Key table has {} entries", &[("pmd/connectx/src/port.rs", "PKEYS")]),
    ("keeps {} with traffic (`neighbour-table-full`) |", &[("segment/hosts.rs", "SHARE")]),
    ("| known Ethernet hosts without traffic | {} |", &[("segment/hosts.rs", "UNUSED_EACH")]),
    ("are queried and have not answered | {} |", &[("segment/hosts.rs", "MAX_INCOMPLETE")]),
    (
        "| packets that wait for a host | {}, for {} s |",
        &[("segment/parked.rs", "PER_DESTINATION"), ("segment/parked.rs", "PATIENCE")],
    ),
    (
        "| packets that wait, of all segments | {}, in equal parts, but {} of each segment at least |",
        &[
            ("config/src/buffers.rs", "PARKED_PACKETS"),
            ("ipoib-fwd/src/gateway/control/duties.rs", "LEAST_PARKED"),
        ],
    ),
    ("| destinations that packets wait for | {} of each kind |", &[("segment/parked.rs", "DESTINATIONS")]),
    (
        "| hosts that wait for an answer | {}, for {} s |",
        &[("segment/askers.rs", "ASKERS"), ("segment/askers.rs", "PATIENCE")],
    ),
    ("| addresses that are asked for | {} on each side |", &[("segment/askers.rs", "TARGETS")]),
    ("wait for the asker's own side | {} |", &[("segment/resolve.rs", "MOST")]),
    (
        "| introductions of Ethernet hosts to InfiniBand hosts | {}; {} s for a path, {} s for the proof, {} s for the answer |",
        &[
            ("segment/introductions.rs", "MOST"),
            ("segment/parked.rs", "PATIENCE"),
            ("segment/introductions.rs", "PROVEN"),
            ("segment/introductions.rs", "ANSWERED"),
        ],
    ),
    (
        "| addresses with a claim, or contested for {} s | {} |",
        &[("segment/owners.rs", "CONTESTED"), ("segment/owners.rs", "ADDRESSES")],
    ),
    (
        "| hosts that the gateway remembers, over a restart with a state directory | {}, for a day; {} are announced within 3 s |",
        &[("ipoib-fwd/src/kept.rs", "MOST"), ("segment/tests/kept.rs", "PROMISED")],
    ),
    (
        "because a gateway hears them in a segment without subnets | {0}, in the first {1} s; {3} at once and {2} a second of one host |",
        &[
            ("segment/discovery.rs", "MOST"),
            ("segment/discovery.rs", "LISTEN"),
            ("segment/limits.rs", "SEARCHES_EACH"),
        ],
    ),
    ("| addresses that hosts probe for | {} on each side |", &[("segment/names.rs", "MOST")]),
    ("| claims that a standby gateway notes | {} |", &[("segment/meanwhile.rs", "MOST")]),
    (
        "| new addresses that the link queries | {} at once, {} a second;",
        &[("link/neighbours.rs", "NEW_BURST"), ("link/neighbours.rs", "NEW_PER_SECOND")],
    ),
    (
        "| broadcasts of requests and announcements by the link | {} at once, {} a second |",
        &[("link/neighbours.rs", "ASKED_BURST"), ("link/neighbours.rs", "ASKED_PER_SECOND")],
    ),
    (
        "| ARP packets that wait for a path | {}; {} while those beyond 3 are at most {} in all |",
        &[("link/paths.rs", "WAITING"), ("link/paths.rs", "MOST_WAITING"), ("link/paths.rs", "EXTRA")],
    ),
    ("| requests on the control socket | {} bytes |", &[("dataplane/src/telemetry.rs", "MAX_REQUEST")]),
    (
        "| clients that wait for a place on the control socket | {} |",
        &[("dataplane/src/telemetry/places.rs", "MAX_WAITING")],
    ),
    ("takes more than {} s to read an answer |", &[("dataplane/src/telemetry/server.rs", "ANSWER_TIME")]),
    (
        "| rows of a page of `/neighbours`, `/connections` and `/groups` | {} |",
        &[("ipoib-fwd/src/page.rs", "MOST_ROWS")],
    ),
    ("| events that wait for a client that follows | {} |", &[("dataplane/src/telemetry/feed.rs", "QUEUE")]),
    ("| events | {1} at once, {0} a second |", &[("ipoib-fwd/src/gateway/control/events.rs", "LIMIT")]),
    (
        "| clients of `ipoib-fwd metrics` | {} at a time, each for one request of {} bytes and 15 s;",
        &[
            ("ipoib-fwd/src/metrics/places.rs", "MAX_CLIENTS"),
            ("ipoib-fwd/src/metrics/exporter.rs", "MAX_HEAD"),
        ],
    ),
    (
        "| frames whose checksum is sampled | {} a second |",
        &[("ipoib-fwd/src/gateway/partial_checksum.rs", "SAMPLES")],
    ),
    ("| notes of a worker for the control lcore | {} |", &[("ipoib-fwd/endpoint/src/control.rs", "RING")]),
    (
        "| packets to groups and to all, and copies of one packet | {1} and {2} in {0} s |",
        &[
            ("segment/pair/storm.rs", "PERIOD"),
            ("segment/pair/storm.rs", "BROADCASTS"),
            ("segment/pair/storm.rs", "COPIES"),
        ],
    ),
    (
        "| answers to probes of other gateways | {1} in {0} s |",
        &[("segment/pair/echo.rs", "PERIOD"), ("segment/pair/echo.rs", "PER_PERIOD")],
    ),
    ("| other gateways that a segment knows | {} |", &[("segment/pair/message.rs", "MAX_PEERS")]),
    ("| path lookups under way | {} |", &[("cm/src/port/paths.rs", "OUTSTANDING")]),
    ("| joins and leaves under way | {} |", &[("cm/src/port/sa.rs", "GROUPS")]),
    (
        "| answers to requests for services that the gateway does not have | {} |",
        &[("cm/src/port/mod.rs", "MAX_ANSWERS")],
    ),
    (
        "| hosts whose connection requests are counted | {} |",
        &[("ipoib-fwd/ipoib/src/port/limit.rs", "MAX_PORTS")],
    ),
    (
        "| management requests to the kernel without an answer (drivers `mlx5` and `verbs`) | {} |",
        &[("pmd/src/verbs/umad.rs", "REQUESTS")],
    ),
    (
        "| path records of one answer of `ibfab` | {} |",
        &[("ipoib-fwd/ibfab/src/sa/request.rs", "MAX_RECORDS")],
    ),
    ("| hosts of one `ibfab` | {} |", &[("ipoib-fwd/ibfab/src/config/mod.rs", "MAX_HOSTS")]),
    (
        "| packet of a `udp:`, `shm:` or `unix:` cable | {} bytes |",
        &[("pmd/connectx/src/cable/mod.rs", "MAX_PACKET")],
    ),
    (
        "| multicast groups of a port, 13 for each segment | {} with the software ConnectX;",
        &[("pmd/connectx/src/object/mcast.rs", "MAX_GROUPS")],
    ),
];

/// The text of a repository's file.
fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text of a constant's value.
fn value_in<'s>(source: &'s str, name: &str) -> Option<&'s str> {
    let (_, rest) = source.split_once(&format!("const {name}: "))?;
    let (_, value) = rest.split(';').next()?.split_once('=')?;
    Some(value.trim())
}

/// One number of a value: digits, a sum, or a shift of one.
fn number(text: &str) -> f64 {
    let text = text.trim().replace('_', "");
    let two = |sign: &str| text.split_once(sign).map(|(a, b)| (number(a), number(b)));
    if let Some((a, b)) = two("+") {
        return a + b;
    }
    if let Some((a, b)) = two("<<") {
        return a * b.exp2();
    }
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The numbers of a value: one, the members of a tuple, or the seconds of a duration.
fn numbers(value: &str) -> Vec<f64> {
    let inside = |prefix: &str| value.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(')'));
    if let Some(seconds) = inside("Duration::from_secs(") {
        return vec![number(seconds)];
    }
    if let Some(millis) = inside("Duration::from_millis(") {
        return vec![number(millis) / 1000.0];
    }
    match inside("(") {
        Some(members) => members.split(',').map(number).collect(),
        None => vec![number(value)],
    }
}

/// A number as the manual has it.
fn shown(number: f64) -> String {
    let text = number.to_string();
    match text.len() {
        length @ 4.. if !text.contains('.') => format!("{},{}", &text[..length - 3], &text[length - 3..]),
        _ => text,
    }
}

/// A row's text with its numbers, in order or by their places: `{1}`.
fn filled(text: &str, numbers: &[f64]) -> String {
    let mut text = text.to_owned();
    for (at, number) in numbers.iter().enumerate() {
        let place = format!("{{{at}}}");
        text = if text.contains(&place) {
            text.replace(&place, &shown(*number))
        } else {
            text.replacen("{}", &shown(*number), 1)
        };
    }
    text
}

/// A constant's file, of which the rooms that have many are written short.
fn file(short: &str) -> String {
    match short.split_once('/') {
        Some(("segment", rest)) => format!("{SEGMENT}{rest}"),
        Some(("link", rest)) => format!("{LINK}{rest}"),
        _ => short.to_owned(),
    }
}

#[test]
fn rates_and_bounds_in_the_manual_are_those_of_the_code() {
    let manual = read("docs/manual/limits.md");
    let mut wrong = Vec::new();
    for (text, constants) in ROWS {
        let values = constants.iter().flat_map(|(short, name)| {
            let source = read(&file(short));
            numbers(value_in(&source, name).unwrap_or_else(|| panic!("{short} has no constant {name}")))
        });
        let row = filled(text, &values.collect::<Vec<_>>());
        if !manual.contains(&row) {
            wrong.push(row);
        }
    }
    assert!(wrong.is_empty(), "docs/manual/limits.md does not say: {wrong:#?}");
}

#[test]
fn values_of_constants_are_read_as_they_are_written() {
    let source = "/// Text.\npub const A: usize = 1 << 14;\nconst B: Rate = (1000, 50);\nconst C: Duration = Duration::from_millis(500);\nconst D: usize = 4096 + 130;\n";
    let of = |name| numbers(value_in(source, name).unwrap());
    assert_eq!([of("A"), of("C"), of("D")], [[16_384.0], [0.5], [4226.0]]);
    assert_eq!(of("B"), [1000.0, 50.0]);
    assert_eq!(value_in(source, "E"), None);
    assert_eq!(filled("{1} of {0}", &[16_384.0, 0.5]), "0.5 of 16,384");
    assert_eq!(filled("{}, {}", &[3.0, 1000.0]), "3, 1,000");
}
