//! Results, as JSON for tools and as a table with bars for readers.

use serde::Serialize;

use crate::plot::{Axis, Chart, Line, Shape};
use crate::sample::Sample;
use crate::series::Spread;

/// One result over all runs, with the peer's.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Entry {
    name: String,
    unit: String,
    min: f64,
    median: f64,
    max: f64,
    /// Repetitions, each in a separate process.
    runs: usize,
    peer: Option<String>,
    peer_min: Option<f64>,
    peer_median: Option<f64>,
    peer_max: Option<f64>,
    peer_runs: Option<usize>,
    /// Ratio of the medians.
    ratio: Option<f64>,
    /// At least one run had too little data for the value: fewer than ten packets above a percentile.
    thin: bool,
}

impl Entry {
    /// Adds the peer's results.
    fn beside(self, name: &str, peer: Spread) -> Self {
        Self {
            peer: Some(name.to_owned()),
            peer_min: Some(rounded(peer.min)),
            peer_median: Some(rounded(peer.median)),
            peer_max: Some(rounded(peer.max)),
            peer_runs: Some(peer.runs),
            ratio: Some(rounded(self.median / peer.median)),
            ..self
        }
    }
}

/// The whole report.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Report {
    machine: String,
    /// Seconds of a run.
    seconds: f64,
    /// The results are not meaningful: there were too few runs.
    quick: bool,
    results: Vec<Entry>,
}

/// Four significant digits: more would be noise.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10_f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// Another program, and the results of its runs.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Peer {
    /// Its name in entries.
    pub(crate) part: &'static str,
    /// Its description.
    pub(crate) name: String,
    pub(crate) spread: Spread,
}

/// The entries of a benchmark's runs and of its peers'. Results that peers have, too, are compared with the
/// first peer; the main result has another entry for each other peer.
pub(crate) fn entries(name: &str, samples: &[Sample], peers: &[Peer]) -> Vec<Entry> {
    let Some(first) = samples.first() else { return Vec::new() };
    let of_first = peers.first().map(|peer| (peer.name.as_str(), peer.spread));
    let mut entries: Vec<Entry> = own_entries(name, samples, first, of_first);
    let main = entries.iter().find(|entry| entry.name == name && entry.peer.is_some()).cloned();
    let others = peers.iter().skip(1).filter_map(|peer| {
        let main = Entry { name: format!("{name}.beside-{}", peer.part), ..main.clone()? };
        Some(main.beside(&peer.name, peer.spread))
    });
    entries.extend(others);
    entries
}

/// The entries of the benchmark's own results.
fn own_entries(name: &str, samples: &[Sample], first: &Sample, peer: Option<(&str, Spread)>) -> Vec<Entry> {
    let entry = |figure: &crate::sample::Figure| {
        // By name, as a run may omit values.
        let of_runs =
            || samples.iter().filter_map(|s| s.figures.iter().find(|other| other.part == figure.part));
        let spread = Spread::of(&of_runs().map(|figure| figure.value).collect::<Vec<f64>>())?;
        let beside = || {
            let (name, _) = figure.beside.as_ref()?;
            let all = of_runs().filter_map(|figure| Some(figure.beside.as_ref()?.1));
            Some((name.as_str(), Spread::of(&all.collect::<Vec<f64>>())?))
        };
        let entry = Entry {
            name: if figure.part.is_empty() { name.to_owned() } else { format!("{name}.{}", figure.part) },
            unit: figure.unit.clone(),
            min: rounded(spread.min),
            median: rounded(spread.median),
            max: rounded(spread.max),
            runs: spread.runs,
            peer: None,
            peer_min: None,
            peer_median: None,
            peer_max: None,
            peer_runs: None,
            ratio: None,
            thin: of_runs().any(|figure| figure.thin),
        };
        Some(match peer.filter(|_| figure.has_peer).or_else(beside) {
            Some((name, peer)) => entry.beside(name, peer),
            None => entry,
        })
    };
    first.figures.iter().filter_map(entry).collect()
}

