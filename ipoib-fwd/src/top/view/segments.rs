//! Each segment, and the drops of the marked one.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::grid::{Cell, Column, Place, figures, grid, plain, words};
use super::overview::{WIDEST_DROPS, drop_columns, drop_rows};
use super::style;
use super::wrapped;
use crate::top::model::{Model, SegmentRates};
use crate::top::snapshot::Segment;
use crate::top::text::{rate, short};

/// Maximum length of a segment's name.
const LONGEST_NAME: u16 = 32;

const COLUMNS: [Column; 17] = [
    words("Segments", 14),
    words("role", 10),
    words("link", 4),
    figures("to IB/s", 7),
    figures("bit/s", 6),
    figures("to Eth/s", 8),
    figures("bit/s", 6),
    figures("drops/s", 7),
    figures("punts/s", 8).from(100),
    figures("hosts E", 8).from(120),
    figures("hosts IB", 8).from(120),
    figures("conns out", 9).from(140),
    figures("in", 5).from(140),
    words(" mode", 10).from(155),
    words("Ethernet", 20).from(190),
    words("InfiniBand", 20).from(190),
    words("", 0),
];

pub(super) fn draw(buffer: &mut Buffer, body: Rect, model: &Model, marked: usize) {
    // At most half of the area is for the marked segment.
    let all = model.segments.len() as u16 + 1;
    let upper = all.min(body.height - body.height.min(11) / 2 - 1);
    let place = Place { marked: Some(marked), first: 0 };
    rows(buffer, Rect { height: upper, ..body }, model, place);
    let rest = Rect { y: body.y + upper + 1, height: body.height.saturating_sub(upper + 1), ..body };
    if let Some((segment, _)) = model.segments().nth(marked) {
        detail(buffer, rest, model, segment);
    }
}

/// Draws the rows of the segments.
pub(super) fn rows(buffer: &mut Buffer, area: Rect, model: &Model, place: Place) {
    let rows: Vec<Vec<Cell>> = model.segments().map(|(segment, rates)| row(segment, rates)).collect();
    let mut columns = COLUMNS;
    if area.width >= 190 {
        columns[0].width = LONGEST_NAME;
    }
    grid(buffer, area, &columns, &rows, place);
}

fn row(segment: &Segment, rates: &SegmentRates) -> Vec<Cell> {
    let is_up = segment.link == "up";
    let vlan = if segment.vlan.is_empty() { String::new() } else { format!(" vlan {}", segment.vlan) };
    let figure = |n: u64| plain(short(n as f64));
    vec![
        plain(segment.name.as_str()),
        (segment.role.clone(), style::role(&segment.role)),
        (if is_up { "up" } else { "DOWN" }.to_owned(), style::link(is_up)),
        plain(rate(rates.to_infiniband.packets)),
        plain(rate(rates.to_infiniband.bits)),
        plain(rate(rates.to_ethernet.packets)),
        plain(rate(rates.to_ethernet.bits)),
        (rate(rates.drops), style::fault(rates.drops)),
        plain(rate(rates.punt.packets)),
        figure(segment.hosts[0]),
        figure(segment.hosts[1]),
        figure(segment.connections[0]),
        figure(segment.connections[1]),
        plain(format!(" {}", segment.mode)),
        plain(format!("{}{vlan}", segment.ethernet)),
        plain(format!("{} {}", segment.infiniband, segment.pkey)),
    ]
}

fn detail(buffer: &mut Buffer, area: Rect, model: &Model, segment: &Segment) {
    let vlan = if segment.vlan.is_empty() { "untagged".to_owned() } else { format!("VLAN {}", segment.vlan) };
    let [eth, ib] = segment.hosts;
    let [outgoing, incoming] = segment.connections;
    let mut lines = vec![
        (
            format!(
                "{}: {} {vlan}, {} P_Key {}, {}",
                segment.name, segment.ethernet, segment.infiniband, segment.pkey, segment.mode
            ),
            style::HEADING,
        ),
        (
            format!(
                "hosts {eth} Ethernet, {ib} InfiniBand; connections {outgoing} out, {incoming} in; {} other gateways",
                segment.peers
            ),
            ratatui::style::Style::new(),
        ),
    ];
    if !segment.waits_for.is_empty() {
        let waits = format!("waits for {}", segment.waits_for);
        lines.extend(wrapped(&waits, area.width.into()).into_iter().map(|line| (line, style::BAD)));
    }
    let mut y = area.y;
    for (text, how) in lines {
        if y < area.bottom() {
            buffer.set_stringn(area.x, y, text, area.width.into(), how);
            y += 1;
        }
    }
    let area =
        Rect { y, height: area.bottom().saturating_sub(y), width: area.width.min(WIDEST_DROPS), ..area };
    let is_of_it = model.now.detail.as_ref().is_some_and(|detail| detail.segment == segment.name);
    let mut rows = if is_of_it { drop_rows(model.detail.iter(), "") } else { Vec::new() };
    if rows.is_empty() {
        rows.push(vec![if is_of_it {
            ("none".to_owned(), style::GOOD)
        } else {
            ("waiting for data".to_owned(), style::QUIET)
        }]);
    }
    grid(buffer, area, &drop_columns(area.width), &rows, Place::default());
}
