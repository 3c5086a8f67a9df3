//! The device conformance suite: checks the requirements of the device abstraction on a pair of devices.
//!
//! Without arguments it checks two pairs of software devices, subject by subject, as `cargo nextest` runs it:
//!
//! - two software ConnectX on one link
//! - two with RoCE ports on a pair of interfaces (as root, in a private namespace)
//!
//! With `--verbs ONE OTHER` it checks two connected devices of this host, which `scripts/lab verbs` does in a
//! virtual machine. With `--mlx5` it uses two ConnectX through their rings. It prints one line per check, and
//! the exit code is zero only if all succeed.
//!
//! ```text
//! conformance [--verbs|--mlx5 ONE OTHER] [--cable COMMAND] [--json FILE] [FILTER]
//!
//! FILTER: part of SUBJECT::CHECK. COMMAND: unplugs the cable of ONE with the argument `pull`, and plugs it
//! in with `plug`
//! ```
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod bench;
mod checks;
mod lab;
mod roce;
mod soft;
mod verbs;

use std::process::ExitCode;
use std::time::Instant;

use pmd::mem::{Pool, PoolConfig};
use pmd::verbs::{Calls, Rings};
use serde_json::{Value, json};

use bench::Bench;
use checks::Check;
use lab::{Failure, Lab, Outcome};

#[derive(Default)]
struct Options {
    verbs: Option<[String; 2]>,
    mlx5: Option<[String; 2]>,
    cable: Option<String>,
    json: Option<String>,
    list: bool,
    exact: bool,
    ignored: bool,
    filters: Vec<String>,
}

impl Options {
    /// Parses our options, and those that test runners pass to any test.
    fn parse() -> Self {
        let mut options = Self::default();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--verbs" | "--mlx5" => {
                    let names = Some(std::array::from_fn(|_| words.next().unwrap_or_default()));
                    *(if word == "--mlx5" { &mut options.mlx5 } else { &mut options.verbs }) = names;
                }
                "--cable" => options.cable = words.next(),
                "--json" => options.json = words.next(),
                "--list" => options.list = true,
                "--exact" => options.exact = true,
                "--ignored" => options.ignored = true,
                "--format" | "--test-threads" | "--color" | "--skip" => drop(words.next()),
                flag if flag.starts_with('-') => {}
                _ => options.filters.push(word),
            }
        }
        options
    }

    fn wants(&self, name: &str) -> bool {
        self.filters.is_empty()
            || self.filters.iter().any(|f| if self.exact { f == name } else { name.contains(f.as_str()) })
    }
}

fn pools() -> [Pool; 2] {
    pmd::eal::for_tests();
    let config = PoolConfig { count: 2048, data_room: 4096, cache: 0, socket: -1 };
    ["conformance-0", "conformance-1"].map(|name| Pool::create(name, &config).unwrap())
}

fn run<L: Lab>(lab: &mut L, check: &Check<L>, pools: &[Pool; 2]) -> Outcome {
    let mut sizes = bench::sizes();
    (check.sizes)(&mut sizes);
    let mut bench = Bench::new(lab, &sizes, pools)?;
    let outcome = (check.run)(&mut bench);
    let closed = bench.close();
    outcome.and(closed)
}

/// Results of the checks so far.
#[derive(Default)]
struct Results {
    pools: Option<[Pool; 2]>,
    ok: usize,
    failed: usize,
    reports: Vec<Value>,
}

/// Runs the requested checks of one lab.
fn suite<L: Lab>(lab: &mut L, options: &Options, results: &mut Results) {
    let mut counts = [0; 3];
    for (subject, checks) in checks::all::<L>() {
        // A test runner specifies a subject; a user may specify a check.
        let whole = options.wants(&format!("{}::{subject}", lab.name()));
        for check in checks {
            let name = format!("{subject}: {}", check.name);
            if !whole && (options.exact || !options.wants(&name)) {
                continue;
            }
            let pools = results.pools.get_or_insert_with(pools);
            let start = Instant::now();
            let outcome = run(lab, &check, pools);
            let ms = start.elapsed().as_millis();
            let (kind, word, why) = match &outcome {
                Ok(()) => (0, "ok", String::new()),
                Err(Failure::Wrong(text)) => (1, "FAILED", text.clone()),
                Err(lacks @ Failure::Lacks(..)) => (2, "skipped", lacks.to_string()),
            };
            counts[kind] += 1;
            println!("{word:8}{}  {name} ({ms} ms)", lab.name());
            if !why.is_empty() {
                println!("{:10}{why}", "");
            }
            results.reports.push(json!({
                "device": lab.name(), "subject": subject, "check": check.name, "result": word, "why": why,
                "milliseconds": u64::try_from(ms).unwrap_or(u64::MAX),
            }));
        }
    }
    let [ok, failed, skipped] = counts;
    if counts != [0; 3] {
        println!("{}: {ok} ok, {failed} failed, {skipped} skipped", lab.name());
    }
    results.ok += ok;
    results.failed += failed;
}

/// Runs the checks on the software devices. Those with RoCE ports run only on request, since their namespace
/// applies to the whole process.
fn soft_suites(options: &Options, results: &mut Results) {
    let named = |lab: &str| options.filters.iter().any(|f| f.starts_with(lab));
    if !named("soft::") {
        match roce::Roce::new() {
            Ok(mut lab) => suite(&mut lab, options, results),
            Err(why) => {
                eprintln!("skipped roce  all checks\n          {why}");
                results.ok += usize::from(named("roce::"));
            }
        }
    }
    if !named("roce::") {
        suite(&mut soft::Soft, options, results);
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.list {
        if !options.ignored {
            for (subject, _) in checks::all::<soft::Soft>() {
                println!("soft::{subject}: test\nroce::{subject}: test");
            }
        }
        return ExitCode::SUCCESS;
    }
    let mut results = Results::default();
    match (&options.verbs, &options.mlx5) {
        (Some(names), _) => {
            let mut lab = verbs::Verbs::<Calls>::new(names.clone(), options.cable.clone());
            suite(&mut lab, &options, &mut results);
        }
        (None, Some(names)) => {
            let mut lab = verbs::Verbs::<Rings>::new(names.clone(), options.cable.clone());
            suite(&mut lab, &options, &mut results);
        }
        (None, None) => soft_suites(&options, &mut results),
    }
    if let Some(path) = &options.json {
        std::fs::write(path, Value::from(results.reports).to_string()).unwrap();
    }
    if results.failed == 0 && results.ok > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
