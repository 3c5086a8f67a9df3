//! Numbers of the other documents.

use super::{Row, plain, shown, shown_in, values};

const FWD_UNIT: &str = "packaging/systemd/ipoib-fwd.service";
const IBFAB_UNIT: &str = "packaging/systemd/ibfab.service";
const SM: &str = "ipoib-fwd/ibfab/src/subnet/settings.rs";
const MUTE: &str = "ipoib-fwd/ibfab/src/sm/mute.rs";
const NOTIFY: &str = "packaging/examples/keepalived/ipoib-fwd-notify";
const OWNERSHIP_TEST: &str = "segment/tests/day/ownership.rs";
const CTL: &str = "ipoib-fwd/src/ctl.rs";
const SETTINGS: &str = "config/src/settings.rs";

/// Documents and their numbers.
pub(super) const PAGES: &[(&str, &[Row])] = &[
    ("docs/manual/pairs.md", PAIRS),
    ("docs/monitoring.md", MONITORING),
    ("docs/gidcache.md", GIDCACHE),
    ("docs/troubleshooting.md", TROUBLESHOOTING),
    (
        "docs/configuration.md",
        &[(
            "looks after the interfaces itself, {:times-a-second} times a second",
            &[("ipoib-fwd/src/gateway/control/pair.rs", "LINK_PERIOD")],
        )],
    ),
    ("docs/operations.md", OPERATIONS),
    ("docs/manual/security.md", SECURITY),
    ("docs/security-model.md", SECURITY_MODEL),
];

const PAIRS: &[Row] = &[
    ("when it is silent for {:word} hellos", &[("segment/pair/api.rs", "LISTEN")]),
    ("the default of {} ms", &[(SETTINGS, "pub hello_ms: u32 = {} =>")]),
    (
        "switch over while that gateway still forwards their packets, for {:seconds}",
        &[("segment/pair/election.rs", "HANDOVER")],
    ),
    ("at most once in {:seconds}", &[("segment/pair/election/announcing.rs", "GAP")]),
    (
        "they know its addresses for {:min} minutes after it was heard",
        &[("segment/pair/peers.rs", "REMEMBERED")],
    ),
    (
        "Every {:seconds} the forwarder sends a small broadcast (UDP port {})",
        &[("segment/pair/loops.rs", "PERIOD"), ("ipoib-fwd/ipoib/src/net/probe.rs", "PROBE_PORT")],
    ),
    (
        "for {} s at least, longer each time, at most {} s",
        &[("segment/pair/loops.rs", "HOLD"), ("segment/pair/loops.rs", "LONGEST_HOLD")],
    ),
    (
        "from another station within a {0:seconds} passes once",
        &[("segment/pair/storm.rs", "PERIOD * REMEMBERED")],
    ),
    ("That takes {} s for each host", &[("segment/owners.rs", "SEARCHES * FOUND")]),
    ("or not for long enough to know the hosts ({} hellos", &[("segment/pair/election.rs", "WARM")]),
    ("forwards again after {:seconds}, and the command fails", &[("segment/pair/election.rs", "HANDOVER")]),
    (
        "{} starts within an hour (`StartLimitIntervalSec={1:plain}`, `StartLimitBurst={0:plain}`)",
        &[(FWD_UNIT, "StartLimitBurst={}"), (FWD_UNIT, "StartLimitIntervalSec={}")],
    ),
    ("is started again after {:seconds}", &[(FWD_UNIT, "RestartSec={}")]),
    (
        "`ibfab.service` {:word} starts in {} s",
        &[(IBFAB_UNIT, "StartLimitBurst={}"), (IBFAB_UNIT, "StartLimitIntervalSec={}")],
    ),
    (
        "the TIMEWAIT of its connection is over: {:tenth} s at most",
        &[("cm/src/connection/api.rs", "max_timewait: {},")],
    ),
    ("no answer came within {} s", &[("ipoib-fwd/src/ctl.rs", "RELOAD_PATIENCE")]),
    ("does not answer is notified again for {} s", &[(NOTIFY, "tries={}")]),
    (
        "priorities (`ipoib-fwd ctl set priority`): {} on the master, {} elsewhere",
        &[(NOTIFY, "MASTER) priority={} ;;"), (NOTIFY, "BACKUP | FAULT) priority={} ;;")],
    ),
    (
        "0 if all do, {} if one does not, and {} if the gateway does not answer",
        &[(CTL, "Self::Unhealthy => {},"), (CTL, "Self::Telemetry(_) | Self::NotDrained(_) => {},")],
    ),
    ("Exit code {} means that no answer came", &[(CTL, "Self::Unanswered(..) => {},")]),
];

