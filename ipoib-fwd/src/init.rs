//! `ipoib-fwd init`: a first configuration.

use std::path::{Path, PathBuf};

use clap::Args;
use preflight::{InitError, Machine, Proposal, shell_path};

/// Options of `ipoib-fwd init`.
#[derive(Args, Debug)]
pub struct InitOptions {
    /// Write the configuration to FILE, and EAL's arguments to a file of that name that ends in .env. Without
    /// this option, both go to standard output.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Writes the files, and returns the message to print.
pub fn run(options: &InitOptions) -> Result<String, InitError> {
    let mut machine = Machine::read(Path::new("/"));
    machine.find_pairs();
    let proposal = Proposal::of(&machine);
    let Some(file) = &options.output else { return Ok(proposal.text()) };
    let beside = proposal.write(file)?;
    Ok(message(file, &beside))
}

/// Describes the next steps with the two files. The command is valid in `sh`, whatever characters the paths
/// have.
fn message(file: &Path, environment: &Path) -> String {
    let (file, environment) = (shell_path(file), shell_path(environment));
    format!(
        "The gateway's configuration is in {file}, EAL's arguments are in {environment}. Look at both, then try\n\n  \
         (. \"$(realpath {environment})\"; ipoib-fwd $EAL -- --check --config {file})\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_command_names_the_files_whatever_characters_their_paths_have() {
        let directory = std::env::temp_dir().join(format!("init-{} it's $HOME\"\na", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("my site.toml");
        let environment = Proposal::environment_file(&file);
        std::fs::write(&environment, "EAL=\"-l 0-1 --no-pci\"\n").unwrap();
        let text = message(&file, &environment);
        // A function replaces the program, whose name is not a valid function name in some shells.
        let (_, command) = text.split_once("\n\n").unwrap();
        let script = format!("show() {{ printf '<%s>' \"$@\"; }}\n{}", command.replace("ipoib-fwd", "show"));
        let done = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        let expected = format!("<-l><0-1><--no-pci><--><--check><--config><{}>", file.display());
        assert_eq!(String::from_utf8(done.stdout).unwrap(), expected, "{text}");
    }
}
