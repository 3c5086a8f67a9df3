//! Engine calls on memory keys, completion queues and shared receive queues.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::{Engine, not_found, unsupported};
use crate::memory::HostMemory;
use crate::object::cq::{Arm, Cq, ResizeError};
use crate::object::fast::{FastKey, KeyStatus};
use crate::object::moderation::Moderation;
use crate::object::mr::{Access, ProtectionDomain};
use crate::object::qp::{Qp, Receives};
use crate::object::receive::Srq;
use crate::region::RegionMemory;
use hca::{HcaError, QpTransition};

/// Most completion queues, and most shared receive queues.
const MAX_QUEUES: usize = 4096;

/// State of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqStatus {
    /// The limit if its event is armed; 0 if it is not.
    pub limit: u16,
    /// Receives posted and not consumed.
    pub posted: u16,
    /// It supplies no more receives.
    pub broken: bool,
}

/// State of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqStatus {
    /// Number of entries.
    pub entries: u32,
    /// Consumer index of the host, 24 bits.
    pub consumer: u32,
    /// Producer index of the device, 24 bits.
    pub producer: u32,
    /// `None` if it is not armed; true if it is armed for solicited completions and failures only.
    pub solicited_only: Option<bool>,
    /// Completions were lost: it accepts no more.
    pub overrun: bool,
    /// Completions for one event and its longest delay; `None` without moderation.
    pub moderation: Option<(u16, Duration)>,
}

impl Engine {
    /// Registers memory. Users of the key name its first byte by `start`. The key is both lkey and rkey.
    pub fn register(
        &mut self,
        start: u64,
        memory: impl Into<RegionMemory>,
        access: Access,
    ) -> Result<u32, HcaError> {
        let key = self.dev.mrs.register(start, memory.into(), access);
        key.ok_or(HcaError::Exhausted("memory keys"))
    }

    /// Registers memory under a key with a low byte chosen by its owner.
    pub fn register_tagged(
        &mut self,
        tag: u8,
        start: u64,
        memory: impl Into<RegionMemory>,
        access: Access,
    ) -> Result<u32, HcaError> {
        let key = self.dev.mrs.register_tagged(tag, start, memory.into(), access);
        key.ok_or(HcaError::Exhausted("memory keys"))
    }

    /// Creates a free key whose memory queue pairs of its domain set and release by work requests. The result
    /// names the key in this interface, even after its low byte changes.
    pub fn create_fast_key(&mut self, how: &FastKey) -> Result<u32, HcaError> {
        self.dev.mrs.create_fast(how)
    }

    /// State of a key.
    pub fn query_key(&self, key: u32) -> Result<KeyStatus, HcaError> {
        self.dev.mrs.query(key).ok_or_else(|| not_found("memory key", key))
    }

    /// Sets the host's memory by the addresses in lists of pages, including the lists of existing keys. A new
    /// device has none.
    pub fn set_bus(&mut self, memory: impl Into<RegionMemory>) {
        self.dev.mrs.bus = Some(memory.into());
    }

    /// Replaces the memory of a registration.
    pub fn replace_memory(&mut self, key: u32, memory: impl Into<RegionMemory>) -> Result<(), HcaError> {
        let replaced = self.dev.mrs.replace(key, memory.into());
        replaced.then_some(()).ok_or_else(|| not_found("memory key", key))
    }

    /// Moves a key to a protection domain.
    pub fn set_key_domain(&mut self, key: u32, domain: ProtectionDomain) -> Result<(), HcaError> {
        self.dev.mrs.set_domain(key, domain).then_some(()).ok_or_else(|| not_found("memory key", key))
    }

    /// True if a protection domain still contains keys.
    #[must_use]
    pub fn has_keys_in(&self, domain: ProtectionDomain) -> bool {
        self.dev.mrs.any_in(domain)
    }

