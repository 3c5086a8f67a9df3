//! Metric families as text.

use std::borrow::Cow;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::family::{Family, PREFIX, Table};

/// The labels that distinguish a metric from others of its family: names and values.
pub type Labels = Vec<(&'static str, String)>;

/// Creates the labels of a metric, in their order.
pub fn labels<const N: usize>(all: [(&'static str, &dyn fmt::Display); N]) -> Labels {
    all.into_iter().map(|(name, value)| (name, value.to_string())).collect()
}

#[derive(Debug)]
enum Figures {
    /// Counters.
    Counter(Vec<(Labels, u64)>),
    /// Counters of seconds.
    Seconds(Vec<(Labels, f64)>),
    /// Gauges.
    Gauge(Vec<(Labels, f64)>),
}

/// A family with its metrics.
#[derive(Debug)]
struct Filled {
    name: Cow<'static, str>,
    help: &'static str,
    figures: Figures,
}

/// All families of a snapshot.
#[derive(Debug, Default)]
pub struct Sheet {
    families: Vec<Filled>,
}

impl Sheet {
    /// Adds a family of counters; in the text, its name ends in `_total`.
    pub fn counter(&mut self, family: Family, figures: impl IntoIterator<Item = (Labels, u64)>) {
        self.add(family, Figures::Counter(figures.into_iter().collect()));
    }

    /// Adds a counter of a table with descriptions as a family, whose name is the table's and the counter's.
    /// It has only the labels of the table's owner, so that a rule with an unknown counter can be found.
    pub fn described(
        &mut self,
        table: Table,
        [counter, help, _]: [&'static str; 3],
        figures: impl IntoIterator<Item = (Labels, u64)>,
    ) {
        let figures = Figures::Counter(figures.into_iter().collect());
        self.families.push(Filled { name: table.family(counter).into(), help, figures });
    }

    /// Adds a family of counters in nanoseconds; the text has seconds.
    pub fn seconds(&mut self, family: Family, nanoseconds: impl IntoIterator<Item = (Labels, u64)>) {
        let seconds = nanoseconds.into_iter().map(|(labels, ns)| (labels, ns as f64 * 1e-9));
        self.add(family, Figures::Seconds(seconds.collect()));
    }

    /// Adds a family of gauges.
    pub fn gauge(&mut self, family: Family, figures: impl IntoIterator<Item = (Labels, f64)>) {
        self.add(family, Figures::Gauge(figures.into_iter().collect()));
    }

    fn add(&mut self, family: Family, figures: Figures) {
        self.families.push(Filled { name: family.name().into(), help: family.describe(), figures });
    }

    /// Writes all families in the text format.
    pub fn into_text(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(self));
        let mut out = String::new();
        text::encode(&mut out, &registry)?;
        Ok(out)
    }
}

impl Collector for Sheet {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for Filled { name, help, figures } in &self.families {
            match figures {
                Figures::Counter(all) => {
                    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
                    for (labels, value) in all {
                        family.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(value, None)?;
                    }
                }
                Figures::Seconds(all) => {
                    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
                    for (labels, value) in all {
                        family.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(value, None)?;
                    }
                }
                Figures::Gauge(all) => {
                    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                    for (labels, value) in all {
                        family.encode_family(labels)?.encode_gauge(value)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Converts to Prometheus' own text format, in which a family of counters has its metrics' name and there is
/// no end mark.
pub(super) fn to_prometheus(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // The help of a family comes before its type.
    let mut lines = text.lines().filter(|line| *line != "# EOF").peekable();
    while let Some(line) = lines.next() {
        let kind = if line.starts_with("# TYPE ") { Some(line) } else { lines.peek().copied() };
        let counts = line.starts_with('#') && kind.is_some_and(|kind| kind.ends_with(" counter"));
        match line.splitn(4, ' ').collect::<Vec<_>>().as_slice() {
            [hash, what, name, rest] if counts => {
                out.push_str(&format!("{hash} {what} {name}_total {rest}\n"))
            }
            _ => out.extend([line, "\n"]),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_written_in_the_text_format() {
        let mut sheet = Sheet::default();
        sheet.counter(Family::Drops, [(labels([("reason", &"a \"b\"\n\\")]), 7)]);
        sheet.gauge(Family::InfinibandPortUp, [(labels([("port", &1), ("device", &"x")]), 1.0)]);
        sheet.counter(Family::SrqLow, []);
        sheet.seconds(Family::WorkerBusySeconds, [(labels([("worker", &0)]), 1_500_000_000)]);
        let text = sheet.into_text().unwrap();
        let figures = [
            "ipoib_fwd_drops_total{reason=\"a \\\"b\\\"\\n\\\\\"} 7",
            "ipoib_fwd_infiniband_port_up{port=\"1\",device=\"x\"} 1.0",
            "",
            "ipoib_fwd_worker_busy_seconds_total{worker=\"0\"} 1.5",
        ];
        let families = [Family::Drops, Family::InfinibandPortUp, Family::SrqLow, Family::WorkerBusySeconds];
        let page = |name: fn(Family) -> String| -> String {
            let one = |(family, figure): (Family, &str)| {
                let kind = if family.is_counter() { "counter" } else { "gauge" };
                let (name, end) = (name(family), if figure.is_empty() { "" } else { "\n" });
                format!("# HELP {name} {}\n# TYPE {name} {kind}\n{figure}{end}", family.describe())
            };
            families.into_iter().zip(figures).map(one).collect()
        };
        assert_eq!(text, page(|family| format!("ipoib_fwd_{}", family.name())) + "# EOF\n");
        assert_eq!(to_prometheus(&text), page(Family::figure));
    }
}
