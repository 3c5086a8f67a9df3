//! The operator's reference page: counters, events and alarms with their remedies, from the tables of the
//! programs.

use std::fmt::Write as _;

use connectx::{Activity, DropReason as DeviceDrop};
use ipoib::drop_reason::DropReason;
use ipoib::link::LinkCounters;
use ipoib_fwd::command::Command;
use ipoib_fwd::counter::{Labour, SegmentTraffic, Traffic};
use ipoib_fwd::event::{Kind, What};
use ipoib_fwd::metrics::{Family, Table};
use ipoib_fwd::segment::ownership::{ArpKind, SENDERS, TARGETS};
use ipoib_fwd::segment::{HostCounters, SegmentCounters};
use preflight::Code;

/// The alert rules that come with the packages.
const ALERTS: &str = include_str!("../monitoring/alerts.yml");

/// Numbers of workers in the table of buffers.
const WORKERS: [u32; 5] = [1, 2, 4, 8, 16];
/// Numbers of workers with a table of parts.
const PARTS_OF: [u32; 2] = [1, 2];
/// Bytes of a buffer in addition to its data: DPDK's header and headroom.
const OVERHEAD: u64 = 128 + 128;

/// The parts of an alert rule for readers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Alert {
    pub(crate) name: String,
    expression: String,
    remedy: String,
}

/// The rules of the file, which has one key and its text on each line.
pub(crate) fn alerts() -> Vec<Alert> {
    let mut all: Vec<Alert> = Vec::new();
    for line in ALERTS.lines() {
        let Some((word, text)) = line.trim().split_once(": ") else { continue };
        let text = text.trim_matches('"').to_owned();
        match (word, all.last_mut()) {
            ("- alert", _) => {
                all.push(Alert { name: text, expression: String::new(), remedy: String::new() });
            }
            ("expr", Some(alert)) => alert.expression = text,
            ("remedy", Some(alert)) => alert.remedy = text,
            _ => {}
        }
    }
    all
}

/// Escapes a cell: the cell separator and, outside of code, HTML.
fn cell(text: &str) -> String {
    let text = text.replace('|', "\\|");
    if text.starts_with('`') { text } else { text.replace('<', "&lt;") }
}

fn table<const N: usize>(page: &mut String, heads: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let line = |cells: [String; N]| format!("| {} |\n", cells.join(" | "));
    page.push_str(&line(heads.map(str::to_owned)));
    page.push_str(&line(heads.map(|_| "---".to_owned())));
    page.extend(rows.into_iter().map(|cells| line(cells.map(|text| cell(&text)))));
}

fn code(text: impl AsRef<str>) -> String {
    format!("`{}`", text.as_ref())
}

fn section(page: &mut String, title: &str, words: &str) {
    // Writing to a string does not fail.
    let _ = write!(page, "\n## {title}\n\n{words}\n\n");
}

fn described(page: &mut String, rows: impl IntoIterator<Item = (&'static str, &'static str)>) {
    table(
        page,
        ["counter", "description"],
        rows.into_iter().map(|(name, text)| [code(name), text.to_owned()]),
    );
}

/// Events of some kinds with their remedies.
fn of_kind(is: impl Fn(Kind) -> bool) -> impl Iterator<Item = (What, String)> {
    let all = What::ALL.iter().copied().filter(move |what| is(what.kind()));
    all.map(|what| (what, if what.remedy().is_empty() { "Nothing." } else { what.remedy() }.to_owned()))
}