/// Characters of the longest bar.
const BAR: f64 = 40.0;

fn bar(value: f64, most: f64) -> String {
    let length = if most > 0.0 { (value / most * BAR).round() as usize } else { 0 };
    "█".repeat(length)
}

fn chart(group: &str) -> Chart {
    Chart {
        title: format!("One worker against {group}"),
        x_title: if group == "frame" { "bytes of a frame".to_owned() } else { group.to_owned() },
        x_marks: Vec::new(),
        y_title: "Mpps".to_owned(),
        y: Axis::Linear,
        shape: Shape::Lines,
        lines: Vec::new(),
    }
}

/// Places the points at equal distances in the order of their numbers, which are too far apart for a scale.
fn spread_out(mut chart: Chart, mut marks: Vec<u32>) -> Chart {
    marks.sort_unstable();
    let last = marks.len().saturating_sub(1).max(1) as f64;
    let place = |at: f64| marks.iter().position(|mark| f64::from(*mark) == at).unwrap_or(0) as f64 / last;
    for line in &mut chart.lines {
        for (x, ..) in &mut line.points {
            *x = place(*x);
        }
        line.points.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
    }
    chart.x_marks = marks.iter().map(|mark| (place((*mark).into()), mark.to_string())).collect();
    chart
}

impl Report {
    /// A report without results.
    pub(crate) const fn new(machine: String, seconds: f64, quick: bool) -> Self {
        Self { machine, seconds, quick, results: Vec::new() }
    }

    /// Adds results.
    pub(crate) fn add(&mut self, entries: Vec<Entry>) {
        self.results.extend(entries);
    }

    /// The table.
    pub(crate) fn table(&self) -> String {
        let width = self.results.iter().map(|e| e.name.len()).max().unwrap_or(0).max(4);
        let mut out = format!(
            "{:width$}  {:>4} {:>9} {:>9} {:>9}  {:18} {:>26}  {:>6}\n",
            "name", "runs", "min", "median", "max", "unit", "peer min / median / max", "ratio"
        );
        for e in &self.results {
            let peer = match (e.peer_min, e.peer_median, e.peer_max) {
                (Some(min), Some(median), Some(max)) => format!("{min} / {median} / {max}"),
                _ => String::new(),
            };
            let median = if e.thin { format!("~{}", e.median) } else { e.median.to_string() };
            let ratio = e.ratio.map_or_else(String::new, |r| format!("{r:.3}"));
            out += &format!(
                "{:width$}  {:>4} {:>9} {median:>9} {:>9}  {:18} {peer:>26}  {ratio:>6}\n",
                e.name, e.runs, e.min, e.max, e.unit
            );
        }
        out
    }

    /// Bars of the medians with a peer, ours and the peer's.
    pub(crate) fn bars(&self) -> String {
        let compared: Vec<(&Entry, f64)> =
            self.results.iter().filter_map(|e| Some((e, e.peer_median?))).collect();
        let most = compared.iter().map(|(e, p)| e.median.max(*p)).fold(0.0, f64::max);
        let width = compared.iter().map(|(e, _)| e.name.len()).max().unwrap_or(0);
        let mut out = String::new();
        for (e, peer) in compared {
            out += &format!("{:width$} {} {} {}\n", e.name, bar(e.median, most), e.median, e.unit);
            out += &format!("{:>width$} {} {peer} {}\n", "peer", bar(peer, most), e.unit);
        }
        out
    }

    /// Machine and number of runs, for the text below plots.
    pub(crate) fn about(&self) -> String {
        let runs = self.results.iter().map(|e| e.runs).min().unwrap_or(0);
        let quick = if self.quick { "quick, " } else { "" };
        format!("{quick}{runs} runs of {} s, {}", self.seconds, self.machine)
    }