const MONITORING: &[Row] = &[
    (
        "Up to {:word} clients may follow. A client that reads",
        &[("dataplane/src/telemetry/server.rs", "MAX_FOLLOWERS")],
    ),
    (
        "A disk that takes nothing for a {:seconds} is an alarm",
        &[("ipoib-fwd/src/gateway/control/recordings.rs", "SILENCE")],
    ),
    (
        "for the disk longer than {:seconds}.",
        &[("ipoib-fwd/src/gateway/control/recordings.rs", "LAST_PATIENCE")],
    ),
    (
        "A capture ends after {:min} minutes, with the newest {:word} files of {:MiB} MiB",
        &[
            ("dataplane/src/capture/filter.rs", "time: Duration::from_secs({})"),
            ("dataplane/src/capture/files.rs", "Self { files: {}, size"),
            ("dataplane/src/capture/files.rs", "size: {} }"),
        ],
    ),
    ("A file of {:MiB} MiB is followed by another one", &[("dataplane/src/capture/files.rs", "size: {} }")]),
    (
        "({} files of {:MiB} MiB at most)",
        &[("dataplane/src/capture/files.rs", "MOST_FILES"), ("dataplane/src/capture/files.rs", "MOST_SIZE")],
    ),
    (
        "`count=N` ({} rows) and `seconds=N` ({})",
        &[
            ("ipoib-fwd/src/gateway/control/traces/order.rs", "count: {},"),
            ("ipoib-fwd/src/gateway/control/traces/order.rs", "time: Duration::from_secs({})"),
        ],
    ),
    ("Up to {:word} clients may follow at once", &[("ipoib-fwd/src/gateway/sighting.rs", "MAX_WATCHERS")]),
    ("that waits for its port ({:ms} ms at most)", &[("ipoib-fwd/src/gateway/worker/faces.rs", "PATIENCE")]),
    (
        "serves the gateway's metrics at `http://127.0.0.1:{:plain}/metrics`",
        &[("ipoib-fwd/src/metrics/exporter.rs", "DEFAULT_LISTEN: &str = \"127.0.0.1:{}\"")],
    ),
    ("answer with at most {} rows", &[("ipoib-fwd/src/page.rs", "MOST_ROWS")]),
    (
        "with exit code {} when the gateway exits, with {} when the gateway dies",
        &[(CTL, "Self::Ended => {},"), (CTL, "Self::Gone => {},")],
    ),
];

const GIDCACHE: &[Row] = &[
    ("has been silent for {:seconds}", &[("ipoib-fwd/src/gids/source.rs", "PATIENCE")]),
    (
        "At most {} devices and {} interfaces are served",
        &[
            ("ipoib-fwd/src/gids/serve/devices.rs", "MAX_DEVICES"),
            ("ipoib-fwd/src/gids/serve/interfaces.rs", "MAX_INTERFACES"),
        ],
    ),
    ("ends the service, within {:seconds};", &[("ipoib-fwd/src/gids/serve/devices.rs", "LOOK")]),
];

const OPERATIONS: &[Row] = &[
    ("InfiniBand hosts in connected mode send up to {} bytes", &[(SETTINGS, "pub receive_mtu: u16 = {} =>")]),
    ("a worker stalls for {:seconds}", &[("ipoib-fwd/src/gateway/control/service.rs", "PATIENCE")]),
    (
        "emits at most {} entries in {:seconds}",
        &[("logging/src/limit.rs", "MOST"), ("logging/src/limit.rs", "SPELL")],
    ),
];

const TROUBLESHOOTING: &[Row] = &[
    ("samples up to {} frames a second", &[("ipoib-fwd/src/gateway/partial_checksum.rs", "SAMPLES")]),
    (
        "under `warning` of `ipoib-fwd ctl links` for {:min} minutes",
        &[("ipoib-fwd/src/gateway/partial_checksum.rs", "WARNING_TIME")],
    ),
    (
        "`checksum-offload` repeat them at most once in {} s for each port",
        &[("ipoib-fwd/src/gateway/partial_checksum.rs", "REPORT_PERIOD")],
    ),
    ("sleeps of up to {1:ms} ms", &[("dataplane/src/worker.rs", "NAPS")]),
    ("probes go to UDP port {}", &[("ipoib-fwd/ipoib/src/net/probe.rs", "PROBE_PORT")]),
    ("answers for neither during {} s", &[("segment/owners.rs", "CONTESTED")]),
    // The bound that the model of ownership holds the gateway to.
    ("for at most {} s after that host has died", &[(OWNERSHIP_TEST, "BOUND")]),
    ("is found again within {} s after the first ARP request", &[(OWNERSHIP_TEST, "BOUND")]),
];

const SECURITY: &[Row] = &[
    (
        "neither is reached from the other side for {0} s, and for {0} s more each time",
        &[("segment/owners.rs", "CONTESTED")],
    ),
    ("or has found within the last {} s", &[("segment/ownership.rs", "LATE")]),
    (
        "with more than {} probes or hellos in {} s",
        &[("ipoib-fwd/src/gateway/punts.rs", "HELLOS"), ("segment/pair/storm.rs", "PERIOD")],
    ),
    ("(`storm`) for a {0:seconds}, if the addresses", &[("segment/pair/storm.rs", "PERIOD * REMEMBERED")]),
    ("the first {} bytes behind the IP header are equal", &[("segment/pair/storm.rs", "PAYLOAD")]),
    ("or more than {:times-a-second} times a second", &[("ipoib-fwd/src/metrics/gateway.rs", "PACE")]),
];

