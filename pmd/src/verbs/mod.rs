//! Host channel adapters through libibverbs, whatever drives them, and management datagrams through libibumad.
//!
//! Every object of the library is owned: it holds what it was made from, is destroyed once, and only when nothing uses it any
//! more. A worker's half owns its queue pairs; the control lcore's half, [`Adapter`], knows them as long as they live.
//!
//! Packets go one of two ways ([`DataPath`]): by the library's calls, on any device ([`VerbsHca`], with [`VerbsQueues`] and
//! [`VerbsRc`]); or by the mlx5 driver on the rings of a ConnectX ([`Mlx5Hca`]), which the library only creates.

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

/// A limit event is asked for again this long after one came: while receives are few, each one would raise it.
const LIMIT_PAUSE: Duration = Duration::from_secs(1);

/// A queue pair as the control lcore knows it.
#[derive(Debug)]
struct QpRecord {
    qp: Weak<QueuePair>,
    port: PortNumber,
    queues: QueuesId,
    connected: bool,
    remote: RemoteAccess,
    /// That it took its last receive has been told: by the device or in its place.
    last_wqe_told: bool,
}

impl QpRecord {
    /// True the first time.
    const fn tell_last_wqe(&mut self) -> bool {
        !std::mem::replace(&mut self.last_wqe_told, true)
    }
}

/// What [`Adapter::open_with`] insists on and opens. The default is what the gateway needs.
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

/// How packets reach a device that libibverbs has opened.
pub trait DataPath: Default + std::fmt::Debug {
    /// What is known of a worker's queues beside what all have.
    type Worker: std::fmt::Debug;

    /// Why this way cannot be gone on this device; the text names the remedy.
    fn check(device: &Device) -> Result<(), HcaError>;

    /// True if keys are indirect ones of mlx5 devices.
    const INDIRECT: bool = false;

    /// How memory is registered from a send queue this way, on a device that has memory windows of type 2 or not, and whose indirect keys
    /// have so many pieces at most; `None` if it is not.
    fn fast_registration(has_windows: bool, pieces: Option<u32>) -> Option<FastRegistration>;

    /// Most pieces of memory that a send on a connection names, on a device whose calls allow so many.
    fn send_segments(allowed: u32) -> u32;

    /// GIDs of the device are others now.
    fn handle_gid_change(&mut self) {}
}

/// By the library's calls.
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

/// Any host channel adapter, posted to and polled by the library's calls.
pub type VerbsHca = Adapter<Calls>;

/// A ConnectX-4 or later: the library creates its queues, [`crate::mlx5`] drives them.
pub type Mlx5Hca = Adapter<Rings>;

/// A host channel adapter opened through libibverbs.
#[derive(Debug)]
pub struct Adapter<P: DataPath> {
    context: Arc<Context>,
    domain: Arc<ProtectionDomain>,
    regions: MrTable,
    // Before the memory that windows are bound to, and that keys name.
    path: P,
    indirect: IndirectKeys,
    /// In the order of the table; pools are kept while they are registered.
    registered: Vec<(Arc<MemoryRegion>, Pool)>,
    workers: BTreeMap<QueuesId, WorkerRecord<P::Worker>>,
    qps: BTreeMap<Qpn, QpRecord>,
    management: BTreeMap<u8, ManagementPort>,
    /// Events that the device does not raise and we do.
    own_events: Vec<AsyncEvent>,
    limits_due: Option<Instant>,
}

impl<P: DataPath> Adapter<P> {
    /// Opens a device; without a name, the first that will do and has an InfiniBand port of this number. Opens its
    /// management agents.
    pub fn open(name: Option<&str>, port: PortNumber) -> Result<Self, HcaError> {
        Self::open_with(name, port, OpenOptions::default())
    }

    /// As [`Adapter::open`], but for ports and uses that are not IPoIB's.
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

    /// A queue pair that is still there.
    fn qp(&self, qpn: Qpn) -> Result<(Arc<QueuePair>, &QpRecord), HcaError> {
        self.qps
            .get(&qpn)
            .and_then(|record| Some((record.qp.upgrade()?, record)))
            .ok_or_else(|| HcaError::NotFound { what: "queue pair", name: qpn.to_string() })
    }
}
