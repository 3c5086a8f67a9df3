//! Memory keys, completion queues and shared receive queues.

use super::{Engine, not_found, unsupported};
use crate::memory::HostMemory;
use crate::object::cq::Cq;
use crate::object::mr::Access;
use crate::object::qp::{Qp, Receives};
use crate::object::receive::Srq;
use hca::{HcaError, QpTransition};

/// Most completion queues, and most shared receive queues.
const MAX_QUEUES: usize = 4096;

impl Engine {
    /// Registers memory. Users of the key name its first byte by `start`. The key is lkey and rkey.
    pub fn register(&mut self, start: u64, memory: HostMemory, access: Access) -> Result<u32, HcaError> {
        self.dev.mrs.register(start, memory, access).ok_or(HcaError::Exhausted("memory keys"))
    }

    /// Ends a registration.
    pub fn deregister(&mut self, key: u32) -> Result<(), HcaError> {
        self.dev.mrs.deregister(key).then_some(()).ok_or_else(|| not_found("memory key", key))
    }

    /// Creates a completion queue of 64-byte entries.
    pub fn create_cq(&mut self, ring: HostMemory, dbrec: HostMemory) -> Result<u32, HcaError> {
        let cq = Cq::new(ring, dbrec).ok_or_else(|| unsupported("completion queue bytes", ring.len()))?;
        place(&mut self.dev.cqs, cq, "completion queues")
    }

    /// Destroys a completion queue that no queue pair uses.
    pub fn destroy_cq(&mut self, number: u32) -> Result<(), HcaError> {
        if self.qps.all().any(|qp| qp.send_cq == number || qp.recv_cq == number) {
            return Err(HcaError::Environment(format!("completion queue {number} is in use")));
        }
        remove(&mut self.dev.cqs, number, "completion queue")
    }

    /// Creates a shared receive queue with slots of `stride` bytes.
    pub fn create_srq(
        &mut self,
        ring: HostMemory,
        stride: usize,
        dbrec: HostMemory,
    ) -> Result<u32, HcaError> {
        let srq = Srq::new(ring, stride, dbrec)
            .ok_or_else(|| unsupported("shared receive queue bytes", ring.len()))?;
        place(&mut self.dev.srqs, srq, "shared receive queues")
    }

    /// Arms the limit event of a shared receive queue: it comes once, when fewer than `limit` receives are posted.
    pub fn arm_srq(&mut self, number: u32, limit: u16) -> Result<(), HcaError> {
        let srq = self.dev.srqs.get_mut(number as usize).and_then(Option::as_mut);
        srq.ok_or_else(|| not_found("shared receive queue", number))?.arm_limit(limit);
        Ok(())
    }

    /// Arms the limit event again at the limit that it had.
    pub fn rearm_srq(&mut self, number: u32) -> Result<(), HcaError> {
        let srq = self.dev.srqs.get_mut(number as usize).and_then(Option::as_mut);
        srq.ok_or_else(|| not_found("shared receive queue", number))?.rearm();
        Ok(())
    }

    /// Takes all queue pairs on a shared receive queue to RESET: from now on nothing fills its receives.
    pub fn reset_users_of_srq(&mut self, number: u32) -> Result<(), HcaError> {
        let uses = |qp: &&Qp| matches!(qp.receives, Receives::Shared(n) if n == number);
        let users: Vec<_> = self.qps.all().filter(uses).map(|qp| qp.qpn).collect();
        users.into_iter().try_for_each(|qpn| self.modify_qp(qpn, &QpTransition::ToReset))
    }

    /// Destroys a shared receive queue that no queue pair uses.
    pub fn destroy_srq(&mut self, number: u32) -> Result<(), HcaError> {
        let uses = |qp: &Qp| matches!(qp.receives, Receives::Shared(n) if n == number);
        if self.qps.all().any(uses) {
            return Err(HcaError::Environment(format!("shared receive queue {number} is in use")));
        }
        remove(&mut self.dev.srqs, number, "shared receive queue")
    }
}

fn place<T>(table: &mut Vec<Option<T>>, object: T, what: &'static str) -> Result<u32, HcaError> {
    // Number 0 is never given out: records that are zero name nothing.
    if table.is_empty() {
        table.push(None);
    }
    let number = table.iter().skip(1).position(Option::is_none).map_or(table.len(), |n| n + 1);
    if number >= MAX_QUEUES {
        return Err(HcaError::Exhausted(what));
    }
    if number == table.len() {
        table.push(None);
    }
    if let Some(slot) = table.get_mut(number) {
        *slot = Some(object);
    }
    Ok(number as u32)
}

fn remove<T>(table: &mut [Option<T>], number: u32, what: &'static str) -> Result<(), HcaError> {
    let found = table.get_mut(number as usize).and_then(Option::take);
    found.map(drop).ok_or_else(|| not_found(what, number))
}
