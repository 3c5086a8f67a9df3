//! `packaging DIRECTORY`: writes manual pages (`man/`) and what shells complete (`completion/`) for the packages, from the command
//! lines that the programs parse. `packaging --reference FILE` writes the manual's reference page from their tables.
#![forbid(unsafe_code)]

#[cfg(test)]
mod documents;
mod page;
mod reference;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, CommandFactory as _};
use clap_complete::{Shell, generate_to};
use ipoib_fwd::options;

/// The programs, as shells complete them.
fn programs() -> [Command; 3] {
    let ibfab = ibfab::arguments::Arguments::command();
    [options::program(), ibfab.name("ibfab"), softhca::options::Options::command().name("softhca")]
}

fn write_completions(directory: &Path) -> Result<(), Box<dyn Error>> {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let directory = directory.join(shell.to_string());
        std::fs::create_dir_all(&directory)?;
        for mut program in programs() {
            let name = program.get_name().to_owned();
            let made = generate_to(shell, &mut program, &name, &directory)?;
            if shell == Shell::Bash {
                // Its loader looks for the command's name alone.
                std::fs::rename(made, directory.join(name))?;
            }
        }
    }
    Ok(())
}

fn write_pages(directory: &Path) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(directory)?;
    for page in page::all() {
        std::fs::write(directory.join(format!("{}.1", page.name)), page.text()?)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(directory) = arguments.next().map(PathBuf::from) else {
        eprintln!("packaging: say where to: packaging DIRECTORY, or packaging --reference FILE");
        return ExitCode::FAILURE;
    };
    if directory.as_os_str() == "--reference" {
        let file = arguments.next().map_or_else(|| PathBuf::from("docs/manual/reference.md"), PathBuf::from);
        return match std::fs::write(&file, reference::page()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("packaging: {}: {error}", file.display());
                ExitCode::FAILURE
            }
        };
    }
    let pages = write_pages(&directory.join("man"));
    match pages.and_then(|()| write_completions(&directory.join("completion"))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("packaging: {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_completes_every_program() {
        for mut program in programs() {
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                let name = program.get_name().to_owned();
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut program, &name, &mut script);
                let script = String::from_utf8(script).unwrap();
                for option in program.get_arguments().filter_map(clap::Arg::get_long) {
                    assert!(script.contains(option), "{shell} does not complete --{option} of {name}");
                }
                for command in program.get_subcommands().flat_map(Command::get_subcommands) {
                    assert!(script.contains(command.get_name()), "{shell}: {name} {}", command.get_name());
                }
            }
        }
    }
}
