//! The command line. `--help`, the manual page and shell completions are generated from it.

use std::path::PathBuf;

use clap::Parser;
use dataplane::capture::Bounds;

/// A software InfiniBand fabric: switches with a subnet manager, links for other processes, and virtual hosts
/// with TUN interfaces that use IPoIB.
///
/// EAL arguments may precede the options, with `--` between them. Without any, ibfab needs neither hugepages
/// nor devices.
///
/// On SIGHUP, ibfab reads its configuration again. It then applies the subnet's prefix, the partitions, and
/// whether trunks are plugged in.
#[derive(Parser, Debug)]
#[command(version, override_usage = "ibfab [EAL ARGUMENTS --] --config FILE [--check] [OPTIONS]")]
pub struct Arguments {
    /// The fabric's configuration (TOML).
    #[arg(long, value_name = "FILE", required_unless_present = "print_config")]
    pub config: Option<PathBuf>,
    /// Check the configuration and the command line, print errors and warnings, and exit: 0 without findings,
    /// 1 with errors, 3 with warnings only. Nothing is started or changed. Devices, sockets and network
    /// namespaces are not checked.
    #[arg(long)]
    pub check: bool,
    /// Print a configuration with every key, its default and its description, and exit.
    #[arg(long)]
    pub print_config: bool,
    /// Write every packet that crosses a port of the switch to FILE (pcap with ERF records, which tshark
    /// reads). When a file is full, ibfab continues in FILE.1, and so on; the newest files are kept. Files of
    /// an earlier capture with these names are removed at the start. Any other file with such a name is an
    /// error, and so is a file that another capture has open. A pipe has no size limit.
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
    /// Number of files that --capture keeps (1 to 64).
    #[arg(long, value_name = "N", requires = "capture", default_value_t = Bounds::default().files,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(Bounds::MOST_FILES)))]
    pub capture_files: u32,
    /// Largest size of a file of --capture in bytes (64 KiB to 64 MiB).
    #[arg(long, value_name = "BYTES", requires = "capture", default_value_t = Bounds::default().size,
          value_parser = clap::value_parser!(u64).range(Bounds::LEAST_SIZE..=Bounds::MOST_SIZE))]
    pub capture_size: u64,
    /// Print statistics every SECONDS seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub stats: Option<u32>,
    /// Subnet manager: "embedded" is the one in ibfab; "none" leaves the subnet to another one at a link, for
    /// instance OpenSM. With "none", the switches wait for LIDs, routes, groups and partitions, and ibfab
    /// ignores those in the configuration.
    #[arg(long, value_name = "WHO", default_value = "embedded")]
    pub sm: Sm,
}

/// The subnet manager.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum Sm {
    /// The one in `ibfab`.
    #[value(help = None)]
    Embedded,
    /// Another one, at a link.
    #[value(help = None)]
    None,
}
