//! What the subnet manager is told.

use std::collections::BTreeSet;
use std::time::Duration;

use ib_wire::smp::Lmc;
use ib_wire::{Gid, Guid, Lid, PKey, TimeoutCode};

use super::{MKeys, Partition, PortId};

/// The fabric's own switches, and where others may be.
#[derive(Clone, Default, Debug)]
pub struct OwnSwitches {
    /// Their GUIDs; without any a switch may be anywhere.
    pub guids: BTreeSet<Guid>,
    /// Their ports that lead to each other.
    pub trunks: BTreeSet<PortId>,
    /// Their ports that lead to switches of others.
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
    /// GUID of the port that the subnet manager sits behind (the switch's port 0).
    pub port_guid: Guid,
    /// Subnet prefix.
    pub subnet_prefix: u64,
    /// Hop limit of all paths: above 0 packets have a GRH.
    pub hop_limit: u8,
    /// LID mask control of adapters' ports: each has 2^`lmc` LIDs. Port 0 of a switch has one.
    pub lmc: Lmc,
    /// First LID to give out; the subnet manager's port gets it.
    pub first_lid: Lid,
    /// Partitions. The default partition is always there for management, listed or not.
    pub partitions: Vec<Partition>,
    /// SubnetTimeOut of every port, and packet life time of every path.
    pub subnet_timeout: TimeoutCode,
    /// Wait this long for the answer to an SMP before sending it again.
    pub smp_timeout: Duration,
    /// Send an SMP this often before the node counts as gone.
    pub smp_tries: u32,
    /// Most SMPs that are out at the same time.
    pub smp_window: usize,
    /// Time between light sweeps.
    pub sweep_interval: Duration,
    /// Time between the end of one sweep and the start of the next, however many traps ask for it.
    pub sweep_hold_off: Duration,
    /// Most nodes that are managed; further ones are ignored and counted.
    pub max_nodes: usize,
    /// Most multicast groups.
    pub max_groups: usize,
    /// Most multicast groups that one port makes.
    pub max_groups_of_a_port: usize,
    /// Most pairs of ports that are examined for one request for paths.
    pub max_path_pairs: usize,
    /// Most event subscriptions, and reports that wait for their confirmation.
    pub max_subscriptions: usize,
    /// Most event subscriptions of one port, and reports to it that wait for their confirmation before there are more.
    pub max_subscriptions_of_a_port: usize,
    /// Most events that are kept for subscribers that have not confirmed earlier ones.
    pub max_events: usize,
    /// Wait this long for the answer to an event report before sending it again.
    pub report_timeout: Duration,
    /// Send an event report this often.
    pub report_tries: u32,
    /// SM_Key of clients that may see who is in a group; 0 = none may.
    pub sm_key: u64,
    /// M_Keys of all ports; `None`: ports have no M_Key, and every host can change them.
    pub m_keys: Option<MKeys>,
    /// Where switches may be.
    pub own: OwnSwitches,
    /// Seed of transaction ids.
    pub seed: u64,
}

impl SmConfig {
    /// The P_Keys of a port that hangs on port `at` of a switch: the default partition first, then the others in the
    /// order of the configuration. Where no default partition is configured everybody is a limited member of it, and
    /// subnet administration the only full one: it can be reached, and nobody else by it.
    #[must_use]
    pub fn pkeys_of(&self, port: Guid, at: Option<PortId>) -> Vec<PKey> {
        // The port of subnet administration is a full member of everything.
        let key = |p: &Partition| {
            if port == self.port_guid { Some(p.full_key()) } else { p.key_of(port, at) }
        };
        let is_default = |p: &&Partition| p.pkey.base() == PKey::DEFAULT.base();
        let management = if port == self.port_guid { PKey::DEFAULT } else { PKey(PKey::DEFAULT.base()) };
        let first = self.partitions.iter().find(is_default).map_or(Some(management), key);
        let others = self.partitions.iter().filter(|p| !is_default(p)).filter_map(key);
        first.into_iter().chain(others).collect()
    }

    /// Defaults for a subnet manager behind `port_guid`: one default partition, prefix fe80::/64.
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
