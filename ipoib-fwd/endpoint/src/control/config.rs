//! Configuration of an endpoint, and the sizes of its queues that follow from it.

use ipoib::link::LinkSettings;
use pmd::hca::{PortNumber, QueuesId};
use pmd::mem::Pool;

use crate::long::LongMessages;

/// Least and most sends that a worker may have outstanding.
const LEAST_SENDS: u32 = 256;
const MOST_SENDS: u32 = 1 << 14;

/// Identifies a worker's queues among those of all endpoints on the device.
pub(super) fn queues_id(place: EndpointPlace, workers: u8, worker: u8) -> QueuesId {
    QueuesId(u16::from(place.index) * u16::from(workers) + u16::from(worker))
}

/// Sizes of one worker's queues (see [`pmd::hca::QueuesConfig`]).
#[derive(Clone, Copy, Debug)]
pub struct WorkerSizes {
    /// Depth of the datagram send queue.
    pub ud_send_depth: u32,
    /// Depth of the datagram receive queue.
    pub ud_recv_depth: u32,
    /// Depth of the shared receive queue.
    pub srq_depth: u32,
    /// Low-water mark of the shared receive queue.
    pub srq_limit: u32,
    /// Depth of an active connection's send queue.
    pub rc_send_depth: u32,
    /// Number of buffers of the largest packet that connections usually send.
    pub send_buffers: u32,
    /// Connection slots.
    pub max_rc: u16,
    /// One signalled send in this many.
    pub signal_every: u32,
    /// Most buffers that a send on a connection names one by one; `None` = the device's limit.
    pub send_segments: Option<u32>,
    /// How messages in more buffers are sent.
    pub long_messages: LongMessages,
}

/// Returns how many sends a worker may have outstanding on this port: half of the pool buffers that its
/// receives leave it. Peers that accept nothing can then not empty the pool, without which the receive queues
/// run dry. Nor can they stop the traffic from Ethernet.
pub(super) fn max_sends(pool: &Pool, config: &EndpointConfig) -> u32 {
    let sizes = &config.sizes;
    let rings = sizes.ud_send_depth.saturating_add(sizes.rc_send_depth.saturating_mul(sizes.max_rc.into()));
    (spare(pool, config) / 2 / sizes.send_buffers.max(1)).min(rings).clamp(LEAST_SENDS, MOST_SENDS)
}

/// Returns how many receives a worker's datagram queue pairs may have together on this port if they cannot
/// share them: the configured depth, and half of the remaining buffers that sends do not use.
pub(super) fn ud_recv_most(pool: &Pool, config: &EndpointConfig) -> u32 {
    config.sizes.ud_recv_depth.saturating_add(spare(pool, config) / 4)
}

/// Returns a worker's share of the pool on this port, less its receives.
fn spare(pool: &Pool, config: &EndpointConfig) -> u32 {
    let (sizes, receive_mtu) = (&config.sizes, config.link.receive_mtu);
    let segments = receive_mtu.div_ceil(u32::try_from(pool.data_room()).unwrap_or(u32::MAX).max(1));
    let receives = sizes.ud_recv_depth.saturating_add(sizes.srq_depth.saturating_mul(segments));
    let queues = u32::from(config.workers.max(1)) * u32::from(config.place.of.max(1));
    (pool.size() / queues).saturating_sub(receives)
}

/// Index of this endpoint among those that share a pool, and perhaps a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndpointPlace {
    /// Its index, from 0.
    pub index: u8,
    /// Number of endpoints.
    pub of: u8,
}

impl EndpointPlace {
    /// The only endpoint.
    pub const ONLY: Self = Self { index: 0, of: 1 };
}

/// Configuration of an endpoint.
#[derive(Debug)]
pub struct EndpointConfig {
    /// Its index among the endpoints that share the pool.
    pub place: EndpointPlace,
    /// Port of the device.
    pub port: PortNumber,
    /// Number of workers.
    pub workers: u8,
    /// Expected number of links.
    pub links: u16,
    /// Sizes of each worker's queues.
    pub sizes: WorkerSizes,
    /// The first link's settings; the endpoint fills in its workers from the queues that it creates.
    pub link: LinkSettings,
}
