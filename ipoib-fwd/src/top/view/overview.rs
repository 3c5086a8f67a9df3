//! The summary.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::graph;
use super::grid::{Cell, Column, Place, figures, grid, plain, words};
use super::segments;
use super::style;
use crate::top::model::{Drops, History, Model, TRAFFIC};
use crate::top::snapshot::{Port, Times};
use crate::top::text::{percent, rate, short, time};

/// Maximum width of the drops in columns, so that the numbers are near their names.
pub(super) const WIDEST_DROPS: u16 = 60;
/// The number of parts of the page, from top to bottom.
const PARTS: usize = 5;

pub(super) fn draw(buffer: &mut Buffer, body: Rect, model: &Model, history: &History) {
    let ports: Vec<(&str, &Port)> = model
        .now
        .ethernet_ports
        .iter()
        .map(|port| ("Ethernet", port))
        .chain(model.now.infiniband_ports.iter().map(|port| ("InfiniBand", port)))
        .collect();
    // The minimum and maximum number of lines of each part: traffic, ports, segments, drops and workers,
    // durations.
    let lower = (model.drops.len() + model.device_drops.len()).max(model.workers.len());
    let wanted = [(6, 6), (2, ports.len()), (1, model.segments.len()), (3, lower), (2, 3)];
    let heights = share(body.height.into(), wanted.map(|(least, most)| (least + 1, most.max(least) + 1)));
    let gap = (usize::from(body.height) > heights.iter().sum::<usize>() + PARTS).into();
    let mut y = body.y;
    let [traffic_area, port_area, segment_area, lower_area, time_area] = heights.map(|height| {
        let area = Rect { y, height: height as u16, ..body }.intersection(body);
        y = y.saturating_add(height as u16).saturating_add(gap);
        area
    });
    traffic(buffer, traffic_area, model, history);
    port_rows(buffer, port_area, &ports);
    segments::rows(buffer, segment_area, model, Place::default());
    let half = Rect { width: (lower_area.width / 2).min(WIDEST_DROPS), ..lower_area };
    drops(buffer, Rect { width: half.width.saturating_sub(2), ..half }, model);
    loads(buffer, Rect { x: half.right(), width: lower_area.width - half.width, ..lower_area }, model);
    times(buffer, time_area, model);
}

/// Distributes lines to parts with a minimum and a maximum: first the minimum, then one line at a time to the
/// shortest.
fn share(lines: usize, wanted: [(usize, usize); PARTS]) -> [usize; PARTS] {
    let mut heights = wanted.map(|(least, _)| least);
    loop {
        let left = lines.saturating_sub(heights.iter().sum());
        let Some(next) = (0..PARTS).filter(|n| heights[*n] < wanted[*n].1).min_by_key(|n| heights[*n]) else {
            return heights;
        };
        if left == 0 {
            return heights;
        }
        heights[next] += 1;
    }
}

fn traffic(buffer: &mut Buffer, area: Rect, model: &Model, history: &History) {
    let columns = [words("Traffic", 19), figures("packets/s", 10), figures("bit/s", 9), words("", 0)];
    let width = usize::from(area.width).saturating_sub(19 + 10 + 9 + 4);
    let rows: Vec<Vec<Cell>> = TRAFFIC
        .iter()
        .zip(&model.traffic)
        .enumerate()
        .map(|(n, ((name, _), now))| {
            let line = graph::line(&history.last(n, width), width);
            vec![
                plain(*name),
                plain(rate(now.packets)),
                plain(rate(now.bits)),
                (format!(" {line}"), style::GRAPH),
            ]
        })
        .collect();
    grid(buffer, area, &columns, &rows, Place::default());
}

fn port_rows(buffer: &mut Buffer, area: Rect, ports: &[(&str, &Port)]) {
    let columns = [words("Ports", 10), words("", 16), words("link", 5), words("", 0)];
    let rows: Vec<Vec<Cell>> = ports
        .iter()
        .map(|(kind, port)| {
            let link = if port.is_up { "up" } else { "DOWN" };
            vec![
                plain(*kind),
                plain(port.name.as_str()),
                (link.to_owned(), style::link(port.is_up)),
                plain(port.words.as_str()),
            ]
        })
        .collect();
    grid(buffer, area, &columns, &rows, Place::default());
}

