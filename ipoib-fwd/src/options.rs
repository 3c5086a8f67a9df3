//! The program's six command lines. `--help`, the manual pages and the shell completion are generated from
//! them.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Command, CommandFactory as _, Parser};
use dataplane::capture::Bounds;

use crate::{ctl, gids, init, metrics, top};

// Lines of at most 100 columns: this text is shown as it is.
/// Joins an Ethernet network to an InfiniBand fabric: IPv4 between Ethernet frames and IPoIB,
/// datagram and connected mode.
///
/// EAL's arguments come first, the gateway's own after `--`, as with every DPDK program:
///
///   ipoib-fwd -l 0-1 --no-pci --vdev net_af_packet0,iface=eth1 -- --config gateway.toml
///
/// The main lcore is the control lcore, the others forward. Give EAL an allow-list (-a ADDRESS) or
/// --no-pci, or it takes every network card that it can drive.
///
/// Control a running gateway with `ipoib-fwd ctl COMMAND`; `ipoib-fwd ctl help` lists the commands.
/// `ipoib-fwd gids` lists the GID tables of this host's devices and of a gateway's software device.
/// `ipoib-fwd metrics` serves a gateway's metrics to a monitoring system, `ipoib-fwd top` shows
/// them live.
///
/// Before the start: `ipoib-fwd init` writes a first configuration. --check, with the arguments of
/// the start, reports errors and warnings about the configuration, the host and the fabric. It
/// starts and changes nothing. It exits with 0 if it found nothing but notes, 1 with errors, 3 with
/// only warnings, and 2 for an invalid command line. `ipoib-fwd --check --config FILE` skips the
/// checks that depend on EAL's arguments.
#[derive(Parser, Debug)]
#[command(
    name = "ipoib-fwd",
    version,
    override_usage = "ipoib-fwd [EAL ARGUMENTS] -- [OPTIONS]\n       ipoib-fwd [EAL ARGUMENTS --] --check [--json] [--warnings-pass] [OPTIONS]\n       ipoib-fwd init [OPTIONS]\n       ipoib-fwd ctl <COMMAND> [OPTIONS]\n       ipoib-fwd gids [OPTIONS]\n       ipoib-fwd metrics [OPTIONS]\n       ipoib-fwd top [OPTIONS]",
    verbatim_doc_comment
)]
pub struct Options {
    /// Configuration file (TOML). Without it, all values are the defaults of --print-config.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print an annotated configuration with all defaults, and exit.
    #[arg(long)]
    pub print_config: bool,
    /// Report errors and warnings about configuration, host and fabric, and exit: nothing is started or
    /// changed.
    #[arg(long)]
    pub check: bool,
    /// With --check: exit with 0 if there are warnings but no errors, as a service needs that starts
    /// nevertheless.
    #[arg(long, requires = "check")]
    pub warnings_pass: bool,
    /// With --check: print JSON.
    #[arg(long, requires = "check")]
    pub json: bool,
    /// Mode to start in, instead of the file's: connected or datagram.
    #[arg(long, value_name = "MODE")]
    pub mode: Option<config::Mode>,
    /// Idle policy of workers, instead of the file's: poll, pause, or sleep until a port reports a packet.
    #[arg(long, value_name = "POLICY")]
    pub idle: Option<config::Idle>,
    /// Driver of the InfiniBand port, instead of the file's: auto, verbs, mlx5 or soft.
    #[arg(long, value_name = "DRIVER")]
    pub hca_driver: Option<config::Driver>,
    /// Path of the control socket, instead of the file's; empty = none.
    #[arg(long, value_name = "PATH", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub control_socket: Option<PathBuf>,
    /// Print a line of rates every SECONDS, at most 86400; 0 = never.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub stats: Option<u32>,
    /// Write InfiniBand packets to FILE (ERF in pcap; tshark opens it) and Ethernet packets to FILE.eth.pcap.
    /// A full file is followed by FILE.1 and FILE.1.eth.pcap, and so on; the newest of each kind are kept.
    /// Files of these names that an earlier capture has left are deleted at the start. Any other file of
    /// these names is an error, as is a file that another capture has open. A pipe has no limits. `ipoib-fwd
    /// ctl capture` is refused while this option captures everything.
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
    /// With --capture: number of files that are kept, for each kind of packets (1 to 64).
    #[arg(long, value_name = "N", requires = "capture", default_value_t = Bounds::default().files,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(Bounds::MOST_FILES)))]
    pub capture_files: u32,
    /// With --capture: maximum size of a file in bytes (64 KiB to 64 MiB).
    #[arg(long, value_name = "BYTES", requires = "capture", default_value_t = Bounds::default().size,
          value_parser = clap::value_parser!(u64).range(Bounds::LEAST_SIZE..=Bounds::MOST_SIZE))]
    pub capture_size: u64,
    /// Write the counters to FILE as JSON at exit.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Sends a command to a running gateway.
