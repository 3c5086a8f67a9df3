//! Host channel adapters through libibverbs, independent of the hardware, and management datagrams through
//! libibumad.
//!
//! Every library object has one owner. It holds the objects it was created from and is destroyed once, when
//! it is no longer in use. The worker's part owns its queue pairs; the control lcore's part, [`Adapter`],
//! tracks them while they exist.
//!
//! There are two data paths ([`DataPath`]):
//!
//! - Library calls, for any device ([`VerbsHca`], with [`VerbsQueues`] and [`VerbsRc`]).
//! - The mlx5 driver on the rings of a ConnectX ([`Mlx5Hca`]), which the library only creates.

mod address;
mod control;
mod device;
mod event;
mod gids;
mod indirect;
mod mlx5;
mod object;
mod qp;
mod queues;
mod region;
mod remedy;
mod setup;
mod umad;
mod window;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ib_wire::Qpn;

use crate::hca::{
    AsyncEvent, FastRegistration, HcaError, LinkLayer, PortNumber, QueuesId, RegisteredBy, RemoteAccess,
};
use crate::mem::Pool;
use crate::mlx5::mr::MrTable;
use address::AddressHandles;
use device::Context;
use indirect::IndirectKeys;
use object::{MemoryRegion, ProtectionDomain, QueuePair};
use setup::{RC_SEGMENTS, WorkerRecord};
use umad::ManagementPort;
use window::Windows;

pub use address::VerbsDestination;
pub use device::{Device, devices, find};
pub use gids::{GidDevice, interface_name};
pub use mlx5::Rings;
pub use queues::{Anomalies, VerbsQueues, VerbsRc, VerbsUd};
pub use region::RegionDevice;
pub use umad::REQUEST_TIME;

/// Delay before the limit event is armed again: while receives are scarce, it would be raised again at once.
const LIMIT_PAUSE: Duration = Duration::from_secs(1);

/// The control lcore's record of a queue pair.
#[derive(Debug)]
struct QpRecord {
    qp: Weak<QueuePair>,
    port: PortNumber,
    queues: QueuesId,
    connected: bool,
    remote: RemoteAccess,
    /// True once its last-WQE event has been reported, by the device or on its behalf.
    last_wqe_reported: bool,
}

impl QpRecord {
    /// Returns true on the first call only.
    const fn report_last_wqe(&mut self) -> bool {
        !std::mem::replace(&mut self.last_wqe_reported, true)
    }
}

/// Requirements of [`Adapter::open_with`]. The default is what the gateway needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// Require an InfiniBand link layer. Without it RoCE ports are accepted, for tests and tools. Their
    /// address vectors all need a GRH, and they do not carry IPoIB.
    pub infiniband: bool,
    /// Open the port's management agents: subnet administration and communication management.
    pub management: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { infiniband: true, management: true }
    }
}

/// Data path to a device opened through libibverbs.
pub trait DataPath: Default + std::fmt::Debug {
    /// Path-specific state of a worker's queues.
    type Worker: std::fmt::Debug;

    /// Checks that the device supports this path. The error text contains a remedy.
    fn check(device: &Device) -> Result<(), HcaError>;

    /// True if fast-registration keys are indirect mlx5 keys.
    const INDIRECT: bool = false;

    /// Returns the limits of fast registration on this path, or `None` if it is not supported.
    ///
    /// `has_windows` is true for a device with memory windows of type 2. `pieces` is the maximum number of
    /// pieces of its indirect keys.
    fn fast_registration(has_windows: bool, pieces: Option<u32>) -> Option<FastRegistration>;

    /// Maximum number of segments of a send on a connection, for a device whose library calls allow
    /// `allowed`.
    fn send_segments(allowed: u32) -> u32;

    /// Handles a GID change of the device.
    fn handle_gid_change(&mut self) {}
}

/// Data path through library calls.
#[derive(Debug, Default)]
pub struct Calls {
    handles: AddressHandles,
    windows: Windows,
}

impl DataPath for Calls {
    type Worker = ();

    fn check(_: &Device) -> Result<(), HcaError> {
        Ok(())
    }

    fn send_segments(allowed: u32) -> u32 {
        allowed.clamp(1, RC_SEGMENTS)
    }

    fn fast_registration(has_windows: bool, _pieces: Option<u32>) -> Option<FastRegistration> {
        has_windows.then_some(FastRegistration {
            by: RegisteredBy::Window,
            max_pieces: 1,
            remote_invalidate: true,
            read_invalidate: false,
        })
    }

    fn handle_gid_change(&mut self) {
        self.handles.renew();
    }
}

/// Any host channel adapter, used through library calls.
pub type VerbsHca = Adapter<Calls>;

/// A ConnectX-4 or later: the library creates its queues, and [`crate::mlx5`] drives them.
pub type Mlx5Hca = Adapter<Rings>;

/// A host channel adapter opened through libibverbs.
#[derive(Debug)]
pub struct Adapter<P: DataPath> {
    context: Arc<Context>,
    domain: Arc<ProtectionDomain>,
    regions: MrTable,
    // Dropped before the memory to which windows and keys refer.
    path: P,
    indirect: IndirectKeys,
    /// Registered memory in table order. Pools are kept while they are registered.
    registered: Vec<(Arc<MemoryRegion>, Pool)>,
    workers: BTreeMap<QueuesId, WorkerRecord<P::Worker>>,
    qps: BTreeMap<Qpn, QpRecord>,
    management: BTreeMap<u8, ManagementPort>,
    /// Events raised on behalf of the device.
    own_events: Vec<AsyncEvent>,
    limits_due: Option<Instant>,
}

impl<P: DataPath> Adapter<P> {
    /// Opens a device and its management agents. Without a name it opens the first suitable device whose port
    /// with this number is InfiniBand.
    pub fn open(name: Option<&str>, port: PortNumber) -> Result<Self, HcaError> {
        Self::open_with(name, port, OpenOptions::default())
    }

    /// Like [`Adapter::open`], for ports and uses other than IPoIB.
    pub fn open_with(name: Option<&str>, port: PortNumber, options: OpenOptions) -> Result<Self, HcaError> {
        let context = Arc::new(device::select(name, port, P::check)?);
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
            indirect: if P::INDIRECT { IndirectKeys::probe(&domain) } else { IndirectKeys::unused() },
            domain,
            regions: MrTable::new(),
            registered: Vec::new(),
            path: P::default(),
            workers: BTreeMap::new(),
            qps: BTreeMap::new(),
            management,
            own_events: Vec::new(),
            limits_due: None,
            context,
        })
    }

    /// Returns a queue pair that still exists.
    fn qp(&self, qpn: Qpn) -> Result<(Arc<QueuePair>, &QpRecord), HcaError> {
        self.qps
            .get(&qpn)
            .and_then(|record| Some((record.qp.upgrade()?, record)))
            .ok_or_else(|| HcaError::NotFound { what: "queue pair", name: qpn.to_string() })
    }
}
