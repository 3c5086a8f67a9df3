//! `ipoib-fwd gids`: lists the GID tables of this host's devices and of gateways' software devices, once or
//! with their changes. The service that shares them with other processes is in [`serve`].

mod row;
pub mod serve;
mod source;
mod watch;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use pmd::gids::DEFAULT_DIRECTORY;
use serde_json::json;

pub use row::{COLUMNS, Row};
pub use source::{GidsError, Source};

use crate::ctl::DEFAULT_SOCKET;

/// Options of `ipoib-fwd gids`.
#[derive(Args, Debug)]
pub struct GidsOptions {
    /// Print JSON: all entries as one object, or with --watch one object per line.
    #[arg(long)]
    pub json: bool,
    /// Keep running and print changes: + for added entries, - for removed ones. Stop it with Ctrl-C. New
    /// devices are watched, too. A watched device is in use: some drivers cannot be unloaded until it is
    /// released.
    #[arg(long)]
    pub watch: bool,
    /// List only this device.
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Control socket of a gateway, for its software device. Without this option, the default socket is
    /// queried if it exists.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Read only the table that a gateway shares in this file (gateway.gids of its configuration). The table
    /// does not have its device's name, so the first column is the file's name.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["socket", "device"])]
    pub shared: Option<PathBuf>,
    /// Read only the tables that a service (--serve) keeps in this directory; the default is /run/ipoib-gids.
    /// With --watch, the command continues when the service exits and is started again, and prints when
    /// entries may be stale (!).
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = DEFAULT_DIRECTORY, conflicts_with_all = ["socket", "shared"])]
    pub from: Option<PathBuf>,
    /// Options of the service.
    #[command(flatten)]
    pub serving: serve::ServeOptions,
}

/// The sources of a list.
#[derive(Default, Debug)]
struct Listing {
    sources: Vec<Source>,
    only: Option<String>,
    /// True while the list is watched: devices and tables may appear later.
    followed: bool,
    /// The directory of the service whose tables are the only sources.
    served: Option<PathBuf>,
    /// Tables in it that cannot be read and that have been reported.
    unread: BTreeSet<String>,
}

impl Listing {
    fn open(options: &GidsOptions, warn: &mut impl FnMut(&dyn std::error::Error)) -> Result<Self, GidsError> {
        if let Some(file) = &options.shared {
            let sources = vec![Source::shared(file)?];
            return Ok(Self { sources, ..Self::default() });
        }
        if let Some(directory) = &options.from {
            let (only, served) = (options.device.clone(), Some(directory.clone()));
            let mut this = Self { only, followed: options.watch, served, ..Self::default() };
            this.follow_tables(directory, warn)?;
            if this.sources.is_empty() && !this.followed {
                return Err(GidsError::NothingServed { directory: directory.clone(), only: this.only });
            }
            return Ok(this);
        }
        let (mut sources, failed) = Source::devices()?;
        for error in &failed {
            warn(error);
        }
        let usual = PathBuf::from(DEFAULT_SOCKET);
        match &options.socket {
            Some(socket) => sources.push(Source::Gateway(socket.clone())),
            None if usual.exists() => {
                let source = Source::Gateway(usual.clone());
                // The socket may be left over from a gateway that was killed.
                match source.rows() {
                    Ok(_) => sources.push(source),
                    Err(error) => warn(&error),
                }
            }
            None => {}
        }
        if sources.is_empty() && failed.is_empty() {
            return Err(GidsError::Nothing(usual));
        }
        Ok(Self { sources, only: options.device.clone(), ..Self::default() })
    }

    /// Title of the first column: the file's name if the table does not have its device's name.
    fn first_column(&self) -> &'static str {
        let is_file = self.sources.iter().any(|source| matches!(source, Source::Shared(_)));
        if is_file { "FILE" } else { COLUMNS[0] }
    }

    /// Removes devices that are gone and adds new ones. Devices that cannot be opened are left out.
    fn follow_devices(&mut self) -> Result<(), GidsError> {
        self.followed = true;
        if self.sources.iter().any(|source| matches!(source, Source::Shared(_))) {
            return Ok(());
        }
        let there: Vec<String> = pmd::verbs::devices()?.into_iter().map(|device| device.name).collect();
        self.sources
            .retain(|source| source.device().is_none_or(|name| there.iter().any(|other| other == name)));
        let known = |name: &String| self.sources.iter().any(|source| source.device() == Some(name.as_str()));
        let new: Vec<String> = there.into_iter().filter(|name| !known(name)).collect();
        self.sources.extend(new.iter().filter_map(|name| Source::named(name).ok()));
        Ok(())
    }

    /// As [`Listing::follow_devices`], for the tables of a service. Unreadable tables are left out and
    /// reported to `warn` once.
    fn follow_tables(
        &mut self,
        directory: &Path,
        warn: &mut impl FnMut(&dyn std::error::Error),
    ) -> Result<(), GidsError> {
        let (mut there, owner) = pmd::gids::tables(directory)?;
        there.retain(|name| self.only.as_ref().is_none_or(|only| only == name));
        self.sources.retain(|source| there.iter().any(|name| source.is_called(name)));
        self.unread.retain(|name| there.contains(name));
        there.retain(|name| !self.sources.iter().any(|source| source.is_called(name)));
        for name in there {
            match Source::served(directory, &name, owner) {
                Ok(source) => {
                    self.unread.remove(&name);
                    self.sources.push(source);
                }
                Err(error) => {
                    if self.unread.insert(name) {
                        warn(&error);
                    }
                }
            }
        }
        Ok(())
    }

    /// All rows, sorted. If a gateway's device is also a device of this host, it is listed once.
    fn rows(&self) -> Result<Vec<Row>, GidsError> {
        let mut rows: Vec<Row> = Vec::new();
        for source in &self.sources {
            let more = source.rows()?;
            let known = |row: &Row| rows.iter().any(|other| other.device == row.device);
            let more: Vec<Row> = more.into_iter().filter(|row| !known(row)).collect();
            rows.extend(more);
        }
        rows.sort();
        if let Some(name) = &self.only {
            let mut seen: Vec<String> = rows.iter().map(|row| row.device.clone()).collect();
            seen.dedup();
            rows.retain(|row| row.device == *name);
            let there = |source: &Source| source.is_called(name);
            if rows.is_empty() && !self.followed && !self.sources.iter().any(there) {
                let seen = if seen.is_empty() { "none".to_owned() } else { seen.join(", ") };
                return Err(GidsError::NoDevice { name: name.clone(), seen });
            }
        }
        Ok(rows)
    }
}

