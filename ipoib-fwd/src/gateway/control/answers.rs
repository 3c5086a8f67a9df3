//! Answers for the control socket.

use std::iter::once;
use std::net::IpAddr;
use std::time::Instant;

use dataplane::telemetry;
use ib_wire::PKey;
use ipoib::link::{Mode, Waiting};
use pmd::hca::Backend;
use serde_json::{Value, json};

use super::GatewayControl;
use super::duties::SegmentDuty;
use super::page::Page;
use super::port_rows;
use super::ports::{Endpoints, EthernetPort, port_name};
use super::report;
use crate::counter::SegmentTotals;
use crate::counter::Totals;
use crate::forward::SegmentIndex;
use crate::page::PageRequest;

/// The reason why a segment waits: its device, its link or its Ethernet port.
pub(super) fn waits_of<B: Backend>(
    endpoints: &mut Endpoints<B>,
    ethernets: &[EthernetPort],
    duty: &SegmentDuty,
) -> Option<String> {
    let device = device_trouble(endpoints, duty);
    let link = || {
        let why = endpoints.link(duty.endpoint, duty.link)?.waits_for()?;
        let trouble = if why == Waiting::Cable { endpoints.port_trouble(duty.endpoint) } else { None };
        Some(trouble.map_or_else(|| why.to_string(), |trouble| format!("the port is down: {trouble}")))
    };
    device.or_else(link).or_else(|| ethernets.get(duty.ethernet.at())?.waits_for())
}

/// The reason why a segment waits if its link does not know of it.
fn device_trouble<B: Backend>(endpoints: &mut Endpoints<B>, duty: &SegmentDuty) -> Option<String> {
    if endpoints.is_gone(duty.endpoint) {
        return Some("its device, which is gone: restart the gateway once it is back".to_owned());
    }
    let (why, times) = endpoints.at(duty.endpoint)?.refusal(duty.link)?;
    Some(format!("the device, which has refused to open its datagram queue pair {times} times: {why}"))
}

/// A segment's row of `links`. Every row has all keys, also the row of a segment that is not running.
#[derive(serde::Serialize, Debug)]
pub(super) struct SegmentRow<'a> {
    segment: &'a str,
    ethernet: Option<String>,
    vlan: Option<u16>,
    infiniband: Option<String>,
    pkey: String,
    link: &'static str,
    role: Option<&'static str>,
    /// Other gateways that are alive.
    peers: Option<usize>,
    mode: Option<Mode>,
    waits_for: Option<String>,
    addresses: Option<String>,
}

impl<'a> SegmentRow<'a> {
    /// The row of a segment that is not running, with the reason.
    pub(super) fn waiting(segment: &'a str, pkey: PKey, why: String) -> Self {
        Self { waits_for: Some(why), ..Self::down(segment, pkey) }
    }

    /// The row of a segment without a link, of which nothing else is known.
    fn down(segment: &'a str, PKey(pkey): PKey) -> Self {
        Self {
            segment,
            ethernet: None,
            vlan: None,
            infiniband: None,
            pkey: format!("{pkey:#06x}"),
            link: "down",
            role: None,
            peers: None,
            mode: None,
            waits_for: None,
            addresses: None,
        }
    }
}

/// The lists of `neighbours`, `connections` and `groups` for each segment, by their names in the answers.
const NEIGHBOURS: &[&str] = &[INFINIBAND, ETHERNET];
const INFINIBAND: &str = "infiniband";
const ETHERNET: &str = "ethernet";
const CONNECTIONS: &str = "connections";
const GROUPS: &str = "groups";

/// A row of a segment's list.
fn row_of(segment: &str, row: impl serde::Serialize) -> Value {
    let mut row = serde_json::to_value(row).unwrap_or_default();
    if let Some(row) = row.as_object_mut() {
        row.insert("segment".to_owned(), segment.into());
    }
    row
}

