//! Manual pages.

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use ipoib_fwd::options::{CtlLine, GidsLine, InitLine, MetricsLine, Options, TopLine};

/// A page of section 1.
#[derive(Debug)]
pub(crate) struct Page {
    /// Name of the page.
    pub(crate) name: &'static str,
    command: Command,
    /// Files with their descriptions.
    files: &'static [(&'static str, &'static str)],
    /// Other pages.
    see_also: &'static str,
}

/// All pages.
pub(crate) fn all() -> [Page; 8] {
    [
        Page {
            name: "ipoib-fwd",
            command: Options::command(),
            files: &[
                ("/etc/ipoib-fwd/gateway.toml", "Configuration of ipoib-fwd.service."),
                ("/etc/ipoib-fwd/gateway.env", "EAL's arguments and further options of ipoib-fwd.service."),
                ("/etc/ipoib-fwd/NAME.toml, NAME.env", "The same for an instance, ipoib-fwd@NAME.service."),
                ("/run/ipoib-fwd.sock", "Control socket, unless another one is configured."),
            ],
            see_also: "ipoib-fwd-ctl(1), ipoib-fwd-gids(1), ipoib-fwd-init(1), ipoib-fwd-metrics(1), ipoib-fwd-top(1), ibfab(1), softhca(1)",
        },
        Page {
            name: "ipoib-fwd-ctl",
            command: CtlLine::command(),
            files: &[
                ("/run/ipoib-fwd.sock", "Control socket of ipoib-fwd.service."),
                (
                    "/run/ipoib-fwd/NAME/control.sock",
                    "Control socket of an instance, ipoib-fwd@NAME.service.",
                ),
            ],
            see_also: "ipoib-fwd(1), ipoib-fwd-gids(1)",
        },
        Page {
            name: "ipoib-fwd-gids",
            command: GidsLine::command(),
            files: &[
                (
                    "/run/ipoib-fwd.sock",
                    "Control socket of ipoib-fwd.service, which is queried if it exists.",
                ),
                ("/run/ipoib-gids/DEVICE", "Tables of ipoib-gids.service."),
                (
                    "/etc/ipoib-fwd/gids.env",
                    "Options of ipoib-gids.service, for example OPTIONS=--roce eth1.",
                ),
            ],
            see_also: "ipoib-fwd(1), ipoib-fwd-ctl(1), show_gids(8)",
        },
        Page { name: "ipoib-fwd-init", command: InitLine::command(), files: &[], see_also: "ipoib-fwd(1)" },
        Page {
            name: "ipoib-fwd-metrics",
            command: MetricsLine::command(),
            files: &[("/run/ipoib-fwd.sock", "Control socket of ipoib-fwd.service.")],
            see_also: "ipoib-fwd(1), ipoib-fwd-ctl(1)",
        },
        Page {
            name: "ipoib-fwd-top",
            command: TopLine::command(),
            files: &[("/run/ipoib-fwd.sock", "Control socket of ipoib-fwd.service.")],
            see_also: "ipoib-fwd(1), ipoib-fwd-ctl(1), ipoib-fwd-metrics(1)",
        },
        Page {
            name: "ibfab",
            command: ibfab::arguments::Arguments::command(),
            files: &[("/etc/ibfab/fabric.toml", "Configuration of ibfab.service.")],
            see_also: "ipoib-fwd(1), softhca(1)",
        },
        Page {
            name: "softhca",
            command: softhca::options::Options::command(),
            files: &[],
            see_also: "ibfab(1), ipoib-fwd(1)",
        },
    ]
}

