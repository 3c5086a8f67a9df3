//! The software ConnectX as a host channel adapter.
//!
//! This module does the work of libmlx5 and the kernel for a real adapter: ring memory, numbers and
//! registration. It connects the device's [`Engine`] with the mlx5 driver.

mod anchor;
mod backend;
mod bus;
mod control;
mod gids;
mod gsi;
mod memory;
mod queues;
mod rest;
mod roce;
mod served;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;

use ib_wire::{Guid, Mtu, Qpn};
use parking_lot::Mutex;

use crate::hca::{AsyncEvent, HcaError, LinkLayer, PortNumber, QueuesConfig, QueuesId, RcConfig, UdConfig};
use crate::mlx5::mr::{MrTable, Region};
use crate::mlx5::rings::QpRings;
pub use bus::SoftBus;
use connectx::DeviceEvent;
use connectx::cable::CableEnd;
use connectx::engine::{Engine, EngineConfig};
use connectx::{Access, Counters, HostMemory, MAX_GIDS, PortConfig, QpKind};
pub use gids::SoftGids;
use gsi::Management;
use memory::Arena;
use queues::{Created, WorkerRings};
pub use roce::{RoceConfig, RoceError, RoceGids};
use served::ServedGids;

/// Settings of a software device.
#[derive(Clone, Debug)]
pub struct SoftConfig {
    /// Name, such as `soft0`. Name and node GUID form the node description.
    pub name: String,
    /// Node GUID.
    pub node_guid: Guid,
    /// GUIDs of its ports, one or two.
    pub port_guids: Vec<Guid>,
    /// Largest MTU of its ports.
    pub max_mtu: Mtu,
    /// Entries of each port's GID table, 1 to 255.
    pub gid_table: u16,
    /// Seed for queue pair numbers.
    pub seed: u64,
}

/// A queue pair and its owner.
#[derive(Debug)]
struct QpRecord {
    created: Created<QpRings>,
    queues: QueuesId,
}

/// A software ConnectX.
#[derive(Debug)]
pub struct SoftHca {
    name: String,
    engine: Arc<Mutex<Engine>>,
    arena: Arena,
    regions: MrTable,
    bus: SoftBus,
    workers: BTreeMap<QueuesId, WorkerRings>,
    /// Datagram and connected queue pairs.
    pairs: BTreeMap<Qpn, QpRecord>,
    /// Queue pairs 0 and 1 of each port.
    management: Vec<[Management; 2]>,
    /// Source of the Ethernet port's GIDs, if another process maintains them.
    served: Option<ServedGids>,
}

impl SoftHca {
    /// Creates a device with open management queue pairs and unplugged ports.
    pub fn new(config: &SoftConfig) -> Result<Self, HcaError> {
        let port = |guid: &Guid| PortConfig {
            guid: *guid,
            max_mtu: config.max_mtu,
            link_layer: LinkLayer::InfiniBand,
            gid_table: config.gid_table,
        };
        Self::with_ports(EngineConfig {
            node_guid: config.node_guid,
            description: config.name.clone(),
            ports: config.port_guids.iter().map(port).collect(),
            seed: config.seed,
        })
    }

    /// Like [`SoftHca::new`], with ports of either kind. The description is also the name.
    pub fn with_ports(config: EngineConfig) -> Result<Self, HcaError> {
        let count = config.ports.len();
        if !(1..=2).contains(&count) {
            return Err(HcaError::Unsupported {
                what: "number of ports",
                value: count as u64,
                limit: "one or two".into(),
            });
        }
        if let Some(port) = config.ports.iter().find(|port| !(1..=MAX_GIDS).contains(&port.gid_table)) {
            return Err(HcaError::Unsupported {
                what: "entries of a GID table",
                value: port.gid_table.into(),
                limit: format!("1 to {MAX_GIDS}"),
            });
        }
        let name = config.description.clone();
        let mut engine = Engine::new(config);
        let arena = Arena::default();
        engine.keep(arena.clone());
        let mut management = Vec::new();
        for number in 1..=count as u8 {
            let mut open = |kind| Management::open(&mut engine, &arena, PortNumber(number), kind);
            management.push([open(QpKind::Smi)?, open(QpKind::Gsi)?]);
        }
        let engine = Arc::new(Mutex::new(engine));
        let bus = SoftBus::new(&engine);
        Ok(Self {
            name,
            engine,
            arena,
            regions: MrTable::new(),
            bus,
            workers: BTreeMap::new(),
            pairs: BTreeMap::new(),
            management,
            served: None,
        })
    }

    /// Returns the device, for a separate thread that advances it.
    #[must_use]
    pub const fn engine(&self) -> &Arc<Mutex<Engine>> {
        &self.engine
    }

    /// Plugs a cable into a port, or unplugs it.
    pub fn set_cable(&mut self, port: PortNumber, cable: Option<CableEnd>) -> Result<(), HcaError> {
        self.engine.lock().set_cable(port, cable)
    }

    /// Makes a port require a GRH in every data packet ([`Engine::require_grh`]).
    pub fn require_grh(&mut self, port: PortNumber) -> Result<(), HcaError> {
        self.engine.lock().require_grh(port)
    }

    /// Checks an address as the kernel does (`rdma_check_ah_attr`).
    fn check_grh(&self, port: PortNumber, present: bool) -> Result<(), HcaError> {
        if !present && self.engine.lock().port_attributes(port)?.grh_required {
            return Err(HcaError::Environment(format!(
                "port {} of {} requires a GRH, and the address has none: give the subnet manager's paths a hop limit of at least 1",
                port.0, self.name
            )));
        }
        Ok(())
    }

