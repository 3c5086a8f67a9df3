//! A table: columns and rows that fit the area, and the number of hidden rows.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::style;

/// A column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) width: u16,
    /// True if the column is right-aligned.
    pub(super) is_right_aligned: bool,
    /// The column is hidden in an area narrower than this.
    pub(super) from: u16,
}

/// A left-aligned and a right-aligned column.
pub(super) const fn words(title: &'static str, width: u16) -> Column {
    Column { title, width, is_right_aligned: false, from: 0 }
}

pub(super) const fn figures(title: &'static str, width: u16) -> Column {
    Column { title, width, is_right_aligned: true, from: 0 }
}

impl Column {
    /// Hides the column in an area narrower than this.
    pub(super) const fn from(self, from: u16) -> Self {
        Self { from, ..self }
    }
}

/// A cell: its text and style.
pub(super) type Cell = (String, Style);

/// A cell in the default style.
pub(super) fn plain(text: impl Into<String>) -> Cell {
    (text.into(), Style::new())
}

/// The visible part of a table that is longer than its area.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Place {
    /// The marked row, if any.
    pub(super) marked: Option<usize>,
    /// The first visible row, unless the marked row would be hidden.
    pub(super) first: usize,
}

/// Draws a table with its heading: the rows that fit, from `place` on. The last column takes the remaining
/// width.
pub(super) fn grid(buffer: &mut Buffer, area: Rect, columns: &[Column], rows: &[Vec<Cell>], place: Place) {
    if area.is_empty() {
        return;
    }
    let shown: Vec<(usize, Column)> =
        columns.iter().copied().enumerate().filter(|(_, c)| area.width >= c.from).collect();
    let last = shown.len().saturating_sub(1);
    let room = usize::from(area.height - 1);
    let most = rows.len().saturating_sub(room);
    // Scroll as little as possible to show the marked row.
    let marked = place.marked.map(|row| row.min(rows.len().saturating_sub(1)));
    let first = match marked {
        Some(row) if row >= room => row + 1 - room,
        Some(_) => 0,
        None => place.first,
    };
    let first = first.min(most);
    buffer.set_style(Rect { height: 1, ..area }, style::HEADING);
    let (mut x, right) = (area.x, area.right());
    for (n, &(at, column)) in shown.iter().enumerate() {
        let left = right.saturating_sub(x);
        let width = if n == last { left } else { column.width.min(left) };
        let mut put = |y: u16, text: &str, style: Style| {
            // A last column of numbers does not extend to the right border.
            let width = if n == last && column.is_right_aligned { column.width.min(width) } else { width };
            let indent = if column.is_right_aligned {
                usize::from(width).saturating_sub(text.chars().count())
            } else {
                0
            };
            let (x, width) = (x + indent as u16, usize::from(width) - indent.min(usize::from(width)));
            buffer.set_stringn(x, y, text, width, style);
        };
        put(area.y, column.title, style::HEADING);
        for (row, y) in rows.iter().skip(first).zip(area.y + 1..area.bottom()) {
            if let Some((text, style)) = row.get(at) {
                put(y, text, *style);
            }
        }
        x = x.saturating_add(width).saturating_add(1);
    }
    if let Some(y) = marked.and_then(|row| row.checked_sub(first)).filter(|y| *y < room.min(rows.len())) {
        buffer.set_style(Rect { y: area.y + 1 + y as u16, height: 1, ..area }, style::MARKED);
    }
    // Show the number of rows above and below where there is no title: at the right, or behind the first
    // title.
    let below = rows.len().saturating_sub(first + room);
    let mut note = String::new();
    for (sign, rows) in [('^', first), ('+', below)] {
        if rows > 0 {
            note.push_str(&format!(" {sign}{rows}"));
        }
    }
    let [(_, head), .., (_, tail)] = shown[..] else { return };
    if tail.title.is_empty() {
        let x = area.right().saturating_sub(note.len() as u16).max(area.x);
        buffer.set_stringn(x, area.y, &note, area.width.into(), style::HEADING);
    } else if head.title.len() + note.len() <= usize::from(head.width) {
        buffer.set_string(area.x + head.title.len() as u16, area.y, &note, style::HEADING);
    }
}
