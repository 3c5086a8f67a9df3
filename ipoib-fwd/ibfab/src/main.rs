//! `ibfab`: the software InfiniBand fabric.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use dataplane::capture::Bounds;
use ibfab::arguments::{Arguments, Sm};
use ibfab::check;
use ibfab::fabric::Management;
use ibfab::program::{Options, Program, ProgramError};
use logging::Log;

/// The program's name, in the log and before errors.
const PROGRAM: &str = "ibfab";

fn main() -> ExitCode {
    let log = Log::start(PROGRAM);
    let outcome = run(log.clone());
    log.finish();
    match outcome {
        Ok(code) => code,
        Err(error) => {
            logging::tell_failure(PROGRAM, &error);
            ExitCode::FAILURE
        }
    }
}

fn run(log: Log) -> Result<ExitCode, ProgramError> {
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
        return Ok(ExitCode::SUCCESS);
    }
    let Some(file) = arguments.config else { return Ok(ExitCode::SUCCESS) };
    check::eal_arguments(&eal)?;
    let config = ibfab::config::FabricConfig::load(&file)?;
    let management = match arguments.sm {
        Sm::Embedded => Management::Embedded,
        Sm::None => Management::Elsewhere,
    };
    if arguments.check {
        let warnings = check::warnings(&config, management);
        // A failure to write does not matter: the exit code also has the result.
        let _ = std::io::stdout().write_all(check::report(&warnings).as_bytes());
        return Ok(if warnings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(check::WARNINGS) });
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(ProgramError::Signals)?;
    }
    let reload = Arc::new(AtomicBool::new(false));
    let hangup = signal_hook::consts::SIGHUP;
    signal_hook::flag::register(hangup, Arc::clone(&reload)).map_err(ProgramError::Signals)?;
    let Arguments { capture, stats, capture_files, capture_size, .. } = arguments;
    let capture_bounds = Bounds { files: capture_files, size: capture_size };
    let options =
        Options { eal, capture, capture_bounds, stats, config: Some(file), management, log: Some(log) };
    Program::start(&config, options)?.run(&stop, &reload)?;
    Ok(ExitCode::SUCCESS)
}