const SECURITY_MODEL: &[Row] = &[
    (
        "packets for it are dropped after {:ms} ms, counted (`head_of_queue`)",
        &[("ipoib-fwd/ibfab/src/switch/mod.rs", "HEAD_OF_QUEUE_LIFE")],
    ),
    (
        "as long as it takes a packet in {:ms} ms; management packets pass {} packets that wait",
        &[
            ("ipoib-fwd/ibfab/src/switch/mod.rs", "HEAD_OF_QUEUE_LIFE"),
            ("ipoib-fwd/ibfab/src/switch/mod.rs", "MAX_WAITING"),
        ],
    ),
    (
        "a port has at most {} subscriptions",
        &[("ipoib-fwd/ibfab/src/subnet/settings.rs", "max_subscriptions_of_a_port: {},")],
    ),
    (
        "Every {} s it reads back PortInfo",
        &[("ipoib-fwd/ibfab/src/subnet/settings.rs", "sweep_interval: Duration::from_secs({})")],
    ),
    ("the lease ({} s) is over", &[("ipoib-fwd/ibfab/src/subnet/m_keys.rs", "LEASE")]),
    (
        "the gateway is queried {:times-a-second} times a second at most",
        &[("ipoib-fwd/src/metrics/gateway.rs", "PACE")],
    ),
];

/// Numbers that follow from several constants.
#[test]
fn computed_numbers_in_the_manual() {
    let one = |short, name| values(short, name)[0];
    let contains = |document: &str, text: &str| {
        assert!(plain(document).contains(text), "{document} does not say: {text}");
    };
    let hello = one(SETTINGS, "pub hello_ms: u32 = {} =>") / 1000.0;
    let warm = one("segment/pair/election.rs", "WARM") * hello;
    contains("docs/manual/pairs.md", &format!("hellos, {} s with the default)", shown(warm)));
    // Reported hosts that are proven: `UNDER_WAY` at once, each for the time of its queries; then those of a handover's time.
    let rate = one("segment/reported.rs", "UNDER_WAY") / one("segment/owners.rs", "SEARCHES * FOUND");
    contains("docs/manual/pairs.md", &format!("at some {} hosts a second", (rate / 100.0).floor() * 100.0));
    let handover = one("segment/pair/election.rs", "HANDOVER");
    let lossless = (rate * handover / 1000.0).floor() * 1000.0;
    contains(
        "docs/manual/pairs.md",
        &format!("with more than {} hosts an orderly takeover", shown(lossless)),
    );
    // Without a key a hello counts for `LEASES` leases at most, each of `LISTEN` hellos.
    let lease = one("segment/pair/peers.rs", "LEASES") * one("segment/pair/api.rs", "LISTEN");
    contains("docs/manual/pairs.md", &format!("for up to {lease} hello intervals after each one"));
    // As long as it takes to start 300 times, with five seconds between two starts.
    let starts = one(FWD_UNIT, "StartLimitBurst={}");
    let minutes = starts * (one(FWD_UNIT, "RestartSec={}") + 1.0) / 60.0;
    assert_eq!(minutes, 30.0, "half an hour, with a second for each start");
    let rest = one(FWD_UNIT, "StartLimitIntervalSec={}") / starts - one(FWD_UNIT, "RestartSec={}");
    contains(
        "docs/manual/pairs.md",
        &format!("one that fails more than {} after its start", shown_in("seconds", rest)),
    );
    // The answer of an owner that is queried twice.
    let answer = 2.0 * one("segment/pending.rs", "OWN_SIDE_ANSWER");
    contains("docs/manual/security.md", &format!("if that takes longer than {answer} s"));
    let ring = one("config/src/eal.rs", "AF_PACKET_RING") / f64::from(1 << 20);
    contains("docs/manual/security.md", &format!("room for its rings, {} MiB for each queue", 2.0 * ring));
    // A host that does not answer: the tries of one query, which several hosts share if they are many; and the longest pause.
    let query = one(SM, "smp_timeout: {},") * one(SM, "smp_tries: {},");
    let pause = one(MUTE, "PAUSE") * one(MUTE, "MAX_DOUBLINGS").exp2();
    contains("docs/security-model.md", &format!("joins and new links wait {query} s for it"));
    let each = one(MUTE, "PATIENCE") * query / one(SM, "smp_window: {},");
    contains("docs/security-model.md", &format!("after some {each} s for each of them"));
    contains("docs/security-model.md", &format!("costs {query} s in {} s at most", query + pause));
    let queries = one("segment/limits.rs", "DISCOVERY") * 2.5;
    contains("docs/manual/limits.md", &format!("{} in 2.5 s", shown(queries)));
    // Captures of both kinds of packets.
    let bytes = one("dataplane/src/capture/files.rs", "Self { files: {}, size")
        * one("dataplane/src/capture/files.rs", "size: {} }");
    let mib = 2.0 * bytes / f64::from(1 << 20);
    contains("docs/monitoring.md", &format!("so {mib} MiB of disk"));
    // DPDK's timers of LACP, which no configuration changes.
    contains("docs/manual/limits.md", "gives it up after 90 s of silence and 3 s more");
    contains("docs/configuration.md", &format!("LACP times out after {} s", 90 + 3));
}
