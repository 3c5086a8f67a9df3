//! Each worker, and durations.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::graph;
use super::grid::{Cell, Place, figures, grid, plain, words};
use super::overview::{alarms, times};
use super::style;
use crate::top::model::Model;
use crate::top::text::{percent, rate};

pub(super) fn draw(buffer: &mut Buffer, body: Rect, model: &Model, marked: usize) {
    let columns = [
        words("Workers", 7),
        figures("busy", 6),
        figures("idle", 6),
        figures("iter/s", 8),
        figures("burst", 6),
        figures("Eth in", 7),
        figures("RC out", 7),
        figures("UD out", 7),
        figures("IB in", 7),
        figures("Eth out", 7),
        figures("punt", 6).from(86),
        words("", 0).from(110),
    ];
    let bar = usize::from(body.width.saturating_sub(90)).min(100);
    let rows: Vec<Vec<Cell>> = model
        .workers()
        .map(|(worker, now)| {
            let how = style::load(now.busy);
            let head = [
                plain(worker.name.as_str()),
                (percent(now.busy), how),
                plain(percent(now.rest)),
                plain(rate(now.turns)),
                plain(rate(now.burst)),
            ];
            let packets = now.packets.map(|packets| plain(rate(packets)));
            let bar = (format!(" {}", graph::bar(now.busy.unwrap_or_default(), bar)), how);
            head.into_iter().chain(packets).chain([bar]).collect()
        })
        .collect();
    // Times, and what is said below them.
    let lower = 4 + 2;
    let upper = (rows.len() as u16 + 1).min(body.height.saturating_sub(lower));
    grid(buffer, Rect { height: upper, ..body }, &columns, &rows, Place { marked: Some(marked), first: 0 });
    let rest = Rect { y: body.y + upper + 1, height: body.height.saturating_sub(upper + 1), ..body };
    times(buffer, Rect { height: rest.height.min(4), ..rest }, model);
    if rest.height > 4 {
        let (text, how) = alarms(model);
        buffer.set_stringn(rest.x, rest.y + 4, text, rest.width.into(), how);
    }
}
