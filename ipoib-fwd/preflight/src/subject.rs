//! The subject of the checks: a configuration for a host, and derived values for the rules.

use config::{Config, ConfigError, ConfigFile, EalArguments, LcoreSet, Lcores};

use crate::finding::{Code, Finding, Spot};
use crate::machine::{Adapter, Machine};
use crate::report::Report;
use crate::rules;

/// A configuration and its host.
#[derive(Debug)]
pub struct Subject<'s> {
    /// The host.
    pub machine: &'s Machine,
    /// The valid part of the file.
    pub config: &'s Config,
    /// The file.
    pub file: Option<&'s ConfigFile>,
    /// EAL's arguments; `None` if they are not given or not valid.
    pub eal: Option<&'s EalArguments>,
    /// Errors of EAL's arguments and of the configuration alone.
    pub errors: &'s [ConfigError],
}

impl Subject<'_> {
    /// Runs all checks.
    #[must_use]
    pub fn check(&self) -> Report {
        let mut found = Vec::new();
        rules::configuration::check(self, &mut found);
        rules::accounts::check(self, &mut found);
        rules::eal::check(self, &mut found);
        rules::ethernet::check(self, &mut found);
        rules::processors::check(self, &mut found);
        rules::nodes::check(self, &mut found);
        rules::hugepages::check(self, &mut found);
        rules::iommu::check(self, &mut found);
        rules::modules::check(self, &mut found);
        rules::infiniband::check(self, &mut found);
        rules::access::check(self, &mut found);
        rules::limits::check(self, &mut found);
        rules::socket::check(self, &mut found);
        rules::paths::check(self, &mut found);
        Report::new(found)
    }

    /// True if the file has errors, so that parts of the configuration are defaults.
    pub(crate) fn is_file_faulty(&self) -> bool {
        self.errors.iter().any(|error| matches!(error, ConfigError::Read { .. } | ConfigError::File { .. }))
    }

    /// The roles of the lcores, if EAL's arguments define them.
    pub(crate) fn roles(&self) -> Option<Lcores> {
        self.eal.and_then(|eal| eal.roles().ok().flatten())
    }

    /// Each worker with its processors.
    pub(crate) fn workers(&self) -> Vec<(u16, LcoreSet)> {
        let (Some(eal), Some(roles)) = (self.eal, self.roles()) else { return Vec::new() };
        roles.workers.iter().map(|lcore| (lcore, eal.processors_of(lcore))).collect()
    }

    /// The NUMA nodes of the workers' processors.
    pub(crate) fn worker_nodes(&self) -> Vec<u16> {
        let processors = self.workers();
        let processors = processors.iter().flat_map(|(_, processors)| processors.iter());
        let mut nodes: Vec<u16> =
            processors.filter_map(|cpu| self.machine.processors.nodes.get(&cpu).copied()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// The adapter of a configured InfiniBand port, or of the port that the gateway selects. Without a device
    /// name it is the first adapter with an InfiniBand port of this number. If there is none, it is the first
    /// adapter, for a message about its ports.
    pub(crate) fn adapter(&self, device: Option<&str>, port: u8) -> Option<(&String, &Adapter)> {
        let adapters = &self.machine.adapters;
        if let Some(name) = device {
            return adapters.get_key_value(name);
        }
        let has_port = |adapter: &Adapter| adapter.ports.get(&port).is_some_and(|port| port.is_infiniband);
        adapters.iter().find(|(_, adapter)| has_port(adapter)).or(adapters.iter().next())
    }

    /// The location of a key that is in effect ([`ConfigFile::place`]).
    pub(crate) fn spot(&self, key: &str, entry: Option<usize>) -> Option<Spot> {
        self.file.map(|file| Spot::new(&file.place(key, entry), file))
    }

    /// Creates a finding about a key of the file.
    pub(crate) fn of_key(
        &self,
        code: Code,
        key: &str,
        entry: Option<usize>,
        what: impl Into<String>,
        help: impl Into<String>,
    ) -> Finding {
        Finding::new(code, what, help).at(self.spot(key, entry))
    }

    /// The index of the first segment with this property.
    pub(crate) fn first_segment(&self, is: impl Fn(&config::Segment) -> bool) -> Option<usize> {
        self.config.segments.iter().position(is)
    }
}
