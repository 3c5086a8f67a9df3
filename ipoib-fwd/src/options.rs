//! The program's six command lines. `--help`, the manual pages and what shells complete are made from them.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Command, CommandFactory as _, Parser};
use dataplane::capture::Bounds;

use crate::{ctl, gids, init, metrics, top};

// Lines of at most 100 columns: this text is shown as it stands.
/// Joins an Ethernet network to an InfiniBand fabric: IPv4 between Ethernet frames and IPoIB,
/// datagram and connected mode.
///
/// EAL's arguments come first, the gateway's own after `--`, as with every DPDK program:
///
///   ipoib-fwd -l 0-1 --no-pci --vdev net_af_packet0,iface=eth1 -- --config gateway.toml
///
/// The main lcore controls, the others forward. Give EAL an allow-list (-a ADDRESS) or --no-pci, or
/// it takes every network card that it can drive.
///
/// A running gateway is asked with `ipoib-fwd ctl COMMAND`, of which `ipoib-fwd ctl help` is the list;
/// `ipoib-fwd gids` lists the GID tables of this machine's devices and of a gateway's software one,
/// `ipoib-fwd metrics` serves a gateway's figures to a monitoring system, `ipoib-fwd top` shows them live.
///
/// Before the start: `ipoib-fwd init` writes a first configuration, and --check, with the arguments of the
/// start, tells what is wrong or unwise in configuration, machine and fabric. It starts and changes nothing,
/// and ends with 0 if it found nothing but notes, 1 with errors, 3 with warnings alone (2: a command line
/// that is not understood). `ipoib-fwd --check --config FILE` leaves out what EAL's arguments decide.
#[derive(Parser, Debug)]
#[command(
    name = "ipoib-fwd",
    version,
    override_usage = "ipoib-fwd [EAL ARGUMENTS] -- [OPTIONS]\n       ipoib-fwd [EAL ARGUMENTS --] --check [--json] [--warnings-pass] [OPTIONS]\n       ipoib-fwd init [OPTIONS]\n       ipoib-fwd ctl <COMMAND> [OPTIONS]\n       ipoib-fwd gids [OPTIONS]\n       ipoib-fwd metrics [OPTIONS]\n       ipoib-fwd top [OPTIONS]",
    verbatim_doc_comment
)]
pub struct Options {
    /// Configuration file (TOML). Without one all values are the defaults of --print-config.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print an annotated configuration with all defaults, and end.
    #[arg(long)]
    pub print_config: bool,
    /// Tell what is wrong or unwise in configuration, machine and fabric, and end: nothing is started or changed.
    #[arg(long)]
    pub check: bool,
    /// With --check: end with 0 where there are warnings and no errors, as a service wants it that is to start then.
    #[arg(long, requires = "check")]
    pub warnings_pass: bool,
    /// With --check: as JSON.
    #[arg(long, requires = "check")]
    pub json: bool,
    /// Mode to start in, in place of the file's: connected or datagram.
    #[arg(long, value_name = "MODE")]
    pub mode: Option<config::Mode>,
    /// What an idle worker does, in place of the file's: poll, pause, or sleep until a port tells of a packet.
    #[arg(long, value_name = "POLICY")]
    pub idle: Option<config::Idle>,
    /// What drives the InfiniBand port, in place of the file's: auto, verbs, mlx5 or soft.
    #[arg(long, value_name = "DRIVER")]
    pub hca_driver: Option<config::Driver>,
    /// Path of the control socket, in place of the file's; empty = none.
    #[arg(long, value_name = "PATH", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub control_socket: Option<PathBuf>,
    /// Print a line of rates every SECONDS, at most 86400; 0 = never.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub stats: Option<u32>,
    /// Write InfiniBand packets to FILE (ERF in pcap; tshark opens it) and Ethernet packets to FILE.eth.pcap. A file that
    /// is full is followed by FILE.1 and FILE.1.eth.pcap, and so on; the newest of each kind are kept. What an earlier capture has
    /// left of these names goes at the start; anything else of them is an error, as is what another capture has open. A pipe has no
    /// bounds. `ipoib-fwd ctl capture` is refused while this captures all.
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
    /// With --capture: files that are kept, of each kind of packets (1 to 64).
    #[arg(long, value_name = "N", requires = "capture", default_value_t = Bounds::default().files,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(Bounds::MOST_FILES)))]
    pub capture_files: u32,
    /// With --capture: bytes of a file, at most (64 KiB to 64 MiB).
    #[arg(long, value_name = "BYTES", requires = "capture", default_value_t = Bounds::default().size,
          value_parser = clap::value_parser!(u64).range(Bounds::LEAST_SIZE..=Bounds::MOST_SIZE))]
    pub capture_size: u64,
    /// Write what was counted to FILE as JSON at the end.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Asks a running gateway.
#[derive(Parser, Debug)]
#[command(name = "ipoib-fwd ctl", bin_name = "ipoib-fwd ctl", version)]
pub struct CtlLine {
    /// What is asked, and how.
    #[command(flatten)]
    pub options: ctl::CtlOptions,
}

/// Lists GID tables, or (--serve) keeps them for all processes of the machine.
///
/// Those of all RDMA devices of this machine are read from the kernel; that of a gateway's software device from its control
/// socket. The columns are those of show_gids. Ends with an error where nothing could be listed, or what was listed is stale.
#[derive(Parser, Debug)]
#[command(name = "ipoib-fwd gids", bin_name = "ipoib-fwd gids", version)]
pub struct GidsLine {
    /// What is listed.
    #[command(flatten)]
    pub options: gids::GidsOptions,
}

/// Serves a gateway's figures over HTTP, in the format of OpenMetrics, to Prometheus for instance.
///
/// They are at /metrics, and those that `ipoib-fwd ctl metrics` prints. A process of its own: it may end and begin while the gateway runs.
#[derive(Parser, Debug)]
#[command(name = "ipoib-fwd metrics", bin_name = "ipoib-fwd metrics", version)]
pub struct MetricsLine {
    /// Of which gateway, and where.
    #[command(flatten)]
    pub options: metrics::MetricsOptions,
}

/// Shows what a running gateway does: rates, drops by reason, segments, workers' load, times, connections.
///
/// In a terminal of 80 columns and 24 lines or more. ? tells the keys. A gateway that ends is waited for.
#[derive(Parser, Debug)]
#[command(name = "ipoib-fwd top", bin_name = "ipoib-fwd top", version)]
pub struct TopLine {
    /// Of which gateway, and how often.
    #[command(flatten)]
    pub options: top::TopOptions,
}

/// Writes a first configuration from what the machine has.
///
/// It takes an InfiniBand port, or the software ConnectX where there is none, and an Ethernet port that nothing else needs, never
/// one by which this machine is reached; of each port the file says why it was or was not taken. EAL's arguments (lcores, memory, the Ethernet
/// port) are in a second file beside it, or behind it as comments. Nothing is overwritten.
#[derive(Parser, Debug)]
#[command(name = "ipoib-fwd init", bin_name = "ipoib-fwd init", version)]
pub struct InitLine {
    /// Where to.
    #[command(flatten)]
    pub options: init::InitOptions,
}

/// The program with its subcommands, as a shell completes it.
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
