//! How large a worker's queues have to be for what is asked of them, whoever creates them.

use super::{CqGeometry, QpGeometry, QpRequest, SendOperations, SrqGeometry, Transport};
use crate::hca::{HcaError, QueuesConfig, RcConfig};

/// Most WQEBBs of a send queue, and most slots of a receive queue: positions count modulo 2^16.
const MAX_BLOCKS: u32 = 1 << 15;
/// Sends per connected queue pair that the completion queue has room for.
const RC_SENDS: u32 = 128;
/// Sends of a queue pair that only receives: one drain request at a time. Other users of devices ask for no fewer than this.
const PASSIVE_SENDS: u32 = 4;
/// WQEBBs of a queue pair that sends data: the longest entry has ten.
const MIN_SEND_DEPTH: u32 = 16;
/// Most connections' sends that a completion queue has room for: beyond that there are no more queue pairs.
const MAX_SEND_CREDIT: u32 = 1 << 19;

fn refused(what: &'static str, value: u32, limit: u32) -> HcaError {
    HcaError::Unsupported { what, value: value.into(), limit: format!("at most {limit}") }
}

impl QpRequest {
    /// What is asked of a worker's datagram queue pair.
    #[must_use]
    pub fn datagrams(config: &QueuesConfig) -> Self {
        Self {
            transport: Transport::Ud,
            send_wr: config.ud_send_depth.max(MIN_SEND_DEPTH),
            send_sge: 2,
            recv_wr: config.ud_recv_depth.max(1),
            recv_sge: 1,
            inline_data: 0,
            operations: SendOperations::SendOnly,
        }
    }

    /// What is asked of a connected queue pair.
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

    /// The rings for it, if they are not too long to be counted in.
    pub fn geometry(&self) -> Result<QpGeometry, HcaError> {
        QpGeometry::new(self)
            .filter(|g| g.sq_wqebbs <= MAX_BLOCKS && g.rq_slots <= MAX_BLOCKS)
            .ok_or_else(|| refused("depth of a queue pair", self.send_wr.max(self.recv_wr), MAX_BLOCKS / 2))
    }
}

/// Sizes of the queues that a worker's queue pairs share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedSizes {
    /// Depth and segments of the shared receive queue, if there is one.
    pub srq: Option<(u32, u32)>,
    /// Entries of the completion queue of sends.
    pub sends: u32,
    /// Entries of the completion queue of receives.
    pub receives: u32,
    /// How many of `sends` are for connections.
    pub send_credit: u32,
    /// How many of `receives` are for the drain requests of connections.
    pub drain_credit: u32,
}

impl SharedSizes {
    /// The sizes beside a datagram queue pair of geometry `ud`, on a device that allows `max_srq_wr` shared receives and
    /// completion queues of `max_cqe` entries; a receive buffer takes `room` bytes. Every request that is outstanding
    /// may complete by itself, once flushed; connections get what the largest completion queue leaves.
    pub fn new(
        config: &QueuesConfig,
        ud: &QpGeometry,
        room: usize,
        max_srq_wr: u32,
        max_cqe: u32,
    ) -> Result<Self, HcaError> {
        let segments = u32::try_from(config.srq_message.div_ceil(room.max(1)).max(1)).unwrap_or(u32::MAX);
        let srq = (config.srq_depth > 0).then_some((config.srq_depth, segments));
        let entries = match srq {
            Some((depth, segments)) => {
                SrqGeometry::new(depth, segments, max_srq_wr)
                    .ok_or_else(|| refused("depth of the shared receive queue", depth, max_srq_wr))?
                    .slots
            }
            None => 0,
        };
        let most = max_cqe.min((1 << 22) - 1);
        let own = entries.saturating_add(ud.rq_slots);
        let left = |own: u32| most.checked_sub(own).ok_or_else(|| refused("completions", own, most));
        let drain_credit = config.max_rc.saturating_mul(PASSIVE_SENDS).min(left(own)?);
        let send_credit =
            config.max_rc.saturating_mul(RC_SENDS).min(MAX_SEND_CREDIT).min(left(ud.sq_wqebbs)?);
        let sizes = Self {
            srq,
            sends: ud.sq_wqebbs + send_credit,
            receives: own + drain_credit,
            send_credit,
            drain_credit,
        };
        debug_assert!(CqGeometry::new(sizes.sends).is_some() && CqGeometry::new(sizes.receives).is_some());
        Ok(sizes)
    }
}
