//! Problems of the configuration and of EAL's arguments alone.

use std::os::unix::fs::PermissionsExt as _;

use config::ConfigError;

use crate::finding::{Code, Finding, Spot};
use crate::subject::Subject;

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    for error in subject.errors {
        found.push(of_error(subject, error));
    }
    let workers = u32::try_from(subject.workers().len()).unwrap_or(u32::MAX);
    if workers > 0
        && let Some((what, help)) = subject.config.overcommitted_connections(workers)
    {
        let key = "infiniband.max-connections";
        found.push(subject.of_key(Code::ConnectionsOvercommitted, key, None, what, help));
    }
    let Some(file) = subject.file else {
        if !subject.errors.iter().any(|error| matches!(error, ConfigError::Read { .. })) {
            let what = "no configuration file is given: all values are defaults";
            found.push(Finding::new(
                Code::ConfigMissing,
                what,
                "create one with ipoib-fwd init, and give it with --config FILE",
            ));
        }
        return;
    };
    if !subject.is_file_faulty() {
        for unused in file.unused_keys(subject.config) {
            let spot = Some(Spot::new(&unused.place, file));
            found.push(Finding::new(Code::KeyUnused, unused.what, unused.remedy).at(spot));
        }
    }
    let mode = std::fs::metadata(file.path()).map_or(0, |about| about.permissions().mode());
    if subject.config.gateway.pair_key.is_some() && mode & 0o004 != 0 {
        let what = "other users can read the file with the key that gateways share";
        let help = format!("chmod o-rwx {}", file.path().display());
        found.push(subject.of_key(Code::PairKeyReadable, "gateway.pair-key", None, what, help));
    }
}

pub(super) fn of_error(subject: &Subject<'_>, error: &ConfigError) -> Finding {
    match error {
        ConfigError::Read { file, source } => {
            let what = format!("{} cannot be read: {source}", file.display());
            Finding::new(Code::ConfigUnreadable, what, "give a readable file with --config")
        }
        ConfigError::File { place, what, remedy } => {
            let spot = subject.file.map(|file| Spot::new(place, file));
            Finding::new(Code::ConfigInvalid, what, remedy).at(spot)
        }
        ConfigError::CommandLine { what, remedy } => {
            Finding::new(Code::EalInvalid, format!("command line: {what}"), remedy)
        }
        ConfigError::Promise { key, what, remedy } => {
            Finding::new(Code::ConfigInvalid, format!("{key}: {what}"), remedy)
        }
    }
}
