//! Sample answers of a gateway for tests.

use serde_json::{Value, json};

use super::snapshot::Snapshot;

pub(super) fn stats(up_ms: u64, [received, storm, ipv6, busy]: [u64; 4]) -> Value {
    let counted = |packets: u64| json!({"packets": packets, "bytes": packets.wrapping_mul(1000)});
    let summary = json!({"count": 12345, "min": 900, "p50": 2500, "p90": 8100, "p99": 31_000, "p999": 250_000, "max": 1_900_000});
    let segments = json!([
        {"segment": "storage", "to_infiniband_packets": received, "to_infiniband_bytes": received.wrapping_mul(1000),
         "to_ethernet_packets": 40, "to_ethernet_bytes": 4000, "punt_packets": 3, "punt_bytes": 180, "drops": storm.wrapping_add(ipv6)},
        {"segment": "lab", "to_infiniband_packets": 0, "drops": 0},
    ]);
    json!({
        "process": {"version": "0.1.0", "pid": 4711, "up_ms": up_ms, "started_unix_ms": 1_700_000_000_000u64},
        "traffic": {
            "eth_receive": counted(received), "ib_rc_transmit": counted(received),
            "ib_ud_unicast_transmit": counted(received / 200), "ib_ud_multicast_transmit": counted(3 * (received / 200)),
        },
        "workers": [
            {"worker": 0, "eth_receive_packets": received, "busy_turns": received / 10, "busy_ns": busy, "rest_ns": busy.wrapping_mul(2)},
            {"worker": 1, "eth_receive_packets": 0, "busy_turns": 0, "busy_ns": 0, "rest_ns": 0},
        ],
        "drops": {"storm": storm, "ipv6": ipv6, "truncated": 5000},
        "alarms": {"srq_low": 0, "loops": 2},
        "segments": segments,
        "tables": [{"segment": "storage", "ethernet_hosts": 5, "infiniband_hosts": 7, "outgoing_connections": 7, "incoming_connections": 6}],
        "times": {"burst_service_ns": summary, "burst_service_last_second_ns": summary, "connection_setup_ns": summary},
        "buffers": {"in_use": 1024, "available": 7168},
    })
}

pub(super) fn links() -> Value {
    let row = |name: &str, vlan: Value, role: &str, waits: Value| {
        json!({"segment": name, "ethernet": "0000:3b:00.0", "vlan": vlan, "infiniband": "mlx5_0/1", "pkey": "0xffff",
               "link": if role == "blocked" { "down" } else { "up" }, "role": role, "peers": 1, "mode": "connected", "waits_for": waits,
               "addresses": "80000048:fe80:0000:0000:0000:0002:c903:0000:0001"})
    };
    json!({
        "ethernet": {"port": "0000:3b:00.0", "mac": "02:00:00:00:00:01", "link": "up", "woken_by": "its receive interrupt"},
        "infiniband": {"device": "mlx5_0", "port": 1, "port_state": "active", "lid": 3, "sm_lid": 1, "mtu": 4096, "link": "up", "device_errors": 1},
        "device_drops": {"icrc": 3},
        "segments": [
            row("storage", json!(null), "forwarding", json!(null)),
            row("lab", json!(100), "blocked", json!("the broadcast group, which the subnet manager does not let it join")),
        ],
    })
}

pub(super) fn connections() -> Value {
    let row = |n: u64| {
        json!({"key": n, "passive": n % 2 == 1, "worker": n % 2, "qpn": 72 + n, "ip": format!("10.77.0.{}", n % 250), "mtu": 65524,
               "peer": "80000049:fe80:0000:0000:0000:0002:c903:0000:0002", "state": if n == 9 { "closing" } else { "live" },
               "idle_ms": 5000 - 10 * (n % 400), "segment": "storage"})
    };
    json!({"established_both_ways": true, "connections": (0..50).map(row).collect::<Vec<_>>()})
}

/// Two snapshots, two seconds apart.
pub(super) fn moments() -> [Snapshot; 2] {
    let of = |up_ms, counted| {
        let detail =
            json!({"segment": "storage", "drops": {"storm": stats(up_ms, counted)["drops"]["storm"]}});
        Snapshot::of(&stats(up_ms, counted), &links(), Some(&connections()), Some(&detail))
    };
    [of(10_000, [500, 0, 7, 100_000_000]), of(12_000, [2500, 100, 8, 600_000_000])]
}
