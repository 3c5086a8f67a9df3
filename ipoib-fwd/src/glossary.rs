//! Descriptions and remedies of the counters in a command's answer, for `ipoib-fwd ctl help COMMAND`. They
//! come from the tables that define the counters.

use connectx::DropReason as DeviceDrop;
use ipoib::drop_reason::DropReason;
use ipoib::link::LinkCounters;

use crate::command::Command;
use crate::event::{Kind, What};
use crate::segment::{HostCounters, SegmentCounters};

/// Columns of a line.
const WIDTH: usize = 100;

/// The text after a command's help; empty for commands with self-explanatory answers.
#[must_use]
pub fn of(command: Command) -> String {
    let mut text = String::new();
    match command {
        Command::Stats => {
            let rows = DropReason::ALL.iter().map(|r| [r.name(), r.describe(), r.remedy()]);
            section(&mut text, "Drops", rows);
        }
        Command::Links => {
            section(&mut text, "Counters of a link", LinkCounters::DESCRIBED);
            let rows = DeviceDrop::ALL.iter().map(|r| [r.name(), r.describe(), r.remedy()]);
            section(&mut text, "Drops of the software ConnectX", rows);
        }
        Command::Neighbours => {
            section(&mut text, "Counters of a segment", SegmentCounters::DESCRIBED);
            section(&mut text, "Counters of Ethernet hosts", HostCounters::DESCRIBED);
        }
        Command::Events => {
            for kind in Kind::ALL {
                let all = What::ALL.iter().filter(|what| what.kind() == *kind);
                let title = format!("{}: {}", kind.word(), kind.describe().trim_end_matches('.'));
                section(&mut text, &title, all.map(|what| [what.word(), what.describe(), what.remedy()]));
            }
        }
        _ => {}
    }
    text
}

fn section(out: &mut String, title: &str, rows: impl IntoIterator<Item = [&'static str; 3]>) {
    if !out.is_empty() {
        out.push('\n');
    }
    out.push_str(&format!("{title}:\n"));
    for [name, what, remedy] in rows {
        out.push_str(&format!("  {name}\n"));
        wrap(out, what);
        if !remedy.is_empty() {
            wrap(out, &format!("-> {remedy}"));
        }
    }
}

/// Wraps text into indented lines.
fn wrap(out: &mut String, text: &str) {
    const MARGIN: &str = "     ";
    let mut column = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH {
            out.push('\n');
            column = 0;
        }
        out.push_str(if column == 0 { MARGIN } else { " " });
        column += length + if column == 0 { MARGIN.len() } else { 1 };
        out.push_str(word);
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::CtlLine;
    use clap::CommandFactory as _;

    #[test]
    fn help_has_every_counter_with_its_remedy() {
        let mut ctl = CtlLine::command();
        let mut help = |name: &str| {
            let text = ctl.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            assert!(
                text.lines().all(|line| line.chars().count() <= WIDTH || !line.starts_with("     ")),
                "{text}"
            );
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let links = help("links");
        for [name, what, remedy] in LinkCounters::DESCRIBED {
            assert!(links.contains(&format!("{name} {what} -> {remedy}")), "{name}: {links}");
        }
        for reason in DeviceDrop::ALL {
            let expected = format!("{} {} -> {}", reason.name(), reason.describe(), reason.remedy());
            assert!(links.contains(&expected), "{expected}: {links}");
        }
        let neighbours = help("neighbours");
        for [name, what, remedy] in SegmentCounters::DESCRIBED.into_iter().chain(HostCounters::DESCRIBED) {
            assert!(neighbours.contains(&format!("{name} {what} -> {remedy}")), "{name}: {neighbours}");
        }
        let stats = help("stats");
        for reason in DropReason::ALL {
            let expected = format!("{} {} -> {}", reason.name(), reason.describe(), reason.remedy());
            assert!(stats.contains(&expected), "{expected}: {stats}");
        }
        let events = help("events");
        for what in What::ALL {
            let expected = format!("{} {}", what.word(), what.describe());
            let remedy =
                if what.remedy().is_empty() { String::new() } else { format!(" -> {}", what.remedy()) };
            assert!(events.contains(&(expected + &remedy)), "{what:?}: {events}");
        }
        assert!(of(Command::Gids).is_empty());
    }

    #[test]
    fn every_counter_has_a_description_and_a_remedy() {
        let all = LinkCounters::DESCRIBED.into_iter();
        for [name, what, remedy] in all.chain(SegmentCounters::DESCRIBED).chain(HostCounters::DESCRIBED) {
            assert!(what.ends_with('.') && remedy.ends_with('.'), "{name}: {what} {remedy}");
        }
    }
}
