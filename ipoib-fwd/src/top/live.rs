//! The main loop: keys, snapshots and pages.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::keys::{self, Keys};
use super::model::{History, Model};
use super::poller::{Outcome, Poller, Wish};
use super::screen::Screen;
use super::snapshot::Snapshot;
use super::text::harmless;
use super::view::{self, Page, View};

/// Maximum delay of other work while the loop waits for a key.
const PERIOD: Duration = Duration::from_millis(50);
/// Intervals for the keys + and -.
const INTERVALS: [f64; 9] = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0];
/// The shortest interval; rates over less time are not meaningful.
const SHORTEST: Duration = Duration::from_millis(100);
/// Rows per Page Up and Page Down.
const LEAP: isize = 10;

/// The action of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    Quit,
    Pause,
    Help,
    Turn(usize),
    Open(View),
    Longer,
    Shorter,
    Row(isize),
    First,
    Last,
}

fn key_of(event: KeyEvent) -> Option<Key> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    if event.modifiers.contains(KeyModifiers::CONTROL) {
        return (event.code == KeyCode::Char('c')).then_some(Key::Quit);
    }
    Some(match event.code {
        KeyCode::Char('q' | 'Q') => Key::Quit,
        KeyCode::Char('p' | 'P' | ' ') => Key::Pause,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => Key::Help,
        KeyCode::Tab | KeyCode::Right => Key::Turn(1),
        KeyCode::BackTab | KeyCode::Left => Key::Turn(View::ALL.len() - 1),
        KeyCode::Char(digit @ '1'..='4') => Key::Open(View::ALL[digit as usize - '1' as usize]),
        KeyCode::Char('+' | '=') => Key::Longer,
        KeyCode::Char('-' | '_') => Key::Shorter,
        KeyCode::Up | KeyCode::Char('k') => Key::Row(-1),
        KeyCode::Down | KeyCode::Char('j') => Key::Row(1),
        KeyCode::PageUp => Key::Row(-LEAP),
        KeyCode::PageDown => Key::Row(LEAP),
        KeyCode::Home => Key::First,
        KeyCode::End => Key::Last,
        _ => return None,
    })
}

/// The state of the program: data and view.
#[derive(Debug, Default)]
struct Live {
    page: Page,
    model: Option<Model>,
    before: Option<Snapshot>,
    history: History,
    /// Time of the last query.
    queried: Option<Instant>,
    /// True if the next query must not wait for the end of the interval.
    is_hurried: bool,
}

impl Live {
    /// Handles a key. Returns true if the program must exit.
    fn press(&mut self, key: Option<Key>) -> bool {
        let page = &mut self.page;
        if key != Some(Key::Quit) && std::mem::take(&mut page.is_helping) {
            return false;
        }
        let (view, wish) = (page.view, self.wish());
        let page = &mut self.page;
        match key {
            None => {}
            Some(Key::Quit) => return true,
            Some(Key::Pause) => {
                page.is_paused = !page.is_paused;
                self.is_hurried = true;
            }
            Some(Key::Help) => page.is_helping = true,
            Some(Key::Turn(places)) => page.view = view.step(places),
            Some(Key::Open(view)) => page.view = view,
            Some(Key::Longer) => self.set_interval(INTERVALS.into_iter().find(|i| *i > self.page.interval)),
            Some(Key::Shorter) => {
                self.set_interval(INTERVALS.into_iter().rev().find(|i| *i < self.page.interval))
            }
            Some(Key::Row(by)) => self.mark(|row| row.saturating_add_signed(by)),
            Some(Key::First) => self.mark(|_| 0),
            Some(Key::Last) => self.mark(|_| usize::MAX),
        }
        // The data for the new view have not been queried yet.
        self.is_hurried |= self.wish() != wish;
        false
    }

    /// True if it is time for a query. Keys cannot make it more frequent than the shortest interval.
    fn is_due(&self, now: Instant) -> bool {
        let interval = if self.is_hurried { SHORTEST } else { Duration::from_secs_f64(self.page.interval) };
        !self.page.is_paused && self.queried.is_none_or(|queried| now >= queried + interval)
    }

    fn set_interval(&mut self, interval: Option<f64>) {
        if let Some(interval) = interval {
            self.page.interval = interval;
        }
    }

