//! Settings of the subnet manager.

use std::collections::BTreeSet;
use std::time::Duration;

use ib_wire::smp::Lmc;
use ib_wire::{Gid, Guid, Lid, PKey, TimeoutCode};

use super::{MKeys, Partition, PortId};

/// The fabric's own switches, and the ports that may lead to others.
#[derive(Clone, Default, Debug)]
pub struct OwnSwitches {
    /// Their GUIDs; if empty, a switch may be anywhere.
    pub guids: BTreeSet<Guid>,
    /// Their ports that lead to each other.
    pub trunks: BTreeSet<PortId>,
    /// Their ports that lead to switches of another owner.
    pub others: BTreeSet<PortId>,
}

impl OwnSwitches {
    pub(crate) fn has(&self, guid: Guid) -> bool {
        self.guids.contains(&guid)
    }

    /// True if a switch may be at the other end of this port.
    pub(crate) fn may_lead_to_switch(&self, port: PortId) -> bool {
        !self.has(port.0) || self.trunks.contains(&port) || self.others.contains(&port)
    }

    /// True if the node with this GUID, found behind port `from` of a switch, may be a switch.
    pub(crate) fn admits(&self, guid: Guid, from: PortId) -> bool {
        match (self.has(from.0), self.has(guid)) {
            _ if self.guids.is_empty() => true,
            (true, true) => self.trunks.contains(&from),
            (true, false) => self.others.contains(&from),
            (false, own) => !own,
        }
    }
}

/// Configuration of the embedded subnet manager.
#[derive(Clone, Debug)]
pub struct SmConfig {
    /// GUID of the subnet manager's port (the switch's port 0).
    pub port_guid: Guid,
    /// Subnet prefix.
    pub subnet_prefix: u64,
    /// Hop limit of all paths: above 0 packets have a GRH.
    pub hop_limit: u8,
    /// LID mask control of adapters' ports: each has 2^`lmc` LIDs. Port 0 of a switch has one.
    pub lmc: Lmc,
    /// First LID to assign; the subnet manager's port gets it.
    pub first_lid: Lid,
    /// Partitions. The default partition always exists for management, even if it is not listed.
    pub partitions: Vec<Partition>,
    /// SubnetTimeOut of every port, and packet life time of every path.
    pub subnet_timeout: TimeoutCode,
    /// Timeout of an SMP before it is sent again.
    pub smp_timeout: Duration,
    /// Number of times that an SMP is sent before the node counts as gone.
    pub smp_tries: u32,
    /// Most outstanding SMPs.
    pub smp_window: usize,
    /// Time between light sweeps.
    pub sweep_interval: Duration,
    /// Shortest time between the end of one sweep and the start of the next, regardless of the number of
    /// traps.
    pub sweep_hold_off: Duration,
    /// Most nodes that are managed; further ones are ignored and counted.
    pub max_nodes: usize,
    /// Most multicast groups.
    pub max_groups: usize,
    /// Most multicast groups that one port creates.
    pub max_groups_of_a_port: usize,
    /// Most pairs of ports that are examined for one PathRecord query.
    pub max_path_pairs: usize,
    /// Most event subscriptions, and reports that await confirmation.
    pub max_subscriptions: usize,
    /// Most event subscriptions of one port; also the most unconfirmed reports to it before further ones are
    /// held back.
    pub max_subscriptions_of_a_port: usize,
    /// Most events that are kept for subscribers that have not confirmed earlier ones.
    pub max_events: usize,
    /// Timeout of an event report before it is sent again.
    pub report_timeout: Duration,
    /// Number of times that an event report is sent.
    pub report_tries: u32,
    /// SM_Key of clients that may list the members of a group; 0 = no client may.
    pub sm_key: u64,
    /// M_Keys of all ports; `None`: ports have no M_Key, and every host can change their settings.
    pub m_keys: Option<MKeys>,
    /// Ports that may lead to switches.
    pub own: OwnSwitches,
    /// Seed of transaction ids.
    pub seed: u64,
}

impl SmConfig {
    /// Returns the P_Keys of a port that is connected to port `at` of a switch: the default partition first,
    /// then the others in the order of the configuration. If no default partition is configured, every port
    /// is a limited member of it, and subnet administration is the only full one. Ports can then reach subnet
    /// administration by it, and no other port.
    #[must_use]
    pub fn pkeys_of(&self, port: Guid, at: Option<PortId>) -> Vec<PKey> {
        // The port of subnet administration is a full member of every partition.
        let key = |p: &Partition| {
            if port == self.port_guid { Some(p.full_key()) } else { p.key_of(port, at) }
        };
        let is_default = |p: &&Partition| p.pkey.base() == PKey::DEFAULT.base();
        let management = if port == self.port_guid { PKey::DEFAULT } else { PKey(PKey::DEFAULT.base()) };
        let first = self.partitions.iter().find(is_default).map_or(Some(management), key);
        let others = self.partitions.iter().filter(|p| !is_default(p)).filter_map(key);
        first.into_iter().chain(others).collect()
    }

    /// Returns defaults for a subnet manager at `port_guid`: one default partition, prefix fe80::/64.
    #[must_use]
    pub fn new(port_guid: Guid) -> Self {
        Self {
            port_guid,
            subnet_prefix: Gid::DEFAULT_PREFIX,
            hop_limit: 0,
            lmc: Lmc::new(0),
            first_lid: Lid(1),
            partitions: vec![Partition::default_ipoib()],
            subnet_timeout: TimeoutCode::new(18),
            smp_timeout: Duration::from_millis(200),
            smp_tries: 4,
            smp_window: 8,
            sweep_interval: Duration::from_secs(10),
            sweep_hold_off: Duration::from_millis(20),
            max_nodes: 4096,
            max_groups: 1 << 14,
            max_groups_of_a_port: 1 << 12,
            max_path_pairs: 1 << 14,
            max_subscriptions: 4096,
            max_subscriptions_of_a_port: 64,
            max_events: 1 << 14,
            report_timeout: Duration::from_millis(500),
            report_tries: 4,
            sm_key: 1,
            m_keys: None,
            own: OwnSwitches::default(),
            seed: 0,
        }
    }
}
