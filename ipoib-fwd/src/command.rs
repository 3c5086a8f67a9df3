//! The commands of a running gateway, each written down once: its name, what it may be told, what it does. From that come what the
//! control socket takes, what `ipoib-fwd ctl` takes and says of itself, and what a shell completes.

mod line;

use config::nearest;
use dataplane::telemetry;
use serde_json::{Value, json};

use crate::event::Kind;
use crate::page::PageRequest;
use crate::setting::Key;

pub use line::{completion, with_nearest};

/// What a command may be told, at most one thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Argument {
    /// Nothing.
    None,
    /// A command's name, or nothing.
    Command,
    /// A segment's name, or nothing: then it is about all of them.
    Segment,
    /// As [`Self::Segment`], of a list that comes in pages ([`crate::page`]).
    Page,
    /// Some of the words, with a comma between them, which say what stands first; or nothing: all of them.
    SomeOf(&'static str, &'static [&'static str]),
    /// Words, which the command itself looks at, as this says; or nothing.
    Words(&'static str),
    /// Words, as before, and how many rows at most, and for how long: for what is followed.
    Follow(&'static str),
    /// A key of what may be set, and a value for it; the key alone, or nothing.
    Setting,
    /// One of these words, each with what it means, or nothing; options of `ipoib-fwd ctl`.
    Flag(&'static [(&'static str, &'static str)]),
    /// One of the words, which say what stands first.
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

            /// What it is called; on the socket behind a slash.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// What it may be told.
            #[must_use]
            pub const fn argument(self) -> Argument {
                match self {
                    $(Self::$name => $argument,)*
                }
            }

            /// What it does.
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
    Help = "help", Argument::Command, "What a command does, or all of them.";
    Stats = "stats", Argument::Segment, "Packets and bytes by path, drops by reason, times; of a segment, its packets and drops on each worker.";
    Metrics = "metrics", Argument::None, "The figures as monitoring systems take them (OpenMetrics); `ipoib-fwd metrics` serves them over HTTP.";
    Links = "links", Argument::Segment, "The ports, and each segment's link and role.";
    Neighbours = "neighbours", Argument::Page, "Hosts on both sides.";
    Connections = "connections", Argument::Page, "RC connections, both directions.";
    Groups = "groups", Argument::Page, "Multicast groups.";
    Gids = "gids", Argument::None, "The devices' GID tables; `ipoib-fwd gids` lists them as show_gids does.";
    Events = "events", Argument::SomeOf("KIND", Kind::WORDS), "What happens, a line each as it does, until the gateway ends (exit code 3; 4 if it has died). What is not read in time is lost, and counted.";
    Capture = "capture", Argument::Words("start,NAME[,KEY=VALUE...]|stop"), "Captures Ethernet frames into NAME.N.pcap in the directory gateway.captures (on a local disk), until it is stopped or as long as is ordered; alone: how it stands. host=ADDRESS, mac=ADDRESS, proto=arp, icmp, tcp, udp or a number, port=N (of TCP or UDP), vlan=ID (0: no tag) and direction=in|out choose frames; files=N (4, 64 at most) of size=BYTES (16 MiB, 64 at most) are kept, the newest; packets=N and seconds=N (600) end it. Without an answer within 5 s to `start` or `stop` `ipoib-fwd ctl` ends with exit code 6: it may have been carried out.";
    Trace = "trace", Argument::Follow("KEY=VALUE[,KEY=VALUE...]"), "Follows packets through the gateway: a row each time that a worker or the control lcore has one in hand, with what was looked up for it, verdict and reason. host=ADDRESS, mac=ADDRESS, proto=arp, icmp, tcp, udp or a number, port=N (of TCP or UDP), vlan=ID (0: no tag), direction=in|out, segment=NAME and at=PORT choose packets; count=N (100, 10000 at most) rows or seconds=N (60, 3600 at most) end it. While anybody follows, all packets go a slower way.";
    Set = "set", Argument::Setting, "Sets what may change while the gateway runs, until it is set again, a reload finds another value in the file than before, or the gateway ends. Without a value: what there is to set. Without an answer within 5 s to a value `ipoib-fwd ctl` ends with exit code 6: it may have been set.";
    Clear = "clear", Argument::SomeOf("WHAT", &["counters", "latency"]), "Has `since` count from now on. Nothing else begins anew: `stats` and `metrics` go on. Without an answer within 5 s `ipoib-fwd ctl` ends with exit code 6: it may have been carried out.";
    Since = "since", Argument::Segment, "What was counted since the last `clear`, or since the start; of a segment, its packets and drops on each worker.";
    Mode = "mode", Argument::OneOf("MODE", &["datagram", "connected"]), "Switches all segments between connected and datagram mode while traffic runs. Without an answer within 5 s `ipoib-fwd ctl` ends with exit code 6: it may have been carried out.";
    Health = "health", Argument::None, "Whether each segment could forward now, or why not: for scripts; `ipoib-fwd ctl` ends with exit code 5 if one cannot.";
    Drain = "drain", Argument::Flag(&[("alone", "Although nobody takes over: what hosts send is dropped then"), ("undo", "Back into service")]), "Has the other gateway forward, without a loss, and this one nothing any more, until that is undone or it is started anew. `ipoib-fwd ctl` waits until it is done. Without an answer within 5 s, then or while it waits, it ends with exit code 6: it may have been carried out.";
    Reload = "reload", Argument::None, "Reads the configuration again, as SIGHUP does: all of it or, with an error that says why (exit code 1), nothing. Without an answer within a minute `ipoib-fwd ctl` ends with exit code 6: it may have been carried out.";
}

impl Command {
    /// The command of that name.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|command| command.word() == word)
    }

    /// As it is written on the socket.
    fn path(self) -> String {
        format!("/{}", self.word())
    }

    /// As it is written with what it may be told.
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

    /// Those that `ipoib-fwd ctl` has; it lists and explains them by itself.
    fn of_ctl() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|command| !matches!(command, Self::List | Self::Help))
    }
}

/// What a filter of packets begins with ([`dataplane::filter::Filter`]).
const FILTER: [&str; 6] = ["host=", "mac=", "proto=", "port=", "vlan=", "direction="];

/// Options of what is followed; on the socket they are words like others.
const BOUNDS: [(&str, &str); 2] = [("count", "Ends after so many rows"), ("seconds", "Ends after so long")];

/// What is asked of a gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The command.
    pub command: Command,
    /// What it is told, of the kind that it takes; a segment's name is not looked up.
    pub argument: Option<String>,
}

impl Asked {
    /// From a request on the socket; an error says what it should have been.
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
            return Err(format!("{} cannot be told that; write {}{more}", command.path(), command.usage()));
        }
        Ok(Self { command, argument })
    }

    /// True if it changes something in the gateway.
    #[must_use]
    pub fn is_order(&self) -> bool {
        match self.command {
            Command::Clear | Command::Mode | Command::Drain | Command::Reload => true,
            // Alone: what the captures are.
            Command::Capture => self.argument.is_some(),
            // A key alone: its values.
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

    /// As the socket takes it.
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
        let wrong = "/mode cannot be told that; write /mode,datagram|connected";
        assert_eq!(parse("/mode", Some("fast")).unwrap_err(), wrong);
        assert_eq!(parse("/mode", None).unwrap_err(), wrong);
        assert_eq!(parse("/reload", Some("now")).unwrap_err(), "/reload cannot be told that; write /reload");
        let some = "/events cannot be told that; write /events[,KIND[,KIND...]]: KIND is link, ";
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
            "/drain cannot be told that; write /drain[,alone|undo]"
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

    /// What bash offers for a line whose last word is begun.
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
