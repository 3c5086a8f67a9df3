//! The list as it changes.

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

/// How often sources that do not call are asked.
const ASK: Duration = Duration::from_millis(100);
/// How often those that do are asked all the same: interfaces get other names without an event.
const LOOK: Duration = Duration::from_secs(2);

const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// What a line tells of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum What {
    /// It was there when the watch began.
    Present,
    /// It came.
    Added,
    /// It went.
    Removed,
}

/// What a line tells of a service's table.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Worth<'a> {
    /// It is as it should be, again.
    Current { device: &'a str },
    /// It may be stale.
    Stale { device: &'a str, why: &'a str },
}

/// A line in JSON.
#[derive(Serialize)]
struct Told<'a> {
    event: What,
    #[serde(flatten)]
    row: &'a Row,
}

/// What changed between two lists, in the order of places; what leaves a place comes before what enters it.
fn changes(before: &[Row], after: &[Row]) -> Vec<(What, Row)> {
    let gone = before.iter().filter(|row| after.binary_search(row).is_err()).map(|row| (What::Removed, row));
    let new = after.iter().filter(|row| before.binary_search(row).is_err()).map(|row| (What::Added, row));
    let mut all: Vec<(What, Row)> = gone.chain(new).map(|(what, row)| (what, row.clone())).collect();
    all.sort_by(|(a_what, a), (b_what, b)| {
        let place = |what: What, row: &Row| (row.device.clone(), row.port, row.index, what == What::Added);
        place(*a_what, a).cmp(&place(*b_what, b))
    });
    all
}

/// Prints the list, then its changes until it is interrupted or nobody reads them.
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
        service.tell(before.len(), Instant::now());
        if let Some(directory) = listing.served.clone() {
            if look.elapsed() >= LOOK {
                look = Instant::now();
                // Without its directory a service is not there yet, or not any more.
                match listing.follow_tables(&directory, warn) {
                    Ok(()) | Err(GidsError::Directory(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            let news = worth(listing, &mut stale);
            // A table that is being overwritten by nobody knows whom stays as it was.
            let after =
                listing.rows().map_or_else(|_| before.clone(), |now| spoken_for(&before, now, &stale));
            let text = change_lines(&before, &after, as_json, coloured) + &worth_lines(&news, as_json);
            if !text.is_empty() {
                print(&text)?;
            }
            before = after;
            continue;
        }
        let mut seen = listing.sources.iter().try_for_each(Source::check).and_then(|()| listing.rows());
        // A device that fails may be gone.
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

/// The list, with the rows as they were of tables that nobody speaks for: a file that has just been begun is empty.
fn spoken_for(before: &[Row], mut now: Vec<Row>, stale: &BTreeMap<String, String>) -> Vec<Row> {
    now.retain(|row| !stale.contains_key(&row.device));
    now.extend(before.iter().filter(|row| stale.contains_key(&row.device)).cloned());
    now.sort();
    now
}

/// What is news of the worth of a service's tables: each with the reason why it may be stale, or none. `stale` is what was known.
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
            // How long it has been silent changes all the time.
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
    let tell = |(what, row): (What, Row)| match as_json {
        true => json_line(what, &row),
        false => plain_line(what, &row, &widths, coloured),
    };
    changes(before, after).into_iter().map(tell).collect()
}

/// The service manager that may have started the watch: what is watched is its status, and each look a turn.
struct Service {
    manager: Option<ServiceManager>,
    watchdog: Option<Watchdog>,
}

impl Service {
    /// The list has been printed.
    fn ready(entries: usize, now: Instant) -> Result<Self, GidsError> {
        let manager = ServiceManager::of_environment().unwrap_or_else(|error| {
            tracing::warn!("the service manager cannot be told anything: {error}");
            None
        });
        let watchdog = manager.as_ref().and_then(|manager| Watchdog::new(manager, now));
        let mut service = Self { manager, watchdog };
        service.tell(entries, now);
        if let Some(manager) = &service.manager {
            manager.ready();
        }
        Ok(service)
    }

    fn tell(&mut self, entries: usize, now: Instant) {
        let Some(manager) = &mut self.manager else { return };
        manager.status(&format!("{entries} GIDs"));
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.turned(now, manager);
        }
    }
}

fn json_line(event: What, row: &Row) -> String {
    as_line(&Told { event, row })
}

fn as_line(told: &impl Serialize) -> String {
    serde_json::to_string(told).map_or_else(|_| String::new(), |line| line + "\n")
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

/// Waits until there may be something new; fails if nobody reads any more.
fn wait(sources: &[Source]) -> Result<(), GidsError> {
    let stdout = io::stdout();
    let calling: Vec<_> = sources.iter().filter_map(Source::readable).collect();
    let period = if calling.len() == sources.len() { LOOK } else { ASK };
    // Of standard output only its end is of interest, which is always told.
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
    fn changes_come_in_the_order_of_places() {
        let before = [row("a", 0, 1), row("a", 1, 2), row("b", 0, 3)];
        let after = [row("a", 0, 1), row("a", 1, 4), row("a", 2, 2)];
        let told: Vec<String> = changes(&before, &after)
            .iter()
            .map(|(what, row)| plain_line(*what, row, &[0; 7], false))
            .map(|line| {
                line.split("  ").enumerate().filter(|(i, _)| [0, 2, 4].contains(i)).map(|(_, c)| c).collect()
            })
            .collect();
        assert_eq!(told, ["- a110.0.0.2", "+ a110.0.0.4", "+ a210.0.0.2", "- b010.0.0.3"]);
        assert_eq!(changes(&after, &after), []);
    }

    #[test]
    fn what_nobody_speaks_for_stays_as_it_was() {
        let before = [row("a", 0, 1), row("b", 0, 2)];
        let stale = BTreeMap::from([("a".to_owned(), "nobody".to_owned())]);
        let now = vec![row("b", 0, 3), row("b", 1, 4)];
        assert_eq!(spoken_for(&before, now, &stale), [row("a", 0, 1), row("b", 0, 3), row("b", 1, 4)]);
        assert_eq!(spoken_for(&before, Vec::new(), &BTreeMap::new()), []);
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