    /// Sets the protection domain of a shared receive queue, which is that of the keys of its receives.
    pub fn set_srq_domain(&mut self, number: u32, domain: ProtectionDomain) -> Result<(), HcaError> {
        let srq = self.dev.srqs.get_mut(number as usize).and_then(Option::as_mut);
        srq.ok_or_else(|| not_found("shared receive queue", number))?.domain = domain;
        Ok(())
    }

    /// Removes a registration.
    pub fn deregister(&mut self, key: u32) -> Result<(), HcaError> {
        self.dev.mrs.deregister(key).then_some(()).ok_or_else(|| not_found("memory key", key))
    }

    /// Creates a completion queue of 64-byte entries.
    pub fn create_cq(&mut self, ring: impl Into<RegionMemory>, dbrec: HostMemory) -> Result<u32, HcaError> {
        let ring = ring.into();
        let len = ring.len();
        let cq = Cq::new(ring, dbrec).ok_or_else(|| unsupported("completion queue bytes", len))?;
        place(&mut self.dev.cqs, cq, "completion queues")
    }

    /// Moves a completion queue to another ring. The last entry in the old ring has the opcode
    /// [`Resize`](prm::CqeOpcode::Resize) and announces the move. The host moves the unread entries before it
    /// to the new ring, each one slot further. The device does not write to the old ring again. An error
    /// changes nothing.
    pub fn resize_cq(&mut self, number: u32, ring: impl Into<RegionMemory>) -> Result<(), ResizeError> {
        self.dev.cq(number).ok_or(ResizeError::NotFound(number))?.resize(ring.into())
    }

    /// Sets the event moderation of a completion queue. An armed event is raised after `count` completions,
    /// or `period` after the first of them. If either is zero, it is raised at the first completion.
    pub fn moderate_cq(&mut self, number: u32, count: u16, period: Duration) -> Result<(), HcaError> {
        let moderated = self.dev.moderate_cq(number, Moderation::new(count, period));
        moderated.then_some(()).ok_or_else(|| not_found("completion queue", number))
    }

    /// State of a completion queue.
    pub fn query_cq(&self, number: u32) -> Result<CqStatus, HcaError> {
        let cq = self.dev.cqs.get(number as usize).and_then(Option::as_ref);
        let cq = cq.ok_or_else(|| not_found("completion queue", number))?;
        let (entries, consumer, producer) = cq.indices();
        let (armed, overrun) = cq.state();
        let solicited_only = armed.map(|arm| arm == Arm::Solicited);
        let moderation = cq.moderation().map(|moderation| (moderation.count(), moderation.period()));
        Ok(CqStatus { entries, consumer, producer, solicited_only, overrun, moderation })
    }

    /// Arms a completion queue for one event ([`Engine::next_completion_event`]): at the first completion
    /// from index `consumer` (24 bits) on, or at the first solicited or failed one. The event is raised at
    /// once if such a completion exists, subject to [`Engine::moderate_cq`].
    pub fn arm_cq(&mut self, number: u32, consumer: u32, solicited_only: bool) -> Result<(), HcaError> {
        let arm = if solicited_only { Arm::Solicited } else { Arm::Any };
        let armed = self.dev.arm_cq(number, consumer, arm);
        armed.then_some(()).ok_or_else(|| not_found("completion queue", number))
    }

    /// Signals the events of a completion queue through an eventfd, whichever thread calls the engine. They
    /// no longer appear in [`Engine::next_completion_event`].
    pub fn set_bell(&mut self, number: u32, bell: OwnedFd) -> Result<(), HcaError> {
        let cq = self.dev.cq(number).ok_or_else(|| not_found("completion queue", number))?;
        cq.bell = Some(bell);
        Ok(())
    }

    /// Signals the eventfd of a sleeping thread if the device has work; for a caller that posts work but does
    /// not run the engine.
    pub fn wake(&mut self, now: Instant) {
        if self.has_work(now) {
            self.dev.wake_one();
        }
    }

