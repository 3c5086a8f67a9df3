//! Rates and bounds in the manual are those of the code. Most are private there: their
//! values are read from the sources.

mod pages;

use std::path::Path;

/// Numbers of one text of a document: the text with `{}` for each of them, `{1}` for one by its place or
/// `{:ms}` for one in another unit (see [`shown_in`]), and where they come from.
type Row = (&'static str, &'static [Constant]);

/// A constant by its file and name, or a product of constants. With `{}` it is a piece of the file, and the number stands there.
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
        &[("segment/requesters.rs", "REQUESTERS"), ("segment/requesters.rs", "PATIENCE")],
    ),
    ("| addresses that are asked for | {} on each side |", &[("segment/requesters.rs", "TARGETS")]),
    (
        "| announcements that defend an address against claims of one side | 1 in {} s |",
        &[("segment/defence.rs", "DEFEND")],
    ),
    ("wait for the requester's own side | {} |", &[("segment/resolve.rs", "MOST")]),
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
        "| rejections of connections that wait for room on the device | {}; other datagrams {} of each kind |",
        &[
            ("ipoib-fwd/endpoint/src/control/outgoing.rs", "WAITING_REJECTIONS"),
            ("ipoib-fwd/endpoint/src/control/outgoing.rs", "WAITING"),
        ],
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
    // Address resolution: what one address may bring about.
    (
        "| messages and probes of gateways, or what looks like them | {} in {} s from one side of a segment, at each worker;",
        &[("ipoib-fwd/src/gateway/punts.rs", "HELLOS"), ("segment/pair/storm.rs", "PERIOD")],
    ),
    (
        "because of a claim | {} within a second; if it answers, {0} again {1}, {2} and {3} s later |",
        &[("segment/owners.rs", "QUESTIONS"), ("segment/owners.rs", "AGAIN")],
    ),
    (
        "| 2 for each move, {:next} moves in {} s |",
        &[("segment/owners.rs", "MOVES"), ("segment/owners.rs", "WINDOW")],
    ),
    (
        "bytes and {} s; {} of them of one address",
        &[
            ("ipoib-fwd/src/metrics/exporter.rs", "client: Duration::from_secs({})"),
            ("ipoib-fwd/src/metrics/places.rs", "MAX_OF_HOST"),
        ],
    ),
    (
        "Subnets of more than {} addresses are left out. While hosts look for many addresses: one query in {:ms} ms |",
        &[("segment/discovery.rs", "LARGEST"), ("segment/discovery.rs", "PACE")],
    ),
    // Connections.
    (
        "| connections that hosts open | 1/{} of `infiniband.max-connections`, in equal parts at each worker |",
        &[("config/src/buffers.rs", "active: each(most / {})")],
    ),
    (
        "| connections that one host opens | 1/{} of those, in all and at each worker |",
        &[("ipoib-fwd/src/gateway/segment_parts.rs", "(link.max_passive * workers / {})")],
    ),
    (
        "| queue pairs of hosts' connections that are being closed | 1/{} of a worker's places for hosts |",
        &[("ipoib-fwd/ipoib/src/port/admission.rs", "(most / {}).max(1)")],
    ),
    (
        "| handshakes, open connections and those in TIMEWAIT of one host | {} for each connection of its share, and 1/{} of the table's places for hosts |",
        &[
            ("ipoib-fwd/ipoib/src/port/mod.rs", "CM_ENTRIES"),
            ("ipoib-fwd/ipoib/src/port/mod.rs", "cm_share: max_begun / {}"),
        ],
    ),
    (
        "| messages of one host that open or end connections or look services up (REQ, DREQ, SIDR), unless they answer the gateway | as many as the port has places for connections, {} at least, at once; 1/{} of the places, {} at least, a second |",
        &[
            ("ipoib-fwd/ipoib/src/port/mod.rs", "((slots as u32).max({})"),
            ("ipoib-fwd/ipoib/src/port/mod.rs", "(slots as u32 / {})"),
            ("ipoib-fwd/ipoib/src/port/mod.rs", "(slots as u32 / 4).max({})"),
        ],
    ),
    (
        "| TIMEWAIT of a connection that a host has opened, as that host names it | {} s |",
        &[("cm/src/connection/api.rs", "max_timewait: {},")],
    ),
    (
        "| wait for the answer to a DREQ, where the host has opened the connection | {} s, {} repetition once half of the table is in use |",
        &[
            ("cm/src/connection/outgoing.rs", "DREQ_TIMEOUT"),
            ("cm/src/connection/outgoing.rs", "DREQ_RETRIES"),
        ],
    ),
    (
        "| time in which a host's request becomes a connection | {} s |",
        &[("link/connections/accept.rs", "HALF_OPEN")],
    ),
    (
        "| pause before the gateway dials a host again | {} to {} s, longer each time; {} s after a rejection that another request would meet, too |",
        &[("link/connections/dial.rs", "BACKOFF"), ("link/connections/dial.rs", "FINAL")],
    ),
    ("| ports that one LID names by ARP and whose paths are not known | {} |", &[("link/paths.rs", "NAMED")]),
    // Queues of workers.
    (
        "| messages that wait for full queues | {}, each queue for {:ms} ms |",
        &[("config/src/buffers.rs", "HELD_MESSAGES"), ("ipoib-fwd/endpoint/src/held.rs", "PATIENCE")],
    ),
    (
        "| frames that wait for an Ethernet port | {}, for {:ms} ms; {} of them are the control lcore's |",
        &[
            ("config/src/buffers.rs", "WAITING_FRAMES"),
            ("ipoib-fwd/src/gateway/worker/faces.rs", "PATIENCE"),
            ("ipoib-fwd/src/gateway/worker/faces.rs", "OWN"),
        ],
    ),
    // Several gateways.
    (
        "| announcements of all hosts because another gateway has forwarded, too | once in {} s |",
        &[("segment/pair/election/announcing.rs", "GAP")],
    ),
    (
        "| time for which a loop blocks a segment | {} s, doubled each time up to {} s; {0} s again after {2:min} minutes without a loop |",
        &[
            ("segment/pair/loops.rs", "HOLD"),
            ("segment/pair/loops.rs", "LONGEST_HOLD"),
            ("segment/pair/loops.rs", "FORGIVEN"),
        ],
    ),
    // `ibfab`.
    (
        "| subscriptions to events, and reports that wait for their answer | {} of each; {} for all ports |",
        &[
            ("ipoib-fwd/ibfab/src/subnet/settings.rs", "max_subscriptions_of_a_port: {},"),
            ("ipoib-fwd/ibfab/src/subnet/settings.rs", "max_subscriptions: {},"),
        ],
    ),
    (
        "| multicast groups that a port has made | {}; {} for all ports |",
        &[
            ("ipoib-fwd/ibfab/src/subnet/settings.rs", "max_groups_of_a_port: {},"),
            ("ipoib-fwd/ibfab/src/subnet/settings.rs", "max_groups: {},"),
        ],
    ),
    (
        "| pairs of ports, groups and members that requests have examined in one turn | {} |",
        &[("ipoib-fwd/ibfab/src/fabric.rs", "EXAMINED_PER_TURN")],
    ),
    (
        "| datagrams that wait for the subnet manager | {} of subnet management, {} others |",
        &[
            ("ipoib-fwd/ibfab/src/switch/inbox.rs", "MAX_SMPS"),
            ("ipoib-fwd/ibfab/src/switch/inbox.rs", "MAX_OTHERS"),
        ],
    ),
    (
        "| data packets that management packets pass | {}, which have waited for {:ms} ms |",
        &[
            ("ipoib-fwd/ibfab/src/switch/mod.rs", "MAX_WAITING"),
            ("ipoib-fwd/ibfab/src/switch/mod.rs", "PASSING"),
        ],
    ),
    (
        "| wait for a port that takes nothing | {:ms} ms |",
        &[("ipoib-fwd/ibfab/src/switch/mod.rs", "HEAD_OF_QUEUE_LIFE")],
    ),
    (
        "| queries of a host that does not answer | {} before it counts as gone; one in {:ms} ms, doubled up to {} times |",
        &[
            ("ipoib-fwd/ibfab/src/sm/mute.rs", "PATIENCE"),
            ("ipoib-fwd/ibfab/src/sm/mute.rs", "PAUSE"),
            ("ipoib-fwd/ibfab/src/sm/mute.rs", "MAX_DOUBLINGS"),
        ],
    ),
    // The exporter and cables.
    (
        "| queries of the gateway by `ipoib-fwd metrics` | {:a-second} a second |",
        &[("ipoib-fwd/src/metrics/gateway.rs", "PACE")],
    ),
    (
        "| silence of the other end of a `udp:` cable | {} s; each end sends a datagram every {:ms} ms |",
        &[("pmd/connectx/src/cable/udp.rs", "SILENCE"), ("pmd/connectx/src/cable/udp.rs", "HELLO")],
    ),
    (
        "| time in which the other end of a `shm:` cable completes its greeting | {} s |",
        &[("pmd/connectx/src/cable/shm.rs", "GREETING")],
    ),
];

