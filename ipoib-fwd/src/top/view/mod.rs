//! What is shown: pure functions of the model and of where one looks.

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

/// A page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum View {
    /// All of it in short.
    #[default]
    Overview,
    /// Each segment, and the drops of one.
    Segments,
    /// Each worker, and times.
    Workers,
    /// RC connections.
    Connections,
}

impl View {
    /// All of them, in their order.
    pub(super) const ALL: [Self; 4] = [Self::Overview, Self::Segments, Self::Workers, Self::Connections];

    const fn title(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Segments => "segments",
            Self::Workers => "workers",
            Self::Connections => "connections",
        }
    }

    /// The one that stands so many places behind it.
    pub(super) const fn step(self, places: usize) -> Self {
        Self::ALL[(self as usize + places) % Self::ALL.len()]
    }
}

/// Smallest area that something is shown in.
const SMALLEST: (u16, u16) = (40, 10);

/// What is looked at, and what is said of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    /// The gateway's socket.
    pub(super) socket: String,
    pub(super) view: View,
    /// Seconds from one moment to the next.
    pub(super) interval: f64,
    pub(super) is_paused: bool,
    pub(super) is_helping: bool,
    /// Why there is nothing new.
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
    "p, Space       pause, and go on",
    "Tab, -> and <- next view, view before",
    "1 2 3 4        overview, segments, workers, connections",
    "Up, Down       row; of Page Up, Page Down ten rows",
    "Home, End      first row, last row",
    "+ and -        longer, shorter interval",
    "?, h           this; any key ends it",
    "",
    "^3 +12         so many rows are above and below those that are shown",
    "Rates are those of the last interval. Busy: share of the time in which",
    "a worker had packets; rest: in which it slept. What is left it polled.",
];

/// Draws a page; nothing is known yet without a model.
pub(super) fn draw(buffer: &mut Buffer, page: &Page, model: Option<&Model>, history: &History) {
    let area = buffer.area;
    // A terminal that says it has no lines, or no columns.
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
        // As many lines as it takes, up to three: the remedy stands at its end.
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
        // What is shown is old.
        buffer.set_style(body, style::QUIET);
    }
}

/// Rows that a view has; the marked one is one of them.
pub(super) fn row_count(view: View, model: &Model) -> usize {
    match view {
        View::Overview => 0,
        View::Segments => model.segments.len(),
        View::Workers => model.workers.len(),
        View::Connections => model.now.connections.as_ref().map_or(0, |all| all.rows.len()),
    }
}

/// The page as lines of text.
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
        // Seen without colours, too.
        let text = if is_chosen { format!("[{}]", view.title()) } else { format!(" {} ", view.title()) };
        let style = if is_chosen { style::CHOSEN } else { style::QUIET };
        let (after, _) = buffer.set_stringn(x, y, format!("{number}"), 2, style::QUIET);
        (x, _) = buffer.set_stringn(after, y, text, buffer.area.right().saturating_sub(after).into(), style);
        x += 1;
    }
}

/// Text in lines of at most `width` characters, broken between words where that is possible.
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
