//! What the subnet manager is told.

use std::time::Duration;

use ib_wire::{Gid, Guid, Lid, Mtu, PKey, QKey, Rate, ServiceLevel, TimeoutCode};

/// One IPoIB partition. Its broadcast group is made when the subnet manager starts.
#[derive(Clone, Debug)]
pub struct Partition {
    /// Key; its membership bit is ignored.
    pub pkey: PKey,
    /// Q_Key of the broadcast group.
    pub qkey: QKey,
    /// MTU of the broadcast group.
    pub mtu: Mtu,
    /// Rate of the broadcast group.
    pub rate: Rate,
    /// Service level of the broadcast group.
    pub sl: ServiceLevel,
    /// Who belongs to it.
    pub members: Members,
}

impl Partition {
    /// The default partition with all ports as full members: Q_Key 0x0b1b, MTU 4096, 10 Gb/s, SL 0.
    #[must_use]
    pub const fn default_ipoib() -> Self {
        Self {
            pkey: PKey::DEFAULT,
            qkey: QKey(0x0b1b),
            mtu: Mtu::B4096,
            rate: Rate::new(3),
            sl: ServiceLevel::new(0),
            members: Members::AllFull,
        }
    }
}

/// The ports of a partition.
#[derive(Clone, Debug)]
pub enum Members {
    /// Every port is a full member.
    AllFull,
    /// The listed port GUIDs; `true` makes a full member, `false` a limited one.
    Listed(Vec<(Guid, bool)>),
}

/// Configuration of the embedded subnet manager.
#[derive(Clone, Debug)]
pub struct SmConfig {
    /// GUID of the port that the subnet manager sits behind (the switch's port 0).
    pub port_guid: Guid,
    /// Subnet prefix.
    pub subnet_prefix: u64,
    /// First LID to give out; the subnet manager's port gets it.
    pub first_lid: Lid,
    /// IPoIB partitions. The default partition is always there for management, listed or not.
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
    /// Most nodes that are managed; further ones are ignored and counted.
    pub max_nodes: usize,
    /// Most multicast groups.
    pub max_groups: usize,
    /// Most event subscriptions.
    pub max_subscriptions: usize,
    /// Seed of transaction ids.
    pub seed: u64,
}

impl SmConfig {
    /// Defaults for a subnet manager behind `port_guid`: one default partition, prefix fe80::/64.
    #[must_use]
    pub fn new(port_guid: Guid) -> Self {
        Self {
            port_guid,
            subnet_prefix: Gid::DEFAULT_PREFIX,
            first_lid: Lid(1),
            partitions: vec![Partition::default_ipoib()],
            subnet_timeout: TimeoutCode::new(18),
            smp_timeout: Duration::from_millis(200),
            smp_tries: 4,
            smp_window: 8,
            sweep_interval: Duration::from_secs(10),
            max_nodes: 4096,
            max_groups: 1024,
            max_subscriptions: 1024,
            seed: 0,
        }
    }
}
