//! Checks of a configuration and a command line, by `ibfab --check` and at the start.

use config::EalArguments;
use ib_wire::Gid;

use crate::config::FabricConfig;
use crate::fabric::Management;
use crate::program::ProgramError;

/// Exit code of `--check` with warnings and no error.
pub const WARNINGS: u8 = 3;

/// Rejects EAL arguments that EAL would ignore or reject.
pub fn eal_arguments(words: &[String]) -> Result<(), ProgramError> {
    EalArguments::parse(words.to_vec()).map(|_| ()).map_err(|error| ProgramError::Arguments {
        what: match error {
            config::ConfigError::CommandLine { what, .. } => what,
            other => other.to_string(),
        },
    })
}

/// Returns warnings about a configuration: hosts that wait for their partition, and keys without effect.
#[must_use]
pub fn warnings(config: &FabricConfig, management: Management) -> Vec<String> {
    let mut warnings = Vec::new();
    if management == Management::Elsewhere {
        if !config.partitions.is_empty()
            || config.prefix != Gid::DEFAULT_PREFIX
            || config.hop_limit != 0
            || config.lmc.get() != 0
        {
            warnings.push(
                "partitions, prefix, hop limit and lmc of the configuration are for the embedded subnet manager: --sm none \
                 ignores them; remove them, or omit --sm none"
                    .to_owned(),
            );
        }
        return warnings;
    }
    if config.hop_limit == 0 {
        for host in config.hosts.iter().filter(|host| host.grh_required) {
            warnings.push(format!(
                "no port can send to host {}: its port requires a GRH; set fabric.hop_limit = 1",
                host.name
            ));
        }
    }
    for host in config.hosts_without_partition() {
        let (name, pkey) = (&host.name, host.pkey);
        warnings.push(format!("host {name} waits: it is not a member of a [[partition]] with P_Key {pkey}"));
    }
    warnings
}

/// Returns the report of a check that found no error.
#[must_use]
pub fn report(warnings: &[String]) -> String {
    let lines: String = warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
    let plural = if warnings.len() == 1 { "" } else { "s" };
    format!("{lines}ibfab: 0 errors, {} warning{plural}\n", warnings.len())
}
