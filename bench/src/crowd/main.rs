//! Many IPoIB hosts on one port of a fabric, as far as communication management and ARP can tell: they accept a connection each, and open
//! one each, and it is told how long that takes (`scripts/bench gateway-connections`). On request they end them, come again with other
//! addresses, and answer what comes by connections (`scripts/soak crowd`).
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
/// Tells on lines of JSON what it does: {"stage":"known"} when the gateway knows all hosts, and now is to send a packet to each;
/// {"stage":"active"} with the number and the seconds of connections that the gateway made; {"stage":"passive"} with those of connections
/// that it accepted. Then it waits until its input ends.
///
/// With --orders queue pairs are made for connections, and an IPv4 packet that comes by one goes back to its sender by the one that its host
/// has opened. Words on lines of the input are orders then, each with a line when it is carried out: "end", the hosts end all connections, and
/// take no others; "leave", they end those that they have opened, and wait until the gateway has ended its own ({"stage":"ended"}, with the
/// number of both); "again", all hosts change over to another link-layer address ({"stage":"known"}), what there was with the old ones is left
/// ("ended"), and all begins anew; {"stage":"missing","hosts":[...]} says meanwhile whom a packet did not come to; "count" tells how many
/// packets were answered, and how many connections the gateway has ended ({"stage":"count"}).
#[derive(Debug, Parser)]
#[command(name = "ibcrowd", verbatim_doc_comment)]
struct Options {
    /// Port of the fabric, as shm:SOCKET.
    #[arg(long, value_name = "URL")]
    link: CableUrl,
    /// Hosts.
    #[arg(long, default_value_t = 2000, value_parser = parse_hosts)]
    hosts: usize,
    /// IP address of the first; the others' follow.
    #[arg(long, value_name = "IP")]
    first: Ipv4Addr,
    /// Address that they ask the gateway for.
    #[arg(long, value_name = "IP")]
    target: Ipv4Addr,
    /// Link-layer address of the gateway's worker.
    #[arg(long, value_name = "ADDRESS", value_parser = hosts::parse_hardware)]
    gateway: HardwareAddress,
    /// LID of its port.
    #[arg(long, value_name = "LID")]
    gateway_lid: u16,
    /// Make queue pairs for connections, and take orders from the input.
    #[arg(long)]
    orders: bool,
    /// Where numbers are drawn from.
    #[arg(long, default_value_t = std::hash::RandomState::new().build_hasher().finish())]
    seed: u64,
}

fn parse_hosts(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| (1..=8000).contains(n));
    number.ok_or_else(|| "there may be 1 to 8000 hosts".to_owned())
}

/// Why it ended early.
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
    #[error("no place for a queue pair")]
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
    // The connections stay while somebody looks at them.
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

/// The lines of the input, for as long as there are any.
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

/// Makes connections of both kinds.
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