/// The text of a repository's file.
fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text of a constant's value.
fn value_in<'s>(source: &'s str, name: &str) -> Option<&'s str> {
    if let Some((before, after)) = name.split_once("{}") {
        let at = |start: usize| {
            let rest = source.get(start + before.len()..)?;
            let end = if after.is_empty() { rest.find([',', '\n']) } else { rest.find(after) };
            Some(rest.get(..end?)?.trim())
        };
        // A field's type may stand where its value does.
        let is_value = |text: &&str| {
            text.starts_with(|c: char| c.is_ascii_digit()) || text.starts_with("Duration::from_")
        };
        return source.match_indices(before).filter_map(|(start, _)| at(start)).find(is_value);
    }
    let (_, rest) = source.split_once(&format!("const {name}: "))?;
    // The type of an array has a semicolon, too.
    let (_, value) = rest.split_once(" =")?;
    Some(value.split(';').next()?.trim())
}

/// One number of a value: digits, a constant of the same file, seconds, a sum, a product, or a shift.
fn number(source: &str, text: &str) -> f64 {
    let text = text.trim();
    let two = |sign: &str| text.rsplit_once(sign).map(|(a, b)| (number(source, a), number(source, b)));
    if let Some((a, b)) = two(" + ") {
        return a + b;
    }
    if let Some((a, b)) = two(" << ") {
        return a * b.exp2();
    }
    if let Some((a, b)) = two(" * ") {
        return a * b;
    }
    if let Some((a, b)) = two(" / ") {
        return a / b;
    }
    let inside = |prefix: &str| text.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(')'));
    for (unit, per_second) in [("secs", 1.0), ("millis", 1000.0), ("micros", 1e6)] {
        if let Some(inner) = inside(&format!("Duration::from_{unit}(")) {
            return number(source, inner) / per_second;
        }
    }
    // What tests call it.
    if let Some(inner) = inside("secs(") {
        return number(source, inner);
    }
    if text.starts_with(|c: char| c.is_ascii_uppercase()) {
        return value_in(source, text).map_or_else(|| panic!("no {text}"), |value| number(source, value));
    }
    text.replace('_', "").parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The numbers of a value: one, or the members of a tuple or an array.
