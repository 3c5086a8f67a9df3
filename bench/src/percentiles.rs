//! Histograms of times, over all runs: as a log that HdrHistogram's tools read, and as plots.

use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer, V2Serializer};
use serde::{Deserialize, Serialize};

use crate::plot::{Axis, Chart, Line, Point, Shape};
use crate::sample::Sample;

/// Reported quantiles of a histogram; the last one is the maximum.
pub(crate) const QUANTILES: [f64; 6] = [0.5, 0.9, 0.99, 0.999, 0.9999, 1.0];

/// Name of a quantile in results.
pub(crate) fn name_of(quantile: f64) -> String {
    if quantile >= 1.0 { "max".to_owned() } else { format!("p{}", rounded(quantile * 100.0)) }
}

/// Minimum of packets above a percentile to report it.
const ABOVE: f64 = 10.0;

/// True if enough packets lie above the quantile; the maximum is always reported.
pub(crate) fn is_told(packets: u64, quantile: f64) -> bool {
    quantile >= 1.0 || (1.0 - quantile) * packets as f64 > ABOVE - 0.5
}

fn rounded(percent: f64) -> f64 {
    (percent * 1e6).round() / 1e6
}

/// A histogram of nanoseconds, encoded for another process: HdrHistogram's V2 encoding.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Recorded {
    part: String,
    v2: Vec<u8>,
    /// The last plotted quantile, if the number of packets does not limit it.
    until: f64,
}

impl Recorded {
    pub(crate) fn of(part: &str, histogram: &Histogram<u64>) -> Result<Self, String> {
        let mut v2 = Vec::new();
        V2Serializer::new().serialize(histogram, &mut v2).map_err(|e| format!("{part}: {e:?}"))?;
        Ok(Self { part: part.to_owned(), v2, until: 1.0 })
    }

    /// Limits the plot to this quantile.
    pub(crate) fn until(self, quantile: f64) -> Self {
        Self { until: quantile, ..self }
    }

    fn histogram(&self) -> Result<Histogram<u64>, String> {
        Deserializer::new().deserialize(&mut self.v2.as_slice()).map_err(|e| format!("{}: {e:?}", self.part))
    }
}

/// All recorded histograms, merged over all runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Percentiles {
    all: Vec<(String, Histogram<u64>, f64)>,
}

