//! `softhca`: the software ConnectX as a PCI device.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use softhca::hca::Hca;
use softhca::lcore;
use softhca::options::Options;
use softhca::serve::{Orders, Server};
use tracing::info;
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
            eprintln!("softhca: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let plan = Options::parse().plan()?;
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
