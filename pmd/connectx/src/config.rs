//! Configuration of a device.

use ib_wire::Guid;

use super::port::PortConfig;

/// Configuration of a device.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Node GUID, which is also the system image GUID.
    pub node_guid: Guid,
    /// Node description, at most 64 bytes.
    pub description: String,
    /// Its ports, at most two.
    pub ports: Vec<PortConfig>,
    /// Seed of the generator of queue pair numbers.
    pub seed: u64,
}
