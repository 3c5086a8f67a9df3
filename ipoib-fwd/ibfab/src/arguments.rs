//! The command line. `--help`, the manual page and what shells complete are made from it.

use std::path::PathBuf;

use clap::Parser;
use dataplane::capture::Bounds;

/// A software InfiniBand fabric: switches with subnet manager and administration, links for others, and virtual hosts
/// with TUN interfaces that speak IPoIB.
///
/// EAL arguments may come first, with `--` behind them; without any, ibfab needs neither hugepages nor devices.
///
/// SIGHUP makes it read its configuration again and take the subnet's prefix, the partitions and whether trunks are
/// plugged in from it.
#[derive(Parser, Debug)]
#[command(version, override_usage = "ibfab [EAL ARGUMENTS --] --config FILE [--check] [OPTIONS]")]
pub struct Arguments {
    /// The fabric's configuration (TOML).
    #[arg(long, value_name = "FILE", required_unless_present = "print_config")]
    pub config: Option<PathBuf>,
    /// Check configuration and command line, print what is wrong or unwise, and exit: 0 if there is nothing, 1 with errors, 3 with warnings
    /// alone. Nothing is started or changed. Devices, sockets and network namespaces are not looked at.
    #[arg(long)]
    pub check: bool,
    /// Print a configuration with every key, its default and what it means, and end.
    #[arg(long)]
    pub print_config: bool,
    /// Write every packet that crosses a port of the switch to FILE (pcap with ERF records, which tshark reads).
    /// A file that is full is followed by FILE.1, and so on; the newest are kept. What an earlier capture has left of these names goes
    /// at the start; anything else of them is an error, as is what another capture has open. A pipe has no bounds.
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
    /// With --capture: files that are kept (1 to 64).
    #[arg(long, value_name = "N", requires = "capture", default_value_t = Bounds::default().files,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(Bounds::MOST_FILES)))]
    pub capture_files: u32,
    /// With --capture: bytes of a file, at most (64 KiB to 64 MiB).
    #[arg(long, value_name = "BYTES", requires = "capture", default_value_t = Bounds::default().size,
          value_parser = clap::value_parser!(u64).range(Bounds::LEAST_SIZE..=Bounds::MOST_SIZE))]
    pub capture_size: u64,
    /// Print statistics every so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub stats: Option<u32>,
    /// Who manages the subnet: "embedded", ibfab itself; "none", somebody else at one of its links, OpenSM for instance. Then the switches
    /// wait for LIDs, routes, groups and partitions, which nobody reads from the configuration.
    #[arg(long, value_name = "WHO", default_value = "embedded")]
    pub sm: Sm,
}

/// Who manages the subnet.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum Sm {
    /// `ibfab` itself.
    #[value(help = None)]
    Embedded,
    /// Somebody else.
    #[value(help = None)]
    None,
}