/// Adds a value of each segment to an answer: an object with the segments' names as keys, `NAME_by_segment`.
/// With one segment, `NAME` has that segment's value, a different shape; it stays for readers of the older
/// format.
fn add_by_segment(answer: &mut Value, name: &str, all: impl Iterator<Item = (String, Value)>) {
    let all: serde_json::Map<String, Value> = all.collect();
    let only = all.values().next().filter(|_| all.len() == 1).cloned();
    if let Some(answer) = answer.as_object_mut() {
        answer.insert(name.to_owned(), only.unwrap_or_else(|| Value::Object(all.clone())));
        answer.insert(format!("{name}{}", crate::ctl::BY_SEGMENT), Value::Object(all));
    }
}

impl<B: Backend> GatewayControl<B> {
    /// The index of the segment with a name. The error lists the segments, or says why the segment waits.
    pub(super) fn known_segment(&self, name: &str) -> Result<SegmentIndex, String> {
        if let Some(duty) = self.segments.iter().find(|duty| duty.name == name) {
            return Ok(duty.index);
        }
        if let Some(row) = self.row_not_at_work(name) {
            let why = row["waits_for"].as_str().unwrap_or_default();
            return Err(format!("segment `{name}` is not at work; it waits for {why}"));
        }
        let names: Vec<&str> = self.segments.iter().map(|duty| duty.name.as_str()).collect();
        Err(match config::nearest(name, &names) {
            Some(near) => format!("no segment `{name}`; did you mean `{near}`?"),
            None => format!("no segment `{name}`; there are {}", names.join(", ")),
        })
    }

    /// The row of a segment that a reload adds or removes, and that is not running yet or any more.
    fn row_not_at_work(&self, name: &str) -> Option<Value> {
        self.reloader.rows(|name| self.segments.has(name)).find(|row| row["segment"] == name)
    }

    /// The answer to `links` of such a segment.
    pub(super) fn links_not_at_work(&self, name: &str) -> Option<Value> {
        let row = self.row_not_at_work(name)?;
        let waits = once((name.to_owned(), row["waits_for"].clone()));
        let mut answer = json!({ "segments": [row] });
        add_by_segment(&mut answer, "waits_for", waits);
        Some(answer)
    }

    /// The counters of a segment, by worker; the control lcore's are last.
    pub(super) fn counted(&self, duty: &SegmentDuty) -> Vec<SegmentTotals> {
        let all = self.segment_readers.iter().enumerate().map(|(n, reader)| {
            let now = SegmentTotals::of([reader], duty.index);
            duty.counted_before.get(n).map_or_else(|| now.clone(), |before| now.since(before))
        });
        all.collect()
    }

    /// All counters of a segment.
    fn segment_stats(&self, now: Instant, duty: &SegmentDuty) -> Value {
        let mut answer = self.segment_traffic(duty, &self.counted(duty));
        answer.insert("gateway".to_owned(), duty.duty.json(now));
        answer.into()
    }

    /// The counters of a segment: the total, and by worker.
    pub(super) fn segment_traffic(
        &self,
        duty: &SegmentDuty,
        counted: &[SegmentTotals],
    ) -> serde_json::Map<String, Value> {
        let all = SegmentTotals::sum(counted);
        let row = |(n, counted): (usize, &SegmentTotals)| {
            let who = if n < self.readers.len() { n.to_string() } else { "control".to_owned() };
            let mut row = serde_json::Map::from_iter([("worker".to_owned(), who.into())]);
            row.extend(counted.row_json());
            Value::Object(row)
        };
        let workers: Vec<Value> = counted.iter().enumerate().map(row).collect();
        let fields = [
            ("segment", duty.name.clone().into()),
            ("traffic", all.traffic_json()),
            ("drops", all.drops_json()),
            ("workers", workers.into()),
        ];
        fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
    }

    /// The numbers of hosts and connections of each segment.
    fn tables(&mut self) -> Vec<Value> {
        let Self { segments, endpoints, .. } = self;
        let row = |duty: &SegmentDuty| {
            let ethernet = duty.segment.hosts().count();
            let link = endpoints.link(duty.endpoint, duty.link);
            let infiniband = link.as_ref().map_or(0, |link| link.neighbour_count());
            let [outgoing, incoming] = link.as_ref().map_or([0; 2], |link| link.live_connections());
            json!({
                "segment": duty.name, "ethernet_hosts": ethernet, "infiniband_hosts": infiniband,
                "outgoing_connections": outgoing, "incoming_connections": incoming,
            })
        };
        segments.iter().map(row).collect()
    }

