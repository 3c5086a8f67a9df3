//! The other end of `ibv_rc_pingpong`, `ibv_srq_pingpong` and `ibv_ud_pingpong` of rdma-core, on a software
//! ConnectX whose port speaks RoCEv2 on a network interface: real RDMA programs on real or soft HCAs against
//! this device and its driver.
#![forbid(unsafe_code)]

mod device;
mod exchange;
mod game;

use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use connectx::cable::CableUrl;
use ib_wire::{Mtu, Qpn};
use pmd::eal::{Eal, EalError};
use pmd::gids::DEFAULT_DIRECTORY;
use pmd::hca::{HcaError, PostError, WcStatus};
use pmd::mem::{Pool, PoolConfig, PoolError};
use pmd::soft::{RoceError, RoceGids};

use device::{Attendant, DeviceConfig, End};
use exchange::Address;
use game::{Role, Rules};

/// Queue pairs in the messages of `ibv_srq_pingpong`, used or not.
const SRQ_ADDRESSES: usize = 256;
const DATA_ROOM: u16 = 4096;

/// The program at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Mode {
    /// ibv_rc_pingpong: one connection.
    Rc,
    /// ibv_srq_pingpong: connections that share a receive queue.
    Srq,
    /// ibv_ud_pingpong: datagrams.
    Ud,
}

/// Plays with ibv_rc_pingpong, ibv_srq_pingpong or ibv_ud_pingpong, on a software ConnectX that speaks
/// RoCEv2.
///
/// Example, with an RDMA device at the other end of the wire of eth1, whose address is 10.0.0.1:
///
///     ibpingpong rc --link roce:eth1 --address 10.0.0.2 --gid-index 1 10.0.0.1
#[derive(Debug, Parser)]
#[command(name = "ibpingpong", verbatim_doc_comment)]
struct Options {
    /// The program at the other end.
    mode: Mode,
    /// Host of the server; without it, this end is the server.
    host: Option<String>,
    /// The interface, as roce:INTERFACE, with faults to inject as roce:INTERFACE?loss=0.01&seed=7.
    #[arg(long, value_name = "URL")]
    link: CableUrl,
    /// IP address of the device, which the kernel must not have; may be repeated. The addresses are entries 1
    /// and up of the GID table.
    #[arg(long, value_name = "IP")]
    address: Vec<IpAddr>,
    /// Take the GIDs from the table that `ipoib-fwd gids --serve --roce INTERFACE` keeps in this directory,
    /// /run/ipoib-gids if none is named: the addresses are then those that the kernel has.
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = DEFAULT_DIRECTORY, conflicts_with = "address")]
    gids_from: Option<PathBuf>,
    /// Entry of the GID table to use; 0 is link-local.
    #[arg(short, long, default_value_t = 0, value_name = "INDEX")]
    gid_index: u8,
    /// TCP port of the address exchange.
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    /// Bytes of a message.
    #[arg(short, long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=65536))]
    size: u32,
    /// Messages in each direction.
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    iters: u64,
    /// Path MTU of connections: 256, 512, 1024, 2048 or 4096.
    #[arg(short, long, default_value = "1024", value_parser = parse_mtu)]
    mtu: Mtu,
    /// Queue pairs (srq).
    #[arg(short = 'q', long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=16))]
    num_qp: u16,
    /// Return received messages instead of checking our own: for the other end of another ibpingpong.
    #[arg(long)]
    echo: bool,
    /// Poll without sleeping.
    #[arg(long)]
    poll: bool,
    /// Timeout of the other end in seconds.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    patience: u64,
    /// Milliseconds to acknowledge after the end.
    #[arg(long, default_value_t = 700, value_name = "MS")]
    linger: u64,
    /// Seed of contents and numbers.
    #[arg(long)]
    seed: Option<u64>,
}

fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let known = (1..=5).filter_map(Mtu::from_code);
    let found = known.into_iter().find(|mtu| mtu.bytes().to_string() == text);
    found.ok_or_else(|| "an MTU is 256, 512, 1024, 2048 or 4096".to_owned())
}

