//! Watching the list.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use dataplane::service::{ServiceManager, Watchdog};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::row::Row;
use super::{COLUMNS, GidsError, Listing, Source, line, table, widths};
use crate::terminal::is_coloured;

/// Interval at which sources without events are read.
const POLL: Duration = Duration::from_millis(100);
/// Interval at which sources with events are read nevertheless: interfaces are renamed without an event.
const LOOK: Duration = Duration::from_secs(2);

const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// The change of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum What {
    /// The entry existed when the watch started.
    Present,
    /// The entry was added.
    Added,
    /// The entry was removed.
    Removed,
}

/// The state of a service's table.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Worth<'a> {
    /// The table is current again.
    Current { device: &'a str },
    /// The table may be stale.
    Stale { device: &'a str, why: &'a str },
}

/// A line of JSON.
#[derive(Serialize)]
struct ChangeLine<'a> {
    event: What,
    #[serde(flatten)]
    row: &'a Row,
}

/// The changes between two lists, ordered by device, port and index; a removal comes before an addition at
/// the same index.
fn changes(before: &[Row], after: &[Row]) -> Vec<(What, Row)> {
    let gone = before.iter().filter(|row| after.binary_search(row).is_err()).map(|row| (What::Removed, row));
    let new = after.iter().filter(|row| before.binary_search(row).is_err()).map(|row| (What::Added, row));
    let mut all: Vec<(What, Row)> = gone.chain(new).map(|(what, row)| (what, row.clone())).collect();
    all.sort_by(|(a_what, a), (b_what, b)| {
        let key = |what: What, row: &Row| (row.device.clone(), row.port, row.index, what == What::Added);
        key(*a_what, a).cmp(&key(*b_what, b))
    });
    all
}

/// Prints the list, then its changes, until it is interrupted or its reader closes the pipe.
pub(super) fn run(
    listing: &mut Listing,
    as_json: bool,
    warn: &mut impl FnMut(&dyn Error),
) -> Result<(), GidsError> {
    let coloured = is_coloured();
    let mut stale = BTreeMap::new();
    let news = worth(listing, &mut stale);
    let mut before = listing.rows()?;
    let present = |row: &Row| json_line(What::Present, row);
    let first =
        if as_json { before.iter().map(present).collect() } else { table(&before, listing.first_column()) };
    print(&(first + &worth_lines(&news, as_json)))?;
    let mut look = Instant::now();
    let mut service = Service::ready(before.len(), look)?;
    loop {
        wait(&listing.sources)?;
        service.report(before.len(), Instant::now());
        if let Some(directory) = listing.served.clone() {
            if look.elapsed() >= LOOK {
                look = Instant::now();
                // The directory does not exist before the service starts and after it was removed.
                match listing.follow_tables(&directory, warn) {
                    Ok(()) | Err(GidsError::Directory(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            let news = worth(listing, &mut stale);
            // The rows of an unreadable table, which another process may be overwriting, do not change.
            let after =
                listing.rows().map_or_else(|_| before.clone(), |now| keep_stale_rows(&before, now, &stale));
            let text = change_lines(&before, &after, as_json, coloured) + &worth_lines(&news, as_json);
            if !text.is_empty() {
                print(&text)?;
            }
            before = after;
            continue;
        }
        let mut seen = listing.sources.iter().try_for_each(Source::check).and_then(|()| listing.rows());
        // A device that fails may have been removed.
        if seen.is_err() || look.elapsed() >= LOOK {
            look = Instant::now();
            listing.follow_devices()?;
            seen = listing.sources.iter().try_for_each(Source::check).and_then(|()| listing.rows());
        }
        let after = seen?;
        let text = change_lines(&before, &after, as_json, coloured);
        if !text.is_empty() {
            print(&text)?;
        }
        before = after;
    }
}

/// Returns the list, in which stale tables keep their previous rows: a table that was just created is empty.
fn keep_stale_rows(before: &[Row], mut now: Vec<Row>, stale: &BTreeMap<String, String>) -> Vec<Row> {
    now.retain(|row| !stale.contains_key(&row.device));
    now.extend(before.iter().filter(|row| stale.contains_key(&row.device)).cloned());
    now.sort();
    now
}

/// Returns the tables of a service whose state has changed, with the reason if a table may be stale. `stale`
/// has the known reasons and is updated.
fn worth(listing: &mut Listing, stale: &mut BTreeMap<String, String>) -> Vec<(String, Option<String>)> {
    let now: Vec<(String, Option<String>)> = listing
        .sources
        .iter_mut()
        .filter_map(Source::standing)
        .map(|(name, why)| (name.to_owned(), why.map(|why| why.to_string())))
        .collect();
    stale.retain(|name, _| now.iter().any(|(other, _)| other == name));
    let mut news = Vec::new();
    for (name, why) in now {
        let was = stale.contains_key(&name);
        match why {
            // The reason has the duration of the silence, which always changes.
            Some(_) if was => {}
            Some(why) => {
                stale.insert(name.clone(), why.clone());
                news.push((name, Some(why)));
            }
            None if was => {
                stale.remove(&name);
                news.push((name, None));
            }
            None => {}
        }
    }
    news
}

fn worth_lines(news: &[(String, Option<String>)], as_json: bool) -> String {
    let line = |(device, why): &(String, Option<String>)| match (as_json, why) {
        (true, Some(why)) => as_line(&Worth::Stale { device, why }),
        (true, None) => as_line(&Worth::Current { device }),
        (false, Some(why)) => format!("! {why}\n"),
        (false, None) => format!("! {device}: the table is current again\n"),
    };
    news.iter().map(line).collect()
}

fn change_lines(before: &[Row], after: &[Row], as_json: bool, coloured: bool) -> String {
    let widths = widths(after, &COLUMNS);
    let report = |(what, row): (What, Row)| match as_json {
        true => json_line(what, &row),
        false => plain_line(what, &row, &widths, coloured),
    };
    changes(before, after).into_iter().map(report).collect()
}

/// The service manager that may have started the watch. It gets the number of entries as the status, and a
/// keepalive in each iteration.
struct Service {
    manager: Option<ServiceManager>,
    watchdog: Option<Watchdog>,
}

impl Service {
    /// Notifies the service manager that the list has been printed.
    fn ready(entries: usize, now: Instant) -> Result<Self, GidsError> {
        let manager = ServiceManager::of_environment().unwrap_or_else(|error| {
            tracing::warn!("cannot notify the service manager: {error}");
            None
        });
        let watchdog = manager.as_ref().and_then(|manager| Watchdog::new(manager, now));
        let mut service = Self { manager, watchdog };
        service.report(entries, now);
        if let Some(manager) = &service.manager {
            manager.ready();
        }
        Ok(service)
    }

    fn report(&mut self, entries: usize, now: Instant) {
        let Some(manager) = &mut self.manager else { return };
        manager.status(&format!("{entries} GIDs"));
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.turned(now, manager);
        }
    }
}

fn json_line(event: What, row: &Row) -> String {
    as_line(&ChangeLine { event, row })
}

fn as_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).map_or_else(|_| String::new(), |line| line + "\n")
}

fn plain_line(what: What, row: &Row, widths: &[usize], coloured: bool) -> String {
    let (sign, colour) = match what {
        What::Removed => ('-', RED),
        What::Added | What::Present => ('+', GREEN),
    };
    let line = line(&row.cells(), widths);
    if coloured { format!("{colour}{sign} {line}{PLAIN}\n") } else { format!("{sign} {line}\n") }
}

fn print(text: &str) -> Result<(), GidsError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(GidsError::Output)
}