#[derive(Parser, Debug)]
#[command(name = "ipoib-fwd ctl", bin_name = "ipoib-fwd ctl", version)]
pub struct CtlLine {
    /// The command and its options.
    #[command(flatten)]
    pub options: ctl::CtlOptions,
}

/// Lists GID tables, or (--serve) maintains them for all processes of the host.
///
/// The tables of all RDMA devices of this host are read from the kernel, that of a gateway's software device
/// from its control socket. The columns are those of show_gids. Exits with an error if nothing could be
/// listed, or if a table is stale.
#[derive(Parser, Debug)]
#[command(name = "ipoib-fwd gids", bin_name = "ipoib-fwd gids", version)]
pub struct GidsLine {
    /// The tables to list.
    #[command(flatten)]
    pub options: gids::GidsOptions,
}

/// Serves a gateway's metrics over HTTP, in the format of OpenMetrics, for example to Prometheus.
///
/// The metrics are at /metrics, and are those of `ipoib-fwd ctl metrics`. This is a separate process: it may
/// be started and stopped while the gateway runs.
#[derive(Parser, Debug)]
#[command(name = "ipoib-fwd metrics", bin_name = "ipoib-fwd metrics", version)]
pub struct MetricsLine {
    /// The gateway, and the address to serve at.
    #[command(flatten)]
    pub options: metrics::MetricsOptions,
}

/// Shows the state of a running gateway: rates, drops by reason, segments, workers' load, times, connections.
///
/// Needs a terminal of at least 80 columns and 24 lines. ? lists the keys. If the gateway exits, waits for
/// the next one.
#[derive(Parser, Debug)]
#[command(name = "ipoib-fwd top", bin_name = "ipoib-fwd top", version)]
pub struct TopLine {
    /// The gateway, and the period.
    #[command(flatten)]
    pub options: top::TopOptions,
}

/// Writes a first configuration for this host.
///
/// Selects an InfiniBand port, or the software ConnectX if there is none, and an Ethernet port that nothing
/// else needs. It never selects a port by which this host is reached. For each port, the file says why it was
/// or was not selected. EAL's arguments (lcores, memory, the Ethernet port) are in a second file next to it,
/// or follow it as comments. Nothing is overwritten.
#[derive(Parser, Debug)]
#[command(name = "ipoib-fwd init", bin_name = "ipoib-fwd init", version)]
pub struct InitLine {
    /// The output.
    #[command(flatten)]
    pub options: init::InitOptions,
}

/// The program with its subcommands, for shell completion.
#[must_use]
pub fn program() -> Command {
    Options::command().disable_help_subcommand(true).subcommands([
        CtlLine::command().name("ctl"),
        InitLine::command().name("init"),
        GidsLine::command().name("gids"),
        MetricsLine::command().name("metrics"),
        TopLine::command().name("top"),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_control_socket_is_none_and_seconds_have_the_bound_of_their_key() {
        let parse = |words: &[&str]| Options::try_parse_from([&["p"], words].concat());
        assert_eq!(parse(&["--control-socket", ""]).unwrap().control_socket, Some(PathBuf::new()));
        assert_eq!(parse(&["--control-socket=/x"]).unwrap().control_socket, Some("/x".into()));
        assert_eq!(parse(&["--stats", "86400"]).unwrap().stats, Some(86_400));
        let said = parse(&["--stats", "99999"]).unwrap_err().to_string();
        assert!(said.contains("0..=86400"), "{said}");
    }
}
