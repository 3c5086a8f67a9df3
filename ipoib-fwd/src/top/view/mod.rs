//! Pages: pure functions of the model and the view's state.

mod connections;
mod graph;
mod grid;
mod overview;
mod segments;
mod style;
mod workers;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::model::{History, Model};
use super::text::age;

/// A view.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum View {
    /// Summary of everything.
    #[default]
    Overview,
    /// Each segment, and the drops of one.
    Segments,
    /// Each worker, and durations.
    Workers,
    /// RC connections.
    Connections,
}

impl View {
    /// All views in their order.
    pub(super) const ALL: [Self; 4] = [Self::Overview, Self::Segments, Self::Workers, Self::Connections];

    const fn title(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Segments => "segments",
            Self::Workers => "workers",
            Self::Connections => "connections",
        }
    }

    /// The view `places` after this one.
    pub(super) const fn step(self, places: usize) -> Self {
        Self::ALL[(self as usize + places) % Self::ALL.len()]
    }
}

/// Smallest area for a page.
const SMALLEST: (u16, u16) = (40, 10);

/// State of the page.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    /// The gateway's socket.
    pub(super) socket: String,
    pub(super) view: View,
    /// Seconds between two queries.
    pub(super) interval: f64,
    pub(super) is_paused: bool,
    pub(super) is_helping: bool,
    /// The error of the last query.
    pub(super) trouble: Option<String>,
    /// The marked row of each view.
    pub(super) rows: [usize; View::ALL.len()],
}

impl Page {
    fn row(&self) -> usize {
        self.rows.get(self.view as usize).copied().unwrap_or_default()
    }
}

const KEYS: &str = " q quit  p pause  Tab <- -> view  Up Down row  + - interval  ? help";

const HELP: [&str; 12] = [
    "q, Ctrl-C      quit",
    "p, Space       pause, resume",
    "Tab, -> and <- next view, previous view",
    "1 2 3 4        overview, segments, workers, connections",
    "Up, Down       one row; Page Up, Page Down: ten rows",
    "Home, End      first row, last row",
    "+ and -        longer, shorter interval",
    "?, h           this help; any key closes it",
    "",
    "^3 +12         number of hidden rows above and below",
    "Rates are those of the last interval. busy: % of the time in which a",
    "worker had packets; idle: % in which it slept. Otherwise it polled.",
];

/// Draws a page. `model` is `None` until the first answer.
pub(super) fn draw(buffer: &mut Buffer, page: &Page, model: Option<&Model>, history: &History) {
    let area = buffer.area;
    // A terminal may report zero lines or columns.
    if area.is_empty() {
        return;
    }
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let text = format!("{} x {} is too small", area.width, area.height);
        buffer.set_stringn(area.x, area.y, text, area.width.into(), style::BAD);
        return;
    }
    bar(buffer, page, model);
    tabs(buffer, page);
    let line = |y: u16| Rect { y, height: 1, ..area };
    let keys = line(area.bottom() - 1);
    buffer.set_style(keys, style::BAR);
    buffer.set_stringn(keys.x, keys.y, KEYS, keys.width.into(), style::BAR);
    let mut body = Rect { y: area.y + 2, height: area.height - 3, ..area };
    if let Some(trouble) = &page.trouble {
        // At most three lines, since the fix is at the end of the text.
        let lines = wrapped(trouble, area.width.into());
        for text in lines.iter().take(3) {
            buffer.set_stringn(body.x, body.y, text, area.width.into(), style::BAD);
            body = Rect { y: body.y + 1, height: body.height - 1, ..body };
        }
    }
    if page.is_helping {
        for (text, y) in HELP.iter().zip(body.y + 1..body.bottom()) {
            buffer.set_stringn(body.x + 2, y, text, usize::from(body.width) - 2, Style::new());
        }
        return;
    }
    let Some(model) = model else {
        if page.trouble.is_none() {
            buffer.set_stringn(
                body.x,
                body.y,
                "waiting for the gateway's first answer",
                body.width.into(),
                style::QUIET,
            );
        }
        return;
    };
    match page.view {
        View::Overview => overview::draw(buffer, body, model, history),
        View::Segments => segments::draw(buffer, body, model, page.row()),
        View::Workers => workers::draw(buffer, body, model, page.row()),
        View::Connections => connections::draw(buffer, body, model, page.row()),
    }
    if page.trouble.is_some() {
        // The data are old.
        buffer.set_style(body, style::QUIET);
    }
}

/// Number of rows of a view that can be marked.
pub(super) fn row_count(view: View, model: &Model) -> usize {
    match view {
        View::Overview => 0,
        View::Segments => model.segments.len(),
        View::Workers => model.workers.len(),
        View::Connections => model.now.connections.as_ref().map_or(0, |all| all.rows.len()),
    }
}

/// Converts a page to lines of text.
pub(super) fn to_text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let line = |cells: &[ratatui::buffer::Cell]| {
        let text: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        format!("{}\n", text.trim_end())
    };
    buffer.content.chunks(width).map(line).collect()
}

fn bar(buffer: &mut Buffer, page: &Page, model: Option<&Model>) {
    let area = Rect { height: 1, ..buffer.area };
    buffer.set_style(area, style::BAR);
    let process = model.map(|model| &model.now.process);
    let of = process.map_or_else(String::new, |p| format!("  pid {}, up {}", p.pid, age(p.up_ms)));
    let left = format!(" ipoib-fwd top{of}  {}", page.socket);
    let state = match (page.is_paused, &page.trouble) {
        (true, _) => "PAUSED".to_owned(),
        (_, Some(_)) => "NO ANSWER".to_owned(),
        _ => model.and_then(|model| model.seconds).map(|s| format!("of {s:.1} s")).unwrap_or_default(),
    };
    let right = format!("  {state}  every {} s ", page.interval);
    buffer.set_stringn(area.x, area.y, left, area.width.into(), style::BAR);
    let x = area.right().saturating_sub(right.len() as u16).max(area.x);
    buffer.set_stringn(x, area.y, right, area.width.into(), style::BAR);
}

fn tabs(buffer: &mut Buffer, page: &Page) {
    let (mut x, y) = (buffer.area.x + 1, buffer.area.y + 1);
    for (view, number) in View::ALL.into_iter().zip(1..) {
        let is_chosen = view == page.view;
        // Also visible without colors.
        let text = if is_chosen { format!("[{}]", view.title()) } else { format!(" {} ", view.title()) };
        let style = if is_chosen { style::CHOSEN } else { style::QUIET };
        let (after, _) = buffer.set_stringn(x, y, format!("{number}"), 2, style::QUIET);
        (x, _) = buffer.set_stringn(after, y, text, buffer.area.right().saturating_sub(after).into(), style);
        x += 1;
    }
}

/// Wraps text into lines of at most `width` characters, between words where possible.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let Some(line) = lines.last_mut() else { return lines };
            let used = line.chars().count();
            let gap = usize::from(used > 0);
            if used + gap + word.len() <= width {
                line.extend(std::iter::repeat_n(' ', gap).chain(word));
                break;
            }
            if used == 0 {
                line.extend(word.drain(..width.max(1).min(word.len())));
            }
            lines.push(String::new());
        }
    }
    lines
}

#[cfg(test)]
mod tests;