    /// Charts of `scale`, by file name: rates from minimum to maximum of the runs, with a line for each
    /// direction.
    pub(crate) fn charts(&self) -> Vec<(String, Chart)> {
        let mut charts: Vec<(String, Chart, Vec<u32>)> = Vec::new();
        for entry in self.results.iter().filter(|entry| entry.unit == "Mpps") {
            let Some((name, at)) = entry.name.rsplit_once('.') else { continue };
            let (Some(of), Ok(at)) = (name.strip_prefix("scale."), at.parse::<u32>()) else { continue };
            let (group, way) = of.split_once('.').unwrap_or((of, "eth-ib"));
            let place = match charts.iter().position(|(known, ..)| known == group) {
                Some(place) => place,
                None => {
                    charts.push((group.to_owned(), chart(group), Vec::new()));
                    charts.len() - 1
                }
            };
            let Some((_, chart, marks)) = charts.get_mut(place) else { continue };
            if !marks.contains(&at) {
                marks.push(at);
            }
            let point = (f64::from(at), entry.median, Some((entry.min, entry.max)));
            match chart.lines.iter_mut().find(|line| line.name == way) {
                Some(line) => line.points.push(point),
                None => chart.lines.push(Line::new(way, vec![point])),
            }
        }
        charts
            .into_iter()
            .map(|(group, chart, marks)| (format!("scale-{group}"), spread_out(chart, marks)))
            .collect()
    }

    /// The JSON.
    pub(crate) fn json(&self) -> Result<String, String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n").map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Figure;

    fn report() -> Report {
        let sample = |mpps| Sample {
            figures: vec![Figure::with_peer("", "Mpps", mpps), Figure::new("time", "ns/packet", 1e3 / mpps)],
            ..Sample::default()
        };
        let peer = Spread { min: 10.0, median: 20.0, max: 25.0, runs: 10 };
        let mut report = Report::new("a machine".to_owned(), 2.0, true);
        let peer = Peer { part: "csum", name: "csum".to_owned(), spread: peer };
        report.add(entries("step", &[sample(10.0), sample(12.0), sample(11.0)], &[peer]));
        report.add(entries("alone", &[sample(1.234_567)], &[]));
        report
    }

