//! `ipoib-fwd init`: a first configuration.

use std::path::{Path, PathBuf};

use clap::Args;
use preflight::{InitError, Machine, Proposal};

/// Options of `ipoib-fwd init`.
#[derive(Args, Debug)]
pub struct InitOptions {
    /// Write the configuration to FILE, and EAL's arguments to a file of that name that ends in .env. Without it both go to
    /// standard output.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Writes the files, and answers with what is to be printed.
pub fn run(options: &InitOptions) -> Result<String, InitError> {
    let mut machine = Machine::read(Path::new("/"));
    machine.find_pairs();
    let proposal = Proposal::of(&machine);
    let Some(file) = &options.output else { return Ok(proposal.text()) };
    let beside = proposal.write(file)?;
    let (file, beside) = (file.display(), beside.display());
    Ok(format!(
        "The gateway's configuration is in {file}, EAL's arguments are in {beside}. Look at both, then try\n\n  \
         (. $(realpath {beside}); ipoib-fwd $EAL -- --check --config {file})\n"
    ))
}
