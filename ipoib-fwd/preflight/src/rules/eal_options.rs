//! EAL's options, read as getopt_long(3) reads them: EAL answers one that it does not know with its whole usage text.

use config::nearest;

use super::listed;

/// Whether a value belongs to an option.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    /// None.
    No,
    /// Only one after `=`.
    Attached,
    /// The next argument is the value, unless one follows after `=`.
    Required,
}
use Value::{Attached, No, Required};

/// The long options of DPDK 22.11.
const LONG: [(&str, Value); 38] = [
    ("--allow", Required),
    ("--base-virtaddr", Required),
    ("--block", Required),
    ("--create-uio-dev", No),
    ("--file-prefix", Required),
    ("--force-max-simd-bitwidth", Required),
    ("--help", No),
    ("--huge-dir", Required),
    ("--huge-unlink", Attached),
    ("--huge-worker-stack", Attached),
    ("--in-memory", No),
    ("--iova-mode", Required),
    ("--lcores", Required),
    ("--legacy-mem", No),
    ("--log-level", Required),
    ("--main-lcore", Required),
    ("--match-allocations", No),
    ("--mbuf-pool-ops-name", Required),
    ("--no-hpet", No),
    ("--no-huge", No),
    ("--no-pci", No),
    ("--no-shconf", No),
    ("--no-telemetry", No),
    ("--proc-type", Required),
    ("--single-file-segments", No),
    ("--socket-limit", Required),
    ("--socket-mem", Required),
    ("--syslog", Required),
    ("--telemetry", No),
    ("--trace", Required),
    ("--trace-bufsz", Required),
    ("--trace-dir", Required),
    ("--trace-mode", Required),
    ("--vdev", Required),
    ("--version", No),
    ("--vfio-intr", Required),
    ("--vfio-vf-token", Required),
    ("--vmware-tsc-map", No),
];

/// Long options that later versions have, up to 24.11.
const LATER: [(&str, Value); 2] = [("--log-color", Attached), ("--log-timestamp", Attached)];

/// The short options.
const SHORT: [(&str, char, Value); 12] = [
    ("-a", 'a', Required),
    ("-b", 'b', Required),
    ("-c", 'c', Required),
    ("-d", 'd', Required),
    ("-h", 'h', No),
    ("-l", 'l', Required),
    ("-m", 'm', Required),
    ("-n", 'n', Required),
    ("-r", 'r', Required),
    ("-s", 's', Required),
    ("-S", 'S', Required),
    ("-v", 'v', No),
];

/// The page with EAL's options.
const LIST: &str = "https://doc.dpdk.org/guides/linux_gsg/linux_eal_parameters.html";

/// An option that EAL does not know.
#[derive(Debug)]
pub(super) struct Unknown {
    /// What is wrong.
    pub(super) what: String,
    /// What to do about it.
    pub(super) help: String,
}

/// A long option by its name, which may be cut short as long as one option begins with it.
fn long(name: &str) -> Result<(&'static str, Value), Unknown> {
    if let Some(option) = LONG.iter().chain(&LATER).find(|(option, _)| *option == name) {
        return Ok(*option);
    }
    let begin: Vec<_> = LONG.iter().filter(|(option, _)| option.starts_with(name)).collect();
    match begin.as_slice() {
        [] => {
            let names: Vec<&str> = LONG.iter().map(|(option, _)| *option).collect();
            Err(Unknown::option(name, nearest(name, &names)))
        }
        [option] => Ok(**option),
        several => Err(Unknown {
            what: format!("{name} may be one of several options of EAL"),
            help: format!("write one of: {}", listed(several.iter().map(|(option, _)| option))),
        }),
    }
}

impl Unknown {
    fn option(name: &str, near: Option<&str>) -> Self {
        let near = near.map(|near| format!("did you mean {near}? ")).unwrap_or_default();
        Self {
            what: format!("EAL has no option {name}"),
            help: format!("{near}Its options are listed at {LIST}; the gateway's own stand behind `--`"),
        }
    }
}

/// EAL's options with their values, up to the first that it does not know.
pub(super) fn read(arguments: &[String]) -> (Vec<(&'static str, Option<&str>)>, Option<Unknown>) {
    let mut given = Vec::new();
    let mut words = arguments.iter().map(String::as_str);
    while let Some(word) = words.next() {
        if word.starts_with("--") {
            let (name, attached) =
                word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            match long(name) {
                Ok((option, Required)) => given.push((option, attached.or_else(|| words.next()))),
                Ok((option, No | Attached)) => given.push((option, attached)),
                Err(unknown) => return (given, Some(unknown)),
            }
            continue;
        }
        // Several short options in a word, of which the last may have a value.
        let Some(letters) = word.strip_prefix('-') else { continue };
        for (at, letter) in letters.char_indices() {
            let Some((name, _, value)) = SHORT.iter().find(|(_, known, _)| *known == letter) else {
                return (given, Some(Unknown::option(&format!("-{}", letter.escape_default()), None)));
            };
            if *value == Required {
                let attached = letters.get(at + letter.len_utf8()..).filter(|rest| !rest.is_empty());
                given.push((name, attached.or_else(|| words.next())));
                break;
            }
            given.push((name, None));
        }
    }
    (given, None)
}

/// The value of an option, which may be cut short on the command line; the last one counts.
pub(super) fn value<'a>(arguments: &'a [String], option: &str) -> Option<&'a str> {
    let (given, _) = read(arguments);
    given.iter().rev().find(|(name, _)| *name == option).and_then(|(_, value)| *value)
}

/// True if an option is given.
pub(super) fn has(arguments: &[String], option: &str) -> bool {
    read(arguments).0.iter().any(|(name, _)| *name == option)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn options_are_read_as_getopt_long_reads_them() {
        for good in [
            "-l 0-1 --no-huge -m 512 --vdev net_null0 --in-memory",
            "-l0-1 -vm 64 --vdev=net_null0,x=--y --huge-unlink --huge-unlink=never",
            "--no-tel --main 1 --log-level -x --file-prefix --nonsense --log-timestamp",
        ] {
            let (_, unknown) = read(&words(good));
            assert!(unknown.is_none(), "{good}: {unknown:?}");
        }
        let line = words("-l 0 --file a --file-p=b --no-hug -vhm64 -d -q");
        assert_eq!(value(&line, "--file-prefix"), Some("b"));
        assert_eq!((value(&line, "-m"), value(&line, "-d")), (Some("64"), Some("-q")));
        assert!(has(&line, "--no-huge") && has(&line, "-h") && !has(&line, "--no-pci"));
    }

    #[test]
    fn an_unknown_option_is_named_with_the_nearest_one() {
        for (bad, option, near) in [
            ("--no-telemetri", "--no-telemetri", "did you mean --no-telemetry? "),
            ("-l 0-1 --in-memroy=1", "--in-memroy", "did you mean --in-memory? "),
            ("--frobnicate 7", "--frobnicate", "Its options"),
            ("-vq", "-q", "Its options"),
        ] {
            let unknown = read(&words(bad)).1.unwrap();
            assert_eq!(unknown.what, format!("EAL has no option {option}"));
            assert!(unknown.help.starts_with(near) && unknown.help.contains(LIST), "{}", unknown.help);
        }
        let several = read(&words("--no-h")).1.unwrap();
        assert_eq!(several.help, "write one of: --no-hpet, --no-huge");
    }
}
