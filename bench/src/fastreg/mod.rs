//! Fast registration: the cost of a key that gets its memory from a send queue, compared with registration by
//! command, and with copying.
//!
//! All measurements are in one process and one run, in short slices that alternate in forward and reverse
//! order, so that other load of the machine affects all of them.

mod cycle;
mod link;
mod transfer;

use std::time::{Duration, Instant};

use connectx::Activity;
use connectx::cable::CableEnd;
use ib_wire::{Guid, Lid, Mtu};
use pmd::eal::Eal;
use pmd::hca::Control as _;
use pmd::mem::{Pool, PoolConfig};
use pmd::soft::{SoftConfig, SoftHca};
use pmd::verbs::{OpenOptions, RegionDevice, VerbsHca, devices};

use crate::machine;
use crate::sample::{Figure, Sample};
use cycle::{Stock, cycles};
use link::{Link, PORT, SLOT};
use transfer::{How, LARGE, Pools, rate};

/// Bytes of a segment, a page and a packet buffer.
const PAGE: usize = 4096;
/// Segments of a key: one; 64 KiB; the maximum in a work request; 256 KiB, in a separate list; 1 MiB.
const PIECES: [usize; 5] = [1, 16, 52, 64, 256];
/// Bytes in kilobinary units.
const KIB: usize = 1024;
/// Passes over all slices, in forward and reverse order.
const PASSES: usize = 16;
/// Buffers of either pool.
const PAGES: u32 = 12 * 1024;
const LARGES: u32 = 64;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Number of keys at once, if it is not one.
const fn batch(pieces: usize) -> usize {
    if pieces > 16 { 4 } else { 16 }
}

/// The purpose of a slice of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Job {
    /// Registration and invalidation with their completions: driver and software device, in nanoseconds.
    Cycle(usize),
    /// The same with several at once.
    Batch(usize),
    /// The driver's part of that.
    Driver(usize),
    /// The same with memory windows of a device of this machine, one and several at once.
    Window(usize),
    /// `ibv_reg_mr` and `ibv_dereg_mr` of this number of bytes on the device.
    Command(usize),
    /// Copies of this number of bytes.
    Copy(usize),
    /// Messages of this number of segments per second.
    Message(usize, How),
}

/// The devices of this machine.
struct Machine {
    name: String,
    commands: RegionDevice,
    windows: Option<Link<VerbsHca>>,
}

impl Machine {
    /// The first device for commands, and windows between the first two, if they have them; `None` if there
    /// is none.
    fn open(pools: &Pools) -> Result<Option<Self>, String> {
        let names: Vec<String> = devices().map_err(text)?.into_iter().map(|device| device.name).collect();
        let Some(name) = names.first() else { return Ok(None) };
        let commands = RegionDevice::open(name).map_err(text)?;
        let mut windows = None;
        if let Some(other) = names.get(1) {
            let options = OpenOptions { infiniband: false, management: false };
            let open = |name: &String| VerbsHca::open_with(Some(name), PORT, options).map_err(text);
            let both = [open(name)?, open(other)?];
            if both.iter().all(|hca| hca.device().fast_registration.is_some()) {
                windows = Some(Link::new(both, &[&pools.pages])?);
            }
        }
        Ok(Some(Self { name: name.clone(), commands, windows }))
    }
}

/// All measured parts.
struct Rig {
    soft: Link<SoftHca>,
    machine: Option<Machine>,
    pools: Pools,
    /// Bytes to register by command, or to copy from and to.
    bytes: [Vec<u8>; 2],
}

fn soft_devices() -> Result<[SoftHca; 2], String> {
    let (here, there) = CableEnd::pair().map_err(text)?;
    let device = |lid: u16, cable| {
        let n = u64::from(lid);
        let mut hca = SoftHca::new(&SoftConfig {
            name: format!("soft{lid}"),
            node_guid: Guid(0x1000 + n),
            port_guids: vec![Guid(0x2000 + n)],
            max_mtu: Mtu::B4096,
            gid_table: 8,
            seed: n,
        })
        .map_err(text)?;
        hca.set_cable(PORT, Some(cable)).map_err(text)?;
        hca.engine().lock().activate(PORT, Lid(lid), Mtu::B4096).map_err(text)?;
        Ok::<_, String>(hca)
    };
    Ok([device(1, here)?, device(2, there)?])
}

/// Nanoseconds of each call.
fn timed(time: Duration, mut call: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    let (begin, mut calls) = (Instant::now(), 0_u32);
    while begin.elapsed() < time || calls == 0 {
        call()?;
        calls += 1;
    }
    Ok(begin.elapsed().as_nanos() as f64 / f64::from(calls))
}

impl Rig {
    fn new() -> Result<Self, String> {
        let pool = |name, count, data_room: usize| {
            let config = PoolConfig { count, data_room: data_room as u16, cache: 256, socket: -1 };
            Pool::create(name, &config).map_err(text)
        };
        let pools = Pools { pages: pool("pages", PAGES, PAGE)?, large: pool("large", LARGES, LARGE)? };
        let soft = Link::new(soft_devices()?, &[&pools.pages, &pools.large])?;
        let machine = Machine::open(&pools)?;
        let most = PIECES.into_iter().max().unwrap_or_default() * PAGE;
        Ok(Self { soft, machine, pools, bytes: [vec![1; most], vec![2; most]] })
    }

