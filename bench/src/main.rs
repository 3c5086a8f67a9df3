//! Benchmarks of the gateway, compared with a peer on the same machine, with the same packets at the same
//! time.
//!
//! A benchmark runs several times. Each run is a separate process, because EAL starts only once per process,
//! and alternates with its peer, because the speed of a machine varies. Results are minimum, median and
//! maximum; no time makes a run fail.
#![forbid(unsafe_code)]

mod bars;
mod chain;
mod control;
mod expected;
mod fabric;
mod fastreg;
mod frames;
mod gid;
mod latency;
mod machine;
mod pair;
mod peer;
mod percentiles;
mod plot;
mod publish;
mod receive;
mod report;
mod rig;
mod sample;
mod scale;
mod series;
mod soft;
mod step;
mod workers;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::{Parser, ValueEnum};

use frames::Load;
use pair::Service;
use peer::Mode;
use percentiles::Percentiles;
use report::Report;
use rig::Step;
use sample::Sample;
use series::Spread;

/// Benchmarks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Name {
    /// A worker forwards 60-byte UDP packets of 256 flows from Ethernet to connections.
    StepEthIbRc,
    /// A worker forwards them in the other direction.
    StepIbEthRc,
    /// As the first, to hosts without a connection.
    StepEthIbUd,
    /// As the second, from hosts that send datagrams.
    StepIbEthUd,
    /// The first and the second one at once, on one worker.
    StepBothRc,
    /// The same with datagrams.
    StepBothUd,
    /// Latency that a worker adds, at parts of its maximum rate, by idle policy.
    Latency,
    /// The steps by number of connections, neighbours, flows, segments and bytes.
    Scale,
    /// The steps with one worker, and with two at once.
    Workers,
    /// Messages between two software devices on a connection.
    RcSoft,
    /// The same as datagrams.
    UdSoft,
    /// A message in 2, 5 and 17 buffers is sent: as a gather list, under a key, copied.
    ChainSend,
    /// Messages arrive in receives of many small or few large buffers.
    SrqReceive,
    /// Memory registration from a send queue only, compared with copies, and with `ibv_reg_mr` if there is a
    /// device.
    Fastreg,
    /// Connections opened, closed and expired, ARP, and path queries, per second.
    Control,
    /// A changed neighbour is published to 1 and 4 workers, in tables of 16 and 4096 entries per side.
    Publish,
    /// GID lookups, in tables of 256 and 4096 entries.
    GidLookup,
    /// An event changes a GID table, of 16 to 4096 entries.
    GidEvent,
    /// The whole GID table of a real device, in one call and file by file; omitted without a device.
    GidQuery,
}

impl Name {
    fn text(self) -> String {
        self.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
    }

    const fn has_peer(self) -> bool {
        self.step().is_some()
    }

    const fn step(self) -> Option<Step> {
        match self {
            Self::StepEthIbRc => Some(Step::ETH_IB_RC),
            Self::StepIbEthRc => Some(Step::IB_ETH_RC),
            Self::StepEthIbUd => Some(Step::ETH_IB_UD),
            Self::StepIbEthUd => Some(Step::IB_ETH_UD),
            Self::StepBothRc => Some(Step::BOTH_RC),
            Self::StepBothUd => Some(Step::BOTH_UD),
            _ => None,
        }
    }

    /// The transport of its messages, if it has several sizes.
    const fn service(self) -> Option<Service> {
        match self {
            Self::RcSoft => Some(Service::Connection),
            Self::UdSoft => Some(Service::Datagrams),
            _ => None,
        }
    }

