//! `packaging DIRECTORY` writes manual pages (`man/`) and shell completions (`completion/`) for the packages, from
//! the command lines of the programs. `packaging --reference FILE` writes the manual's reference page.
#![forbid(unsafe_code)]

#[cfg(test)]
mod documents;
#[cfg(test)]
mod numbers;
mod page;
#[cfg(test)]
mod rates;
mod reference;
#[cfg(test)]
mod threats;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, CommandFactory as _};
use clap_complete::{Shell, generate, generate_to};
use ipoib_fwd::options;

/// The programs with shell completion.
fn programs() -> [Command; 3] {
    let ibfab = ibfab::arguments::Arguments::command();
    [options::program(), ibfab.name("ibfab"), softhca::options::Options::command().name("softhca")]
}

/// The bash completion of a program. `ipoib-fwd ctl completion` provides arguments of the gateway's commands
/// that the command line parser does not know, such as `host=`; the parser provides all others.
fn for_bash(program: &mut Command) -> String {
    let (name, mut script) = (program.get_name().to_owned(), Vec::new());
    generate(Shell::Bash, program, &name, &mut script);
    // clap_complete 4.6.11 uses different function names for the commands and for the options of a program
    // with a hyphen.
    let script =
        String::from_utf8_lossy(&script).replace(&name.replace('-', "__subcmd__"), &name.replace('-', "__"));
    if name != "ipoib-fwd" {
        return script;
    }
    script
        + &ipoib_fwd::command::completion()
        + "_ipoib_fwd_all() {
    [ \"${COMP_WORDS[1]}\" = ctl ] && [ \"$COMP_CWORD\" -gt 1 ] && _ipoib_fwd && [ ${#COMPREPLY[@]} -gt 0 ] && return 0
    _ipoib__fwd \"$@\"
}
complete -o bashdefault -o default -F _ipoib_fwd_all ipoib-fwd
"
}

fn write_completions(directory: &Path) -> Result<(), Box<dyn Error>> {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let directory = directory.join(shell.to_string());
        std::fs::create_dir_all(&directory)?;
        for mut program in programs() {
            let name = program.get_name().to_owned();
            if shell == Shell::Bash {
                // The loader of bash-completion searches for the name of the command only.
                std::fs::write(directory.join(name), for_bash(&mut program))?;
            } else {
                generate_to(shell, &mut program, &name, &directory)?;
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
        eprintln!("usage: packaging DIRECTORY, or packaging --reference FILE");
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

    /// Returns the completions of the gateway's script for a line with an incomplete last word.
    fn offered(line: &[&str]) -> Vec<String> {
        let words: Vec<String> = line.iter().map(|word| format!("'{word}'")).collect();
        let [.., before, last] = line else { panic!("a word to be completed") };
        let script = format!(
            "{}\nCOMP_WORDS=({}); COMP_CWORD={}; _ipoib_fwd_all ipoib-fwd '{last}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"; complete -p ipoib-fwd",
            for_bash(&mut options::program()),
            words.join(" "),
            line.len() - 1
        );
        let out = std::process::Command::new("bash").args(["--norc", "-c", &script]).output().unwrap();
        assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8(out.stdout).unwrap();
        let (words, complete) = text.trim_end().rsplit_once('\n').unwrap();
        assert!(complete.contains("-F _ipoib_fwd_all ipoib-fwd"), "{complete}");
        words.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn bash_offers_words_of_commands_and_what_the_command_line_has() {
        for (line, words) in [
            (&["ipoib-fwd", "ctl", "trace", "ho"][..], &["host="][..]),
            (&["ipoib-fwd", "ctl", "trace", "proto=tcp", "--c"], &["--count"]),
            (&["ipoib-fwd", "ctl", "capture", "start", "NAME", "pa"], &["packets="]),
            (&["ipoib-fwd", "ctl", "set", "mode", "d"], &["datagram"]),
            (&["ipoib-fwd", "ctl", "tr"], &["trace"]),
            (&["ipoib-fwd", "ctl", "trace", "--js"], &["--json"]),
            (&["ipoib-fwd", "gids", "--wa"], &["--watch"]),
            (&["ipoib-fwd", "--print-c"], &["--print-config"]),
        ] {
            assert_eq!(offered(line), words, "{line:?}");
        }
    }

    #[test]
    fn every_shell_completes_every_program() {
        for mut program in programs() {
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                let name = program.get_name().to_owned();
                let mut script = Vec::new();
                generate(shell, &mut program, &name, &mut script);
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
