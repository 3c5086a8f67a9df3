//! Formats the rows of `ctl trace`: a packet's path through a gateway.

use serde_json::Value;

/// Formats a row as a line: the step, the packet's number, its contents, the lookup, the verdict and the
/// reason.
#[must_use]
pub fn line(row: &Value) -> String {
    if let Some(end) = row.get("end") {
        let missed = match row.get("missed").and_then(Value::as_u64) {
            None | Some(0) => String::new(),
            Some(n) => format!(", {n} missing: the gateway could not report them fast enough"),
        };
        return format!("ends: {}, {} rows{missed}\n", text(end), text(&row["told"]));
    }
    if let Some(n) = row.get("lost") {
        return format!("{} rows were lost: the client reads them too slowly\n", text(n));
    }
    if let Some(bounds) = row.get("following") {
        let (count, seconds) = (text(&bounds["count"]), text(&bounds["seconds"]));
        return format!("tracing packets, at most {count} rows or {seconds} seconds\n");
    }
    let word = |name: &str| row.get(name).map_or_else(|| "-".to_owned(), text);
    let step = match row.get("worker") {
        Some(Value::Number(n)) => word("step").replacen("worker", &format!("worker {n}"), 1),
        _ => word("step"),
    };
    let packet = format!(
        "{} > {} {}, {} bytes",
        end_of(row, "source"),
        end_of(row, "destination"),
        kind(row),
        word("bytes")
    );
    let reason = row.get("reason").and_then(Value::as_str).map(|why| format!(": {why}")).unwrap_or_default();
    format!(
        "{}  {}  {step}  {}{}  {packet}{}  {}{reason}\n",
        word("time"),
        word("packet"),
        word("segment"),
        came(row),
        found(row),
        word("verdict")
    )
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Formats how the packet was received.
fn came(row: &Value) -> String {
    let from = text(&row["from"]);
    let port = row.get("port").and_then(Value::as_str).map(|port| format!(" {port}")).unwrap_or_default();
    let mode = match (row.get("mode").and_then(Value::as_str), row.get("slid"), row.get("source_qpn")) {
        (Some("datagram"), Some(lid), Some(qpn)) => format!(", datagram of LID {lid} QP {qpn}"),
        (Some(mode), ..) => format!(", {mode}"),
        _ => String::new(),
    };
    format!("  from {from}{port}{mode}")
}

/// Formats an address with its port.
fn end_of(row: &Value, which: &str) -> String {
    let address = match row.get(which) {
        Some(Value::String(address)) => address.clone(),
        _ => row.get(format!("{which}_mac")).map_or_else(|| "-".to_owned(), text),
    };
    row.get(format!("{which}_port")).map_or(address.clone(), |port| format!("{address}:{port}"))
}

/// Formats the packet's protocol.
fn kind(row: &Value) -> String {
    match (row.get("protocol"), row.get("ethertype")) {
        (Some(Value::Number(n)), _) => format!("protocol {n}"),
        (Some(protocol), _) => text(protocol),
        (None, ethertype) => ethertype.map_or_else(|| "-".to_owned(), text),
    }
}

/// Formats the results of the lookup.
fn found(row: &Value) -> String {
    let Some(Value::Object(found)) = row.get("lookup") else { return String::new() };
    let mut words = Vec::new();
    if let Some(Value::String(neighbour)) = found.get("neighbour") {
        words.push(format!("neighbour {neighbour}"));
    }
    for (name, what) in [
        ("mode", ""),
        ("mac", "MAC "),
        ("dlid", "LID "),
        ("qpn", "QP "),
        ("own_qpn", "own QP "),
        ("slot", "slot "),
        ("piece_mtu", "fragments of "),
        ("mtu", "MTU "),
    ] {
        if let Some(value) = found.get(name).filter(|value| !value.is_null()) {
            words.push(format!("{what}{}", text(value)));
        }
    }
    if words.is_empty() { String::new() } else { format!("  {}", words.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_has_the_lookup_and_the_reason() {
        let row = json!({
            "time": "2026-01-01T00:00:00.000Z", "step": "worker again", "worker": 1, "from": "InfiniBand", "port": "soft0/1",
            "segment": "one", "packet": "0123abcd", "bytes": 88, "mode": "datagram", "slid": 4, "source_qpn": 72,
            "source": "10.0.0.2", "destination": "10.0.0.1", "protocol": "tcp", "source_port": 5000, "destination_port": 22,
            "lookup": {"neighbour": "10.0.0.1", "mac": "02:00:00:00:00:01", "piece_mtu": null},
            "verdict": "dropped", "reason": "eth-queue-full",
        });
        assert_eq!(
            line(&row),
            "2026-01-01T00:00:00.000Z  0123abcd  worker 1 again  one  from InfiniBand soft0/1, datagram of LID 4 QP 72  \
             10.0.0.2:5000 > 10.0.0.1:22 tcp, 88 bytes  neighbour 10.0.0.1, MAC 02:00:00:00:00:01  dropped: eth-queue-full\n"
        );
        let row = json!({"step": "control lcore", "worker": null, "from": "Ethernet", "port": null, "ethertype": "0x86dd",
                         "source_mac": "a", "destination_mac": "b", "lookup": null, "verdict": "handled", "reason": null});
        assert_eq!(line(&row), "-  -  control lcore  -  from Ethernet  a > b 0x86dd, - bytes  handled\n");
    }

    #[test]
    fn the_end_and_missing_rows_are_printed() {
        assert_eq!(
            line(&json!({"end": "its time is over", "told": 3, "missed": 0})),
            "ends: its time is over, 3 rows\n"
        );
        assert!(line(&json!({"end": "x", "told": 3, "missed": 7})).contains("7 missing"));
        assert!(line(&json!({"lost": 9})).starts_with("9 rows were lost"));
        assert!(line(&json!({"following": {"count": 5, "seconds": 60}})).contains("5 rows or 60 seconds"));
    }
}
