//! `ipoib-fwd`: the gateway, and the client of its control socket.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use dataplane::capture::Bounds;
use ipoib_fwd::options::{CtlLine, GidsLine, InitLine, MetricsLine, Options, TopLine};
use ipoib_fwd::{check, ctl, gateway, gids, init, metrics, terminal, top};
use logging::{Log, is_journal};
use preflight::Severity;

/// The program's name in the log and in error messages.
const PROGRAM: &str = "ipoib-fwd";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match arguments.get(1).and_then(|word| word.to_str()) {
        Some("ctl") => run_ctl(&arguments),
        Some("gids") => run_gids(&arguments),
        Some("init") => run_init(&arguments),
        Some("metrics") => run_metrics(&arguments),
        Some("top") => run_top(&arguments),
        _ => match utf8(arguments) {
            Ok(arguments) => run_forwarder(arguments),
            Err(e) => fail(&e),
        },
    }
}

/// An argument that is not UTF-8.
#[derive(Debug, thiserror::Error)]
#[error(
    "argument {number}, {shown}, is not UTF-8, and EAL and the gateway take UTF-8 arguments only: rename the file, or name another one"
)]
struct NotUtf8 {
    number: usize,
    shown: String,
}

/// The arguments as text.
fn utf8(arguments: Vec<OsString>) -> Result<Vec<String>, NotUtf8> {
    let text = |(number, word): (usize, OsString)| {
        word.into_string().map_err(|word| NotUtf8 { number, shown: format!("{word:?}") })
    };
    arguments.into_iter().enumerate().map(text).collect()
}

/// `--check`, or the gateway.
fn run_forwarder(arguments: Vec<String>) -> ExitCode {
    match arguments.get(1).map(String::as_str) {
        Some("-h" | "--help" | "-V" | "--version" | "--print-config") => {
            run_gateway(vec![arguments[0].clone(), "--".to_owned(), arguments[1].clone()])
        }
        _ => match check::own_arguments(&arguments) {
            Some(own) => run_check(&arguments, &own),
            None => run_gateway(arguments),
        },
    }
}

fn run_check(arguments: &[String], own: &[String]) -> ExitCode {
    let options = Options::parse_from(arguments.iter().take(1).chain(own));
    let overrides = overrides(&options);
    let report = check::run(arguments, options.config.as_deref(), &overrides);
    print(&if options.json {
        format!("{:#}\n", report.json())
    } else if is_journal(std::io::stdout()) {
        report.journal_text()
    } else {
        report.text(terminal::is_coloured())
    });
    let passes = options.warnings_pass && report.count(Severity::Error) == 0;
    if passes { ExitCode::SUCCESS } else { ExitCode::from(report.exit_code()) }
}

fn run_init(arguments: &[OsString]) -> ExitCode {
    let line = InitLine::parse_from(arguments.iter().skip(1));
    match init::run(&line.options) {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(e) => fail(&e),
    }
}

/// The values of the command line that override the file.
fn overrides(options: &Options) -> config::Overrides {
    config::Overrides {
        mode: options.mode,
        idle: options.idle,
        driver: options.hca_driver,
        control_socket: options.control_socket.clone(),
        stats_seconds: options.stats,
    }
}

fn run_ctl(arguments: &[OsString]) -> ExitCode {
    let line = CtlLine::try_parse_from(arguments.iter().skip(1))
        .unwrap_or_else(|error| ipoib_fwd::command::with_nearest(error).exit());
    match ctl::run(&line.options, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            fail(&e);
            ExitCode::from(e.exit_code())
        }
    }
}

fn run_gids(arguments: &[OsString]) -> ExitCode {
    let line = GidsLine::parse_from(arguments.iter().skip(1));
    if line.options.serving.serve {
        let log = Log::start(PROGRAM);
        let outcome = gids::serve::run(&line.options.serving);
        log.finish();
        return match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => fail(&e),
        };
    }
    let warn = |error: &dyn std::error::Error| {
        fail(error);
    };
    match gids::run(&line.options, warn) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail(&e),
    }
}

fn run_metrics(arguments: &[OsString]) -> ExitCode {
    let line = MetricsLine::parse_from(arguments.iter().skip(1));
    let log = Log::start(PROGRAM);
    let outcome = metrics::run(&line.options);
    log.finish();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail(&e),
    }
}

fn run_top(arguments: &[OsString]) -> ExitCode {
    let line = TopLine::parse_from(arguments.iter().skip(1));
    match top::run(&line.options) {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(e) => fail(&e),
    }
}

fn run_gateway(arguments: Vec<String>) -> ExitCode {
    let line = match config::CommandLine::parse(arguments) {
        Ok(line) => line,
        Err(e) => return fail(&e),
    };
    let options = Options::parse_from(std::iter::once(line.program.clone()).chain(line.own.iter().cloned()));
    if options.print_config {
        print(&config::Config::annotated_default());
        return ExitCode::SUCCESS;
    }
    let overrides = overrides(&options);
    let log = Log::start(PROGRAM);
    let start = gateway::Start {
        line,
        file: options.config,
        overrides,
        capture: options.capture,
        capture_bounds: Bounds { files: options.capture_files, size: options.capture_size },
        log: log.clone(),
    };
    let outcome = start.run();
    log.finish();
    match outcome {
        Ok(report) => {
            print(&report.text());
            match options.report.map(|file| report.write(&file)) {
                Some(Err(e)) => fail(&e),
                _ => report.failure().map_or(ExitCode::SUCCESS, |e| fail(e)),
            }
        }
        Err(e) => fail(&e),
    }
}

fn print(text: &str) {
    use std::io::Write as _;
    // A closed pipe is not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Prints an error and its causes, on one line each.
fn fail(error: &dyn std::error::Error) -> ExitCode {
    logging::tell_failure(PROGRAM, error);
    ExitCode::FAILURE
}
