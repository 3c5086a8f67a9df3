//! How the forwarding step ([`crate::rig`]) holds as there is more of what it forwards among: connections,
//! neighbours, flows, segments, bytes. The workers of a group take turns of a millisecond or some on one
//! thread, there and back again, so that what happens on the machine happens to all, and each is compared
//! with the group's first.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::frames::{self, Load, SHORTEST};
use crate::machine;
use crate::pair::ns;
use crate::rig::{Rig, Sizes, Step, Way, start_eal};
use crate::sample::{Figure, Sample};
use crate::series::Turns;

/// Measured time of a worker's slice.
const SLICE: Duration = Duration::from_millis(1);
/// Warm-up time of a slice, with few connections and with many, until each flow has sent a packet: the worker
/// of the previous slice has replaced the content of the caches.
const WARM_UPS: [Duration; 2] = [Duration::from_micros(250), Duration::from_millis(3)];
/// Connections whose rings and queue pairs warm up with everything else.
const FEW: u16 = 8;
/// Maximum of ports in a DPDK process.
const MOST_PORTS: usize = 32;
/// Minimum of objects for the memory of one: a process grows by pages, and reuses freed memory.
const ENOUGH: u32 = 10_000;

/// One of a group.
struct Point {
    /// Number or size.
    at: u32,
    load: Load,
}

/// The quantity that grows, and how it is forwarded.
struct Group {
    name: &'static str,
    step: Step,
    points: Vec<Point>,
}

impl Group {
    /// The names of its points.
    fn names(&self) -> impl Iterator<Item = String> {
        self.points.iter().map(|point| format!("{}.{}", self.name, point.at))
    }
}

fn points(values: &[u32], load: impl Fn(u32) -> Load) -> Vec<Point> {
    values.iter().map(|&at| Point { at, load: load(at) }).collect()
}

/// All groups. Values are compared within a group: the first point is the reference.
fn groups() -> Vec<Group> {
    let plain = Load::PLAIN;
    let connections = |n: u32| Load { hosts: n, flows: n.max(256), connections: n as u16, ..plain };
    let neighbours = |n: u32| Load { hosts: n, flows: n, ..plain };
    let flows = |n: u32| Load { flows: n, hosts: n.min(8), ..plain };
    // None means one segment without tags.
    let segments = |n: u32| Load { tagged: n > 0, segments: n.max(1) as u8, ..plain };
    // Each has at least one connection.
    let arriving_segments = |n: u32| Load { connections: n.max(8) as u16, ..segments(n) };
    // So that each message arrives on its host's connection.
    let arriving = |n: u32| Load { flows: n * 256_u32.div_ceil(n), ..connections(n) };
    // Bytes of a frame.
    let frames = |n: u32| Load { packet: n as usize - 14, ..plain };
    let (there, back) = (Step::ETH_IB_RC, Step::IB_ETH_RC);
    let (datagrams_there, datagrams_back) = (Step::ETH_IB_UD, Step::IB_ETH_UD);
    let group = |name, step, points| Group { name, step, points };
    vec![
        group("connections", there, points(&[1, 100, 1000, 10_000], connections)),
        group("connections.ib-eth", back, points(&[1, 100, 1000, 10_000], arriving)),
        group("neighbours.eth-ib", there, points(&[16, 256, 4096, 100_000], neighbours)),
        group("neighbours.ib-eth", back, points(&[16, 4096, 100_000], neighbours)),
        group("flows", there, points(&[256, 1, 4096, 100_000], flows)),
        group("flows.ib-eth", back, points(&[256, 1, 4096, 100_000], flows)),
        group("segments", there, points(&[0, 1, 16, 128], segments)),
        group("segments.ib-eth", back, points(&[0, 1, 16, 128], arriving_segments)),
        group("frame.eth-ib", there, points(&[60, 256, 512, 1514], frames)),
        group("frame.ib-eth", back, points(&[60, 256, 512, 1514], frames)),
        group("frame.eth-ib-ud", datagrams_there, points(&[60, 1514], frames)),
        group("frame.ib-eth-ud", datagrams_back, points(&[60, 1514], frames)),
    ]
}