    pub(super) fn stats(&mut self, now: Instant, only: Option<SegmentIndex>) -> Value {
        if let Some(duty) = only.and_then(|at| self.segments.at(at)) {
            return self.segment_stats(now, duty);
        }
        let segments = self.segments.iter().map(|duty| {
            let mut row = serde_json::Map::from_iter([("segment".to_owned(), duty.name.clone().into())]);
            row.extend(SegmentTotals::sum(&self.counted(duty)).row_json());
            Value::Object(row)
        });
        let segments: Vec<Value> = segments.collect();
        let tables = self.tables();
        let workers = self.readers.iter().enumerate().map(|(n, reader)| {
            let mut row = serde_json::Map::from_iter([("worker".to_owned(), n.into())]);
            row.extend(Totals::of(once(reader)).row_json());
            Value::Object(row)
        });
        let workers: Vec<Value> = workers.collect();
        let totals = self.totals();
        let mut answer = json!({
            "process": report::process((self.schedule.started, self.schedule.started_by_clock), now),
            "traffic": totals.traffic_json(),
            "workers": workers,
            "drops": totals.drops_json(),
            "alarms": {
                "srq_low": self.srq_low(),
                "loops": self.segments.iter().map(|s| s.duty.pair.statistics().loops).sum::<u64>(),
                "control_stalls": self.stalls.count(),
            },
            "segments": segments,
            "tables": tables,
            "reloads": self.reloader.json(),
            "times": self.times.json(),
            "long_messages": self.long_messages(),
            "capture": self.recordings.facts(now),
            "buffers": {"in_use": self.pool.in_use(), "available": self.pool.available()},
        });
        self.add_roles(&mut answer, now, None);
        answer
    }