    fn run(
        self,
        (pcap, load): (&Path, &Load),
        seconds: f64,
        sizes: &[usize],
        only: &[String],
    ) -> Result<Sample, String> {
        let step = |step| step::run(step, load, pcap, seconds);
        match self {
            Self::StepEthIbRc => step(Step::ETH_IB_RC),
            Self::StepIbEthRc => step(Step::IB_ETH_RC),
            Self::StepEthIbUd => step(Step::ETH_IB_UD),
            Self::StepIbEthUd => step(Step::IB_ETH_UD),
            Self::StepBothRc => step(Step::BOTH_RC),
            Self::StepBothUd => step(Step::BOTH_UD),
            Self::Latency => latency::run(seconds),
            Self::Scale => scale::run(seconds, only),
            Self::Workers => workers::run(pcap, seconds),
            Self::RcSoft => soft::run(Service::Connection, seconds, sizes),
            Self::UdSoft => soft::run(Service::Datagrams, seconds, sizes),
            Self::ChainSend => chain::run(seconds),
            Self::SrqReceive => receive::run(seconds),
            Self::Fastreg => fastreg::run(seconds),
            Self::Control => control::run(seconds),
            Self::Publish => publish::run(seconds),
            Self::GidLookup => gid::run_lookup(seconds),
            Self::GidEvent => gid::run_event(seconds),
            Self::GidQuery => gid::run_query(seconds),
        }
    }
}

/// Benchmarks of the gateway, compared with dpdk-testpmd on the same packets and processor.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Options {
    /// Benchmarks to run (default: all).
    names: Vec<Name>,
    /// Write the results to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write plots of latencies and of `scale` into this folder, and a log of the histograms.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Fewer and shorter runs.
    #[arg(long)]
    quick: bool,
    /// Runs of each benchmark (default: ten if it alternates with another program, else seven).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Seconds of each run.
    #[arg(long)]
    seconds: Option<f64>,
    /// rc-soft and ud-soft: run with messages of these sizes only.
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    sizes: Vec<usize>,
    /// scale: run these parts only, by the names of their results: connections, neighbours.ib-eth,
    /// segments.16.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<String>,
    /// Steps and their peers: bytes of a frame without its tag.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(60..=1514))]
    frame: Option<u16>,
    /// Steps: number of flows, each from (or to) its own Ethernet host.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    flows: Option<u32>,
    /// Steps: frames have a VLAN tag.
    #[arg(long)]
    tagged: bool,
    /// Do not use hugepages.
    #[arg(long)]
    no_huge: bool,
    /// Only plot the rates in this file, which `scripts/gateway_bench.py` wrote.
    #[arg(long, hide = true, value_name = "FILE", requires = "plots")]
    bars: Option<PathBuf>,
    /// Run one benchmark once in this process and print its results: for the runs above, and for profilers.
    #[arg(long, hide = true)]
    once: bool,
    /// With --once: run a fixed number of iterations of a step or of one point of scale, or send a fixed
    /// number of messages of one size in rc-soft and ud-soft (`--only crc`: with CRCs). For counts of
    /// instructions.
    #[arg(long, hide = true, requires = "once", value_name = "N")]
    turns: Option<u64>,
}

impl Options {
    /// The packets of the steps.
    fn load(&self) -> Load {
        Load {
            packet: self.frame.map_or(Load::PLAIN.packet, |bytes| usize::from(bytes) - 14),
            flows: self.flows.unwrap_or(Load::PLAIN.flows),
            tagged: self.tagged,
            ..Load::PLAIN
        }
    }

    /// The same arguments for a run in a separate process.
    fn load_words(&self) -> Vec<String> {
        let frame = self.frame.map(|bytes| format!("--frame={bytes}"));
        let flows = self.flows.map(|flows| format!("--flows={flows}"));
        frame.into_iter().chain(flows).chain(self.tagged.then(|| "--tagged".to_owned())).collect()
    }

    /// The suffix of a step's results for these packets: empty for the default.
    fn load_name(&self) -> String {
        let frame = self.frame.map(|bytes| format!("-{bytes}-bytes")).unwrap_or_default();
        let flows = self.flows.map(|flows| format!("-{flows}-flows")).unwrap_or_default();
        frame + &flows + if self.tagged { "-tagged" } else { "" }
    }
}

/// Printed below the table of quick runs.
const QUICK: &str = "quick: the runs are too few and too short for results; they only show that it works";

