//! `ibfab`: the software InfiniBand fabric.
#![forbid(unsafe_code)]

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use ibfab::arguments::{Arguments, Sm};
use ibfab::fabric::Management;
use ibfab::program::{Options, Program, ProgramError};
use tracing_subscriber::EnvFilter;

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
