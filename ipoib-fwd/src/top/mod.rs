//! `ipoib-fwd top`: a live view of a running gateway.
//!
//! * `snapshot`: the answers of the gateway's control socket at one time.
//! * `model`: the rates between two snapshots.
//! * `view`: draws a model.
//! * `live`: the main loop over keys and snapshots.
//! * `poller`: the thread that queries the control socket.
//! * `keys`: the thread that reads the keyboard.
//! * `screen`: the terminal.

mod keys;
mod live;
mod model;
mod poller;
#[cfg(test)]
mod sample;
mod screen;
mod snapshot;
mod text;
mod view;

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use serde_json::Value;

use crate::ctl::DEFAULT_SOCKET;
use model::{History, Model};
use poller::{Wish, look};
use snapshot::Snapshot;
use text::harmless;
use view::Page;
pub use view::View;

/// Options of `ipoib-fwd top`.
#[derive(Args, Clone, Debug)]
pub struct TopOptions {
    /// Control socket of the gateway. The gateway need not run yet: the connection is retried.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Interval between two queries; + and - change it.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: f64,
    /// The first view.
    #[arg(long, value_name = "VIEW", value_enum, default_value_t)]
    pub view: View,
    /// Print one page as text, with the rates of one interval, and exit.
    #[arg(long)]
    pub once: bool,
    /// Columns of that page.
    #[arg(long, value_name = "COLUMNS", default_value_t = 80, requires = "once", value_parser = clap::value_parser!(u16).range(40..=500))]
    pub width: u16,
    /// Lines of that page.
    #[arg(long, value_name = "LINES", default_value_t = 24, requires = "once", value_parser = clap::value_parser!(u16).range(10..=500))]
    pub height: u16,
}

/// Why there is no view.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// There is no terminal to read keys from or to draw on.
    #[error(
        "{0}; in a script, use `ipoib-fwd top --once` for one page, or `ipoib-fwd ctl stats --json` for the values"
    )]
    NoTerminal(&'static str),
    /// The terminal failed.
    #[error("the terminal failed: {0}")]
    Terminal(io::Error),
    /// The gateway did not answer.
    #[error("{0}")]
    Gateway(String),
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "must be a number of seconds, for example 0.5".to_owned())?;
    if (0.1..=3600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("must be between 0.1 and 3600".to_owned())
    }
}

/// Shows the gateway's state until a key or a signal stops it; with `once`, returns one page.
pub fn run(options: &TopOptions) -> Result<String, TopError> {
    if options.once {
        return once(options).map_err(TopError::Gateway);
    }
    if !io::stdin().is_terminal() {
        return Err(TopError::NoTerminal("standard input is not a terminal, so there are no keys"));
    }
    if !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal("standard output is not a terminal"));
    }
    if std::env::var_os("TERM").is_none_or(|kind| kind.is_empty() || kind == "dumb") {
        return Err(TopError::NoTerminal("the terminal has no cursor positioning (TERM)"));
    }
    live::run(options.socket.clone(), options.view, options.interval).map_err(TopError::Terminal)?;
    Ok(String::new())
}

/// Returns one page.
fn once(options: &TopOptions) -> Result<String, String> {
    let mut wish = Wish { connections: options.view == View::Connections, segment: None };
    let mut before = look(&options.socket, &wish)?;
    // The first segment is marked, so the page has its drops.
    if options.view == View::Segments
        && let Some(segment) = before.segments.first()
    {
        wish.segment = Some(segment.name.clone());
        before = look(&options.socket, &wish)?;
    }
    std::thread::sleep(Duration::from_secs_f64(options.interval));
    let now = look(&options.socket, &wish)?;
    let page = Page {
        socket: harmless(&options.socket.display().to_string()),
        view: options.view,
        interval: options.interval,
        ..Page::default()
    };
    Ok(drawn(&page, &before, now, (options.width, options.height)))
}

/// Draws a page of this size as text.
fn drawn(page: &Page, before: &Snapshot, now: Snapshot, (width, height): (u16, u16)) -> String {
    let model = Model::new(Some(before), now);
    let mut history = History::default();
    history.add(&model);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    view::draw(&mut buffer, page, Some(&model), &history);
    view::to_text(&buffer)
}

/// The answers of a gateway at one time, which may be of any content.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// The answer to `stats`.
    pub stats: Value,
    /// The answer to `links`.
    pub links: Value,
    /// The answer to `connections`, if it was requested.
    pub connections: Option<Value>,
    /// The answer to `stats` for one segment, if it was requested.
    pub segment: Option<Value>,
}

/// Draws the page for two snapshots as text, of `size` columns and lines, with a row marked.
#[must_use]
pub fn page_of(told: [&Told; 2], view: View, row: usize, size: (u16, u16)) -> String {
    let [before, now] = told
        .map(|told| Snapshot::of(&told.stats, &told.links, told.connections.as_ref(), told.segment.as_ref()));
    let page = Page { view, interval: 1.0, rows: [row; View::ALL.len()], ..Page::default() };
    drawn(&page, &before, now, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_number_of_seconds_within_bounds() {
        assert_eq!(["0.1", "2", "3600"].map(seconds), [Ok(0.1), Ok(2.0), Ok(3600.0)]);
        for wrong in ["0", "-1", "NaN", "inf", "1e9", "soon", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
