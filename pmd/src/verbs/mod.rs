//! Host channel adapters through libibverbs, whatever drives them, and management datagrams through libibumad.
//!
//! Every object of the library is owned: it holds what it was made from, is destroyed once, and only when nothing uses it any
//! more. A worker's half ([`VerbsQueues`], [`VerbsRc`]) owns its queue pairs; the control lcore's half, [`VerbsHca`], knows
//! them as long as they live.

mod address;
mod control;
mod device;
mod event;
mod gids;
mod object;
mod qp;
mod queues;
mod remedy;
mod setup;
mod umad;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ib_wire::Qpn;

use crate::hca::{AsyncEvent, HcaError, LinkLayer, PortNumber, QueuesId};
use crate::mem::Pool;
use crate::mlx5::mr::MrTable;
use address::AddressHandles;
use device::Context;
use object::{MemoryRegion, ProtectionDomain, QueuePair};
use setup::WorkerRecord;
use umad::ManagementPort;

pub use address::VerbsDestination;
pub use device::{Device, devices};
pub use gids::{GidDevice, interface_name};
pub use queues::{Anomalies, VerbsQueues, VerbsRc};

/// A limit event is asked for again this long after one came: while receives are few, each one would raise it.
const LIMIT_PAUSE: Duration = Duration::from_secs(1);

/// A queue pair as the control lcore knows it.
#[derive(Debug)]
struct QpRecord {
    qp: Weak<QueuePair>,
    port: PortNumber,
    queues: QueuesId,
    /// Entries of a completion queue that it may fill.
    credit: u32,
    passive: bool,
    connected: bool,
}

/// What [`VerbsHca::open_with`] insists on and opens. The default is what the gateway needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// The port must have an InfiniBand link layer. Without it RoCE ports will do, whose address vectors all need a GRH and
    /// which carry no IPoIB: for tests and tools.
    pub infiniband: bool,
    /// Open the port's management agents: subnet administration and communication management.
    pub management: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { infiniband: true, management: true }
    }
}

/// A host channel adapter opened through libibverbs.
#[derive(Debug)]
pub struct VerbsHca {
    context: Arc<Context>,
    domain: Arc<ProtectionDomain>,
    regions: MrTable,
    /// In the order of the table; pools are kept while they are registered.
    registered: Vec<(MemoryRegion, Pool)>,
    handles: AddressHandles,
    workers: BTreeMap<QueuesId, WorkerRecord>,
    qps: BTreeMap<Qpn, QpRecord>,
    management: BTreeMap<u8, ManagementPort>,
    /// Events that the device does not raise and we do.
    own_events: Vec<AsyncEvent>,
    limits_due: Option<Instant>,
}

impl VerbsHca {
    /// Opens a device; without a name, the first that has an InfiniBand port of this number. Opens its management
    /// agents.
    pub fn open(name: Option<&str>, port: PortNumber) -> Result<Self, HcaError> {
        Self::open_with(name, port, OpenOptions::default())
    }

    /// As [`VerbsHca::open`], but for ports and uses that are not IPoIB's.
    pub fn open_with(name: Option<&str>, port: PortNumber, options: OpenOptions) -> Result<Self, HcaError> {
        let context = Arc::new(device::select(name, port)?);
        let attributes = context.port(port)?;
        if options.infiniband && attributes.link_layer != LinkLayer::InfiniBand {
            return Err(remedy::wrong_link_layer(context.name(), port));
        }
        let domain = Arc::new(ProtectionDomain::new(&context)?);
        let mut management = BTreeMap::new();
        if options.management {
            management.insert(port.0, ManagementPort::open(context.name(), port)?);
        }
        Ok(Self {
            domain,
            regions: MrTable::new(),
            registered: Vec::new(),
            handles: AddressHandles::default(),
            workers: BTreeMap::new(),
            qps: BTreeMap::new(),
            management,
            own_events: Vec::new(),
            limits_due: None,
            context,
        })
    }

    /// A queue pair that is still there.
    fn qp(&self, qpn: Qpn) -> Result<(Arc<QueuePair>, &QpRecord), HcaError> {
        self.qps
            .get(&qpn)
            .and_then(|record| Some((record.qp.upgrade()?, record)))
            .ok_or_else(|| HcaError::NotFound { what: "queue pair", name: qpn.to_string() })
    }
}