/// Rows of drop reasons, the highest rates first.
pub(super) fn drop_rows<'a>(drops: impl Iterator<Item = &'a Drops>, prefix: &str) -> Vec<Vec<Cell>> {
    let row = |drops: &Drops| {
        let how = style::fault(drops.rate);
        vec![
            (format!("{prefix}{}", drops.reason), how),
            (rate(drops.rate), how),
            (short(drops.total as f64), how),
        ]
    };
    drops.filter(|drops| drops.total > 0).map(row).collect()
}

/// Columns of the drops for a width.
pub(super) fn drop_columns(width: u16) -> [Column; 3] {
    [words("Drops", width.saturating_sub(17)), figures("/s", 7), figures("all", 8)]
}

fn drops(buffer: &mut Buffer, area: Rect, model: &Model) {
    let mut rows = drop_rows(model.drops.iter(), "");
    rows.extend(drop_rows(model.device_drops.iter(), "device: "));
    if rows.is_empty() {
        rows.push(vec![("none".to_owned(), style::GOOD)]);
    }
    grid(buffer, area, &drop_columns(area.width), &rows, Place::default());
}

fn loads(buffer: &mut Buffer, area: Rect, model: &Model) {
    let columns = [words("Workers", 7), figures("busy", 6), figures("idle", 6), words("", 0)];
    let width = usize::from(area.width).saturating_sub(7 + 6 + 6 + 4);
    let rows: Vec<Vec<Cell>> = model
        .workers()
        .map(|(worker, now)| {
            let how = style::load(now.busy);
            vec![
                plain(worker.name.as_str()),
                (percent(now.busy), how),
                plain(percent(now.rest)),
                (format!(" {}", graph::bar(now.busy.unwrap_or_default(), width)), how),
            ]
        })
        .collect();
    grid(buffer, area, &columns, &rows, Place::default());
}

/// Draws the durations: name, number and quantiles.
pub(super) fn times(buffer: &mut Buffer, area: Rect, model: &Model) {
    let columns = [
        words("Times", 24),
        figures("count", 7),
        figures("50 %", 8),
        figures("90 %", 8),
        figures("99 %", 8),
        figures("99.9 %", 8),
        figures("max", 8),
    ];
    let row = |what: &str, times: &Times| {
        let none = times.count == 0;
        let quantiles = times.quantiles.map(|ns| plain(if none { "-".to_owned() } else { time(ns) }));
        let mut row = vec![plain(what), plain(short(times.count as f64))];
        row.extend(quantiles);
        row
    };
    let rows = [
        row("iterations, last second", &model.now.last_second),
        row("connection setup", &model.now.setups),
        row("iterations, total", &model.now.turns),
    ];
    // Rows that do not fit are omitted.
    let rows = rows.get(..usize::from(area.height.saturating_sub(1))).unwrap_or(&rows);
    grid(buffer, area, &columns, rows, Place::default());
}

/// The buffers and alarms as text.
pub(super) fn alarms(model: &Model) -> (String, Style) {
    let [in_use, available] = model.now.buffers;
    let mut text = format!("Buffers: {} in use, {} free.", in_use, available);
    let rung: Vec<String> =
        model.now.alarms.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{name} {n}")).collect();
    if rung.is_empty() {
        return (format!("{text} No alarms."), Style::new());
    }
    text.push_str(&format!(" Alarms: {}.", rung.join(", ")));
    (text, style::DOUBTFUL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_at_least_the_minimum_and_at_most_the_maximum() {
        let wanted = [(7, 7), (3, 3), (2, 9), (4, 20), (3, 4)];
        assert_eq!(share(21, wanted), [7, 3, 4, 4, 3]);
        assert_eq!(share(0, wanted), [7, 3, 2, 4, 3], "excess lines are cut off by the area");
        assert_eq!(share(100, wanted), [7, 3, 9, 20, 4]);
        assert_eq!(share(30, wanted).iter().sum::<usize>(), 30);
    }
}
