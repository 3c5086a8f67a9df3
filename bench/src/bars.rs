//! Plots of the results of `scripts/gateway_bench.py`: a bar for each compared device, by benchmark.

use serde::Deserialize;

use crate::plot::{Axis, Chart, Line, Shape};

/// Units of rates; other units are reported with them, and not plotted.
const RATES: [&str; 3] = ["Gbit/s", "kpps", "connections/s"];

/// The file of results.
#[derive(Debug, Deserialize)]
pub(crate) struct Results {
    /// Machine and number of runs.
    pub(crate) about: String,
    results: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    /// Benchmark, device under test and value, separated by points.
    name: String,
    unit: String,
    min: f64,
    median: f64,
    max: f64,
}

/// Reads the file.
pub(crate) fn parse(text: &str) -> Result<Results, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

/// A chart of each benchmark, by file name.
pub(crate) fn charts(results: &Results) -> Vec<(String, Chart)> {
    let mut charts: Vec<(String, Chart)> = Vec::new();
    let mut whats: Vec<(String, Vec<String>)> = Vec::new();
    for row in results.results.iter().filter(|row| RATES.contains(&row.unit.as_str())) {
        let mut words = row.name.splitn(3, '.');
        let (Some(of), Some(who), Some(what)) = (words.next(), words.next(), words.next()) else { continue };
        if !charts.iter().any(|(name, _)| name == of) {
            charts.push((of.to_owned(), chart(of, &row.unit)));
            whats.push((of.to_owned(), Vec::new()));
        }
        let (Some((_, chart)), Some((_, known))) =
            (charts.iter_mut().find(|(name, _)| name == of), whats.iter_mut().find(|(name, _)| name == of))
        else {
            continue;
        };
        let place = known.iter().position(|known| known == what).unwrap_or_else(|| {
            known.push(what.to_owned());
            known.len() - 1
        });
        // The number of the position, until the total is known.
        let point = (place as f64, row.median, Some((row.min, row.max)));
        match chart.lines.iter_mut().find(|line| line.name == who) {
            Some(line) => line.points.push(point),
            None => chart.lines.push(Line::new(who, vec![point])),
        }
    }
    for ((_, chart), (_, whats)) in charts.iter_mut().zip(whats) {
        let middle = |place: f64| (place + 0.5) / whats.len() as f64;
        for (place, ..) in chart.lines.iter_mut().flat_map(|line| &mut line.points) {
            *place = middle(*place);
        }
        chart.x_marks = (0_u32..).zip(&whats).map(|(n, what)| (middle(n.into()), what.clone())).collect();
    }
    charts
}

fn chart(of: &str, unit: &str) -> Chart {
    Chart {
        title: format!("{of}: medians, least to greatest"),
        x_title: if of == "gateway-connections" { "who asks" } else { "way and streams" }.to_owned(),
        x_marks: Vec::new(),
        y_title: unit.to_owned(),
        y: Axis::Linear,
        shape: Shape::Bars,
        lines: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_all_that_are_compared_stand_beside_each_other() {
        let row = |name: &str, unit: &str, median: f64| {
            format!(
                r#"{{"name": "{name}", "unit": "{unit}", "min": 1, "median": {median}, "max": 9, "peer": null}}"#
            )
        };
        let rows = [
            row("gateway-tcp.gateway.eth-ib-1", "Gbit/s", 2.0),
            row("gateway-tcp.gateway.eth-ib-1.cpu.ibfab", "us/packet", 3.0),
            row("gateway-tcp.gateway.ib-eth-1", "Gbit/s", 3.0),
            row("gateway-pps.gateway.eth-ib-1", "kpps", 700.0),
            row("gateway-tcp.testpmd.eth-ib-1", "Gbit/s", 4.0),
        ];
        let text = format!(r#"{{"about": "a machine", "results": [{}]}}"#, rows.join(","));
        let results = parse(&text).unwrap();
        assert_eq!(results.about, "a machine");
        let charts = charts(&results);
        let names: Vec<_> = charts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["gateway-tcp", "gateway-pps"]);
        let (_, tcp) = &charts[0];
        assert_eq!(tcp.x_marks, [(0.25, "eth-ib-1".to_owned()), (0.75, "ib-eth-1".to_owned())]);
        let bars: Vec<_> = tcp.lines.iter().map(|l| (l.name.as_str(), l.points.len())).collect();
        assert_eq!(bars, [("gateway", 2), ("testpmd", 1)]);
        assert_eq!(tcp.lines[1].points, [(0.25, 4.0, Some((1.0, 9.0)))]);
        assert!(parse("{}").is_err());
    }
}