/// True if `selector` is a point's name or a prefix of it: `connections`, `neighbours.ib-eth`, `segments.16`.
fn names(selector: &str, point: &str) -> bool {
    point.strip_prefix(selector).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The groups with their selected points, or with all.
fn selected(only: &[String]) -> Result<Vec<Group>, String> {
    let mut groups = groups();
    let all: Vec<String> = groups.iter().flat_map(Group::names).collect();
    if let Some(unknown) = only.iter().find(|one| !all.iter().any(|point| names(one, point))) {
        return Err(format!("--only {unknown}: scale has {}", all.join(", ")));
    }
    if !only.is_empty() {
        for Group { name, points, .. } in &mut groups {
            points.retain(|point| {
                let point = format!("{name}.{}", point.at);
                only.iter().any(|one| names(one, &point))
            });
        }
        groups.retain(|group| !group.points.is_empty());
    }
    Ok(groups)
}

/// The selected points, split into parts for one process each: a process has at most [`MOST_PORTS`], and the
/// memory of a group is measured before anything has been freed.
pub(crate) fn parts(only: &[String]) -> Result<Vec<Vec<String>>, String> {
    Ok(selected(only)?.iter().map(|group| group.names().collect()).collect())
}

/// The files of frames, which are removed at the end.
struct Files(PathBuf);

impl Files {
    fn new() -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("bench-scale-{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(Self(folder))
    }

    fn write(&self, n: usize, load: &Load) -> Result<PathBuf, String> {
        let path = self.0.join(format!("{n}.pcap"));
        frames::write_pcap(&path, frames::frames(load)).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The ports of all points in order: EAL's arguments and the names.
fn ports(groups: &[Group], files: &Files) -> Result<(Vec<String>, Vec<String>), String> {
    let (mut vdevs, mut names) = (Vec::new(), Vec::new());
    for group in groups {
        for point in &group.points {
            let n = names.len();
            if n >= MOST_PORTS {
                return Err(format!("a process has {MOST_PORTS} ports: name fewer parts by --only"));
            }
            let file = match group.step.way {
                Way::InfiniBandToEthernet => PathBuf::new(),
                Way::EthernetToInfiniBand | Way::Both => files.write(n, &point.load)?,
            };
            vdevs.push(group.step.vdev(n, &file));
            names.push(group.step.port(n));
        }
    }
    Ok((vdevs, names))
}

fn measure(group: &Group, ports: &[String], seconds: f64) -> Result<Sample, String> {
    let Group { name, step, points } = group;
    let mut sample = Sample::default();
    let mut rigs = Vec::new();
    for (point, port) in points.iter().zip(ports) {
        let Point { at, load } = point;
        let rig = Rig::build(*step, load, port, Sizes::lean(step.way, load))
            .map_err(|e| format!("{name}.{at}: {e}"))?;
        // The first of a kind: later ones reuse freed memory.
        let memory = match *name {
            "connections" => Some(("bytes/connection", rig.memory.queue_pairs)),
            // A host on each side.
            "neighbours.eth-ib" => Some(("bytes/two hosts", rig.memory.tables)),
            _ => None,
        };
        if let Some((unit, bytes)) = memory.filter(|_| *at >= ENOUGH) {
            let figure = Figure::new(&format!("{name}.{at}.memory"), unit, bytes / f64::from(*at));
            sample.figures.push(figure);
        }
        rigs.push((point, rig, Turns::default()));
    }
    let begin = Instant::now();
    let (mut measured, mut warmed_up) = (false, false);
    // Forward and reverse, twice. The first pass is the warm-up.
    while !measured || begin.elapsed().as_secs_f64() < seconds {
        let order: Vec<usize> = (0..rigs.len()).chain((0..rigs.len()).rev()).collect();
        for at in order {
            let Some((point, rig, turns)) = rigs.get_mut(at) else { continue };
            let warm_up = WARM_UPS[usize::from(point.load.connections > FEW)];
            rig.come_round(point.load.flows.into(), warm_up);
            let before = rig.stats.cycles();
            let (packets, passed) = rig.slice(SLICE);
            let sink = ns(rig.stats.cycles() - before);
            if warmed_up {
                turns.add(packets, passed, passed.as_nanos() as f64 - sink);
            }
        }
        (measured, warmed_up) = (warmed_up, true);
    }
    // Millions per second, with and without the time of the sink.
    let rates = |turns: &Turns| (turns.rate() / 1e6, 1e3 / turns.time());
    let first = rigs.first().map_or((0, (0.0, 0.0)), |(point, _, turns)| (point.at, rates(turns)));
    for (Point { at, load }, rig, turns) in rigs {
        rig.end().map_err(|e| format!("{name}.{at}: {e}"))?;
        let (rate, without_sink) = rates(&turns);
        if rate <= 0.0 {
            return Err(format!("{name}.{at}: no packet came through"));
        }
        let figure = Figure::new(&format!("{name}.{at}"), "Mpps", rate);
        let (of, (first_rate, first_without)) = (format!("{name}.{}", first.0), first.1);
        sample.figures.push(figure.beside(&of, first_rate));
        let figure = Figure::new(&format!("{name}.{at}.without-sink"), "Mpps", without_sink);
        sample.figures.push(figure.beside(&of, first_without));
        if load.packet > SHORTEST {
            let gbps = rate * (load.packet * 8) as f64 / 1e3;
            sample.figures.push(Figure::new(&format!("{name}.{at}.throughput"), "Gbit/s", gbps));
        }
    }
    Ok(sample)
}

/// Runs a fixed number of iterations of one point, as [`crate::step::take_turns`] does for a step.
pub(crate) fn take_turns(only: &[String], turns: u64) -> Result<Sample, String> {
    let groups = selected(only)?;
    let [Group { step, points, .. }] = groups.as_slice() else {
        return Err("--turns is of one point: name it by --only".to_owned());
    };
    let [Point { load, .. }] = points.as_slice() else {
        return Err("--turns is of one point: name it by --only".to_owned());
    };
    let files = Files::new()?;
    let (vdevs, names) = ports(&groups, &files)?;
    let _eal = start_eal(&vdevs, machine::one_lcore(), machine::plain_memory())?;
    let port = names.first().ok_or("there is no port")?;
    Rig::build(*step, load, port, Sizes::lean(step.way, load))?.take_turns(turns)
}

/// Runs the benchmark once in this process, which must not have started EAL: all points, or the named ones.
pub(crate) fn run(seconds: f64, only: &[String]) -> Result<Sample, String> {
    let groups = selected(only)?;
    let files = Files::new()?;
    let (vdevs, names) = ports(&groups, &files)?;
    let _eal = start_eal(&vdevs, machine::one_lcore(), machine::memory_arguments())?;
    let mut sample = Sample::default();
    let mut names = names.as_slice();
    for group in &groups {
        let (own, rest) = names.split_at(group.points.len());
        names = rest;
        let of_group = measure(group, own, seconds / groups.len() as f64)?;
        sample.figures.extend(of_group.figures);
    }
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_has_a_port_of_its_own_and_those_of_a_group_fit_a_process() {
        let groups = groups();
        assert!(parts(&[]).unwrap().iter().all(|part| part.len() <= MOST_PORTS));
        for group in &groups {
            let mut at: Vec<u32> = group.points.iter().map(|point| point.at).collect();
            at.sort_unstable();
            at.dedup();
            assert_eq!(at.len(), group.points.len(), "{}", group.name);
            for point in &group.points {
                let load = &point.load;
                assert!(
                    load.flows >= load.hosts && load.hosts >= u32::from(load.connections.min(8))
                        || load.flows == 1
                );
            }
        }
    }

    #[test]
    fn parts_are_named_as_their_figures() {
        let points = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|&one| one.to_owned()).collect();
            selected(&only).map(|groups| groups.iter().flat_map(Group::names).collect::<Vec<_>>())
        };
        assert_eq!(points(&["segments.1", "flows.100000"]).unwrap(), ["flows.100000", "segments.1"]);
        assert_eq!(points(&["neighbours"]).unwrap().len(), 7);
        assert_eq!(parts(&["flows.1".to_owned(), "neighbours".to_owned()]).unwrap().len(), 3);
        assert_eq!(points(&[]).unwrap().len(), groups().iter().flat_map(Group::names).count());
        let error = points(&["segments", "connections.2"]).unwrap_err();
        assert!(error.starts_with("--only connections.2: scale has connections.1, "), "{error}");
    }

    #[test]
    fn files_go_with_their_folder() {
        let files = Files::new().unwrap();
        let path = files.write(3, &Load::PLAIN).unwrap();
        assert_eq!(std::fs::read(&path).unwrap().len(), 24 + 256 * 76);
        drop(files);
        assert!(!path.exists());
    }
}
