//! The commands of a running gateway. One table defines the name, the arguments and the description of each.
//! The control socket, `ipoib-fwd ctl` with its help, and the shell completion are derived from it.

mod line;

use config::nearest;
use dataplane::telemetry;
use serde_json::{Value, json};

use crate::event::Kind;
use crate::page::PageRequest;
use crate::setting::Key;

pub use line::{completion, with_nearest};

/// The arguments of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Argument {
    /// Nothing.
    None,
    /// A command's name; optional.
    Command,
    /// A segment's name; without it, the command applies to all segments.
    Segment,
    /// As [`Self::Segment`], for a list in pages ([`crate::page`]).
    Page,
    /// Some of these words, separated by commas, with their placeholder; without any, all of them.
    SomeOf(&'static str, &'static [&'static str]),
    /// Arguments in this format, which the command itself parses; optional.
    Words(&'static str),
    /// As [`Self::Words`], and limits for the number of rows and the time, for a stream.
    Follow(&'static str),
    /// A key of `set`, and a value for it; both optional.
    Setting,
    /// One of these words, each with its meaning, or none; options of `ipoib-fwd ctl`.
    Flag(&'static [(&'static str, &'static str)]),
    /// One of these words, with their placeholder.
    OneOf(&'static str, &'static [&'static str]),
}

/// Defines the enum, its list, names, arguments and descriptions from one table.
macro_rules! commands {
    ($($name:ident = $word:literal, $argument:expr, $text:literal;)*) => {
        /// A command.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Command {
            $(#[doc = $text] $name,)*
        }

        impl Command {
            /// Every command.
            pub const ALL: [Self; { [$(Self::$name),*].len() }] = [$(Self::$name),*];

            /// The name; on the socket, it follows a slash.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// The arguments.
            #[must_use]
            pub const fn argument(self) -> Argument {
                match self {
                    $(Self::$name => $argument,)*
                }
            }

            /// The description.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

commands! {
    List = "", Argument::None, "All commands.";
    Help = "help", Argument::Command, "Describes one command, or all of them.";
    Stats = "stats", Argument::Segment, "Packets and bytes by path, drops by reason, times; of a segment, its packets and drops on each worker.";
    Metrics = "metrics", Argument::None, "All metrics in the format of monitoring systems (OpenMetrics); `ipoib-fwd metrics` serves them over HTTP.";
    Links = "links", Argument::Segment, "The ports, and each segment's link and role.";
    Neighbours = "neighbours", Argument::Page, "Hosts on both sides.";
    Connections = "connections", Argument::Page, "RC connections, both directions.";
    Groups = "groups", Argument::Page, "Multicast groups.";
    Gids = "gids", Argument::None, "The devices' GID tables; `ipoib-fwd gids` lists them as show_gids does.";
    Events = "events", Argument::SomeOf("KIND", Kind::WORDS), "Prints events as they occur, one a line, until the gateway exits (exit code 3; 4 if it has crashed or was killed). Events that are not read in time are lost, and counted.";
    Capture = "capture", Argument::Words("start,NAME[,KEY=VALUE...]|stop"), "Captures Ethernet frames into NAME.N.pcap in the directory gateway.captures (on a local disk), until it is stopped or a limit is reached; without an argument, shows its state. A filter selects frames: host=ADDRESS, mac=ADDRESS, proto=arp, icmp, tcp, udp or a number, port=N (of TCP or UDP), vlan=ID (0: no tag), direction=in|out. The newest files=N (4, at most 64) of size=BYTES (16 MiB, at most 64) are kept. packets=N and seconds=N (600) end it. If `start` or `stop` is not answered within 5 s, `ipoib-fwd ctl` ends with exit code 6: it may have been carried out.";
    Trace = "trace", Argument::Follow("KEY=VALUE[,KEY=VALUE...]"), "Traces packets through the gateway: a row each time that a worker or the control lcore processes one, with the lookup result, verdict and reason. A filter selects packets: host=ADDRESS, mac=ADDRESS, proto=arp, icmp, tcp, udp or a number, port=N (of TCP or UDP), vlan=ID (0: no tag), direction=in|out, segment=NAME, at=PORT. count=N (100, at most 10000) rows or seconds=N (60, at most 3600) end it. While packets are traced, all of them take the slow path.";
    Set = "set", Argument::Setting, "Sets a value at run time. It is in force until it is set again, a reload finds a new value in the file, or the gateway exits. Without a value, lists the keys. If a value is not answered within 5 s, `ipoib-fwd ctl` ends with exit code 6: it may have been set.";
    Clear = "clear", Argument::SomeOf("WHAT", &["counters", "latency"]), "Restarts the counters of `since`. Those of `stats` and `metrics` continue. Without an answer within 5 s, `ipoib-fwd ctl` ends with exit code 6: it may have been carried out.";
    Since = "since", Argument::Segment, "Counters since the last `clear`, or since the start; for a segment, its packets and drops on each worker.";
    Mode = "mode", Argument::OneOf("MODE", &["datagram", "connected"]), "Switches all segments between connected and datagram mode while traffic runs. Without an answer within 5 s, `ipoib-fwd ctl` ends with exit code 6: it may have been carried out.";
    Health = "health", Argument::None, "Shows whether each segment could forward now, or why not, for scripts; `ipoib-fwd ctl` ends with exit code 5 if one cannot.";
    Drain = "drain", Argument::Flag(&[("alone", "Even if no gateway takes over: packets from hosts are then dropped"), ("undo", "Back into service")]), "Hands all segments over to the other gateway without a loss, and stops forwarding until `ipoib-fwd ctl drain --undo` or a restart. `ipoib-fwd ctl` waits until it is done. Without an answer within 5 s, then or while it waits, it ends with exit code 6: it may have been carried out.";
    Reload = "reload", Argument::None, "Reloads the configuration, as SIGHUP does. It is applied as a whole or, with an error that says why (exit code 1), not at all. Without an answer within a minute, `ipoib-fwd ctl` ends with exit code 6: it may have been carried out.";
}

impl Command {
    /// The command with this name.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|command| command.word() == word)
    }

    /// The request on the socket.
    fn path(self) -> String {
        format!("/{}", self.word())
    }

    /// The usage on the socket, with arguments.
    fn usage(self) -> String {
        let path = self.path();
        match self.argument() {
            Argument::None => path,
            Argument::Command => format!("{path}[,COMMAND]"),
            Argument::Segment => format!("{path}[,SEGMENT]"),
            Argument::Page => format!("{path}[,SEGMENT][,after=CURSOR][,limit=ROWS]"),
            Argument::Words(usage) | Argument::Follow(usage) => format!("{path}[,{usage}]"),
            Argument::Setting => format!("{path}[,KEY[,VALUE]]"),
            Argument::SomeOf(name, _) => format!("{path}[,{name}[,{name}...]]"),
            Argument::Flag(words) => {
                let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                format!("{path}[,{}]", words.join("|"))
            }
            Argument::OneOf(_, words) => format!("{path},{}", words.join("|")),
        }
    }

    /// The commands of `ipoib-fwd ctl`, which lists and explains them with its own help.
    fn of_ctl() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|command| !matches!(command, Self::List | Self::Help))
    }
}

/// Keys of a packet filter ([`dataplane::filter::Filter`]).
const FILTER: [&str; 6] = ["host=", "mac=", "proto=", "port=", "vlan=", "direction="];

/// Limits of a stream, options of `ipoib-fwd ctl`; on the socket they are arguments like others.
const BOUNDS: [(&str, &str); 2] =
    [("count", "Ends after this number of rows"), ("seconds", "Ends after this time")];

/// A request to a gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The command.
    pub command: Command,
    /// Its argument, in the format of the command; a segment's name is not looked up.
    pub argument: Option<String>,
}

impl Asked {
    /// Parses a request on the socket; the error describes the valid ones.
    pub fn parse(request: &telemetry::Command) -> Result<Self, String> {
        let word = request.name.strip_prefix('/').unwrap_or(&request.name);
        let Some(command) = Command::named(word) else {
            let words: Vec<&str> = Command::ALL.iter().map(|c| c.word()).filter(|w| !w.is_empty()).collect();
            let near =
                nearest(word, &words).map(|near| format!("did you mean /{near}? ")).unwrap_or_default();
            return Err(format!("no command {}; {near}/ lists them", request.name));
        };
        let argument = request.parameters.clone().filter(|text| !text.is_empty());
        if let (Argument::Setting, Some(words)) = (command.argument(), argument.as_deref()) {
            match words.split_once(',') {
                Some((key, value)) => drop(Key::named(key)?.value(value)?),
                None => drop(Key::named(words)?),
            }
        }
        if command.argument() == Argument::Page {
            PageRequest::parse(argument.as_deref())?;
        }
        let is_legal = match (command.argument(), argument.as_deref()) {
            (Argument::OneOf(_, words), Some(word)) => words.contains(&word),
            (Argument::Flag(words), Some(word)) => words.iter().any(|(flag, _)| *flag == word),
            (Argument::SomeOf(_, words), Some(some)) => some.split(',').all(|word| words.contains(&word)),
            (Argument::OneOf(..), None) | (Argument::None, Some(_)) => false,
            (Argument::None, None)
            | (
                Argument::Command
                | Argument::Segment
                | Argument::Page
                | Argument::Setting
                | Argument::Words(_)
                | Argument::Follow(_),
                _,
            )
            | (Argument::SomeOf(..) | Argument::Flag(_), None) => true,
        };
        if !is_legal {
            let more = match command.argument() {
                Argument::SomeOf(name, words) => format!(": {name} is {}", words.join(", ")),
                _ => String::new(),
            };
            return Err(format!("invalid argument for {}; usage: {}{more}", command.path(), command.usage()));
        }
        Ok(Self { command, argument })
    }

    /// True if it changes the state of the gateway.
    #[must_use]
    pub fn is_order(&self) -> bool {
        match self.command {
            Command::Clear | Command::Mode | Command::Drain | Command::Reload => true,
            // Without an argument, it shows the captures.
            Command::Capture => self.argument.is_some(),
            // A key without a value shows the value.
            Command::Set => self.argument.as_ref().is_some_and(|words| words.contains(',')),
            Command::List
            | Command::Help
            | Command::Stats
            | Command::Metrics
            | Command::Links
            | Command::Neighbours
            | Command::Connections
            | Command::Groups
            | Command::Gids
            | Command::Events
            | Command::Trace
            | Command::Since
            | Command::Health => false,
        }
    }

    /// The request in the format of the socket.
    #[must_use]
    pub fn request(&self) -> String {
        let path = self.command.path();
        self.argument.as_ref().map_or_else(|| path.clone(), |argument| format!("{path},{argument}"))
    }
}

/// Answers [`Command::List`].
#[must_use]
pub fn list() -> Value {
    Command::ALL.into_iter().map(Command::path).collect()
}

/// Answers [`Command::Help`].
pub fn help(word: Option<&str>) -> telemetry::Answer {
    let explain = |c: Command| json!({"command": c.usage(), "what": c.help()});
    match word.map(|word| word.trim_start_matches('/')) {
        None => Ok(Command::ALL.into_iter().map(explain).collect()),
        Some(word) => {
            let name = telemetry::Command { name: format!("/{word}"), parameters: None };
            match Command::named(word) {
                Some(command) => Ok(explain(command)),
                None => Err(Asked::parse(&name).err().unwrap_or_default()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{FromArgMatches as _, Subcommand as _};

    use super::*;

    fn parse(name: &str, parameters: Option<&str>) -> Result<Asked, String> {
        let parameters = parameters.map(str::to_owned);
        Asked::parse(&telemetry::Command { name: name.to_owned(), parameters })
    }

    #[test]
    fn names_are_unique_and_every_request_is_read_back() {
        for command in Command::ALL {
            assert_eq!(Command::named(command.word()), Some(command));
            let argument = match command.argument() {
                Argument::OneOf(_, words) => Some(words[0].to_owned()),
                Argument::SomeOf(_, words) => Some(words.join(",")),
                Argument::Words(_) | Argument::Follow(_) => Some("start,x,proto=arp".to_owned()),
                Argument::Setting => Some("log-filter,endpoint=debug,ipoib=warn".to_owned()),
                Argument::Segment | Argument::Page => Some("storage".to_owned()),
                Argument::Command => Some("stats".to_owned()),
                Argument::Flag(words) => Some(words[0].0.to_owned()),
                Argument::None => None,
            };
            let asked = Asked { command, argument };
            let request = telemetry::Command::parse(asked.request().as_bytes()).unwrap();
            assert_eq!(Asked::parse(&request), Ok(asked));
        }
    }

    #[test]
    fn what_is_not_known_is_answered_with_what_is_near() {
        assert_eq!(
            parse("/stast", None).unwrap_err(),
            "no command /stast; did you mean /stats? / lists them"
        );
        assert_eq!(parse("/xylophone", None).unwrap_err(), "no command /xylophone; / lists them");
        let wrong = "invalid argument for /mode; usage: /mode,datagram|connected";
        assert_eq!(parse("/mode", Some("fast")).unwrap_err(), wrong);
        assert_eq!(parse("/mode", None).unwrap_err(), wrong);
        assert_eq!(
            parse("/reload", Some("now")).unwrap_err(),
            "invalid argument for /reload; usage: /reload"
        );
        let some = "invalid argument for /events; usage: /events[,KIND[,KIND...]]: KIND is link, ";
        for wrong in ["storm", "link,", "link,link link"] {
            assert!(parse("/events", Some(wrong)).unwrap_err().starts_with(some), "{wrong}");
        }
        assert!(parse("/events", Some("")).is_ok() && parse("/events", Some("link,role")).is_ok());
        assert!(parse("/set", Some("lgo,debug")).unwrap_err().contains("did you mean `log`?"));
        assert!(parse("/set", Some("log,loud")).unwrap_err().contains("it may be error, warn"));
        assert!(parse("/set", Some("log,debug")).is_ok() && parse("/set", Some("log")).is_ok());
        assert!(parse("/clear", Some("everything")).is_err() && parse("/clear", None).is_ok());
        assert_eq!(
            parse("/drain", Some("now")).unwrap_err(),
            "invalid argument for /drain; usage: /drain[,alone|undo]"
        );
        assert!(parse("/drain", None).is_ok() && parse("/drain", Some("undo")).is_ok());
        assert!(parse("/neighbours", Some("lab,limit=100")).is_ok() && parse("/groups", None).is_ok());
        assert!(parse("/connections", Some("limit=1000000")).unwrap_err().contains("1 to 2048 rows"));
        assert!(help(Some("lnks")).unwrap_err().contains("did you mean /links?"));
    }

    #[test]
    fn words_that_mean_something_each_are_options_of_which_one_may_be_given() {
        let read = |words: &[&str]| {
            let ctl = Asked::augment_subcommands(clap::Command::new("ctl"));
            let matches = ctl.try_get_matches_from([&["ctl"], words].concat())?;
            Asked::from_arg_matches(&matches).map(|asked| asked.request())
        };
        assert_eq!(read(&["drain"]).unwrap(), "/drain");
        assert_eq!(read(&["drain", "--undo"]).unwrap(), "/drain,undo");
        assert_eq!(read(&["drain", "--alone"]).unwrap(), "/drain,alone");
        assert!(read(&["drain", "--alone", "--undo"]).is_err() && read(&["drain", "alone"]).is_err());
        assert!(completion().contains("drain) words='--alone --undo'"));
    }

    /// Words that bash offers for a line whose last word is incomplete.
    fn offered(line: &[&str]) -> Vec<String> {
        let script = format!(
            "{}\nCOMP_WORDS=({}); COMP_CWORD={}; _ipoib_fwd; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            completion(),
            line.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
            line.len() - 1
        );
        let out = std::process::Command::new("bash").args(["--norc", "-c", &script]).output().unwrap();
        assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn bash_offers_what_a_command_takes_also_beyond_the_third_word() {
        for (line, words) in [
            (&["ipoib-fwd", "ctl", "tr"][..], &["trace"][..]),
            (&["ipoib-fwd", "ctl", "set", "lo"], &["log", "log-filter"]),
            (&["ipoib-fwd", "ctl", "set", "log", "d"], &["debug"]),
            (&["ipoib-fwd", "ctl", "set", "mode", ""], &["datagram", "connected"]),
            (&["ipoib-fwd", "ctl", "set", "mode", "datagram", ""], &[]),
            (&["ipoib-fwd", "ctl", "events", "link", "al"], &["alarm"]),
            (&["ipoib-fwd", "ctl", "trace", "ho"], &["host="]),
            (&["ipoib-fwd", "ctl", "trace", "proto=tcp", "se"], &["segment="]),
            (&["ipoib-fwd", "ctl", "trace", "proto=tcp", "port=22", "--"], &["--count", "--seconds"]),
            (&["ipoib-fwd", "ctl", "capture", "st"], &["start", "stop"]),
            (&["ipoib-fwd", "ctl", "capture", "start", "NAME", "pa"], &["packets="]),
            (&["ipoib-fwd", "ctl", "capture", "start", ""], &[]),
            (&["ipoib-fwd", "ctl", "stats", "one", ""], &[]),
            (&["ipoib-fwd", "gids", "trace", "ho"], &[]),
        ] {
            assert_eq!(offered(line), words, "{line:?}");
        }
        let mut filter = dataplane::filter::Filter::default();
        for (word, value) in FILTER.iter().zip(["10.0.0.1", "02:00:00:00:00:01", "tcp", "22", "0", "in"]) {
            assert!(filter.take(word.trim_end_matches('='), value).is_some(), "{word}");
        }
    }

    #[test]
    fn help_and_completion_know_every_command() {
        let (all, script) = (help(None).unwrap().to_string(), completion());
        for command in Command::of_ctl() {
            assert!(all.contains(command.help()) && script.contains(command.word()), "{command:?}");
        }
        assert!(script.contains("mode) words='datagram connected'"));
        assert_eq!(help(Some("/stats")).unwrap()["command"], "/stats[,SEGMENT]");
        assert_eq!(help(Some("capture")).unwrap()["command"], "/capture[,start,NAME[,KEY=VALUE...]|stop]");
        assert_eq!(list().as_array().unwrap().len(), Command::ALL.len());
    }
}
