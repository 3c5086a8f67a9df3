//! Answers for the control socket.

use std::sync::Arc;
use std::time::Instant;

use dataplane::telemetry::Answer;
use ib_wire::cm::RejectReason;
use pmd::hca::Backend;
use serde_json::{Value, json};

use super::GatewayControl;
use ipoib::link::Mode;

/// REJ messages by reason, those that there were.
fn rejects(counters: &cm::connection::Counters) -> Value {
    // Codes of IBA 12.6.7.2; what lies beyond shares the last counter.
    let list = |count: &dyn Fn(RejectReason) -> u64| -> serde_json::Map<String, Value> {
        (0..=34)
            .map(RejectReason::from_code)
            .map(|reason| (format!("{reason:?}"), count(reason)))
            .filter(|(_, n)| *n > 0)
            .map(|(reason, n)| (reason, n.into()))
            .collect()
    };
    json!({
        "received": list(&|reason| counters.rejects_received(reason)),
        "sent": list(&|reason| counters.rejects_sent(reason)),
    })
}

impl<B: Backend> GatewayControl<B> {
    pub(super) fn stats(&self, now: Instant) -> Value {
        let totals = self.totals();
        json!({
            "traffic": totals.traffic_json(),
            "drops": totals.drops_json(),
            "alarms": {"srq_low": self.endpoint.srq_low(), "loops": self.duty.pair.statistics().loops},
            "gateway": self.pair_json(now),
            "times": self.times.json(),
            "buffers": {"in_use": self.pool.in_use(), "available": self.pool.available()},
        })
    }

    pub(super) fn links(&mut self, now: Instant) -> Value {
        let port = self.endpoint.port();
        let (errors, last_error) =
            (self.endpoint.device_errors().0, self.endpoint.device_errors().1.map(str::to_owned));
        let reopens = self.endpoint.datagram_reopens();
        let attributes = self.endpoint.hca().port(port);
        let device = self.endpoint.hca().device();
        let gid = self.endpoint.hca().gid(port, 0).map(|g| g.to_string()).unwrap_or_default();
        let rejects = rejects(self.endpoint.cm_counters());
        let link = self.endpoint.link();
        let state = Arc::clone(link.state());
        let infiniband = match attributes {
            Ok(a) => json!({
                "device": device.name, "port": port.0, "port_state": format!("{:?}", a.state).to_lowercase(),
                "lid": a.lid.0, "sm_lid": a.sm_lid.0, "gid": gid, "mtu": a.active_mtu.bytes(),
                "link": if state.up { "up" } else { "down" }, "mode": state.mode,
                "addresses": state.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
                "device_errors": errors, "last_device_error": last_error, "datagram_reopens": reopens,
            }),
            Err(e) => json!({"device": device.name, "error": e.to_string()}),
        };
        let counters = serde_json::to_value(link.counters()).unwrap_or_default();
        let waits_for = link.waits_for().map(|why| why.to_string());
        let drops = self.endpoint.hca().drops();
        let drops: serde_json::Map<String, Value> =
            drops.into_iter().map(|(reason, n)| (reason.to_owned(), n.into())).collect();
        json!({
            "ethernet": {"port": self.port.name(), "mac": self.mac.to_string(),
                         "link": if self.port.link().up { "up" } else { "down" }},
            "infiniband": infiniband,
            "gateway": self.pair_json(now),
            "waits_for": waits_for,
            "link_counters": counters,
            "rejects": rejects,
            "device_drops": drops,
        })
    }

    pub(super) fn neighbours(&mut self, now: Instant) -> Value {
        let infiniband: Vec<Value> = self
            .endpoint
            .link()
            .neighbours(now)
            .into_iter()
            .map(|n| {
                json!({
                    "address": n.ip, "hardware_address": n.hardware.map(|h| h.to_string()), "state": n.state,
                    "dlid": n.dlid, "connections": n.connections, "idle_ms": n.idle_ms,
                })
            })
            .collect();
        let ethernet: Vec<Value> = self
            .segment
            .hosts()
            .map(|h| {
                json!({
                    "address": h.ip, "hardware_address": h.mac.map(|m| m.to_string()), "state": h.state,
                    "waiting": h.waiting,
                })
            })
            .collect();
        json!({
            "infiniband": infiniband,
            "ethernet": ethernet,
            "left_out": self.board.left_out(),
            "counters": {"segment": self.segment.counters(), "ethernet": self.segment.host_counters()},
        })
    }

    pub(super) fn connections(&mut self, now: Instant) -> Value {
        let list = self.endpoint.link().connections(now);
        let up = |passive: bool| list.iter().any(|c| c.passive == passive && c.state == "live");
        json!({"established_both_ways": up(true) && up(false), "connections": list})
    }

    pub(super) fn gid_table(&mut self) -> Value {
        let device = self.endpoint.hca().device();
        self.gids.json(&device.name)
    }

    pub(super) fn set_mode(&mut self, now: Instant, word: Option<&str>) -> Answer {
        let mode = match word {
            Some("datagram") => Mode::Datagram,
            Some("connected") => Mode::Connected,
            _ => return Err("the mode is datagram or connected, as in /mode,datagram".to_owned()),
        };
        if mode != self.endpoint.link().settings().mode {
            self.endpoint.link().set_mode(now, mode);
            // Whoever knows our addresses knows by their flags whether to ask for a connection.
            self.segment.announce_all(now);
        }
        Ok(json!({"mode": mode}))
    }
}
