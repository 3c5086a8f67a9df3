//! What an endpoint is made from, and what follows for its queues.

use ipoib::link::LinkSettings;
use pmd::hca::{PortNumber, QueuesId};
use pmd::mem::Pool;

use crate::long::LongMessages;

/// Sends that a worker may have outstanding, at least and at most.
const LEAST_SENDS: u32 = 256;
const MOST_SENDS: u32 = 1 << 14;

/// The name of a worker's queues, which those of other endpoints on the device do not have.
pub(super) fn queues_id(place: EndpointPlace, workers: u8, worker: u8) -> QueuesId {
    QueuesId(u16::from(place.index) * u16::from(workers) + u16::from(worker))
}

/// Sizes of one worker's queues (see [`QueuesConfig`]).
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
    /// Buffers of the largest packet that is sent by connections as a rule.
    pub send_buffers: u32,
    /// Connection slots.
    pub max_rc: u16,
    /// One signalled send in this many.
    pub signal_every: u32,
    /// Most buffers that a send on a connection names one by one; `None` = as many as the device takes.
    pub send_segments: Option<u32>,
    /// What becomes of messages in more.
    pub long_messages: LongMessages,
}

/// Sends that a worker may have outstanding on this port: half of the buffers that its receives leave it of the pool. So peers that
/// take nothing can neither empty the pool, without which the receive queues run dry, nor stop the traffic from Ethernet.
pub(super) fn max_sends(pool: &Pool, config: &EndpointConfig) -> u32 {
    let sizes = &config.sizes;
    let rings = sizes.ud_send_depth.saturating_add(sizes.rc_send_depth.saturating_mul(sizes.max_rc.into()));
    (spare(pool, config) / 2 / sizes.send_buffers.max(1)).min(rings).clamp(LEAST_SENDS, MOST_SENDS)
}

/// Receives that a worker's datagram queue pairs may have together on this port where they cannot share them: what is counted for them,
/// and half of what sends leave of the rest.
pub(super) fn ud_recv_most(pool: &Pool, config: &EndpointConfig) -> u32 {
    config.sizes.ud_recv_depth.saturating_add(spare(pool, config) / 4)
}

/// A worker's share of the pool on this port, less its receives.
fn spare(pool: &Pool, config: &EndpointConfig) -> u32 {
    let (sizes, receive_mtu) = (&config.sizes, config.link.receive_mtu);
    let segments = receive_mtu.div_ceil(u32::try_from(pool.data_room()).unwrap_or(u32::MAX).max(1));
    let receives = sizes.ud_recv_depth.saturating_add(sizes.srq_depth.saturating_mul(segments));
    let queues = u32::from(config.workers.max(1)) * u32::from(config.place.of.max(1));
    (pool.size() / queues).saturating_sub(receives)
}

/// Which of the endpoints that share a pool, and perhaps a device, this one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndpointPlace {
    /// Its number, from 0.
    pub index: u8,
    /// How many there are.
    pub of: u8,
}

impl EndpointPlace {
    /// There is no other.
    pub const ONLY: Self = Self { index: 0, of: 1 };
}

/// What an endpoint is made from.
#[derive(Debug)]
pub struct EndpointConfig {
    /// Its place among others.
    pub place: EndpointPlace,
    /// Port of the device.
    pub port: PortNumber,
    /// Number of workers.
    pub workers: u8,
    /// Links that there will be, as far as is known.
    pub links: u16,
    /// Sizes of each worker's queues.
    pub sizes: WorkerSizes,
    /// The first link's settings; its workers are filled in from the queues that come into being.
    pub link: LinkSettings,
}
