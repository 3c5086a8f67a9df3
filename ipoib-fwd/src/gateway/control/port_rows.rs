//! `ctl links`, ports and devices: a row of each port with its own state, and the drops of each device, once.

use std::collections::BTreeMap;
use std::time::Instant;

use hca::PortState;
use ib_wire::cm::RejectReason;
use pmd::eth::{EthLink, EthOffloads};
use pmd::hca::Backend;
use serde_json::{Map, Value, json};

use super::ports::{Endpoints, EthernetPort, GatewayEndpoint};
use crate::forward::{EndpointIndex, EthernetIndex};

type Rejects = cm::connection::Counters;

/// Codes of IBA 12.6.7.2; codes beyond them share the last counter.
fn reasons() -> impl Iterator<Item = RejectReason> {
    (0..=34).map(RejectReason::from_code)
}

/// Nonzero REJ messages of all ports, by reason.
fn rejects(all: &[&Rejects]) -> Value {
    let list = |count: fn(&Rejects, RejectReason) -> u64| -> Map<String, Value> {
        reasons()
            .map(|reason| (format!("{reason:?}"), all.iter().map(|counters| count(counters, reason)).sum()))
            .filter(|(_, n): &(_, u64)| *n > 0)
            .map(|(reason, n)| (reason, n.into()))
            .collect()
    };
    json!({"received": list(Rejects::rejects_received), "sent": list(Rejects::rejects_sent)})
}

fn up(is_up: bool) -> &'static str {
    if is_up { "up" } else { "down" }
}

fn ethernet_link(EthLink { up: is_up, gone, .. }: EthLink) -> &'static str {
    if gone { "gone" } else { up(is_up) }
}

fn ethernet_row(end: &EthernetPort, now: Instant) -> Value {
    // Offloads of the port.
    let EthOffloads { strip_tags, insert_tags, check_ipv4 } = end.port.offloads();
    let offloads = json!({"strip_tags": strip_tags, "insert_tags": insert_tags, "check_ipv4": check_ipv4});
    json!({
        "port": end.port.name(), "mac": end.mac.to_string(), "link": ethernet_link(end.link()), "offloads": offloads,
        // The event that ends the sleep of a worker with `idle = "sleep"` when a frame arrives.
        "woken_by": end.port.woken_by().name(),
        "losses": end.counted().losses.into_iter().collect::<BTreeMap<_, _>>(),
        "partial_checksums": end.partial.count(), "warning": end.partial.warning(now),
    })
}

/// An InfiniBand port and its links together. Values of a single link are shown if there is one link;
/// otherwise they are in the segments' rows.
fn infiniband_row<B: Backend>(endpoint: &mut GatewayEndpoint<B>) -> Value {
    let number = endpoint.port();
    let is_gone = endpoint.is_gone();
    let device = endpoint.hca().device().name;
    let attributes_now = endpoint.hca().port(number);
    let gid = endpoint.hca().gid(number, 0).ok().filter(|_| !is_gone).map(|gid| gid.to_string());
    let port_state = match &attributes_now {
        _ if is_gone => "gone".to_owned(),
        Ok(attributes) => state_name(attributes.state),
        Err(error) => error.to_string(),
    };
    // The attributes of a device that is gone are invalid.
    let attributes = attributes_now.ok().filter(|_| !is_gone);
    let attributes = attributes.as_ref();
    let states: Vec<_> = endpoint.links().links().map(|(_, link)| link.state()).collect();
    let (links, links_up) = (states.len(), states.iter().filter(|state| state.up).count());
    let only = states.first().filter(|_| links == 1);
    let total = |count: fn(&Rejects, RejectReason) -> u64| -> u64 {
        reasons().map(|reason| count(endpoint.cm_counters(), reason)).sum()
    };
    let (errors, last_error) = endpoint.device_errors();
    json!({
        "device": device, "port": number.0, "port_state": port_state,
        "lid": attributes.map(|a| a.lid.0), "sm_lid": attributes.map(|a| a.sm_lid.0), "gid": gid,
        "mtu": attributes.map(|a| a.active_mtu.bytes()),
        "link": up(links_up > 0), "links": links, "links_up": links_up,
        "mode": only.map(|state| state.mode),
        "addresses": only.map(|state| {
            state.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        }),
        "rejects_received": total(Rejects::rejects_received), "rejects_sent": total(Rejects::rejects_sent),
        "srq_low": endpoint.srq_low(),
        "device_errors": errors, "last_device_error": last_error, "datagram_reopens": endpoint.datagram_reopens(),
    })
}