/// Writes the list to standard output. Errors of single devices go to `warn`.
pub fn run(options: &GidsOptions, mut warn: impl FnMut(&dyn std::error::Error)) -> Result<(), GidsError> {
    let mut listing = Listing::open(options, &mut warn)?;
    let result = if options.watch {
        watch::run(&mut listing, options.json, &mut warn)
    } else {
        once(&listing, options.json)
    };
    match result {
        // The reader has closed the pipe.
        Err(GidsError::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn once(listing: &Listing, as_json: bool) -> Result<(), GidsError> {
    // Check the tables before reading them: the rows are then not older than the check.
    let worth = listing.sources.iter().try_for_each(Source::check);
    let rows = listing.rows()?;
    let text = if as_json {
        format!("{:#}\n", json!({ "gids": rows }))
    } else {
        table(&rows, listing.first_column())
    };
    io::stdout().write_all(text.as_bytes()).map_err(GidsError::Output)?;
    // A stale list is printed, and the error follows.
    worth
}

/// Widths of the columns for these rows.
fn widths(rows: &[Row], columns: &[&str; COLUMNS.len()]) -> [usize; COLUMNS.len()] {
    let mut widths = columns.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row.cells()) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths
}

/// One line, without the newline.
fn line(cells: &[String], widths: &[usize]) -> String {
    let cells: Vec<String> = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
    cells.join("  ").trim_end().to_owned()
}

/// The list as text.
fn table(rows: &[Row], first: &'static str) -> String {
    let [_, others @ ..] = COLUMNS;
    let [a, b, c, d, e, f] = others;
    let columns = [first, a, b, c, d, e, f];
    let widths = widths(rows, &columns);
    let mut text = line(&columns.map(str::to_owned), &widths) + "\n";
    for row in rows {
        text += &(line(&row.cells(), &widths) + "\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn row(device: &str, index: u16, last: u8) -> Row {
        Row {
            device: device.to_owned(),
            port: 1,
            index,
            gid: format!("0000:0000:0000:0000:0000:ffff:0a00:00{last:02x}"),
            ipv4: Some([10, 0, 0, last].into()),
            gid_type: "RoCE v2".to_owned(),
            netdev: Some("eth1".to_owned()),
            ifindex: Some(4),
            vlan: None,
            default: false,
        }
    }

    #[test]
    fn an_unreadable_table_is_reported_once() {
        let directory = std::env::temp_dir().join(format!("gids-unread-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let _service = pmd::gids::Directory::serve(&directory).unwrap();
        let file = directory.join("mlx5_0");
        let mut listing = Listing::default();
        let mut reported = Vec::new();
        let mut follow = |reported: &mut Vec<String>| {
            listing.follow_tables(&directory, &mut |error| reported.push(error.to_string())).unwrap();
        };
        for round in 1..=2 {
            std::fs::write(&file, [1; 64]).unwrap();
            follow(&mut reported);
            follow(&mut reported);
            assert_eq!(reported.len(), round, "{reported:?}");
            assert!(reported.iter().all(|why| why.contains("mlx5_0")));
            // After it is removed, another one is reported again.
            std::fs::remove_file(&file).unwrap();
            follow(&mut reported);
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn columns_are_as_wide_as_necessary() {
        let text = table(&[row("mlx5_bond_0", 0, 9), row("rxe0", 12, 200)], COLUMNS[0]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), COLUMNS);
        assert!(
            lines.iter().all(|l| l.find("10.0.0").is_none_or(|at| Some(at) == lines[0].find("IPv4"))),
            "{text}"
        );
        assert!(lines.iter().all(|l| l.trim_end() == *l));
        assert_eq!(table(&[], COLUMNS[0]).lines().count(), 1);
        let shared = table(&[row("gids", 0, 9)], "FILE");
        assert!(shared.starts_with("FILE  PORT") && shared.contains("\ngids  1"), "{shared}");
    }
}
