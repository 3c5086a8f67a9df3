//! Sizes of a worker's queues for the requested configuration, independent of the provider that creates them.

use super::{CqGeometry, QpGeometry, QpRequest, SendOperations, SrqGeometry, Transport};
use crate::hca::{HcaError, QueuesConfig, RcConfig, UdConfig};

/// Maximum number of WQEBBs of a send queue and of slots of a receive queue. Indices count modulo 2^16.
const MAX_BLOCKS: u32 = 1 << 15;
/// Send depth of a queue pair that only receives. It posts one drain request at a time. Other users of the
/// devices request at least this depth.
const PASSIVE_SENDS: u32 = 4;
/// Maximum number of drain requests of one slot in the completion queue: its queue pair's and its
/// predecessor's.
const DRAINS: u32 = 2;
/// Minimum number of WQEBBs of a queue pair that sends data. The longest entry has ten.
const MIN_SEND_DEPTH: u32 = 16;
fn refused(what: &'static str, value: u32, limit: u32) -> HcaError {
    HcaError::Unsupported { what, value: value.into(), limit: format!("at most {limit}") }
}

impl QpRequest {
    /// Request for a datagram queue pair.
    #[must_use]
    pub fn datagrams(config: &UdConfig) -> Self {
        Self {
            transport: Transport::Ud,
            send_wr: config.send_depth.max(MIN_SEND_DEPTH),
            send_sge: 2,
            recv_wr: 0,
            recv_sge: 0,
            inline_data: 0,
            operations: SendOperations::SendOnly,
        }
    }

    /// Request for a connected queue pair.
    #[must_use]
    pub fn connection(config: &RcConfig) -> Self {
        let least = if config.passive { PASSIVE_SENDS } else { MIN_SEND_DEPTH };
        Self {
            transport: Transport::Rc,
            send_wr: config.send_depth.max(least),
            send_sge: if config.passive { 1 } else { 2 },
            recv_wr: 0,
            recv_sge: 0,
            inline_data: 0,
            operations: SendOperations::SendOnly,
        }
    }

    /// Computes the rings. Fails if they are too long for 16-bit indices.
    pub fn geometry(&self) -> Result<QpGeometry, HcaError> {
        QpGeometry::new(self)
            .filter(|g| g.sq_wqebbs <= MAX_BLOCKS && g.rq_slots <= MAX_BLOCKS)
            .ok_or_else(|| refused("depth of a queue pair", self.send_wr.max(self.recv_wr), MAX_BLOCKS / 2))
    }
}

/// Sizes of the queues that a worker's queue pairs share.
///
/// One completion queue serves the sends of all queue pairs. Polling one queue for each of thousands of
/// connections would touch as many cache lines in each iteration, most of them for empty queues. It has room
/// for the sends that can be outstanding, which the worker limits. It is smaller than the sum of all rings:
/// these are never all full at once, because each entry holds a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedSizes {
    /// Depth of the shared receive queue for datagrams.
    pub datagrams: u32,
    /// Depth and segments of the shared receive queue for connections, if there is one.
    pub srq: Option<(u32, u32)>,
    /// Entries of the send completion queue: the maximum number of outstanding sends.
    pub sends: u32,
    /// Entries of the completion queue for receives and for drain requests of passive queue pairs.
    pub receives: u32,
}

impl SharedSizes {
    /// Computes the sizes.
    ///
    /// The device allows `max_srq_wr` shared receives, completion queues of `max_cqe` entries and `max_qp`
    /// queue pairs. A receive buffer has room for `room` bytes. Configurations that cannot fit are rejected
    /// here and not when connections are made.
    pub fn new(
        config: &QueuesConfig,
        room: usize,
        max_srq_wr: u32,
        max_cqe: u32,
        max_qp: u32,
    ) -> Result<Self, HcaError> {
        let slots = |what, depth, segments| {
            let geometry = SrqGeometry::new(depth, segments, max_srq_wr);
            geometry.map(|g| g.slots).ok_or_else(|| refused(what, depth, max_srq_wr))
        };
        let datagrams = config.ud_recv_depth.max(1);
        let mut entries = slots("depth of the receive queue", datagrams, 1)?;
        let segments = u32::try_from(config.srq_message.div_ceil(room.max(1)).max(1)).unwrap_or(u32::MAX);
        let srq = (config.srq_depth > 0).then_some((config.srq_depth, segments));
        if let Some((depth, segments)) = srq {
            entries += slots("depth of the shared receive queue", depth, segments)?;
        }
        let most = max_cqe.min((1 << 22) - 1);
        let receives = entries.saturating_add(config.max_rc.saturating_mul(DRAINS));
        for (what, requested, limit) in [
            ("completions of receives and ends of connections", receives, most),
            ("queue pairs of one worker", config.max_rc.saturating_add(config.max_ud.into()), max_qp),
        ] {
            if requested > limit {
                let limit = format!("at most {limit}: lower infiniband.max-connections");
                return Err(HcaError::Unsupported { what, value: requested.into(), limit });
            }
        }
        let sizes = Self { datagrams, srq, sends: config.max_sends.clamp(1, most), receives };
        debug_assert!(CqGeometry::new(sizes.sends).is_some() && CqGeometry::new(sizes.receives).is_some());
        Ok(sizes)
    }
}
