//! Simulates many IPoIB hosts on one port of a fabric, for communication management and ARP: they accept and
//! open one connection each, and the program reports the time (`scripts/bench gateway-connections`). On
//! request they close them, return with other addresses, and answer packets on connections (`scripts/soak
//! crowd`).
#![forbid(unsafe_code)]

mod connections;
mod hosts;
mod pairs;

use std::hash::{BuildHasher, Hasher};
use std::io::{BufRead as _, Write as _};
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use clap::Parser;
use connectx::cable::{CableError, CableUrl};
use ib_wire::ipoib::HardwareAddress;
use pmd::eal::{Eal, EalError};
use pmd::hca::HcaError;
use pmd::mem::{Pool, PoolConfig, PoolError};

use connections::{Made, Which};
use hosts::Hosts;

/// Many IPoIB hosts on one port of a fabric, each with a connection to the gateway and one from it.
///
/// Reports its progress as lines of JSON. {"stage":"known"}: the gateway knows all hosts, and must now send a
/// packet to each. {"stage":"active"}: number and seconds of the connections that the gateway opened.
/// {"stage":"passive"}: the same for those that it accepted. Then the program waits for the end of its input.
///
/// With --orders, connections have queue pairs, and each host returns an IPv4 packet by the connection that
/// it has opened. Lines of the input are orders, each with a line of output when it is done:
///
/// "end": the hosts close all connections, and accept no others.
///
/// "leave": the hosts close the connections that they have opened, and wait until the gateway has closed its
/// own. The output is {"stage":"ended"}, with the number of both.
///
/// "again": all hosts switch to another link-layer address ({"stage":"known"}), drop their old connections
/// ({"stage":"ended"}), and start again. Meanwhile, {"stage":"missing","hosts":[...]} lists hosts that
/// received no packet.
///
/// "count": the output is {"stage":"count"}, with the number of answered packets, and of connections that the
/// gateway has closed.
#[derive(Debug, Parser)]
#[command(name = "ibcrowd", verbatim_doc_comment)]
struct Options {
    /// Port of the fabric, as shm:SOCKET.
    #[arg(long, value_name = "URL")]
    link: CableUrl,
    /// Number of hosts.
    #[arg(long, default_value_t = 2000, value_parser = parse_hosts)]
    hosts: usize,
    /// IP address of the first host; the others follow.
    #[arg(long, value_name = "IP")]
    first: Ipv4Addr,
    /// Address that they query from the gateway.
    #[arg(long, value_name = "IP")]
    target: Ipv4Addr,
    /// Link-layer address of the gateway's worker.
    #[arg(long, value_name = "ADDRESS", value_parser = hosts::parse_hardware)]
    gateway: HardwareAddress,
    /// LID of its port.
    #[arg(long, value_name = "LID")]
    gateway_lid: u16,
    /// Create queue pairs for connections, and read orders from the input.
    #[arg(long)]
    orders: bool,
    /// Seed of random numbers.
    #[arg(long, default_value_t = std::hash::RandomState::new().build_hasher().finish())]
    seed: u64,
}

fn parse_hosts(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| (1..=8000).contains(n));
    number.ok_or_else(|| "there may be 1 to 8000 hosts".to_owned())
}

/// Reason of a failure.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Eal(#[from] EalError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Cable(#[from] CableError),
    #[error(transparent)]
    Hca(#[from] HcaError),
    #[error(transparent)]
    Table(#[from] cm::connection::TableError),
    #[error("no slot for a queue pair")]
    Slot,
    #[error("the pool is empty")]
    Empty,
    #[error("the subnet manager has not made the port active: is ibfab there?")]
    Down,
    #[error("the gateway has answered {0} of {1} hosts")]
    Unknown(usize, usize),
    #[error("{made} of {all} connections {whose} came to be: {why}")]
    Missing { made: usize, all: usize, whose: &'static str, why: String },
    #[error("{0} connections have not ended")]
    Left(usize),
    #[error("there is no order `{0}`")]
    Order(String),
    #[error("its output")]
    Output(#[from] std::io::Error),
}

fn say(line: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn tell(stage: &str, made: &Made) -> Result<(), Error> {
    let seconds = made.time.as_secs_f64();
    say(&format!(r#"{{"stage":"{stage}","connections":{},"seconds":{seconds}}}"#, made.connections))
}

fn run(options: &Options) -> Result<(), Error> {
    let words = ["ibcrowd", "--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--no-shconf"];
    let lcores = std::thread::available_parallelism().map_or(1, usize::from) - 1;
    let rest = ["--log-level=error".to_owned(), "--lcores".to_owned(), format!("0@(0-{lcores})")];
    let _eal = Eal::init(words.into_iter().map(str::to_owned).chain(rest))?;
    let config = PoolConfig { count: 32 * 1024, data_room: 2048, cache: 0, socket: -1 };
    let mut hosts = Hosts::new(options, Pool::create("crowd", &config)?)?;
    hosts.introduce()?;
    say(r#"{"stage":"known"}"#)?;
    connect(&mut hosts, options.orders)?;
    // The connections stay open for inspection.
    let input = input();
    loop {
        match input.try_recv() {
            Ok(order) if options.orders => obey(&mut hosts, order.trim())?,
            Ok(_) => {}
            Err(TryRecvError::Empty) => hosts.turn()?,
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
    }
}

/// The lines of the input until its end.
fn input() -> Receiver<String> {
    let (lines, read) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    read
}

/// Opens connections in both directions.
fn connect(hosts: &mut Hosts, with_missing: bool) -> Result<(), Error> {
    let missing = |which: &[usize]| {
        if with_missing { say(&format!(r#"{{"stage":"missing","hosts":{which:?}}}"#)) } else { Ok(()) }
    };
    tell("active", &hosts.listen(missing)?)?;
    tell("passive", &hosts.dial()?)
}

fn obey(hosts: &mut Hosts, order: &str) -> Result<(), Error> {
    match order {
        "end" => tell("ended", &hosts.end(Which::All)?),
        "leave" => tell("ended", &hosts.end(Which::Ours)?),
        "again" => {
            hosts.forget_round();
            hosts.change()?;
            say(r#"{"stage":"known"}"#)?;
            tell("ended", &hosts.end(Which::Old)?)?;
            connect(hosts, true)
        }
        "count" => {
            let (answered, lost) = (hosts.connections.answered, hosts.connections.lost);
            say(&format!(r#"{{"stage":"count","answered":{answered},"lost":{lost}}}"#))
        }
        other => Err(Error::Order(other.to_owned())),
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ibcrowd: {error}");
            ExitCode::FAILURE
        }
    }
}