    /// The number of the next completion queue that has an event.
    pub fn next_completion_event(&mut self) -> Option<u32> {
        self.dev.next_awake()
    }

    /// Destroys a completion queue that no queue pair and no XRC shared receive queue uses.
    pub fn destroy_cq(&mut self, number: u32) -> Result<(), HcaError> {
        let shared = self.dev.srqs.iter().flatten().any(|srq| srq.xrc.is_some_and(|xrc| xrc.cq == number));
        if shared || self.qps.all().any(|qp| qp.send_cq == number || qp.recv_cq == number) {
            return Err(HcaError::Environment(format!("completion queue {number} is in use")));
        }
        self.dev.awake.retain(|&awake| awake != number);
        self.dev.held.remove(&number);
        remove(&mut self.dev.cqs, number, "completion queue")
    }

    /// Creates a shared receive queue with slots of `stride` bytes.
    pub fn create_srq(
        &mut self,
        ring: impl Into<RegionMemory>,
        stride: usize,
        dbrec: HostMemory,
    ) -> Result<u32, HcaError> {
        let ring = ring.into();
        let len = ring.len();
        let srq =
            Srq::new(ring, stride, dbrec).ok_or_else(|| unsupported("shared receive queue bytes", len))?;
        place(&mut self.dev.srqs, srq, "shared receive queues")
    }

    /// Arms the limit event of a shared receive queue. It is raised once, when fewer than `limit` receives
    /// are posted.
    pub fn arm_srq(&mut self, number: u32, limit: u16) -> Result<(), HcaError> {
        let srq = self.dev.srqs.get_mut(number as usize).and_then(Option::as_mut);
        srq.ok_or_else(|| not_found("shared receive queue", number))?.arm_limit(limit);
        Ok(())
    }

    /// State of a shared receive queue.
    pub fn query_srq(&self, number: u32) -> Result<SrqStatus, HcaError> {
        let srq = self.dev.srqs.get(number as usize).and_then(Option::as_ref);
        let srq = srq.ok_or_else(|| not_found("shared receive queue", number))?;
        Ok(SrqStatus { limit: srq.armed_limit(), posted: srq.available(), broken: srq.is_broken() })
    }

    /// Arms the limit event again with the previous limit.
    pub fn rearm_srq(&mut self, number: u32) -> Result<(), HcaError> {
        let srq = self.dev.srqs.get_mut(number as usize).and_then(Option::as_mut);
        srq.ok_or_else(|| not_found("shared receive queue", number))?.rearm();
        Ok(())
    }

    /// Moves all queue pairs on a shared receive queue to RESET, after which nothing fills its receives.
    pub fn reset_users_of_srq(&mut self, number: u32) -> Result<(), HcaError> {
        let uses = |qp: &&Qp| matches!(qp.receives, Receives::Shared(n) if n == number);
        let users: Vec<_> = self.qps.all().filter(uses).map(|qp| qp.qpn).collect();
        users.into_iter().try_for_each(|qpn| self.modify_qp(qpn, &QpTransition::ToReset))
    }

    /// Destroys a shared receive queue that no queue pair uses. An XRC queue is used by requests only: an
    /// incoming message in one of its receives ends with the queue and its receive.
    pub fn destroy_srq(&mut self, number: u32) -> Result<(), HcaError> {
        let uses = |qp: &Qp| matches!(qp.receives, Receives::Shared(n) if n == number);
        if self.qps.all().any(uses) {
            return Err(HcaError::Environment(format!("shared receive queue {number} is in use")));
        }
        for qp in self.qps.all_mut() {
            qp.forget_named(number);
        }
        remove(&mut self.dev.srqs, number, "shared receive queue")
    }
}

fn place<T>(table: &mut Vec<Option<T>>, object: T, what: &'static str) -> Result<u32, HcaError> {
    // Number 0 is never assigned, so that zeroed records name nothing.
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