/// Removes the file at the end.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn write_pcap(load: &Load) -> Result<Temporary, String> {
    let path = std::env::temp_dir().join(format!("bench-{}.pcap", std::process::id()));
    let file = Temporary(path);
    frames::write_pcap(&file.0, frames::frames(load)).map_err(|e| format!("{}: {e}", file.0.display()))?;
    Ok(file)
}

/// How a benchmark is run.
struct Plan<'a> {
    options: &'a Options,
    seconds: f64,
}

impl Plan<'_> {
    /// Runs of a benchmark: at least ten with another program, whose runs are not slices of milliseconds.
    fn runs_of(&self, name: Name) -> u32 {
        let usual = if self.options.quick {
            2
        } else if name.has_peer() {
            10
        } else {
            7
        };
        self.options.runs.unwrap_or(usual)
    }

    /// The peers of the steps: quick runs only use the one that a step is compared with.
    const fn modes(&self, name: Name) -> &'static [Mode] {
        match (name.has_peer(), self.options.quick) {
            (false, _) => &[],
            (true, true) => &[Mode::Csum],
            (true, false) => Mode::ALL.as_slice(),
        }
    }
}

/// Runs a benchmark once in a separate process, or, for scale, in one for each group.
fn child(name: Name, plan: &Plan<'_>) -> Result<Sample, String> {
    if name != Name::Scale {
        return process(name, plan, plan.seconds, &[]);
    }
    let parts = scale::parts(&plan.options.only)?;
    let seconds = plan.seconds / parts.len().max(1) as f64;
    let mut all = Sample::default();
    for part in &parts {
        let Sample { figures, notes, .. } = process(name, plan, seconds, part)?;
        all.figures.extend(figures);
        all.notes.extend(notes);
    }
    Ok(all)
}