fn with_remedies<const N: usize>(page: &mut String, rows: [[&'static str; 3]; N]) {
    let rows = rows.map(|[name, what, remedy]| [code(name), what.to_owned(), remedy.to_owned()]);
    table(page, ["counter", "description", "remedy if it grows"], rows);
}

/// Handling of ARP packets.
fn ownership(page: &mut String) {
    section(
        page,
        "Address ownership",
        "The action of the gateway for an ARP packet depends on its knowledge of the addresses in it. An address is proven to be on a side \
         after the other side was queried for it and stayed silent. Before that, the gateway sends no announcement, reply or query for an \
         address. The side of a packet makes no difference, nor does unicast or broadcast.\n\n\
         For the address that a packet claims for its sender:",
    );
    let kinds = |kinds: &[ArpKind]| kinds.iter().map(|k| k.describe()).collect::<Vec<_>>().join(", ");
    let heads = ["packet", "knowledge of the address", "action"];
    let done = |forwarding: &str, standby: &str| match forwarding == standby {
        true => forwarding.to_owned(),
        false => format!("{forwarding} On standby: {standby}"),
    };
    table(
        page,
        heads,
        SENDERS.iter().map(|row| {
            let done = done(row.forwarding.describe(), row.standby.describe());
            [kinds(row.kinds), row.known.describe().to_owned(), done]
        }),
    );
    page.push_str(
        "\nFor the address that a packet queries; a gateway on standby answers for its own address only:\n\n",
    );
    table(
        page,
        heads,
        TARGETS.iter().map(|row| {
            [kinds(row.kinds), row.known.describe().to_owned(), row.forwarding.describe().to_owned()]
        }),
    );
}

/// The page.
pub(crate) fn page() -> String {
    let mut page = "# Reference: commands, counters, drop reasons, alarms\n\n\
        Generated from the programs' own tables by `cargo run -p packaging -- --reference docs/manual/reference.md`; a test compares them. \
        The [manual](README.md) is the starting point.\n"
        .to_owned();

    section(
        &mut page,
        "Commands of a running gateway",
        "`ipoib-fwd ctl COMMAND`, or `/COMMAND` on the control socket.",
    );
    let commands = Command::ALL.into_iter().filter(|command| !command.word().is_empty());
    table(&mut page, ["command", "description"], commands.map(|c| [code(c.word()), c.help().to_owned()]));

    section(
        &mut page,
        "Findings before the start",
        "Codes of `ipoib-fwd --check`, which are stable across versions (`code` with `--json`). Each finding has its location and a remedy. Its severity may depend on the configuration.",
    );
    table(
        &mut page,
        ["code", "severity", "description"],
        Code::ALL.map(|c| [code(c.word()), c.severity().word().to_owned(), c.describe().to_owned()]),
    );

    section(
        &mut page,
        "Drop reasons",
        "Each packet that the gateway drops is counted once, by reason: `drops` of `ipoib-fwd ctl stats`, of `ipoib-fwd ctl stats SEGMENT`, and \
         `ipoib_fwd_drops_total`.",
    );
    table(
        &mut page,
        ["reason", "description", "remedy"],
        DropReason::ALL.map(|r| [code(r.name()), r.describe().to_owned(), r.remedy().to_owned()]),
    );

    ownership(&mut page);

    section(
        &mut page,
        "Alarms",
        "Rules for Prometheus in `packaging/monitoring/alerts.yml`, and their remedies.",
    );
    let alerts = alerts().into_iter();
    table(
        &mut page,
        ["alarm", "fires if", "remedy"],
        alerts.map(|a| [code(a.name), code(a.expression), a.remedy]),
    );

    section(
        &mut page,
        "Alarms of the gateway itself",
        "Events of kind `alarm`, from `ipoib-fwd ctl events alarm`; the name is `what` of an event.",
    );
    table(
        &mut page,
        ["alarm", "description", "remedy"],
        of_kind(|kind| kind == Kind::Alarm)
            .map(|(a, remedy)| [code(a.word()), a.describe().to_owned(), remedy]),
    );

    section(&mut page, "Events", "Kinds of events that `ipoib-fwd ctl events` reports.");
    table(
        &mut page,
        ["kind", "description"],
        Kind::ALL.iter().map(|k| [code(k.word()), k.describe().to_owned()]),
    );
    page.push_str(
        "\nAll events except the alarms, which are above. Logged events have the same name in the journal (`IPOIB_FWD_EVENT`), \
         or the one that is given with them.\n\n",
    );
    let events = of_kind(|kind| kind != Kind::Alarm).map(|(what, remedy)| {
        let name = code(format!("{}: {}", what.kind().word(), what.word()));
        let other =
            (what.journal() != what.word()).then(|| format!(", in the journal {}", code(what.journal())));
        [name + &other.unwrap_or_default(), what.describe().to_owned(), remedy]
    });
    table(&mut page, ["event", "description", "remedy"], events);

    section(
        &mut page,
        "Metrics",
        "Metrics of `ipoib-fwd ctl metrics` and `ipoib-fwd metrics`. These, and the counters below without a remedy, are measures of normal \
         operation: the alarms above define when to act. The counters of a link are metrics, too.",
    );
    table(
        &mut page,
        ["metric", "description"],
        Family::ALL.map(|f| [code(f.figure()), f.describe().to_owned()]),
    );

    section(
        &mut page,
        "Paths of packets",
        "`traffic` of `ipoib-fwd ctl stats`: packets and bytes of each worker, and totals.",
    );
    described(&mut page, Traffic::ALL.map(|path| (path.name(), path.describe())));
    section(&mut page, "Paths through a segment", "`segments` of `ipoib-fwd ctl stats`.");
    described(&mut page, SegmentTraffic::ALL.map(|way| (way.name(), way.describe())));
    section(
        &mut page,
        "Time of workers",
        "`workers` of `ipoib-fwd ctl stats`; shares of it in `ipoib-fwd top`.",
    );
    described(&mut page, Labour::ALL.map(|what| (what.name(), what.describe())));

    let figure = code(Table::SegmentLink.figure("COUNTER"));
    let words = format!("`link_counters` of `ipoib-fwd ctl links`, for each segment, and metrics: {figure}.");
    section(&mut page, "Counters of a link", &words);
    with_remedies(&mut page, LinkCounters::DESCRIBED);
    section(&mut page, "Counters of a segment", "`segment` under `counters` of `ipoib-fwd ctl neighbours`.");
    with_remedies(&mut page, SegmentCounters::DESCRIBED);
    section(
        &mut page,
        "Counters of Ethernet hosts",
        "`ethernet` under `counters` of `ipoib-fwd ctl neighbours`.",
    );
    with_remedies(&mut page, HostCounters::DESCRIBED);

    section(
        &mut page,
        "Drops of the software ConnectX",
        "`device_drops` of `ipoib-fwd ctl links`, with driver `soft`. An adapter reports its own (`perfquery`, `rdma statistic`).",
    );
    with_remedies(
        &mut page,
        DeviceDrop::ALL.map(|reason| [reason.name(), reason.describe(), reason.remedy()]),
    );
    section(&mut page, "Activity of the software ConnectX", "In `softhca --report`.");
    described(&mut page, Activity::ALL.map(|what| (what.name(), what.describe())));

    section(
        &mut page,
        "Packet buffers",
        "Number of buffers in the default configuration by workers, and their memory with DPDK's header and headroom. With `buffers.count = 0` the gateway computes the number for its own configuration.",
    );
    let config = config::Config::default();
    let bytes = u64::from(config.buffers.data_room) + OVERHEAD;
    let row = |workers: u32| {
        let buffers = config.buffers_needed(workers);
        let mib = (u64::from(buffers) * bytes).div_ceil(1 << 20);
        [workers.to_string(), buffers.to_string(), format!("{mib} MiB")]
    };
    table(&mut page, ["workers", "buffers", "memory"], WORKERS.map(row));
    page.push_str("\nWhat they are counted for ([Memory](../configuration.md#memory) has the formulas):\n\n");
    let budgets = PARTS_OF.map(|workers| config.budget(workers));
    let part = |name: &str, of: fn(&config::Budget) -> u32| {
        let [one, two] = budgets.map(|budget| of(&budget).to_string());
        [name.to_owned(), one, two]
    };
    let parts = [
        part("receives", |budget| budget.receives),
        part("sends, and the backlog of full queues", |budget| budget.sends),
        part("packets that wait for an address or a connection", |budget| budget.parked),
        part("messages of the control lcore", |budget| budget.messages),
        part("caches of workers and of the control lcore", |budget| budget.caches),
        part("reserve", |budget| budget.reserve),
        part("all", config::Budget::total),
    ];
    table(&mut page, ["part", "one worker", "two workers"], parts);
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_page_in_the_repository_is_what_the_programs_say() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/manual/reference.md");
        let there = std::fs::read_to_string(&file).unwrap_or_default();
        let line = there.lines().zip(page().lines().map(str::to_owned)).position(|(old, new)| old != new);
        assert!(
            there == page(),
            "docs/manual/reference.md, line {}: regenerate it by cargo run -p packaging -- --reference docs/manual/reference.md",
            line.map_or(there.lines().count(), |n| n) + 1
        );
    }

    #[test]
    fn every_alert_rule_is_there_with_its_remedy() {
        let all = alerts();
        assert_eq!(all.len(), ALERTS.matches("alert:").count());
        for alert in &all {
            assert!(
                !alert.name.is_empty() && !alert.expression.is_empty() && !alert.remedy.is_empty(),
                "{alert:?}"
            );
        }
    }

    #[test]
    fn drops_that_are_ordinary_alarm_nobody() {
        let ordinary = DropReason::ALL.into_iter().filter(|reason| reason.is_ordinary());
        let names: Vec<&str> = ordinary.map(DropReason::name).collect();
        let alert = alerts().into_iter().find(|alert| alert.name == "PacketsDropped").unwrap();
        let chosen = format!("ipoib_fwd_drops_total{{reason!~\"{}\"}}", names.join("|"));
        assert!(alert.expression.contains(&chosen), "{chosen}: {}", alert.expression);
    }

    #[test]
    fn rules_and_dashboard_name_figures_that_there_are() {
        let of_links = LinkCounters::DESCRIBED.map(|[counter, ..]| Table::SegmentLink.figure(counter));
        let all: Vec<String> = Family::ALL.map(Family::figure).into_iter().chain(of_links).collect();
        for text in [ALERTS, include_str!("../monitoring/dashboard.json")] {
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let named: Vec<&str> = words.filter(|word| word.starts_with("ipoib_fwd_")).collect();
            assert!(!named.is_empty());
            for name in named {
                assert!(all.iter().any(|figure| figure == name), "{name}");
            }
        }
    }

    #[test]
    fn no_word_breaks_a_table() {
        for line in page().lines().filter(|line| line.starts_with('|')) {
            let bars = line.replace("\\|", "").matches('|').count();
            assert!((3..=4).contains(&bars), "{line}");
        }
    }
}
