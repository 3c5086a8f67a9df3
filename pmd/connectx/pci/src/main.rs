//! `softhca`: the software ConnectX as a PCI device.
#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use logging::Log;
use softhca::hca::Hca;
use softhca::lcore;
use softhca::options::Options;
use softhca::serve::{Orders, Server};
use tracing::info;

/// Program name, in the log and before errors.
const PROGRAM: &str = "softhca";

fn main() -> ExitCode {
    let log = Log::start(PROGRAM);
    let outcome = run(&log);
    log.finish();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::tell_failure(PROGRAM, &*error);
            ExitCode::FAILURE
        }
    }
}

fn run(log: &Log) -> Result<(), Box<dyn Error>> {
    let plan = Options::parse().plan()?;
    log.set(plan.log, &plan.log_filter);
    if let Some(core) = plan.lcore {
        lcore::keep_to(core)?;
    }
    for (number, port) in plan.hca.ports() {
        let cable = port.cable.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
        info!("port {}: GUID {}, cable {cable}", number.0, port.guid);
    }
    let orders = Orders::default();
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&orders.stop))?;
    }
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&orders.report))?;
    let mut server = Server::new(&plan.socket, Hca::new(plan.hca)?)?;
    server.report_to(plan.report);
    Ok(server.run(&orders)?)
}