    /// Returns the device's event and drop counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.engine.lock().counters().clone()
    }

    /// Registers memory that contains packet buffers.
    ///
    /// # Safety
    /// The memory stays readable and writable until the device is gone. Posted parts of it belong to the
    /// device until they complete.
    pub unsafe fn register_memory(&mut self, base: NonNull<u8>, len: usize) -> Result<(), HcaError> {
        let start = base.as_ptr().addr() as u64;
        if self.regions.regions().iter().any(|r| r.start == start && r.len == len as u64) {
            return Ok(());
        }
        // SAFETY: by the contract of this function.
        let memory = unsafe { HostMemory::new(base, len) };
        let lkey = self.engine.lock().register(start, memory, Access::LOCAL)?;
        let region = Region { start, len: len as u64, lkey };
        self.regions.add(region).map_err(|_| HcaError::Exhausted("memory regions of one device"))
    }

    fn make_queues(&mut self, config: &QueuesConfig, room: usize) -> Result<&WorkerRings, HcaError> {
        if self.workers.contains_key(&config.id) {
            return Err(HcaError::Exhausted("queues with this number: they already exist"));
        }
        let rings = WorkerRings::create(&mut self.engine.lock(), &self.arena, config, room)?;
        Ok(self.workers.entry(config.id).or_insert(rings))
    }

    /// Destroys the queue pairs of a worker that are not in its tables, so that its queues can be destroyed.
    fn end_elsewhere(&mut self, id: QueuesId) {
        let mut engine = self.engine.lock();
        for (qpn, _) in self.pairs.iter().filter(|(_, pair)| pair.queues == id) {
            // It may not exist any more.
            let _ = engine.destroy_qp(*qpn);
        }
    }

    /// # Safety
    /// The driver's queues on these rings are gone.
    unsafe fn unmake_queues(&mut self, id: QueuesId) -> Result<(), HcaError> {
        let rings = self
            .workers
            .remove(&id)
            .ok_or_else(|| HcaError::NotFound { what: "queues", name: id.0.to_string() })?;
        // SAFETY: by the contract of this function.
        unsafe { rings.destroy(&mut self.engine.lock(), &self.arena) }
    }

    fn worker(&self, id: QueuesId) -> Result<&WorkerRings, HcaError> {
        self.workers.get(&id).ok_or_else(|| HcaError::NotFound { what: "queues", name: id.0.to_string() })
    }

    fn make_ud(&mut self, config: &UdConfig) -> Result<(QpRings, u32), HcaError> {
        let worker = self.worker(config.queues)?;
        let signal_every = worker.signal_every;
        let created = worker.create_ud(&mut self.engine.lock(), &self.arena, config)?;
        Ok((self.keep(created, config.queues), signal_every))
    }

    fn make_rc(&mut self, config: &RcConfig) -> Result<(QpRings, u32), HcaError> {
        let worker = self.worker(config.queues)?;
        let signal_every = worker.signal_every;
        let created = worker.create_rc(&mut self.engine.lock(), &self.arena, config)?;
        Ok((self.keep(created, config.queues), signal_every))
    }

    fn keep(&mut self, created: Created<QpRings>, queues: QueuesId) -> QpRings {
        let rings = created.rings;
        self.pairs.insert(Qpn::new(rings.qpn), QpRecord { created, queues });
        rings
    }

    /// # Safety
    /// The driver's queue pair on these rings is gone.
    unsafe fn unmake_qp(&mut self, qpn: Qpn) -> Result<(), HcaError> {
        let record = self
            .pairs
            .remove(&qpn)
            .ok_or_else(|| HcaError::NotFound { what: "queue pair", name: qpn.to_string() })?;
        // It no longer exists if its queues were destroyed first.
        let _ = self.engine.lock().destroy_qp(qpn);
        // SAFETY: the device's queue pair is gone, and the driver's by the contract of this function.
        unsafe { self.arena.free(record.created.block) };
        Ok(())
    }

    /// Memory used by all rings and their records, in bytes.
    #[must_use]
    pub fn ring_bytes(&self) -> usize {
        self.arena.bytes()
    }

    fn translate(&mut self, event: DeviceEvent) -> Option<AsyncEvent> {
        match event {
            DeviceEvent::Async(event) => Some(event),
            DeviceEvent::CqOverrun(_) | DeviceEvent::SrqError(_) => Some(AsyncEvent::Fatal),
            DeviceEvent::QpRequestError(qpn) | DeviceEvent::QpAccessError(qpn) => {
                Some(AsyncEvent::QpFatal(qpn))
            }
            // This driver does not use SQD.
            DeviceEvent::SqDrained(_) => None,
            DeviceEvent::SrqLimit(number) => {
                let of = |w: &WorkerRings| w.connections.as_ref().is_some_and(|s| s.rings.srqn == number);
                let id = self.workers.iter().find(|(_, w)| of(w)).map(|(id, _)| *id)?;
                // The event is raised once. It was fetched now, so re-arm it for the next shortage.
                let _ = self.engine.lock().rearm_srq(number);
                Some(AsyncEvent::SrqLimitReached(id))
            }
        }
    }
}

impl Drop for SoftHca {
    fn drop(&mut self) {
        let mut engine = self.engine.lock();
        for management in self.management.drain(..).flatten() {
            // An object that cannot be destroyed keeps its memory, since the device holds the arena.
            let _ = management.close(&mut engine, &self.arena);
        }
    }
}