    fn mark(&mut self, to: impl Fn(usize) -> usize) {
        let rows = self.model.as_ref().map_or(0, |model| view::row_count(self.page.view, model));
        if let Some(row) = self.page.rows.get_mut(self.page.view as usize) {
            *row = to(*row).min(rows.saturating_sub(1));
        }
    }

    /// The data that the current view needs.
    fn wish(&self) -> Wish {
        let marked = self.page.rows.get(View::Segments as usize).copied().unwrap_or_default();
        let segment = self.model.as_ref().and_then(|model| model.now.segments.get(marked));
        Wish {
            connections: self.page.view == View::Connections,
            segment: segment.filter(|_| self.page.view == View::Segments).map(|segment| segment.name.clone()),
        }
    }

    /// Handles an answer. An answer to a query from before a pause is not shown during the pause.
    fn learn(&mut self, outcome: Outcome) {
        match outcome {
            Ok(_) if self.page.is_paused => {}
            Ok(now) => {
                let model = Model::new(self.before.as_ref(), now.clone());
                if model.seconds.is_none_or(|seconds| seconds >= SHORTEST.as_secs_f64()) {
                    self.history.add(&model);
                    self.before = Some(now);
                }
                (self.model, self.page.trouble) = (Some(model), None);
                // There may be fewer rows than before.
                self.mark(|row| row);
            }
            Err(why) => self.page.trouble = Some(format!("{why} - retrying every {} s", self.page.interval)),
        }
    }
}

/// Runs until a key or a signal stops it, or the terminal is gone.
pub(super) fn run(socket: PathBuf, view: View, interval: f64) -> io::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
        // A second signal kills the process: a terminal that accepts no output blocks the drawing thread.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let page = Page { socket: harmless(&socket.display().to_string()), view, interval, ..Page::default() };
    let mut live = Live { page, ..Live::default() };
    let poller = Poller::start(socket)?;
    match watch(&mut live, poller, &stop) {
        // Any error then follows from the missing terminal, and nobody can read it.
        Err(_) if keys::is_gone() => Ok(()),
        ended => ended,
    }
}