    /// Counters of messages in more buffers than a send has SGEs, and of their keys.
    fn long_messages(&self) -> Value {
        let all = self.endpoints.iter().map(endpoint::Endpoint::long_statistics);
        let rows = all.fold([0; 10], |mut sum, s| {
            let figures = [
                s.copied,
                s.by_key,
                s.waited,
                s.doubtful,
                s.in_use,
                s.most_in_use,
                s.idle,
                s.taken,
                s.missed,
                s.aged,
            ];
            sum.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure);
            sum
        });
        let [copied, by_key, waited, renewed, in_use, most_in_use, idle, taken, missed, aged] = rows;
        json!({
            "copied": copied,
            "by_key": by_key,
            "waited": waited,
            "keys": {
                "in_use": in_use, "most_in_use": most_in_use, "idle": idle, "taken": taken, "missed": missed,
                "aged": aged, "renewed": renewed,
            },
        })
    }

    pub(super) fn links(&mut self, now: Instant, only: Option<SegmentIndex>) -> Value {
        let segments = self.segments_json(now, only);
        let Self { endpoints, ethernets, segments: duties, .. } = self;
        let ports = only.and_then(|at| duties.at(at)).map(|duty| (duty.ethernet, duty.endpoint));
        let mut answer = port_rows::answer(endpoints, ethernets, now, ports);
        answer.insert("segments".to_owned(), segments.into());
        let mut answer = Value::Object(answer);
        self.add_roles(&mut answer, now, only);
        self.add_link_words(&mut answer, only);
        answer
    }

    /// Adds the role in each segment, and the other gateways of it.
    fn add_roles(&self, answer: &mut Value, now: Instant, only: Option<SegmentIndex>) {
        let roles = self.segments.chosen(only).map(|duty| (duty.name.clone(), duty.duty.json(now)));
        add_by_segment(answer, "gateway", roles);
    }

    /// Adds the counters of each segment's link, and the reason why it waits.
    fn add_link_words(&mut self, answer: &mut Value, only: Option<SegmentIndex>) {
        let Self { segments, endpoints, ethernets, .. } = self;
        let (mut counters, mut waits) = (Vec::new(), Vec::new());
        for duty in segments.chosen(only) {
            let Some(link) = endpoints.link(duty.endpoint, duty.link) else { continue };
            counters.push((duty.name.clone(), serde_json::to_value(link.counters()).unwrap_or_default()));
            waits.push((duty.name.clone(), waits_of(endpoints, ethernets, duty).into()));
        }
        add_by_segment(answer, "link_counters", counters.into_iter());
        add_by_segment(answer, "waits_for", waits.into_iter());
    }

    /// A row for each segment.
    fn segments_json(&mut self, now: Instant, only: Option<SegmentIndex>) -> Vec<Value> {
        let Self { segments, endpoints, board, ethernets, reloader, .. } = self;
        let rows = segments.chosen(only).map(|duty| {
            let infiniband = endpoints.at(duty.endpoint).map(port_name);
            let ethernet = ethernets.get(duty.ethernet.at()).map(|end| end.port.name());
            let waits_for = waits_of(endpoints, ethernets, duty);
            let link = endpoints.link(duty.endpoint, duty.link);
            let link = link.as_deref();
            let row = SegmentRow {
                ethernet: ethernet.map(ToString::to_string),
                vlan: board.at(duty.index).and_then(|board| board.settings().vlan),
                infiniband,
                link: if link.is_some_and(|l| l.state().up) { "up" } else { "down" },
                role: Some(duty.duty.pair.role().name()),
                peers: Some(duty.duty.pair.peers(now).filter(|peer| peer.alive).count()),
                mode: link.map(|l| l.state().mode),
                waits_for,
                addresses: link.map(|l| {
                    l.state().addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
                }),
                ..SegmentRow::down(&duty.name, duty.pkey)
            };
            serde_json::to_value(row).unwrap_or_default()
        });
        rows.chain(reloader.rows(|name| segments.has(name)).filter(|_| only.is_none())).collect()
    }

    /// The segment to which a list is limited, if any.
    fn listed(&self, request: &PageRequest<'_>) -> Result<Option<SegmentIndex>, String> {
        request.segment.map(|name| self.known_segment(name)).transpose()
    }

    /// A page of the hosts on both sides. The first page has the counters.
    pub(super) fn neighbours(&mut self, now: Instant, words: Option<&str>) -> telemetry::Answer {
        let request = PageRequest::parse(words)?;
        let only = self.listed(&request)?;
        let mut page = Page::new(&request, NEIGHBOURS)?;
        let (mut infiniband, mut ethernet, mut left_out) = (Vec::new(), Vec::new(), 0);
        let mut counters = Vec::new();
        let Self { segments, endpoints, board, .. } = self;
        for duty in segments.chosen(only) {
            let known = |after: Option<&IpAddr>, most| {
                let link = endpoints.link(duty.endpoint, duty.link);
                let known = link.map(|link| link.neighbours_after(now, after.copied(), most));
                let known = known.unwrap_or_default();
                known.into_iter().map(|n| (n.ip, n))
            };
            page.extend(&mut infiniband, (duty.index, INFINIBAND), known, |n| {
                json!({
                    "segment": duty.name,
                    "address": n.ip, "hardware_address": n.hardware.map(|h| h.to_string()), "state": n.state,
                    "dlid": n.dlid, "connections": n.connections, "idle_ms": n.idle_ms,
                })
            });
            let hosts = |after: Option<&IpAddr>, most| {
                let hosts = duty.segment.hosts_after(after.copied(), most);
                hosts.into_iter().map(|host| (host.ip, host))
            };
            page.extend(&mut ethernet, (duty.index, ETHERNET), hosts, |h| {
                json!({
                    "segment": duty.name,
                    "address": h.ip, "hardware_address": h.mac.map(|m| m.to_string()), "state": h.state,
                    "waiting": h.waiting,
                })
            });
            left_out += board.at(duty.index).map_or(0, |board| board.left_out());
            if page.is_first() {
                let of_segment =
                    json!({"segment": duty.segment.counters(), "ethernet": duty.segment.host_counters()});
                counters.push((duty.name.clone(), of_segment));
            }
        }
        let mut answer = json!({
            "infiniband": infiniband, "ethernet": ethernet, "left_out": left_out, "next": page.next(),
        });
        add_by_segment(&mut answer, "counters", counters.into_iter());
        Ok(answer)
    }

    /// A page of the connections.
    pub(super) fn connections(&mut self, now: Instant, words: Option<&str>) -> telemetry::Answer {
        let request = PageRequest::parse(words)?;
        let only = self.listed(&request)?;
        let mut page = Page::new(&request, &[CONNECTIONS])?;
        let Self { segments, endpoints, .. } = self;
        let (mut rows, mut live) = (Vec::new(), [0; 2]);
        for duty in segments.chosen(only) {
            let Some(link) = endpoints.link(duty.endpoint, duty.link) else { continue };
            live.iter_mut().zip(link.live_connections()).for_each(|(all, live)| *all += live);
            let list = |after: Option<&u64>, most| {
                let rows = link.connections_after(now, after.copied().unwrap_or_default(), most);
                rows.into_iter().map(|connection| (connection.key.number, connection))
            };
            page.extend(&mut rows, (duty.index, CONNECTIONS), list, |connection| {
                row_of(&duty.name, connection)
            });
        }
        Ok(json!({
            "established_both_ways": live.iter().all(|live| *live > 0), "connections": rows, "next": page.next(),
        }))
    }

    /// A page of the multicast groups.
    pub(super) fn groups(&mut self, words: Option<&str>) -> telemetry::Answer {
        let request = PageRequest::parse(words)?;
        let only = self.listed(&request)?;
        let mut page = Page::new(&request, &[GROUPS])?;
        let Self { segments, endpoints, .. } = self;
        let mut rows = Vec::new();
        for duty in segments.chosen(only) {
            let list = |_: Option<&_>, _| {
                let link = endpoints.link(duty.endpoint, duty.link);
                let groups = link.map(|link| link.groups()).unwrap_or_default();
                groups.into_iter().map(|group| (group.ip, group))
            };
            page.extend(&mut rows, (duty.index, GROUPS), list, |group| row_of(&duty.name, group));
        }
        Ok(json!({ "groups": rows, "next": page.next() }))
    }

    pub(super) fn gid_table(&mut self) -> Value {
        let Self { endpoints, gids, .. } = self;
        let tables = gids.iter().filter_map(|(index, gids)| {
            let device = endpoints.at(*index)?.hca().device().name;
            Some((gids.json(&device), gids.rows(&device)))
        });
        let (mut devices, rows): (Vec<Value>, Vec<_>) = tables.unzip();
        let rows: Vec<_> = rows.into_iter().flatten().collect();
        // State of a device's copy, next to the rows.
        match (devices.pop(), devices.is_empty()) {
            (Some(Value::Object(mut answer)), true) => {
                answer.insert("gids".to_owned(), json!(rows));
                answer.into()
            }
            (last, _) => {
                devices.extend(last);
                json!({"devices": devices, "gids": rows})
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_segments_have_the_same_keys_whether_they_are_at_work_or_wait() {
        let waits = SegmentRow::waiting("lab", PKey(0x8001), "its place".to_owned());
        let row = serde_json::to_value(waits).unwrap();
        let keys: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
        let all = "addresses ethernet infiniband link mode peers pkey role segment vlan waits_for";
        assert_eq!(keys, all.split(' ').collect::<Vec<_>>());
        assert_eq!(
            (&row["pkey"], &row["link"], &row["role"]),
            (&json!("0x8001"), &json!("down"), &Value::Null)
        );
    }

    #[test]
    fn what_is_said_of_segments_has_one_shape_whatever_their_number() {
        for names in [&[][..], &["storage"], &["storage", "lab"]] {
            let mut answer = json!({"segments": []});
            let all = names.iter().map(|name| ((*name).to_owned(), json!({"role": name})));
            add_by_segment(&mut answer, "gateway", all);
            let by_segment = answer["gateway_by_segment"].as_object().unwrap();
            assert_eq!(by_segment.len(), names.len());
            assert!(names.iter().all(|name| by_segment[*name]["role"] == **name));
            // The older format.
            let old = if names.len() == 1 { &by_segment["storage"] } else { &answer["gateway_by_segment"] };
            assert_eq!(&answer["gateway"], old);
        }
    }
}