fn numbers(source: &str, value: &str) -> Vec<f64> {
    let inside = |open, close| value.strip_prefix(open).and_then(|rest: &str| rest.strip_suffix(close));
    match inside('(', ')').or_else(|| inside('[', ']')) {
        Some(members) => {
            members.split(',').filter(|m| !m.trim().is_empty()).map(|m| number(source, m)).collect()
        }
        None => vec![number(source, value)],
    }
}

/// The numbers of a constant, or of a product of constants.
fn values(short: &str, name: &str) -> Vec<f64> {
    let source = read(&file(short));
    let of =
        |name| numbers(&source, value_in(&source, name).unwrap_or_else(|| panic!("{short} has no {name}")));
    match name.split_once(" * ") {
        Some((a, b)) if !name.contains("{}") => vec![of(a).iter().chain(&of(b)).product()],
        _ => of(name),
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

/// A number in a unit: milliseconds, minutes, MiB, the rate of a period, a quarter of the number, a word, or a time in words.
fn shown_in(unit: &str, number: f64) -> String {
    const WORDS: [&str; 13] = [
        "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
        "twelve",
    ];
    let word =
        |number: f64| WORDS.iter().zip(0_u32..).find(|(_, n)| f64::from(*n) == number).map(|(word, _)| *word);
    match unit {
        "" => shown(number),
        "ms" => shown((number * 1000.0).round()),
        "min" => shown(number / 60.0),
        "plain" => number.to_string(),
        "tenth" => format!("{number:.1}"),
        "MiB" => shown(number / f64::from(1 << 20)),
        "a-second" => shown((1.0 / number).round()),
        "next" => shown(number + 1.0),
        "word" => word(number).unwrap_or_else(|| panic!("no word for {number}")).to_owned(),
        "times-a-second" => shown_in("word", (1.0 / number).round()),
        "seconds" if number == 1.0 => "second".to_owned(),
        "seconds" => format!("{} seconds", shown_in("word", number)),
        unit => panic!("no unit {unit}"),
    }
}

/// A row's text with its numbers.
fn filled(text: &str, numbers: &[f64]) -> String {
    let mut parts = text.split('{');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for (next, part) in parts.enumerate() {
        let (place, rest) = part.split_once('}').unwrap_or_else(|| panic!("{text}"));
        let (at, unit) = place.split_once(':').unwrap_or((place, ""));
        let number =
            *numbers.get(at.parse().unwrap_or(next)).unwrap_or_else(|| panic!("{text}: {numbers:?}"));
        out += &shown_in(unit, number);
        out += rest;
    }
    out
}

/// A document's text with one space between two words.
fn plain(document: &str) -> String {
    read(document).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The texts of rows that a document does not have.
fn missing(document: &str, rows: &[Row]) -> Vec<String> {
    let plain = plain(document);
    let texts = rows.iter().map(|(text, constants)| {
        let numbers = constants.iter().flat_map(|(short, name)| values(short, name));
        filled(text, &numbers.collect::<Vec<_>>())
    });
    texts
        .filter(|text| !plain.contains(text))
        .map(|text| format!("{document} does not say: {text}"))
        .collect()
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
    let pages = std::iter::once(("docs/manual/limits.md", ROWS)).chain(pages::PAGES.iter().copied());
    let wrong: Vec<String> = pages.flat_map(|(document, rows)| missing(document, rows)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn values_of_constants_are_read_as_they_are_written() {
    let source = "/// Text.\npub const A: usize = 1 << 14;\nconst B: Rate = (1000, 50);\nconst C: Duration = Duration::from_millis(500);\nconst D: usize = 4096 + 130;\nconst F: [Duration; 2] =\n    [Duration::from_secs(1), Duration::from_secs(2)];\nlet x = Config { y: 3 << 10, z: (n / 4).max(1) };\n";
    let of = |name| numbers(source, value_in(source, name).unwrap());
    assert_eq!([of("A"), of("C"), of("D")], [[16_384.0], [0.5], [4226.0]]);
    assert_eq!([of("B"), of("F")], [[1000.0, 50.0], [1.0, 2.0]]);
    assert_eq!([of("y: {}"), of("(n / {}).max")], [[3072.0], [4.0]]);
    assert_eq!(value_in(source, "E"), None);
    assert_eq!(filled("{1} of {0}", &[16_384.0, 0.5]), "0.5 of 16,384");
    assert_eq!(filled("{}, {}", &[3.0, 1000.0]), "3, 1,000");
    assert_eq!(
        filled("{:ms} ms, every {:seconds}, {2:min} min", &[0.25, 1.0, 600.0]),
        "250 ms, every second, 10 min"
    );
    assert_eq!(filled("{:times-a-second} {0:a-second} {0:word}", &[1.0]), "one 1 one");
}
