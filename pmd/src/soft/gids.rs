//! Access to the hardware GID table, for the process that manages it.

use std::sync::Arc;

use gidcache::{Entry, Provider, ProviderError};
use parking_lot::Mutex;

use super::SoftHca;
use connectx::engine::Engine;

/// Writes GID tables of a software device's Ethernet ports.
#[derive(Clone, Debug)]
pub struct SoftGids {
    engine: Arc<Mutex<Engine>>,
}

impl SoftHca {
    /// Returns the device as a provider for [`gidcache`].
    #[must_use]
    pub fn gid_provider(&self) -> SoftGids {
        SoftGids { engine: Arc::clone(&self.engine) }
    }
}

impl Provider for SoftGids {
    fn add_gid(&self, entry: &Entry) -> Result<(), ProviderError> {
        Ok(self.engine.lock().set_gid(entry.port, entry.index, Some(entry.attributes))?)
    }

    fn del_gid(&self, entry: &Entry) -> Result<(), ProviderError> {
        Ok(self.engine.lock().set_gid(entry.port, entry.index, None)?)
    }
}

#[cfg(test)]
mod tests {
    use gidcache::{Attributes, DeviceTable, GidType, Key, PortKind, PortSetup, RoceTypes, TableError};
    use ib_wire::{Guid, Mtu, PortNumber};

    use super::*;
    use crate::hca::{AsyncEvent, LinkLayer};
    use connectx::engine::EngineConfig;
    use connectx::{DeviceEvent, PortConfig};

    const PORT: PortNumber = PortNumber(1);

    fn attributes(last: u8) -> Attributes {
        let gid = gidcache::gid_of_address([10, 0, 0, last].into());
        Attributes { key: Key { gid, gid_type: GidType::RoceV2, ifindex: None }, vlan: None }
    }

    #[test]
    fn the_hardware_has_what_the_table_has() {
        let port = |guid, link_layer| PortConfig { guid, max_mtu: Mtu::B4096, link_layer, gid_table: 3 };
        let engine = Arc::new(Mutex::new(Engine::new(EngineConfig {
            node_guid: Guid(1),
            description: "two kinds of ports".into(),
            ports: vec![port(Guid(2), LinkLayer::Ethernet), port(Guid(3), LinkLayer::InfiniBand)],
            seed: 1,
        })));
        let provider = SoftGids { engine: Arc::clone(&engine) };
        // The table has four entries, the hardware three.
        let ports = [
            PortSetup { number: PORT, len: 4, kind: PortKind::Roce(RoceTypes::V2) },
            PortSetup { number: PortNumber(2), len: 3, kind: PortKind::Roce(RoceTypes::V2) },
        ];
        let table = DeviceTable::new(&ports, provider, 1).unwrap();
        let on_port = |engine: &Mutex<Engine>| {
            let gids = engine.lock().gids().into_iter().filter(|e| e.port == PORT);
            gids.map(|entry| (entry.index, entry.attributes)).collect::<Vec<_>>()
        };
        table.add(PORT, attributes(1)).unwrap();
        table.add(PORT, attributes(2)).unwrap();
        assert_eq!(on_port(&engine), [(1, attributes(1)), (2, attributes(2))]);
        assert!(matches!(table.add(PORT, attributes(3)), Err(TableError::Provider { what: "add", .. })));
        table.delete(PORT, &attributes(1).key).unwrap();
        assert_eq!(on_port(&engine), [(2, attributes(2))]);
        assert_eq!(engine.lock().gid(PORT, 2).unwrap(), attributes(2).key.gid);
        // Only the subnet manager writes this port's table.
        assert!(matches!(table.add(PortNumber(2), attributes(1)), Err(TableError::Provider { .. })));
        let events = std::iter::from_fn(|| engine.lock().next_event()).collect::<Vec<_>>();
        assert_eq!(events, [DeviceEvent::Async(AsyncEvent::GidChange(PORT)); 3]);
    }
}
