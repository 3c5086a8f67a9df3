//! The command line of `ipoib-fwd ctl`, and its completion in a shell.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgMatches, Error, FromArgMatches, Subcommand};
use config::nearest;

use super::{Argument, Asked, BOUNDS, Command, FILTER};
use crate::glossary;
use crate::setting::Key;

/// An error of `ipoib-fwd ctl`'s command line. For an unknown command, it suggests the one with the nearest
/// name.
#[must_use]
pub fn with_nearest(mut error: Error) -> Error {
    let words: Vec<&str> = Command::of_ctl().map(Command::word).chain(["completion", "help"]).collect();
    let near = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) => nearest(word, &words),
        _ => None,
    };
    if let Some(near) = near {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![near.to_owned()]));
    }
    error
}

/// The bash script that completes the program's commands.
#[must_use]
pub fn completion() -> String {
    let words: Vec<&str> = Command::of_ctl().map(Command::word).collect();
    let [mut third, mut further] = [String::new(), String::new()];
    let case = |cases: &mut String, pattern: &str, words: &str| {
        cases.push_str(&format!("                {pattern}) words='{words}' ;;\n"));
    };
    for command in Command::of_ctl() {
        let word = command.word();
        match command.argument() {
            Argument::OneOf(_, values) => case(&mut third, word, &values.join(" ")),
            Argument::SomeOf(_, values) => {
                case(&mut third, word, &values.join(" "));
                case(&mut further, &format!("{word}/*"), &values.join(" "));
            }
            Argument::Setting => {
                case(&mut third, word, &Key::WORDS.join(" "));
                for key in Key::ALL.iter().filter(|key| !key.words().is_empty()) {
                    case(&mut further, &format!("{word}/{}/4", key.word()), &key.words().join(" "));
                }
            }
            Argument::Flag(values) => {
                let flags: Vec<String> = values.iter().map(|(word, _)| format!("--{word}")).collect();
                case(&mut third, word, &flags.join(" "));
            }
            Argument::Follow(_) => {
                let bounds = BOUNDS.map(|(name, _)| format!("--{name}")).join(" ");
                let keys = format!("{bounds} segment= at= {}", FILTER.join(" "));
                case(&mut third, word, &keys);
                case(&mut further, &format!("{word}/*"), &keys);
            }
            Argument::Words(_) => {
                case(&mut third, word, "start stop");
                let keys = format!("{} files= size= packets= seconds=", FILTER.join(" "));
                case(&mut further, &format!("{word}/start/[!4]*"), &keys);
            }
            Argument::None | Argument::Command | Argument::Segment | Argument::Page => {}
        }
    }
    let words = words.join(" ");
    format!(
        "_ipoib_fwd() {{
    local words='' word=\"${{COMP_WORDS[COMP_CWORD]}}\"
    case $COMP_CWORD in
        1) words='ctl gids init metrics top --check --help --version --print-config' ;;
        2) [ \"${{COMP_WORDS[1]}}\" = ctl ] && words='{words} completion help --socket --json' ;;
        3) [ \"${{COMP_WORDS[1]}}\" = ctl ] && case ${{COMP_WORDS[2]}} in
{third}            esac ;;
        *) [ \"${{COMP_WORDS[1]}}\" = ctl ] && case ${{COMP_WORDS[2]}}/${{COMP_WORDS[3]}}/$COMP_CWORD in
{further}            esac ;;
    esac
    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))
    # A value follows at once.
    [[ ${{COMPREPLY[0]}} = *= ]] && compopt -o nospace 2>/dev/null
    return 0
}}
complete -o default -F _ipoib_fwd ipoib-fwd
"
    )
}