    /// The available measurements.
    fn jobs(&self) -> Vec<Job> {
        let mut jobs = Vec::new();
        for pieces in PIECES {
            jobs.extend([Job::Cycle(pieces), Job::Batch(pieces), Job::Driver(pieces), Job::Copy(pieces)]);
            jobs.extend(self.machine.is_some().then_some(Job::Command(pieces)));
        }
        if self.machine.as_ref().is_some_and(|machine| machine.windows.is_some()) {
            jobs.extend([Job::Window(1), Job::Window(batch(1))]);
        }
        jobs.extend([How::Gathered, How::Copied, How::Keyed].map(|how| Job::Message(16, how)));
        // More than a work request can contain.
        jobs.extend([How::Copied, How::Keyed].map(|how| Job::Message(64, how)));
        jobs
    }

    fn slice(&mut self, job: Job, time: Duration) -> Result<f64, String> {
        let Self { soft, machine, pools, bytes: [from, to] } = self;
        let [end, _] = &mut soft.ends;
        match job {
            Job::Cycle(pieces) => cycles(end, pools, (pieces, PAGE), 1, time),
            Job::Batch(pieces) => cycles(end, pools, (pieces, PAGE), batch(pieces), time),
            Job::Driver(pieces) => {
                end.device = Some(Duration::ZERO);
                let driver = cycles(end, pools, (pieces, PAGE), batch(pieces), time);
                end.device = None;
                driver
            }
            Job::Copy(pieces) => timed(time, || {
                let len = pieces * PAGE;
                let (to, from) = (to.get_mut(..len).ok_or("too long")?, from.get(..len).ok_or("too long")?);
                to.copy_from_slice(std::hint::black_box(from));
                std::hint::black_box(to);
                Ok(())
            }),
            Job::Message(pieces, how) => rate(soft, pools, pieces, how, time),
            Job::Command(pieces) => {
                let machine = machine.as_ref().ok_or("there is no device")?;
                let memory = from.get_mut(..pieces * PAGE).ok_or("too long")?;
                timed(time, || machine.commands.register(memory).map_err(text))
            }
            Job::Window(depth) => {
                let link = machine.as_mut().and_then(|machine| machine.windows.as_mut());
                let [end, _] = &mut link.ok_or("there are no windows")?.ends;
                cycles(end, pools, (1, PAGE), depth, time)
            }
        }
    }

    /// The median of each job's slices.
    fn measure(&mut self, seconds: f64) -> Result<Vec<(Job, f64)>, String> {
        let jobs = self.jobs();
        let slice = Duration::from_secs_f64(seconds / (jobs.len() * PASSES) as f64);
        let mut values: Vec<Vec<f64>> = vec![Vec::new(); jobs.len()];
        for pass in 0..PASSES {
            let mut order: Vec<usize> = (0..jobs.len()).collect();
            if matches!(pass % 4, 1 | 2) {
                order.reverse();
            }
            for at in order {
                if let (Some(job), Some(values)) = (jobs.get(at), values.get_mut(at)) {
                    values.push(self.slice(*job, slice)?);
                }
            }
        }
        let middle = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            let half = values.len() / 2;
            let (low, high) = (values.get(half.saturating_sub(1)), values.get(half));
            low.zip(high).map_or(0.0, |(low, high)| (low + high) / 2.0)
        };
        Ok(jobs.into_iter().zip(values.into_iter().map(middle)).collect())
    }

    /// The work of a ConnectX in a cycle, as the driver posts it: work queue entries, doorbells, and bytes
    /// that the device reads and writes, including completions.
    fn on_paper(&mut self, pieces: usize, depth: usize) -> Result<Vec<Figure>, String> {
        let [end, _] = &mut self.soft.ends;
        let mut stock = Stock::new(&mut end.hca, &self.pools, depth, (pieces, PAGE))?;
        stock.cycle(end)?;
        let doorbells = |hca: &SoftHca| hca.counters().activity(Activity::Doorbells);
        let posted = |queues: &<SoftHca as pmd::hca::Backend>::Queues| {
            queues.posted_wqebbs(SLOT).ok_or("the connection is gone")
        };
        let (rung, wqebbs) = (doorbells(&end.hca), posted(&end.queues)?);
        stock.cycle(end)?;
        let (rung, wqebbs) = (doorbells(&end.hca) - rung, posted(&end.queues)?.wrapping_sub(wqebbs));
        stock.close(&mut end.hca)?;
        // A registration and an invalidation, each with its completion.
        let (entries, each) = (2.0, 1.0 / depth as f64);
        let outside =
            if pieces > cycle::INLINE { pieces.next_multiple_of(4) * size_of::<[u64; 2]>() } else { 0 };
        let bytes = f64::from(wqebbs) * 64.0 * each + outside as f64 + entries * 64.0;
        let part = |what: &str| format!("paper-{pieces}x{depth}.{what}");
        Ok(vec![
            Figure::new(&part("wqes"), "WQEs/cycle", entries),
            Figure::new(&part("doorbells"), "doorbells/cycle", rung as f64 * each),
            Figure::new(&part("bytes"), "bytes/cycle", bytes),
        ])
    }

    fn close(self) -> Result<(), String> {
        self.soft.close()?;
        self.machine.and_then(|machine| machine.windows).map_or(Ok(()), Link::close)
    }
}

