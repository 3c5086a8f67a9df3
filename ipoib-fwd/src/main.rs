//! `ipoib-fwd`: the gateway, and the client of its control socket.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use ipoib_fwd::{ctl, gateway, gids};

// Lines of at most 100 columns: this text is shown as it stands.
/// Joins an Ethernet network to an InfiniBand fabric: IPv4 between Ethernet frames and IPoIB,
/// datagram and connected mode.
///
/// EAL's arguments come first, the gateway's own after `--`, as with every DPDK program:
///
///     ipoib-fwd -l 0-1 --no-pci --vdev net_af_packet0,iface=eth1 -- --config gateway.toml
///
/// The main lcore controls, the others forward. Give EAL an allow-list (-a ADDRESS) or --no-pci, or
/// it takes every network card that it can drive.
///
/// A running gateway is asked with `ipoib-fwd ctl COMMAND`, of which `ipoib-fwd ctl help` is the list;
/// `ipoib-fwd gids` lists the GID tables of this machine's devices and of a gateway's software one.
#[derive(Parser, Debug)]
#[command(
    name = "ipoib-fwd",
    version,
    override_usage = "ipoib-fwd [EAL ARGUMENTS] -- [OPTIONS]\n       ipoib-fwd ctl <COMMAND> [OPTIONS]\n       ipoib-fwd gids [OPTIONS]",
    verbatim_doc_comment
)]
struct Options {
    /// Configuration file (TOML). Without one all values are the defaults of --print-config.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print an annotated configuration with all defaults, and end.
    #[arg(long)]
    print_config: bool,
    /// Mode to start in, in place of the file's: connected or datagram.
    #[arg(long, value_name = "MODE")]
    mode: Option<config::Mode>,
    /// What an idle worker does, in place of the file's: poll, pause, or sleep until a port tells of a packet.
    #[arg(long, value_name = "POLICY")]
    idle: Option<config::Idle>,
    /// What drives the InfiniBand port, in place of the file's: auto, verbs, mlx5 or soft.
    #[arg(long, value_name = "DRIVER")]
    hca_driver: Option<config::Driver>,
    /// Path of the control socket, in place of the file's; empty = none.
    #[arg(long, value_name = "PATH")]
    control_socket: Option<PathBuf>,
    /// Print a line of rates every SECONDS.
    #[arg(long, value_name = "SECONDS")]
    stats: Option<u32>,
    /// Write InfiniBand packets to FILE (ERF in pcap; tshark opens it) and Ethernet packets to FILE.eth.pcap.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Write what was counted to FILE as JSON at the end.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// `ipoib-fwd ctl`: asks a running gateway.
#[derive(Parser, Debug)]
#[command(name = "ipoib-fwd ctl", bin_name = "ipoib-fwd ctl", version)]
struct CtlLine {
    #[command(flatten)]
    options: ctl::CtlOptions,
}

/// `ipoib-fwd gids`: lists GID tables.
///
/// Those of all RDMA devices of this machine are read from the kernel; that of a gateway's software device from its control
/// socket. The columns are those of show_gids. Ends with an error where nothing could be listed, or what was listed is stale.
#[derive(Parser, Debug)]
#[command(name = "ipoib-fwd gids", bin_name = "ipoib-fwd gids", version)]
struct GidsLine {
    #[command(flatten)]
    options: gids::GidsOptions,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("ctl") => run_ctl(&arguments),
        Some("gids") => run_gids(&arguments),
        Some("-h" | "--help" | "-V" | "--version" | "--print-config") => {
            run_gateway(vec![arguments[0].clone(), "--".to_owned(), arguments[1].clone()])
        }
        _ => run_gateway(arguments),
    }
}

fn run_ctl(arguments: &[String]) -> ExitCode {
    let line = CtlLine::try_parse_from(arguments.iter().skip(1))
        .unwrap_or_else(|error| ipoib_fwd::command::with_nearest(error).exit());
    match ctl::run(&line.options) {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(e) => fail(&e),
    }
}

fn run_gids(arguments: &[String]) -> ExitCode {
    let line = GidsLine::parse_from(arguments.iter().skip(1));
    let warn = |error: &dyn std::error::Error| {
        fail(error);
    };
    match gids::run(&line.options, warn) {
        Ok(()) => ExitCode::SUCCESS,
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
    let overrides = config::Overrides {
        mode: options.mode,
        idle: options.idle,
        driver: options.hca_driver,
        control_socket: options.control_socket,
        stats_seconds: options.stats,
    };
    let start = gateway::Start {
        line,
        file: options.config,
        overrides,
        capture: options.capture,
        log: ipoib_fwd::log::Log::start(),
    };
    let outcome = start.run();
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
    // A reader that has gone away is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// One error with its causes, on one line each.
fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("ipoib-fwd: {error}");
    let mut cause = error.source();
    while let Some(e) = cause {
        eprintln!("  because: {e}");
        cause = e.source();
    }
    ExitCode::FAILURE
}