/// Reason of a failure.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Eal(#[from] EalError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Roce(#[from] RoceError),
    #[error(transparent)]
    Hca(#[from] HcaError),
    #[error("the exchange of addresses failed")]
    Exchange(#[from] std::io::Error),
    #[error(
        "entry {0} of the GID table is empty: give the device an --address for it, or its interface one with --gids-from"
    )]
    GidIndex(u8),
    #[error(
        "the interface's MTU allows packets of {0} bytes only; raise it, or choose a smaller --mtu or --size"
    )]
    Mtu(usize),
    #[error("no slot for a queue pair")]
    Slot,
    #[error("a send was refused")]
    Post(#[source] PostError),
    #[error("the pool is empty")]
    Empty,
    #[error("a message on queue pair {0}, which is none of ours")]
    Stranger(Qpn),
    #[error("a message of {got} bytes, not {want}")]
    Length { got: usize, want: usize },
    #[error("a datagram whose GRH area does not name both ends")]
    Header,
    #[error("message {0} did not come back as it went")]
    Content(u64),
    #[error("queue pair {0}: {1:?}")]
    Fault(Qpn, WcStatus),
    #[error("silence: {received} messages came, {sent} sends are done")]
    Silence { received: u64, sent: u64 },
}

/// Processors that this process may use, as an argument of EAL.
fn processors() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map(str::trim).filter(|list| !list.is_empty()).unwrap_or("0").to_owned()
}

fn run(options: &Options) -> Result<(), Error> {
    let words = ["ibpingpong", "--no-huge", "-m", "96", "--no-pci", "--no-telemetry", "--no-shconf"];
    let rest = ["--log-level=error".to_owned(), "--lcores".to_owned(), format!("0@({})", processors())];
    let _eal = Eal::init(words.into_iter().map(str::to_owned).chain(rest))?;
    let pool =
        Pool::create("messages", &PoolConfig { count: 4096, data_room: DATA_ROOM, cache: 0, socket: -1 })?;
    let seed = options.seed.unwrap_or_else(|| std::hash::RandomState::new().build_hasher().finish());
    let queue_pairs = if options.mode == Mode::Srq { options.num_qp } else { 1 };
    let mut end = End::new(
        DeviceConfig {
            link: options.link.clone(),
            gids: options
                .gids_from
                .clone()
                .map_or_else(|| RoceGids::Addresses(options.address.clone()), RoceGids::Served),
            gid_index: options.gid_index,
            mode: options.mode,
            queue_pairs,
            size: options.size as usize,
            mtu: options.mtu,
            seed,
        },
        &pool,
    )?;
    let ours = end.addresses()?;
    let players = ours.len();
    let mut told = ours.clone();
    if options.mode == Mode::Srq {
        told.resize(SRQ_ADDRESSES, Address::NONE);
    }
    for address in &ours {
        println!("local   {address}");
    }
    let attendant = Attendant::of(&end);
    let mut ready = |theirs: &[Address]| {
        for address in theirs.iter().take(players) {
            println!("remote  {address}");
        }
        end.ready(&ours, theirs)
    };
    match &options.host {
        Some(host) => {
            let theirs = exchange::connect(host, options.port, &told)?;
            ready(&theirs)?;
        }
        None => {
            let listener = TcpListener::bind(("::", options.port))
                .or_else(|_| TcpListener::bind(("0.0.0.0", options.port)))?;
            exchange::accept(&listener, &told, ready)?;
        }
    }
    drop(attendant);
    let rules = Rules {
        mode: options.mode,
        size: options.size as usize,
        iterations: options.iters,
        role: if options.echo { Role::Echo } else { Role::Originator },
        first: options.host.is_some(),
        sleep: !options.poll,
        patience: Duration::from_secs(options.patience),
    };
    let outcome = game::play(&mut end, &pool, &rules, players, seed);
    if outcome.is_ok() {
        game::linger(&mut end, Duration::from_millis(options.linger));
    }
    println!("device  {}", end.counters());
    let outcome = outcome?;
    let seconds = outcome.time.as_secs_f64();
    let bytes = options.iters * u64::from(options.size) * 2;
    println!(
        "{bytes} bytes in {seconds:.2} s = {:.2} Mbit/s, {} iterations, {:.1} µs each",
        bytes as f64 * 8.0 / seconds / 1e6,
        options.iters,
        seconds * 1e6 / options.iters as f64
    );
    println!("round trips: {}", outcome.round_trips);
    println!("{} messages compared byte for byte", outcome.compared);
    if outcome.unacknowledged > 0 {
        println!("{} sends at the end without acknowledge: the other end had gone", outcome.unacknowledged);
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(next) = cause {
                text += &format!(": {next}");
                cause = next.source();
            }
            eprintln!("ibpingpong: {text}");
            ExitCode::FAILURE
        }
    }
}