fn watch(live: &mut Live, mut poller: Poller, stop: &AtomicBool) -> io::Result<()> {
    let mut screen = Screen::open()?;
    let keys = Keys::start()?;
    let mut is_new = true;
    // The keyboard thread may be blocked in a read, so it cannot report that the terminal is gone.
    while !stop.load(Ordering::Acquire) && !keys::is_gone() {
        if let Some(outcome) = poller.take() {
            live.learn(outcome);
            is_new = true;
        }
        let now = Instant::now();
        if live.is_due(now) && poller.query(live.wish()) {
            (live.queried, live.is_hurried) = (Some(now), false);
        }
        if std::mem::take(&mut is_new) {
            screen.show(|buffer| view::draw(buffer, &live.page, live.model.as_ref(), &live.history))?;
        }
        for event in keys.wait(PERIOD)? {
            is_new = true;
            if let Event::Key(event) = event
                && event.kind != KeyEventKind::Release
                && live.press(key_of(event))
            {
                return Ok(());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::sample;

    fn press(live: &mut Live, codes: &[KeyCode]) -> bool {
        codes.iter().any(|code| live.press(key_of(KeyEvent::new(*code, KeyModifiers::NONE))))
    }

    fn with_figures() -> Live {
        let page = Page { interval: 1.0, ..Page::default() };
        let mut live = Live { page, ..Live::default() };
        for moment in sample::moments() {
            live.learn(Ok(moment));
        }
        live
    }

    #[test]
    fn keys_change_views_and_mark_rows_within_bounds() {
        let mut live = with_figures();
        press(&mut live, &[KeyCode::Tab, KeyCode::Right]);
        assert_eq!(live.page.view, View::Workers);
        press(&mut live, &[KeyCode::BackTab, KeyCode::Left, KeyCode::Left]);
        assert_eq!(live.page.view, View::Connections);
        press(&mut live, &[KeyCode::Char('2')]);
        assert_eq!(live.wish(), Wish { connections: false, segment: Some("storage".to_owned()) });
        press(&mut live, &[KeyCode::Down, KeyCode::Down, KeyCode::PageDown]);
        assert_eq!(live.wish().segment.as_deref(), Some("lab"));
        press(&mut live, &[KeyCode::PageUp]);
        assert_eq!(live.wish().segment.as_deref(), Some("storage"));
        press(&mut live, &[KeyCode::Char('4'), KeyCode::End]);
        assert_eq!((live.page.rows, live.wish().connections), ([0, 0, 0, 49], true));
        // Connections were closed: the mark moves to one that exists.
        live.learn(Ok(Snapshot::of(&sample::stats(13_000, [3000, 100, 8, 0]), &sample::links(), None, None)));
        assert_eq!(live.page.rows[3], 0);
    }

    #[test]
    fn keys_change_the_interval_pause_help_and_quit() {
        let mut live = with_figures();
        press(&mut live, &[KeyCode::Char('+'); 20]);
        assert_eq!(live.page.interval, 60.0);
        press(&mut live, &[KeyCode::Char('-'); 20]);
        assert_eq!(live.page.interval, 0.1);
        live.page.interval = 1.5;
        press(&mut live, &[KeyCode::Char('=')]);
        assert_eq!(live.page.interval, 2.0);
        press(&mut live, &[KeyCode::Char('p')]);
        let seen = live.model.clone();
        live.learn(Ok(Snapshot::default()));
        assert!(live.page.is_paused && live.model == seen);
        press(&mut live, &[KeyCode::Char('p'), KeyCode::Char('?')]);
        assert!(live.page.is_helping && !live.page.is_paused);
        press(&mut live, &[KeyCode::Char('x')]);
        assert!(!live.page.is_helping);
        assert!(!press(&mut live, &[KeyCode::Char('?'), KeyCode::Char('x'), KeyCode::Esc]));
        assert!(press(&mut live, &[KeyCode::Char('?'), KeyCode::Char('q')]));
        assert_eq!(key_of(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Some(Key::Quit));
        assert_eq!(key_of(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::CONTROL)), None);
    }

    #[test]
    fn keys_trigger_queries_only_for_new_data_and_not_below_the_shortest_interval() {
        let mut live = with_figures();
        let queried = Instant::now();
        let due_after = |live: &Live, ms| live.is_due(queried + Duration::from_millis(ms));
        assert!(due_after(&live, 0), "no query yet");
        live.queried = Some(queried);
        press(
            &mut live,
            &[KeyCode::Down, KeyCode::End, KeyCode::Up, KeyCode::Home, KeyCode::Char('3'), KeyCode::Down],
        );
        press(&mut live, &[KeyCode::Char('+'), KeyCode::Char('-')]);
        assert!(!due_after(&live, 999) && due_after(&live, 1000));
        press(&mut live, &[KeyCode::Char('2')]);
        assert!(!due_after(&live, 99) && due_after(&live, 100), "drops of a segment");
        (live.queried, live.is_hurried) = (Some(queried), false);
        press(&mut live, &[KeyCode::Up, KeyCode::Home]);
        assert!(!due_after(&live, 999), "the first one is already marked");
        press(&mut live, &[KeyCode::Down]);
        assert!(!due_after(&live, 99) && due_after(&live, 100), "drops of another segment");
        press(&mut live, &[KeyCode::Char('p')]);
        assert!(!due_after(&live, 9999));
    }

    #[test]
    fn an_early_snapshot_is_shown_but_not_used_for_rates() {
        let mut live = with_figures();
        let known =
            |live: &Live| (live.before.as_ref().unwrap().process.up_ms, live.history.last(0, 99).len());
        assert_eq!(known(&live), (12_000, 1));
        for (up_ms, wanted) in
            [(12_050, (12_000, 1)), (12_099, (12_000, 1)), (12_100, (12_100, 2)), (12_150, (12_100, 2))]
        {
            let mut moment = sample::moments()[1].clone();
            moment.process.up_ms = up_ms;
            live.learn(Ok(moment));
            assert_eq!((live.model.as_ref().unwrap().now.process.up_ms, known(&live)), (up_ms, wanted));
        }
    }

    #[test]
    fn a_missing_gateway_is_reported_and_a_new_one_is_not_compared_with_it() {
        let mut live = with_figures();
        let seen = live.model.clone();
        live.learn(Err("cannot connect".to_owned()));
        assert_eq!(live.page.trouble.as_deref(), Some("cannot connect - retrying every 1 s"));
        assert_eq!(live.model, seen, "the last data remain");
        let [mut restarted, _] = sample::moments();
        restarted.process.pid = 1;
        live.learn(Ok(restarted));
        assert_eq!((live.page.trouble.as_ref(), live.model.as_ref().unwrap().seconds), (None, None));
    }
}
