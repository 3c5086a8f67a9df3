//! RC connections of one page, the most recently used first.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::grid::{Cell, Place, figures, grid, plain, words};
use super::style;
use crate::top::model::Model;
use crate::top::snapshot::Connection;
use crate::top::text::age;

pub(super) fn draw(buffer: &mut Buffer, body: Rect, model: &Model, marked: usize) {
    let Some(all) = &model.now.connections else {
        buffer.set_stringn(body.x, body.y, "waiting for data", body.width.into(), style::QUIET);
        return;
    };
    let total: u64 = all.states.values().sum();
    let states: Vec<String> = all.states.iter().map(|(state, n)| format!("{n} {state}")).collect();
    let shown = match all.rows.len() as u64 {
        rows if rows < total => format!("; the {rows} last used:"),
        _ => String::new(),
    };
    let which = if all.has_more { "the first " } else { "" };
    let more = if all.has_more { "; see `ipoib-fwd ctl connections`" } else { "" };
    let text = format!("{which}{total} connections: {}{shown}{more}", states.join(", "));
    buffer.set_stringn(
        body.x,
        body.y,
        if total == 0 { "no connections" } else { &text },
        body.width.into(),
        Style::new(),
    );
    let columns = [
        words("Segment", 10),
        words("by", 4),
        words("address", 15),
        words("state", 12),
        figures("worker", 6),
        figures("QP", 8),
        figures("MTU", 6),
        words(" idle", 12),
        words("peer", 0).from(120),
    ];
    let row = |c: &Connection| -> Vec<Cell> {
        vec![
            plain(c.segment.as_str()),
            plain(if c.incoming { "peer" } else { "us" }),
            plain(if c.address.is_empty() { "-" } else { c.address.as_str() }),
            (c.state.clone(), if c.state == "live" { style::GOOD } else { style::DOUBTFUL }),
            plain(c.worker.to_string()),
            plain(c.qpn.to_string()),
            plain(c.mtu.to_string()),
            plain(format!(" {}", age(c.idle_ms))),
            plain(c.peer.as_str()),
        ]
    };
    let rows: Vec<Vec<Cell>> = all.rows.iter().map(row).collect();
    let area = Rect { y: body.y + 1, height: body.height - 1, ..body };
    grid(buffer, area, &columns, &rows, Place { marked: Some(marked), first: 0 });
}