impl Subcommand for Asked {
    fn augment_subcommands(ctl: clap::Command) -> clap::Command {
        Command::of_ctl().fold(ctl, |ctl, command| {
            let value = Arg::new("value").value_name("VALUE").help("The new value").requires("argument");
            let value = (command.argument() == Argument::Setting).then_some(value);
            let flags = if let Argument::Flag(words) = command.argument() { words } else { &[] };
            let flags = flags.iter().map(|(word, what)| {
                let others = flags.iter().map(|(other, _)| *other).filter(|other| other != word);
                let flag = Arg::new(*word).long(*word).help(*what).action(clap::ArgAction::SetTrue);
                flag.conflicts_with_all(others)
            });
            let argument = match command.argument() {
                Argument::None | Argument::Flag(_) => None,
                Argument::Command => Some(Arg::new("argument").value_name("COMMAND")),
                Argument::Segment | Argument::Page => {
                    Some(Arg::new("argument").value_name("SEGMENT").help("Limits the answer to this segment"))
                }
                Argument::Words(usage) => {
                    let help = usage.replace(['[', ']'], "").replace(',', " ").replace('|', " or ");
                    Some(Arg::new("argument").value_name("WORDS").help(help).num_args(1..))
                }
                Argument::Follow(_) => Some(
                    Arg::new("argument")
                        .value_name("KEY=VALUE")
                        .help("Packets of this kind only")
                        .num_args(1..),
                ),
                Argument::Setting => {
                    let words = Key::ALL.iter().map(|key| {
                        PossibleValue::new(key.word()).help(format!(
                            "{} It may be {}.",
                            key.help(),
                            key.may_be()
                        ))
                    });
                    let words = PossibleValuesParser::new(words);
                    Some(Arg::new("argument").value_name("KEY").help("The key to set").value_parser(words))
                }
                Argument::SomeOf(name, words) => {
                    let words = PossibleValuesParser::new(words);
                    let help = "Only these, of all";
                    Some(
                        Arg::new("argument")
                            .value_name(name)
                            .help(help)
                            .value_parser(words)
                            .num_args(1..)
                            .value_delimiter(','),
                    )
                }
                Argument::OneOf(name, words) => {
                    let words = PossibleValuesParser::new(words);
                    Some(Arg::new("argument").value_name(name).value_parser(words).required(true))
                }
            };
            let bounds = BOUNDS.map(|(name, help)| Arg::new(name).long(name).value_name("N").help(help));
            let bounds = matches!(command.argument(), Argument::Follow(_)).then_some(bounds);
            let mut about = clap::Command::new(command.word()).about(command.help());
            let more = glossary::of(command);
            if !more.is_empty() {
                about = about.after_long_help(more);
            }
            let about = about.args(bounds.into_iter().flatten());
            ctl.subcommand(about.args(argument).args(value).args(flags))
        })
    }

    fn augment_subcommands_for_update(ctl: clap::Command) -> clap::Command {
        Self::augment_subcommands(ctl)
    }

    fn has_subcommand(name: &str) -> bool {
        Command::of_ctl().any(|command| command.word() == name)
    }
}

impl FromArgMatches for Asked {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let missing = || Error::raw(clap::error::ErrorKind::MissingSubcommand, "no command is given\n");
        let (name, of_it) = matches.subcommand().ok_or_else(missing)?;
        let command = Command::named(name).ok_or_else(missing)?;
        let words = of_it.try_get_many::<String>("argument").ok().flatten();
        let mut argument = words.map(|words| words.cloned().collect::<Vec<_>>().join(","));
        if let (Some(argument), Some(value)) =
            (&mut argument, of_it.try_get_one::<String>("value").ok().flatten())
        {
            *argument = format!("{argument},{value}");
        }
        if let Argument::Flag(words) = command.argument() {
            let given = words.iter().map(|(word, _)| *word).find(|word| of_it.get_flag(word));
            argument = given.map(str::to_owned);
        }
        for (name, _) in BOUNDS {
            if let Some(n) = of_it.try_get_one::<String>(name).ok().flatten() {
                let before = argument.map(|words| format!("{words},")).unwrap_or_default();
                argument = Some(format!("{before}{name}={n}"));
            }
        }
        Ok(Self { command, argument })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