impl Page {
    /// Formats the page as troff.
    pub(crate) fn text(&self) -> std::io::Result<String> {
        let Self { name, command, files, see_also } = self;
        let version = format!("ipoib-fwd {}", command.get_version().unwrap_or_default());
        // Subcommands have no separate pages: this page describes them.
        let bare = command.clone().name(name).subcommand_required(false);
        let man = Man::new(bare).title(name.to_uppercase()).source(version).manual("User Commands");
        let mut text = Vec::new();
        man.render_title(&mut text)?;
        man.render_name_section(&mut text)?;
        self.synopsis().to_writer(&mut text)?;
        man.render_description_section(&mut text)?;
        self.commands().to_writer(&mut text)?;
        man.render_options_section(&mut text)?;
        let mut rest = Roff::new();
        if !files.is_empty() {
            rest.control("SH", ["FILES"]);
            for (file, what) in *files {
                rest.control("TP", []).text([bold(*file)]).text([roman(*what)]);
            }
        }
        rest.control("SH", ["EXIT STATUS"]);
        rest.text([roman("0 on success, 1 on failure, 2 if the command line is invalid.")]);
        if command.get_arguments().any(|argument| argument.get_long() == Some("check")) {
            let passes = command.get_arguments().any(|argument| argument.get_long() == Some("warnings-pass"));
            let passes = if passes { " (0 with --warnings-pass)" } else { "" };
            let check = format!(
                "With --check: 0 if nothing but notes was found, 1 with errors, 3 with warnings and no error{passes}."
            );
            rest.control("PP", []).text([roman(check)]);
        }
        rest.control("SH", ["SEE ALSO"]).text([roman(*see_also)]);
        rest.to_writer(&mut text)?;
        String::from_utf8(text).map_err(std::io::Error::other)
    }

    /// The usage of --help.
    fn synopsis(&self) -> Roff {
        let usage = self.command.clone().render_usage().to_string();
        let mut roff = Roff::new();
        roff.control("SH", ["SYNOPSIS"]);
        for (n, line) in usage.trim_start_matches("Usage:").lines().enumerate() {
            if n > 0 {
                roff.control("br", []);
            }
            roff.text([roman(line.trim())]);
        }
        roff
    }

    /// The commands of a program, if it has any.
    fn commands(&self) -> Roff {
        let mut roff = Roff::new();
        let commands: Vec<&Command> = self.command.get_subcommands().collect();
        if commands.is_empty() {
            return roff;
        }
        roff.control("SH", ["COMMANDS"]);
        for command in commands {
            let mut line = vec![bold(command.get_name())];
            for argument in command.get_positionals() {
                let name = argument.get_value_names().and_then(|names| names.first());
                let name = name.map_or(argument.get_id().as_str(), clap::builder::Str::as_str);
                line.push(roman(if argument.is_required_set() {
                    format!(" {name}")
                } else {
                    format!(" [{name}]")
                }));
            }
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            roff.control("TP", []).text(line).text([roman(about)]);
        }
        roff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Removes troff markup.
    fn plain(text: &str) -> String {
        text.replace("\\-", "-")
            .replace("\\*(Aq", "'")
            .replace("\\fB", "")
            .replace("\\fR", "")
            .replace("\\fI", "")
    }

    #[test]
    fn every_option_and_command_has_its_place() {
        for page in all() {
            let text = plain(&page.text().unwrap());
            assert!(text.contains(&format!(".TH {}", page.name.to_uppercase())), "{text}");
            for option in page.command.get_arguments().filter_map(clap::Arg::get_long) {
                assert!(text.contains(&format!("--{option}")), "{}: --{option}\n{text}", page.name);
            }
            for command in page.command.get_subcommands() {
                let about = command.get_about().map(ToString::to_string).unwrap_or_default();
                assert!(text.contains(command.get_name()) && text.contains(&about), "{about}\n{text}");
            }
        }
    }

    #[test]
    fn other_pages_are_there() {
        let ours: Vec<String> = all().iter().map(|page| format!("{}(1)", page.name)).collect();
        for page in all() {
            for other in page.see_also.split(", ").filter(|other| other.ends_with("(1)")) {
                assert!(ours.iter().any(|name| name == other), "{}: {other}", page.name);
                assert_ne!(other, format!("{}(1)", page.name));
            }
        }
    }
}