/// Results of jobs, each compared with the alternative.
fn figures(measured: &[(Job, f64)], device: Option<&str>) -> Vec<Figure> {
    let of = |job| measured.iter().find(|(other, _)| *other == job).map(|(_, value)| *value);
    let command = device.map(|name| format!("ibv_reg_mr and ibv_dereg_mr, {name}"));
    let beside = |figure: Figure, other: Option<f64>, name: &str| match other {
        Some(value) => figure.beside(name, value),
        None => figure,
    };
    let by_command =
        |figure, pieces| beside(figure, of(Job::Command(pieces)), command.as_deref().unwrap_or_default());
    let mut figures = Vec::new();
    for (job, value) in measured {
        let ns = |part: &str| Figure::new(part, "ns/cycle", *value);
        let messages = |part: &str| Figure::new(part, "messages/s", *value);
        match *job {
            Job::Cycle(pieces) => figures.push(by_command(ns(&format!("cycle-{pieces}")), pieces)),
            Job::Batch(pieces) => {
                figures.push(by_command(ns(&format!("batch-{pieces}")), pieces));
                let kib = pieces * PAGE / KIB;
                figures.push(beside(ns(&format!("against-copy-{kib}-KiB")), of(Job::Copy(pieces)), "copy"));
            }
            Job::Driver(pieces) => figures.push(by_command(ns(&format!("driver-{pieces}")), pieces)),
            Job::Window(depth) => figures.push(by_command(ns(&format!("window-x{depth}")), 1)),
            Job::Message(pieces, How::Keyed) => {
                let copied = of(Job::Message(pieces, How::Copied));
                let name = format!("send-{pieces}-pieces.keyed");
                figures.push(beside(messages(&name), copied, "copied"));
            }
            Job::Message(pieces, How::Gathered) => {
                let copied = of(Job::Message(pieces, How::Copied));
                let name = format!("send-{pieces}-pieces.gathered");
                figures.push(beside(messages(&name), copied, "copied"));
            }
            // These are references of others.
            Job::Copy(_) | Job::Command(_) | Job::Message(_, How::Copied) => {}
        }
    }
    figures
}

fn measure(seconds: f64) -> Result<Sample, String> {
    let mut rig = Rig::new()?;
    let measured = rig.measure(seconds)?;
    let name = rig.machine.as_ref().map(|machine| machine.name.clone());
    let mut sample = Sample { figures: figures(&measured, name.as_deref()), ..Sample::default() };
    for pieces in PIECES {
        for depth in [1, batch(pieces)] {
            sample.figures.extend(rig.on_paper(pieces, depth)?);
        }
    }
    if name.is_none() {
        sample.notes.push(
            "ibv_reg_mr was not measured: there is no RDMA device; scripts/lab fastreg makes one".to_owned(),
        );
    }
    rig.close()?;
    Ok(sample)
}

/// Runs the benchmark once in this process, which must not have started EAL.
pub(crate) fn run(seconds: f64) -> Result<Sample, String> {
    let words = ["bench", "--no-pci", "--no-telemetry", "--log-level=error", "--lcores"];
    let arguments = words.into_iter().map(str::to_owned).chain([machine::one_lcore()]);
    let _eal = Eal::init(arguments.chain(machine::memory_arguments())).map_err(text)?;
    measure(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_measured_and_every_buffer_comes_home() {
        pmd::eal::for_tests();
        let mut rig = Rig::new().unwrap();
        let measured = rig.measure(0.3).unwrap();
        assert!(measured.iter().all(|(_, value)| *value > 0.0), "{measured:?}");
        let figures = figures(&measured, None);
        let names: Vec<_> = figures.iter().map(|f| f.part.as_str()).collect();
        assert!(names.contains(&"cycle-1") && names.contains(&"send-64-pieces.keyed"), "{names:?}");
        // A registration of one segment takes three WQEBBs, an invalidation two: 5 * 64 bytes, and two
        // completions.
        let paper = |rig: &mut Rig, pieces, depth| {
            rig.on_paper(pieces, depth).unwrap().into_iter().map(|f| f.value).collect::<Vec<_>>()
        };
        assert_eq!(paper(&mut rig, 1, 1), [2.0, 2.0, 448.0]);
        assert_eq!(paper(&mut rig, 1, 16), [2.0, 0.125, 448.0]);
        assert_eq!(paper(&mut rig, 64, 1), [2.0, 2.0, 448.0 + 1024.0]);
        let pools = [rig.pools.pages.clone(), rig.pools.large.clone()];
        rig.close().unwrap();
        assert_eq!(pools.map(|pool| pool.in_use()), [0, 0]);
    }
}