impl Percentiles {
    /// Adds the histograms of a benchmark's runs.
    pub(crate) fn add(&mut self, benchmark: &str, samples: &[Sample]) -> Result<(), String> {
        for recorded in samples.iter().flat_map(|sample| &sample.histograms) {
            let (name, new) = (format!("{benchmark}.{}", recorded.part), recorded.histogram()?);
            match self.all.iter_mut().find(|(known, ..)| *known == name) {
                Some((_, histogram, until)) => {
                    histogram.add(new).map_err(|e| format!("{name}: {e:?}"))?;
                    *until = until.max(recorded.until);
                }
                None => self.all.push((name, new, recorded.until)),
            }
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A log in compressed V2 format, with a line for each histogram and its name as the tag.
    pub(crate) fn log(&self, at: SystemTime) -> Result<Vec<u8>, String> {
        let (mut log, mut serializer) = (Vec::new(), V2DeflateSerializer::new());
        let mut writer = IntervalLogWriterBuilder::new()
            .add_comment("nanoseconds; each interval is all runs of one cell")
            .with_start_time(at)
            .begin_log_with(&mut log, &mut serializer)
            .map_err(|e| e.to_string())?;
        for (name, histogram, _) in &self.all {
            writer
                .write_histogram(histogram, Duration::ZERO, Duration::ZERO, Tag::new(name))
                .map_err(|e| format!("{name}: {e:?}"))?;
        }
        drop(writer);
        Ok(log)
    }

    /// A chart with its name for each direction. The direction is a name without its last two parts or, for
    /// pings, without the last one. Each chart shows the machine alone as a dashed line: [`MACHINE`].
    pub(crate) fn charts(&self) -> Vec<(String, Chart)> {
        let mut charts: Vec<(String, &str, Chart)> = Vec::new();
        let (machine, cells): (Vec<_>, Vec<_>) =
            self.all.iter().partition(|(name, ..)| name.contains(".machine."));
        for (name, histogram, until) in cells {
            let words: Vec<&str> = name.split('.').collect();
            let own = if words.contains(&"ping") { 1 } else { 2 };
            let (way, line) = words.split_at(words.len().saturating_sub(own));
            let of = name.get(..way.join(".").rfind('.').unwrap_or(0)).unwrap_or_default();
            let (way, line) = (way.join("-"), line.join(", at % of the maximum: "));
            let line = Line::new(&line, curve(histogram, *until));
            match charts.iter_mut().find(|(known, ..)| *known == way) {
                Some((.., chart)) => chart.lines.push(line),
                None => charts.push((way.clone(), of, chart(&way, line))),
            }
        }
        for (way, of, chart) in &mut charts {
            // Pings are not a load level.
            let loads = if way.ends_with("-ping") { 1 } else { MACHINE.len() };
            for (load, words) in MACHINE.iter().take(loads) {
                let found = machine.iter().find(|(name, ..)| *name == format!("{of}.machine.{load}"));
                let points = found.map(|(_, histogram, until)| {
                    // Most would not wait at all, which a logarithmic scale cannot show.
                    let seen = |point: &Point| point.1 >= LEAST_US;
                    curve(histogram, *until).into_iter().filter(seen).collect::<Vec<_>>()
                });
                chart.lines.extend(points.map(|points| Line { dashed: true, ..Line::new(words, points) }));
            }
        }
        charts.into_iter().map(|(way, _, chart)| (way, chart)).collect()
    }
}

/// The minimum delay in the plot.
const LEAST_US: f64 = 0.1;

/// Plotted lines of the machine alone: the load and the label.
const MACHINE: [(&str, &str); 2] = [("0", "the machine alone"), ("50", "the machine alone, at 50 %")];

/// Nines that the plots show.
const NINES: f64 = 4.0;

fn chart(way: &str, first: Line) -> Chart {
    let marks = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999];
    Chart {
        title: format!("{way}: part of the packets that took no longer"),
        x_title: "percentile".to_owned(),
        x_marks: marks.iter().map(|q| (place(*q), format!("{} %", rounded(q * 100.0)))).collect(),
        y_title: "us".to_owned(),
        y: Axis::Logarithmic,
        shape: Shape::Lines,
        lines: vec![first],
    }
}

/// Horizontal position of a quantile: each further nine takes the same width.
fn place(quantile: f64) -> f64 {
    -(1.0 - quantile).log10() / NINES
}

fn curve(histogram: &Histogram<u64>, until: f64) -> Vec<Point> {
    // Leaves out values of too few packets.
    let most = (histogram.len() as f64 / ABOVE).max(1.0).log10().min(NINES).min(-(1.0 - until).log10());
    let steps = (most * 12.0).round() as u32;
    let point = |step: u32| {
        let quantile = 1.0 - 10_f64.powf(-f64::from(step) / 12.0);
        (place(quantile), histogram.value_at_quantile(quantile) as f64 / 1e3, None)
    };
    (0..=steps).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    fn samples() -> Vec<Sample> {
        let one = |values: &[u64]| {
            let mut histogram = Histogram::new_with_bounds(1, 10_000_000_000, 3).unwrap();
            for value in values {
                histogram.record(*value).unwrap();
            }
            let parts = ["eth-ib.poll.50", "eth-ib.sleep.50", "ping.poll", "machine.0", "machine.50"];
            let histograms = parts.map(|part| Recorded::of(part, &histogram).unwrap());
            Sample { histograms: histograms.into(), ..Sample::default() }
        };
        vec![one(&[1000; 990]), one(&[50_000; 10])]
    }

    #[test]
    fn those_of_all_runs_are_one_in_the_log_which_can_be_read_again() {
        let mut percentiles = Percentiles::default();
        assert!(percentiles.is_empty());
        // As received from another process.
        let text = serde_json::to_string(&samples()).unwrap();
        percentiles.add("latency", &serde_json::from_str::<Vec<Sample>>(&text).unwrap()).unwrap();
        let log = percentiles.log(SystemTime::now()).unwrap();
        let mut tags = Vec::new();
        for entry in IntervalLogIterator::new(&log) {
            let LogEntry::Interval(interval) = entry.unwrap() else { continue };
            tags.push(interval.tag().unwrap().as_str().to_owned());
            assert!(interval.encoded_histogram().starts_with("HIST"), "compressed V2");
        }
        let cells = ["latency.eth-ib.poll.50", "latency.eth-ib.sleep.50", "latency.ping.poll"];
        assert_eq!(tags[..3], cells);
        assert_eq!(tags[3..], ["latency.machine.0", "latency.machine.50"]);
        let (_, all, _) = &percentiles.all[0];
        assert_eq!((all.len(), all.value_at_quantile(0.5) / 10), (1000, 100));
        assert!(all.value_at_quantile(0.999) >= 50_000);
    }

    #[test]
    fn charts_have_a_line_for_each_cell_of_a_way_and_no_more_nines_than_packets() {
        let mut percentiles = Percentiles::default();
        percentiles.add("latency", &samples()).unwrap();
        let charts = percentiles.charts();
        let names: Vec<_> = charts.iter().map(|(name, chart)| (name.as_str(), chart.lines.len())).collect();
        assert_eq!(names, [("latency-eth-ib", 2 + 2), ("latency-ping", 1 + 1)]);
        let points = &charts[0].1.lines[0].points;
        let dashed: Vec<_> = charts[0].1.lines.iter().map(|line| line.dashed).collect();
        assert_eq!(dashed, [false, false, true, true]);
        // A thousand packets have two nines: of three only one lies above.
        assert_eq!(points.last().unwrap().0, place(0.99));
        assert!(points.iter().all(|(x, y, _)| (0.0..=1.0).contains(x) && *y >= 1.0));
    }

    #[test]
    fn ten_packets_have_to_lie_above() {
        let told = |packets| QUANTILES.iter().filter(|quantile| is_told(packets, **quantile)).count();
        assert_eq!([10, 20, 1000, 9000, 10_000, 100_000].map(told), [1, 2, 4, 4, 5, 6]);
    }

    #[test]
    fn names_of_quantiles() {
        assert_eq!(QUANTILES.map(name_of), ["p50", "p90", "p99", "p99.9", "p99.99", "max"]);
    }

    #[test]
    fn a_line_ends_where_too_few_lie_above_or_where_it_is_told_to() {
        let mut histogram = Histogram::new_with_bounds(1, 10_000_000_000, 3).unwrap();
        histogram.record_n(5000, 1000).unwrap();
        let end = |until| curve(&histogram, until).last().map(|(place, ..)| (place * 100.0).round());
        // Two nines of four: ten of a thousand.
        assert_eq!(
            (end(1.0), end(0.9999), end(0.99), end(0.9), end(0.0)),
            (Some(50.0), Some(50.0), Some(50.0), Some(25.0), Some(0.0))
        );
    }

    #[test]
    fn what_is_no_histogram_is_an_error() {
        let broken = Recorded { part: "x".to_owned(), v2: vec![1, 2, 3], until: 1.0 };
        let sample = Sample { histograms: vec![broken], ..Sample::default() };
        assert!(Percentiles::default().add("latency", &[sample]).is_err());
    }
}