fn state_name(state: PortState) -> String {
    format!("{state:?}").to_lowercase()
}

/// Drops of a device, by reason.
type Drops = BTreeMap<&'static str, u64>;

/// Each device once, in the order of its first port: all ports of a device have the same counters.
fn once_each(all: Vec<(String, Vec<(&'static str, u64)>)>) -> Vec<(String, Drops)> {
    let mut devices: Vec<(String, Drops)> = Vec::new();
    for (device, drops) in all {
        if devices.iter().all(|(known, _)| *known != device) {
            devices.push((device, drops.into_iter().collect()));
        }
    }
    devices
}

fn all_drops(devices: &[(String, Drops)]) -> Drops {
    let mut all = Drops::new();
    for (reason, n) in devices.iter().flat_map(|(_, drops)| drops) {
        *all.entry(reason).or_default() += n;
    }
    all
}

/// The rows of all ports, or of the two given ones; and the totals of all ports.
pub(super) fn answer<B: Backend>(
    endpoints: &mut Endpoints<B>,
    ethernets: &[EthernetPort],
    now: Instant,
    only: Option<(EthernetIndex, EndpointIndex)>,
) -> Map<String, Value> {
    let (ethernet, infiniband) = only.unzip();
    let chosen = |n: u8| infiniband.is_none_or(|index| index.0 == n);
    let ethernets = ethernets.iter().zip(0u8..).filter(|(_, n)| ethernet.is_none_or(|index| index.0 == *n));
    let ethernets: Vec<Value> = ethernets.map(|(end, _)| ethernet_row(end, now)).collect();
    let (mut infinibands, mut drops) = (Vec::new(), Vec::new());
    for (endpoint, _) in endpoints.iter_mut().zip(0u8..).filter(|(_, n)| chosen(*n)) {
        infinibands.push(infiniband_row(endpoint));
        drops.push((endpoint.hca().device().name, endpoint.hca().drops()));
    }
    let devices = once_each(drops);
    let counters = endpoints.iter().zip(0u8..).filter(|(_, n)| chosen(*n));
    let counters: Vec<&Rejects> = counters.map(|(endpoint, _)| endpoint.cm_counters()).collect();
    let mut answer = Map::new();
    let mut put = |name: &str, value: Value| _ = answer.insert(name.to_owned(), value);
    put("rejects", rejects(&counters));
    put("device_drops", json!(all_drops(&devices)));
    if devices.len() > 1 {
        let row = |(device, drops): &(String, Drops)| json!({"device": device, "drops": drops});
        put("devices", devices.iter().map(row).collect());
    }
    if let ([ethernet], [infiniband]) = (&ethernets[..], &infinibands[..]) {
        put("ethernet", ethernet.clone());
        put("infiniband", infiniband.clone());
    } else {
        put("ethernet_ports", ethernets.into());
        put("infiniband_ports", infinibands.into());
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_dropped_is_counted_once_whatever_its_ports() {
        let row = |device: &str, drops: &[(&'static str, u64)]| (device.to_owned(), drops.to_vec());
        let all = [
            row("a", &[("icrc", 3), ("pkey", 1)]),
            row("b", &[("icrc", 4)]),
            row("a", &[("icrc", 3), ("pkey", 1)]),
        ];
        let devices = once_each(all.to_vec());
        let names: Vec<&str> = devices.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(all_drops(&devices), Drops::from([("icrc", 7), ("pkey", 1)]));
        assert_eq!(all_drops(&[]), Drops::new());
    }
}