fn process(name: Name, plan: &Plan<'_>, seconds: f64, only: &[String]) -> Result<Sample, String> {
    let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let mut command = Command::new(program);
    command.args([name.text(), "--once".to_owned(), "--seconds".to_owned(), seconds.to_string()]);
    let Options { sizes, no_huge, .. } = plan.options;
    if *no_huge {
        command.arg("--no-huge");
    }
    if name.step().is_some() {
        command.args(plan.options.load_words());
    }
    if name.service().is_some() && !sizes.is_empty() {
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        command.arg("--sizes").arg(sizes.join(","));
    }
    if !only.is_empty() {
        command.arg("--only").arg(only.join(","));
    }
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("cannot start a run: {e}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{}: {}", name.text(), text.trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().rev().find(|line| line.starts_with('{')).unwrap_or_default();
    serde_json::from_str(line).map_err(|e| format!("{}: {e}", name.text()))
}

fn benchmark(
    name: Name,
    plan: &Plan<'_>,
    report: &mut Report,
    percentiles: &mut Percentiles,
) -> Result<(), String> {
    let load = if name.step().is_some() { plan.options.load() } else { Load::PLAIN };
    let pcap = write_pcap(&load)?;
    let text = name.text() + &if name.step().is_some() { plan.options.load_name() } else { String::new() };
    let (runs, modes) = (plan.runs_of(name), plan.modes(name));
    let mut samples = Vec::new();
    let mut peers: Vec<(Mode, Vec<f64>)> = modes.iter().map(|mode| (*mode, Vec::new())).collect();
    for run in 1..=runs {
        eprint!("\r{text}: run {run} of {runs} ");
        samples.push(child(name, plan)?);
        for (mode, figures) in &mut peers {
            eprint!("\r{text}: run {run} of {runs}, dpdk-testpmd {:8}", mode.text());
            figures.push(peer::run(*mode, (&pcap.0, load.flows), plan.seconds)?);
        }
    }
    eprintln!();
    let peers = peers.iter().filter_map(|(mode, figures)| Some((*mode, Spread::of(figures)?)));
    let peers: Vec<report::Peer> =
        peers.map(|(mode, spread)| report::Peer { part: mode.text(), name: mode.name(), spread }).collect();
    report.add(report::entries(&text, &samples, &peers));
    percentiles.add(&text, &samples)?;
    for note in samples.last().iter().flat_map(|s| &s.notes) {
        eprintln!("  {note}");
    }
    Ok(())
}

fn main_of(options: &Options) -> Result<(), String> {
    if options.no_huge {
        machine::leave_hugepages();
    }
    let all: Vec<Name> = Name::value_variants()
        .iter()
        .copied()
        .filter(|name| *name != Name::GidQuery || gid::has_device())
        .collect();
    let names = if options.names.is_empty() { &all } else { &options.names };
    if !options.sizes.is_empty() && !names.iter().any(|name| name.service().is_some()) {
        return Err("--sizes is of rc-soft and ud-soft: name one of them".to_owned());
    }
    if !options.load_words().is_empty() && !names.iter().any(|name| name.step().is_some()) {
        return Err("--frame, --flows and --tagged are of the steps: name one of them".to_owned());
    }
    let messages = options.turns.is_some() && names.iter().any(|name| name.service().is_some());
    if !options.only.is_empty() && !names.contains(&Name::Scale) && !messages {
        return Err("--only is of scale: name it".to_owned());
    }
    let seconds = options.seconds.unwrap_or(if options.quick { 1.0 } else { 2.0 }).clamp(0.001, 3600.0);
    if options.once {
        let load = options.load();
        let pcap = write_pcap(&load)?;
        for name in names {
            let sample = match options.turns {
                Some(turns) if *name == Name::Scale => scale::take_turns(&options.only, turns)?,
                Some(turns) if name.service().is_some() => {
                    let service = name.service().unwrap_or(Service::Connection);
                    soft::take_messages(service, &options.sizes, &options.only, turns)?
                }
                Some(turns) => {
                    let step = name.step().ok_or_else(|| format!("{}: it has no turns", name.text()))?;
                    step::take_turns(step, &load, &pcap.0, turns)?
                }
                None => name.run((&pcap.0, &load), seconds, &options.sizes, &options.only)?,
            };
            println!("{}", serde_json::to_string(&sample).map_err(|e| e.to_string())?);
        }
        return Ok(());
    }
    if let (Some(file), Some(folder)) = (&options.bars, &options.plots) {
        return plot_bars(file, folder);
    }
    let plan = Plan { options, seconds };
    let mut report = Report::new(machine::describe(), seconds, options.quick);
    let mut percentiles = Percentiles::default();
    println!("{}", machine::describe());
    // Load of other programs: from here on this program adds its own.
    let (warning, load) = (machine::busy_warning(), machine::load());
    for name in names {
        benchmark(*name, &plan, &mut report, &mut percentiles)?;
    }
    println!("{}\n{}", report.table(), report.bars());
    if options.quick {
        println!("{QUICK}");
    }
    if let Some(warning) = warning {
        println!("{warning}");
    }
    if let Some(file) = &options.json {
        write(file, report.json()?.as_bytes())?;
        write_log(&percentiles, &file.with_extension("hlog"))?;
    }
    if let Some(folder) = &options.plots {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let about = format!("{}, load average {load:.1}", report.about());
        for (name, chart) in percentiles.charts().into_iter().chain(report.charts()) {
            write(&folder.join(name + ".svg"), chart.svg(&about).as_bytes())?;
        }
        write_log(&percentiles, &folder.join("latency.hlog"))?;
    }
    Ok(())
}

fn plot_bars(file: &Path, folder: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let results = bars::parse(&text).map_err(|e| format!("{}: {e}", file.display()))?;
    let charts = bars::charts(&results);
    if charts.is_empty() {
        return Err(format!("{}: there are no rates in it", file.display()));
    }
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for (name, chart) in charts {
        write(&folder.join(name + ".svg"), chart.svg(&results.about).as_bytes())?;
    }
    Ok(())
}

fn write(file: &Path, bytes: &[u8]) -> Result<(), String> {
    std::fs::write(file, bytes).map_err(|e| format!("{}: {e}", file.display()))
}

fn write_log(percentiles: &Percentiles, file: &Path) -> Result<(), String> {
    if percentiles.is_empty() {
        return Ok(());
    }
    write(file, &percentiles.log(std::time::SystemTime::now())?)
}

fn main() -> ExitCode {
    match main_of(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}
