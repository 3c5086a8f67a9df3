//! What a device is made with.

use ib_wire::Guid;

use super::port::PortConfig;

/// What a device is made with.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Node GUID, also that of the system.
    pub node_guid: Guid,
    /// Node description, 64 bytes at most.
    pub description: String,
    /// Its ports, two at most.
    pub ports: Vec<PortConfig>,
    /// Where queue pair numbers are drawn from.
    pub seed: u64,
}
