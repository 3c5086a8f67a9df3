//! The validation before a start, for `ipoib-fwd --check` and for the start itself. This module reads the
//! state of the host; `preflight` judges it.

use std::path::Path;

use config::{CommandLine, Config, ConfigError, ConfigFile, EalArguments, Overrides};
use pmd::hca::{Control as _, PortNumber};
use pmd::verbs::{OpenOptions, VerbsHca};
use preflight::{Machine, Report, Subject};

use crate::state_directory;

/// The gateway's own arguments if `--check` is among them: those behind `--`, or all if there is none.
#[must_use]
pub fn own_arguments(arguments: &[String]) -> Option<Vec<String>> {
    let begin = arguments.iter().position(|word| word == "--").unwrap_or(0) + 1;
    let own = arguments.get(begin..).unwrap_or_default();
    own.iter().any(|word| word == "--check").then(|| own.to_vec())
}

/// Validates the configuration, the host and the fabric.
#[must_use]
pub fn run(arguments: &[String], file: Option<&Path>, overrides: &Overrides) -> Report {
    let mut errors = Vec::new();
    let is_split = arguments.iter().position(|word| word == "--").is_some_and(|at| at > 1);
    let line = is_split.then(|| CommandLine::parse(arguments.iter().cloned()));
    let eal = line.and_then(|line| line.map_err(|error| errors.push(error)).ok()).map(|line| line.eal);
    let file = file.and_then(|file| ConfigFile::read(file).map_err(|error| errors.push(error)).ok());
    validate(eal.as_ref(), file.as_ref(), overrides, errors, query_ports).1
}

/// Reads and validates everything that a start needs before EAL, and returns the findings. Devices are not
/// opened: the start does that later.
pub(crate) fn before_start(
    eal: &EalArguments,
    file: Option<&ConfigFile>,
    overrides: &Overrides,
) -> (Config, Report) {
    validate(Some(eal), file, overrides, Vec::new(), |_| {})
}

/// Reads the configuration as far as it is valid, and collects all errors and warnings about it on this host.
fn validate(
    eal: Option<&EalArguments>,
    file: Option<&ConfigFile>,
    overrides: &Overrides,
    mut errors: Vec<ConfigError>,
    open_adapters: impl FnOnce(&mut Machine),
) -> (Config, Report) {
    let roles = eal.and_then(|eal| eal.roles().ok().flatten());
    // No gateway has more lcores: then the lcores are the error.
    let workers = roles.and_then(|roles| u8::try_from(roles.workers.len()).ok()).map(u32::from);
    let config = match file {
        Some(file) => {
            let (config, wrong) = file.examine(overrides, workers);
            errors.extend(wrong);
            config
        }
        None => {
            let config = Config::from_overrides(overrides);
            errors.extend(workers.and_then(|workers| config.check(workers).err()));
            config
        }
    };
    let mut machine = Machine::read(Path::new("/"));
    machine.look_at_files(&config);
    machine.state_in_use = state_directory::in_use(&config.gateway);
    if !config.infiniband.is_soft() {
        open_adapters(&mut machine);
    }
    let report = Subject { machine: &machine, config: &config, file, eal, errors: &errors }.check();
    (config, report)
}

/// Queries attributes of the ports that the kernel reports only to users of verbs. A device that cannot be
/// opened is described by its files in sysfs.
fn query_ports(machine: &mut Machine) {
    let options = OpenOptions { infiniband: false, management: false };
    for (name, adapter) in &mut machine.adapters {
        for (number, port) in &mut adapter.ports {
            let number = PortNumber(*number);
            let attributes =
                VerbsHca::open_with(Some(name), number, options).and_then(|hca| hca.port(number));
            port.mtu = attributes.ok().and_then(|port| u16::try_from(port.active_mtu.bytes()).ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_is_requested_after_two_dashes_or_alone() {
        let own = |text: &str| {
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            own_arguments(&words).map(|own| own.join(" "))
        };
        assert_eq!(own("p -l 0-1 -- --check --config f").as_deref(), Some("--check --config f"));
        assert_eq!(own("p --config f --check").as_deref(), Some("--config f --check"));
        assert_eq!(own("p --check").as_deref(), Some("--check"));
        assert_eq!(own("p --check -l 0-1 -- --config f"), None);
        assert_eq!(own("p -l 0-1 -- --config f"), None);
    }
}