    #[test]
    fn the_json_has_the_agreed_fields_and_no_other() {
        let json: serde_json::Value = serde_json::from_str(&report().json().unwrap()).unwrap();
        let keys = |v: &serde_json::Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&json), ["machine", "quick", "results", "seconds"]);
        assert_eq!((json["quick"].as_bool(), json["seconds"].as_f64()), (Some(true), Some(2.0)));
        let results = json["results"].as_array().unwrap();
        assert_eq!(results.len(), 4);
        for result in results {
            let mut names = keys(result);
            names.sort();
            let agreed = [
                "max",
                "median",
                "min",
                "name",
                "peer",
                "peer_max",
                "peer_median",
                "peer_min",
                "peer_runs",
                "ratio",
                "runs",
                "thin",
                "unit",
            ];
            assert_eq!(names, agreed);
        }
        assert_eq!(results[0]["name"], "step");
        assert_eq!(results[0]["median"], 11.0);
        assert_eq!(results[0]["peer"], "csum");
        assert_eq!(results[0]["ratio"], 0.55);
        assert_eq!((&results[0]["runs"], &results[2]["runs"]), (&3.into(), &1.into()));
        assert_eq!((&results[0]["peer_runs"], &results[0]["peer_max"]), (&10.into(), &25.0.into()));
        assert!(report().about().starts_with("quick, 1 runs of 2 s"), "the minimum of runs of a result");
        assert_eq!(results[1]["name"], "step.time");
        assert!(results[1]["peer"].is_null() && results[1]["ratio"].is_null());
        assert_eq!(results[2]["max"], 1.235);
    }

    #[test]
    fn the_table_and_the_bars_show_both() {
        let report = report();
        let table = report.table();
        assert_eq!(table.lines().count(), 5);
        assert!(table.contains("10 / 20 / 25") && table.contains("0.550"), "{table}");
        let bars = report.bars();
        assert_eq!(bars.lines().count(), 2, "only what has a peer");
        assert_eq!(bars.matches('█').count(), 22 + 40);
    }

    #[test]
    fn every_peer_has_its_ratio_and_csum_that_of_the_main_entry() {
        let sample = Sample {
            figures: vec![
                Figure::with_peer("", "Mpps", 10.0),
                Figure::with_peer("without-sink", "Mpps", 12.0),
                Figure::new("time", "ns/packet", 100.0),
            ],
            ..Sample::default()
        };
        let peer = |part, median| Peer {
            part,
            name: format!("testpmd {part}"),
            spread: Spread { min: median - 1.0, median, max: median + 1.0, runs: 10 },
        };
        let entries =
            entries("step", &[sample], &[peer("csum", 20.0), peer("io", 40.0), peer("5tswap", 8.0)]);
        let told: Vec<_> =
            entries.iter().map(|e| (e.name.as_str(), e.median, e.peer.as_deref(), e.ratio)).collect();
        assert_eq!(
            told,
            [
                ("step", 10.0, Some("testpmd csum"), Some(0.5)),
                ("step.without-sink", 12.0, Some("testpmd csum"), Some(0.6)),
                ("step.time", 100.0, None, None),
                ("step.beside-io", 10.0, Some("testpmd io"), Some(0.25)),
                ("step.beside-5tswap", 10.0, Some("testpmd 5tswap"), Some(1.25)),
            ]
        );
    }

    #[test]
    fn a_figure_that_a_run_left_out_is_of_those_that_have_it() {
        let sample = |figures: &[(&str, f64)]| Sample {
            figures: figures.iter().map(|(part, value)| Figure::new(part, "ns", *value)).collect(),
            ..Sample::default()
        };
        let samples = [sample(&[("a", 1.0), ("b", 5.0)]), sample(&[("b", 7.0)])];
        let told: Vec<_> =
            entries("x", &samples, &[]).into_iter().map(|e| (e.name, e.median, e.runs)).collect();
        assert_eq!(told, [("x.a".to_owned(), 1.0, 1), ("x.b".to_owned(), 6.0, 2)]);
    }

    #[test]
    fn what_one_run_could_not_tell_is_marked() {
        let sample = |thin| {
            let figures =
                vec![Figure { thin, ..Figure::new("p99.99", "us", 5.0) }, Figure::new("p50", "us", 1.0)];
            Sample { figures, ..Sample::default() }
        };
        let mut report = Report::new("a machine".to_owned(), 2.0, false);
        report.add(entries("latency", &[sample(false), sample(true)], &[]));
        let marked: Vec<_> = report.table().lines().map(|line| line.contains('~')).collect();
        assert_eq!(marked, [false, true, false]);
    }

    #[test]
    fn charts_are_of_what_scales_in_the_order_of_numbers() {
        let mut report = report();
        let figures = [("n.eth-ib.16", 9.0), ("n.eth-ib.4", 10.0), ("n.ib-eth.16", 5.0), ("c.1", 7.0)];
        let figures = figures.map(|(part, rate)| Figure::new(part, "Mpps", rate));
        let memory = Figure::new("c.1.memory", "bytes/connection", 4096.0);
        let sample = Sample { figures: figures.into_iter().chain([memory]).collect(), ..Sample::default() };
        report.add(entries("scale", &[sample], &[]));
        let charts = report.charts();
        let names: Vec<_> = charts.iter().map(|(name, chart)| (name.as_str(), chart.lines.len())).collect();
        assert_eq!(names, [("scale-n", 2), ("scale-c", 1)]);
        let (_, chart) = &charts[0];
        assert_eq!(chart.x_marks, [(0.0, "4".to_owned()), (1.0, "16".to_owned())]);
        let points: Vec<_> = chart.lines[0].points.iter().map(|(x, y, _)| (*x, *y)).collect();
        assert_eq!(points, [(0.0, 10.0), (1.0, 9.0)]);
    }
}
