//! `ibfab`: the software InfiniBand fabric.
#![forbid(unsafe_code)]

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use ibfab::fabric::Management;
use ibfab::program::{Options, Program, ProgramError};
use tracing_subscriber::EnvFilter;

/// A software InfiniBand fabric: switches with subnet manager and administration, links for others, and virtual hosts
/// with TUN interfaces that speak IPoIB.
///
/// EAL arguments may come first, with `--` behind them; without any, ibfab needs neither hugepages nor devices.
///
/// SIGHUP makes it read its configuration again and take the subnet's prefix, the partitions and whether trunks are
/// plugged in from it.
#[derive(Parser, Debug)]
#[command(version, override_usage = "ibfab [EAL ARGUMENTS --] --config FILE [OPTIONS]")]
struct Arguments {
    /// The fabric's configuration (TOML).
    #[arg(long, value_name = "FILE", required_unless_present = "print_config")]
    config: Option<PathBuf>,
    /// Print a configuration with every key, its default and what it means, and end.
    #[arg(long)]
    print_config: bool,
    /// Write every packet that crosses a port of the switch to FILE (pcap with ERF records, which tshark reads).
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Print statistics every so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    stats: Option<u32>,
    /// Who manages the subnet: "embedded", ibfab itself; "none", somebody else at one of its links, OpenSM for instance. Then the switches
    /// wait for LIDs, routes, groups and partitions, which nobody reads from the configuration.
    #[arg(long, value_name = "WHO", default_value = "embedded")]
    sm: Sm,
}

/// Who manages the subnet.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Sm {
    Embedded,
    None,
}

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ibfab: {error}");
            let mut cause = std::error::Error::source(&error);
            while let Some(error) = cause {
                eprintln!("  because: {error}");
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), ProgramError> {
    let mut own: Vec<String> = std::env::args().collect();
    let mut eal = Vec::new();
    if let Some(at) = own.iter().position(|a| a == "--") {
        let behind = own.split_off(at + 1);
        own.pop();
        eal = own.split_off(1);
        own.extend(behind);
    }
    let arguments = Arguments::parse_from(own);
    if arguments.print_config {
        print!("{}", ibfab::config::print());
        return Ok(());
    }
    let Some(file) = arguments.config else { return Ok(()) };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(ProgramError::Signals)?;
    }
    let reload = Arc::new(AtomicBool::new(false));
    let hangup = signal_hook::consts::SIGHUP;
    signal_hook::flag::register(hangup, Arc::clone(&reload)).map_err(ProgramError::Signals)?;
    let config = ibfab::config::FabricConfig::load(&file)?;
    let management = match arguments.sm {
        Sm::Embedded => Management::Embedded,
        Sm::None => Management::Elsewhere,
    };
    let Arguments { capture, stats, .. } = arguments;
    let options = Options { eal, capture, stats, config: Some(file), management };
    Program::start(&config, options)?.run(&stop, &reload)
}