/// Waits until there may be a change. Fails if the reader has closed the pipe.
fn wait(sources: &[Source]) -> Result<(), GidsError> {
    let stdout = io::stdout();
    let calling: Vec<_> = sources.iter().filter_map(Source::readable).collect();
    let period = if calling.len() == sources.len() { LOOK } else { POLL };
    // Only the end of standard output matters, and poll always reports it.
    let mut fds = vec![PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::empty())];
    fds.extend(calling.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    let timeout = Timespec { tv_sec: period.as_secs() as i64, tv_nsec: period.subsec_nanos().into() };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(GidsError::Output(error.into())),
    }
    let ended = fds.first().is_some_and(|fd| fd.revents().intersects(PollFlags::ERR | PollFlags::NVAL));
    if ended { Err(GidsError::Output(io::ErrorKind::BrokenPipe.into())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::super::tests::row;
    use super::*;

    #[test]
    fn changes_are_ordered_by_index() {
        let before = [row("a", 0, 1), row("a", 1, 2), row("b", 0, 3)];
        let after = [row("a", 0, 1), row("a", 1, 4), row("a", 2, 2)];
        let value: Vec<String> = changes(&before, &after)
            .iter()
            .map(|(what, row)| plain_line(*what, row, &[0; 7], false))
            .map(|line| {
                line.split("  ").enumerate().filter(|(i, _)| [0, 2, 4].contains(i)).map(|(_, c)| c).collect()
            })
            .collect();
        assert_eq!(value, ["- a110.0.0.2", "+ a110.0.0.4", "+ a210.0.0.2", "- b010.0.0.3"]);
        assert_eq!(changes(&after, &after), []);
    }

    #[test]
    fn stale_tables_keep_their_rows() {
        let before = [row("a", 0, 1), row("b", 0, 2)];
        let stale = BTreeMap::from([("a".to_owned(), "nobody".to_owned())]);
        let now = vec![row("b", 0, 3), row("b", 1, 4)];
        assert_eq!(keep_stale_rows(&before, now, &stale), [row("a", 0, 1), row("b", 0, 3), row("b", 1, 4)]);
        assert_eq!(keep_stale_rows(&before, Vec::new(), &BTreeMap::new()), []);
    }

    #[test]
    fn lines_are_json_or_coloured() {
        let row = row("rxe0", 3, 1);
        let line = json_line(What::Added, &row);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&value["event"], &value["device"], &value["index"]),
            (&"added".into(), &"rxe0".into(), &3.into())
        );
        assert!(line.ends_with("}\n") && line.lines().count() == 1);
        assert!(plain_line(What::Removed, &row, &[0; 7], true).starts_with("\x1b[31m- rxe0"));
        assert!(plain_line(What::Removed, &row, &[0; 7], false).starts_with("- rxe0"));
    }
}
