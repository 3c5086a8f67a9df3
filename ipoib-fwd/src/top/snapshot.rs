//! Reads a gateway's answers. The peer is another process, perhaps of another version or not a gateway:
//! missing values are empty, excess rows are dropped, and its strings are sanitized.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::text::harmless;

/// Maximum number of rows of a kind: more segments, workers and ports than a gateway can have.
const MAX_ROWS: usize = 256;
/// Maximum number of connections; all connections of a page are counted.
const MAX_CONNECTIONS: usize = 4096;

/// Packets and bytes since the gateway's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counted {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

/// Counts by name.
pub(super) type Counts = BTreeMap<String, u64>;

/// The process that answered.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Process {
    pub(super) version: String,
    pub(super) pid: u64,
    pub(super) up_ms: u64,
    /// 0 for an older version.
    pub(super) started_unix_ms: u64,
}

/// A segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Segment {
    pub(super) name: String,
    pub(super) to_infiniband: Counted,
    pub(super) to_ethernet: Counted,
    pub(super) punt: Counted,
    pub(super) drops: u64,
    /// Hosts on the Ethernet and on the InfiniBand side.
    pub(super) hosts: [u64; 2],
    /// Connections opened by the gateway, and by peers.
    pub(super) connections: [u64; 2],
    pub(super) ethernet: String,
    pub(super) vlan: String,
    pub(super) infiniband: String,
    pub(super) pkey: String,
    pub(super) link: String,
    pub(super) role: String,
    pub(super) mode: String,
    /// The condition that it waits for; empty if none.
    pub(super) waits_for: String,
    pub(super) peers: u64,
}

/// A worker.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Worker {
    pub(super) name: String,
    pub(super) busy_turns: u64,
    pub(super) busy_ns: u64,
    pub(super) rest_ns: u64,
    /// Packets by path.
    pub(super) packets: Counts,
}

/// Durations in nanoseconds: their number and quantiles.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Times {
    pub(super) count: u64,
    /// 50 %, 90 %, 99 %, 99.9 %, maximum.
    pub(super) quantiles: [u64; 5],
}

/// A port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Port {
    pub(super) name: String,
    pub(super) is_up: bool,
    /// Further details.
    pub(super) words: String,
}

/// A connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Connection {
    pub(super) segment: String,
    pub(super) incoming: bool,
    pub(super) address: String,
    pub(super) state: String,
    pub(super) worker: u64,
    pub(super) qpn: u64,
    pub(super) mtu: u64,
    pub(super) idle_ms: u64,
    pub(super) peer: String,
}

/// The connections of one page.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Connections {
    /// True if there are more connections, which are not counted.
    pub(super) has_more: bool,
    /// Number of connections by state.
    pub(super) states: BTreeMap<String, u64>,
    /// The most recently used connections.
    pub(super) rows: Vec<Connection>,
}

/// The data that are only queried for one segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Detail {
    pub(super) segment: String,
    pub(super) drops: Counts,
}

/// All data of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Snapshot {
    pub(super) process: Process,
    /// By path.
    pub(super) traffic: BTreeMap<String, Counted>,
    pub(super) drops: Counts,
    /// Drops of devices, by reason.
    pub(super) device_drops: Counts,
    pub(super) segments: Vec<Segment>,
    pub(super) workers: Vec<Worker>,
    /// Busy iterations of the last second and since the start, and connection setups.
    pub(super) last_second: Times,
    pub(super) turns: Times,
    pub(super) setups: Times,
    pub(super) ethernet_ports: Vec<Port>,
    pub(super) infiniband_ports: Vec<Port>,
    pub(super) alarms: Counts,
    /// Packet buffers in use, and free ones.
    pub(super) buffers: [u64; 2],
    /// `None` if they were not requested.
    pub(super) connections: Option<Connections>,
    pub(super) detail: Option<Detail>,
}

fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or_default()
}

fn word(value: &Value, name: &str) -> String {
    match value.get(name) {
        Some(Value::String(text)) => harmless(text),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

fn rows<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value.get(name).and_then(Value::as_array).into_iter().flatten().take(MAX_ROWS)
}

fn fields<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = (String, &'a Value)> {
    let fields = value.get(name).and_then(Value::as_object).map(Map::iter);
    fields.into_iter().flatten().take(MAX_ROWS).map(|(name, value)| (harmless(name), value))
}

fn counts(value: &Value, name: &str) -> Counts {
    fields(value, name).filter_map(|(name, n)| Some((name, n.as_u64()?))).collect()
}

fn times(stats: &Value, name: &str) -> Times {
    let of = stats.get("times").and_then(|times| times.get(name)).unwrap_or(&Value::Null);
    let quantiles = ["p50", "p90", "p99", "p999", "max"].map(|name| number(of, name));
    Times { count: number(of, "count"), quantiles }
}

fn worker(row: &Value) -> Worker {
    let is_path = |name: &String| name.ends_with("_packets");
    let all = row.as_object().into_iter().flatten().take(MAX_ROWS);
    let packets = all.filter(|(name, _)| is_path(name));
    Worker {
        name: word(row, "worker"),
        busy_turns: number(row, "busy_turns"),
        busy_ns: number(row, "busy_ns"),
        rest_ns: number(row, "rest_ns"),
        packets: packets
            .filter_map(|(name, n)| Some((harmless(name.trim_end_matches("_packets")), n.as_u64()?)))
            .collect(),
    }
}

fn segment(row: &Value, tables: &Value, link: &Value) -> Segment {
    let counted = |way: &str| Counted {
        packets: number(row, &format!("{way}_packets")),
        bytes: number(row, &format!("{way}_bytes")),
    };
    Segment {
        name: word(row, "segment"),
        to_infiniband: counted("to_infiniband"),
        to_ethernet: counted("to_ethernet"),
        punt: counted("punt"),
        drops: number(row, "drops"),
        hosts: ["ethernet_hosts", "infiniband_hosts"].map(|name| number(tables, name)),
        connections: ["outgoing_connections", "incoming_connections"].map(|name| number(tables, name)),
        ethernet: word(link, "ethernet"),
        vlan: word(link, "vlan"),
        infiniband: word(link, "infiniband"),
        pkey: word(link, "pkey"),
        link: word(link, "link"),
        role: word(link, "role"),
        mode: word(link, "mode"),
        waits_for: word(link, "waits_for"),
        peers: number(link, "peers"),
    }
}

/// One port is an object, several are a list.
fn ports<'a>(links: &'a Value, one: &str, several: &str) -> Vec<&'a Value> {
    links.get(one).filter(|row| row.is_object()).into_iter().chain(rows(links, several)).collect()
}

fn ethernet_port(row: &Value) -> Port {
    let (mac, woken_by) = (word(row, "mac"), word(row, "woken_by"));
    Port {
        name: word(row, "port"),
        is_up: word(row, "link") == "up",
        words: format!("{mac}, wakes by {woken_by}"),
    }
}

fn infiniband_port(row: &Value) -> Port {
    let field = |name: &str| word(row, name);
    let errors = number(row, "device_errors");
    let errors = if errors > 0 { format!(", {errors} device errors") } else { String::new() };
    Port {
        name: format!("{}/{}", field("device"), field("port")),
        is_up: field("link") == "up",
        words: format!(
            "{}, LID {}, SM {}, MTU {}{errors}",
            field("port_state"),
            field("lid"),
            field("sm_lid"),
            field("mtu")
        ),
    }
}

fn connections(answer: &Value) -> Connections {
    let has_more = answer.get("next").is_some_and(Value::is_string);
    let mut all = Connections { has_more, ..Connections::default() };
    for row in answer.get("connections").and_then(Value::as_array).into_iter().flatten() {
        let connection = Connection {
            segment: word(row, "segment"),
            incoming: row.get("passive").and_then(Value::as_bool).unwrap_or_default(),
            address: word(row, "ip"),
            state: word(row, "state"),
            worker: number(row, "worker"),
            qpn: number(row, "qpn"),
            mtu: number(row, "mtu"),
            idle_ms: number(row, "idle_ms"),
            peer: word(row, "peer"),
        };
        if all.states.len() < MAX_ROWS || all.states.contains_key(&connection.state) {
            *all.states.entry(connection.state.clone()).or_default() += 1;
        }
        all.rows.push(connection);
    }
    // The sort is stable: connections of the same age keep the gateway's order.
    all.rows.sort_by_key(|row| row.idle_ms);
    all.rows.truncate(MAX_CONNECTIONS);
    all
}

impl Snapshot {
    /// Creates a snapshot from the answers to `stats` and `links`, and to `connections` and a segment's
    /// `stats` if they were requested.
    pub(super) fn of(
        stats: &Value,
        links: &Value,
        connected: Option<&Value>,
        detail: Option<&Value>,
    ) -> Self {
        let process = stats.get("process").unwrap_or(&Value::Null);
        let named = |list: Vec<&Value>, name: &str| -> Value {
            list.into_iter().find(|row| word(row, "segment") == name).cloned().unwrap_or_default()
        };
        let segments = rows(stats, "segments").map(|row| {
            let name = word(row, "segment");
            let tables = named(rows(stats, "tables").collect(), &name);
            segment(row, &tables, &named(rows(links, "segments").collect(), &name))
        });
        let buffers = stats.get("buffers").unwrap_or(&Value::Null);
        let traffic = fields(stats, "traffic").map(|(path, row)| {
            (path, Counted { packets: number(row, "packets"), bytes: number(row, "bytes") })
        });
        Self {
            process: Process {
                version: word(process, "version"),
                pid: number(process, "pid"),
                up_ms: number(process, "up_ms"),
                started_unix_ms: number(process, "started_unix_ms"),
            },
            traffic: traffic.collect(),
            drops: counts(stats, "drops"),
            device_drops: counts(links, "device_drops"),
            segments: segments.collect(),
            workers: rows(stats, "workers").map(worker).collect(),
            last_second: times(stats, "burst_service_last_second_ns"),
            turns: times(stats, "burst_service_ns"),
            setups: times(stats, "connection_setup_ns"),
            ethernet_ports: ports(links, "ethernet", "ethernet_ports")
                .into_iter()
                .map(ethernet_port)
                .collect(),
            infiniband_ports: ports(links, "infiniband", "infiniband_ports")
                .into_iter()
                .map(infiniband_port)
                .collect(),
            alarms: counts(stats, "alarms"),
            buffers: ["in_use", "available"].map(|name| number(buffers, name)),
            connections: connected.map(connections),
            detail: detail
                .map(|answer| Detail { segment: word(answer, "segment"), drops: counts(answer, "drops") }),
        }
    }
}
