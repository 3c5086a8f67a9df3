//! The device and its work loop.

mod pair;
mod port;
mod queue;
mod xrc;

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ib_wire::Qpn;

pub use pair::QpAttributes;
pub use queue::{CqStatus, SrqStatus};

use super::cable::CableEnd;
pub use super::config::EngineConfig;
use super::counters::{Activity, Counters};
use super::device::{Device, Step};
use super::doorbell::{self, DoorbellReceiver, DoorbellSender, Rung};
use super::event::DeviceEvent;
use super::ingress;
pub use super::object::cq::ResizeError;
use super::object::qp::{Qp, QpKind};
pub use super::object::table::MAX_QPS;
use super::object::table::QpTable;
use super::port::Port;
use super::rc::atomic::AnswerOrder;
use super::rc::{self, middle, requester, responder};
use super::sma;
use super::{uc, ud, umr};
use hca::{HcaError, PortNumber, QpState};

/// Packets taken from a cable in one step.
pub(crate) const RECEIVE_BURST: usize = 64;
/// Queue pairs served in one step.
const SERVED_QPS: usize = 64;
/// Packets that one queue pair sends each time it is served.
const SEND_BURST: usize = 64;
/// Doorbells taken from one handle in one step.
const DOORBELLS: usize = 256;

/// A device that worked within this time counts as busy: packets do not wake a thread that would sleep on it.
const CALM: Duration = Duration::from_micros(50);

/// A software ConnectX.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    pub(super) qps: QpTable,
    pub(super) dev: Device,
    doorbells: Vec<DoorbellReceiver>,
    dice: u64,
    /// When the device last had work.
    worked_at: Option<Instant>,
    /// Host memory named by the device's objects, which must live as long as the device.
    kept: Vec<Box<dyn Keep>>,
}

/// An object that a device keeps alive.
trait Keep: Send + std::fmt::Debug {}

impl<T: Send + std::fmt::Debug> Keep for T {}

impl Engine {
    /// Creates a device whose ports have no cables yet.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        let ports: Vec<_> =
            (1..=2).zip(&config.ports).map(|(n, port)| Port::new(PortNumber(n), port)).collect();
        let dice = config.seed;
        Self {
            config,
            qps: QpTable::new(ports.len()),
            dev: Device { ports, ..Device::default() },
            doorbells: Vec::new(),
            dice,
            worked_at: None,
            kept: Vec::new(),
        }
    }

    /// Keeps an object alive as long as the device.
    pub fn keep(&mut self, thing: impl Send + std::fmt::Debug + 'static) {
        self.kept.push(Box::new(thing));
    }

    /// Starts the clock that timestamps completions; the host can read it. Without it completions have no
    /// timestamp.
    pub const fn start_clock(&mut self, begin: Instant) {
        self.dev.clock = Some(begin);
    }

    /// Sets the byte order of responses to atomic operations. The default is the host's byte order.
    pub const fn set_answer_order(&mut self, order: AnswerOrder) {
        self.dev.answer_order = order;
    }

    /// Byte order of responses to atomic operations.
    #[must_use]
    pub const fn answer_order(&self) -> AnswerOrder {
        self.dev.answer_order
    }

    /// The configuration that the device was created with.
    #[must_use]
    pub const fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Splitmix64.
    const fn roll(&mut self) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next asynchronous event.
    pub fn next_event(&mut self) -> Option<DeviceEvent> {
        self.dev.events.next()
    }

    /// Returns and clears the number of asynchronous events lost because the queue was full.
    pub const fn take_lost_events(&mut self) -> u64 {
        self.dev.events.take_lost()
    }

    /// The device's activity and drop counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.dev.counters
    }

    /// Attaches another source of doorbells.
    pub fn attach_doorbells(&mut self) -> DoorbellSender {
        let (sender, receiver) = doorbell::channel();
        self.doorbells.push(receiver);
        sender
    }

    /// Rings a queue pair's doorbell from the device's own thread.
    pub fn ring(&mut self, qpn: Qpn) {
        let Self { qps, dev, .. } = self;
        if let Some(qp) = qps.real(qpn) {
            dev.counters.count(Activity::Doorbells);
            dev.schedule(qp);
        }
    }

    /// When [`Engine::step`] is due even if nothing happens. The time is not after `now` if there is work.
    #[must_use]
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let answers = self.dev.ports.iter().any(Port::has_answers);
        if answers || !self.dev.ready.is_empty() || self.doorbells.iter().any(DoorbellReceiver::is_waiting) {
            return Some(now);
        }
        let waits = |port: &Port| {
            let ethernet = port.ethernet.as_ref().filter(|ethernet| !ethernet.parked.is_empty())?;
            if ethernet.parked.is_held_up() { Some(now) } else { ethernet.neighbours.poll_timeout() }
        };
        let timer = self.dev.timers.first().map(|&(at, _)| at);
        let held_back = |port: &Port| port.cable.as_ref()?.next_deadline();
        let ports = &self.dev.ports;
        let deadlines = ports.iter().filter_map(waits).chain(ports.iter().filter_map(held_back));
        let traps = ports.iter().filter_map(|port| port.traps.next_deadline(now));
        timer.into_iter().chain(deadlines).chain(traps).chain(self.dev.held_until(now)).min()
    }

    fn has_work(&self, now: Instant) -> bool {
        self.next_deadline(now).is_some_and(|at| at <= now)
    }

    /// Does a bounded amount of work. Returns true if it did any.
    pub fn step(&mut self, now: Instant) -> bool {
        let worked = self.work(now);
        if worked {
            self.worked_at = Some(now);
        }
        worked
    }

    /// Arms the cables to wake a sleeping thread. `watch` receives descriptors that become readable on
    /// arrival. Packets that arrived earlier do not wake the thread, so call [`Engine::step`] after this and
    /// before sleeping. The sleep must end at [`Engine::next_deadline`].
    ///
    /// Returns false if the caller must poll instead: the device has work or is busy, or no cable can wake a
    /// thread.
    pub fn rest(&mut self, now: Instant, mut watch: impl FnMut(BorrowedFd<'_>)) -> bool {
        if self.has_work(now) || self.worked_at.is_some_and(|at| now.saturating_duration_since(at) < CALM) {
            return false;
        }
        let cables = self.dev.ports.iter_mut().filter_map(|port| port.cable.as_mut());
        let wakers = cables.filter_map(CableEnd::rest);
        wakers.inspect(|waker| watch(*waker)).count() > 0
    }

    /// As [`Engine::rest`], for a thread with no other work: ports without a cable, and cables that are down,
    /// do not prevent sleep. Returns how long to sleep if no descriptor becomes readable; `None` if the
    /// caller must poll. Hello packets of a cable also wake the thread, ten times a second.
    pub fn sleep(&mut self, now: Instant, mut watch: impl FnMut(BorrowedFd<'_>)) -> Option<Duration> {
        if self.has_work(now) || self.worked_at.is_some_and(|at| now.saturating_duration_since(at) < CALM) {
            return None;
        }
        let mut end = self.next_deadline(now);
        for cable in self.dev.ports.iter_mut().filter_map(|port| port.cable.as_mut()) {
            if let Some(waker) = cable.rest() {
                watch(waker);
                continue;
            }
            let (at, waker) = cable.next_look(now)?;
            end = Some(end.map_or(at, |end| end.min(at)));
            waker.into_iter().for_each(&mut watch);
        }
        Some(end.map_or(Duration::MAX, |end| end.saturating_duration_since(now)))
    }

    fn work(&mut self, now: Instant) -> bool {
        let mut worked = self.take_doorbells();
        worked |= ingress::receive(&mut self.qps, &mut self.dev, &self.config, now, RECEIVE_BURST);
        worked |= self.expire(now);
        worked |= self.serve_queue_pairs(now);
        worked |= self.fail_unheard();
        if !self.dev.held.is_empty() {
            worked |= self.dev.release_held(now);
            self.dev.time_held(now);
        }
        worked
    }

    /// Moves queue pairs whose completions found no room to the error state (IBA 11.6.3.2).
    fn fail_unheard(&mut self) -> bool {
        let Self { qps, dev, .. } = self;
        let mut any = false;
        while let Some(slot) = dev.unheard.pop_first() {
            if let Some(qp) = qps.at(slot).filter(|qp| !matches!(qp.state, QpState::Reset | QpState::Err)) {
                dev.fail_qp_unheard(qp);
                any = true;
            }
        }
        any
    }

    fn take_doorbells(&mut self) -> bool {
        let Self { qps, dev, doorbells, .. } = self;
        let mut worked = false;
        let mut over = false;
        for source in doorbells.iter_mut() {
            for _ in 0..DOORBELLS {
                match source.next() {
                    None => break,
                    Some(Rung::Qp(qpn)) => {
                        dev.counters.count(Activity::Doorbells);
                        if let Some(qp) = qps.real(qpn) {
                            dev.schedule(qp);
                        }
                    }
                    Some(Rung::All) => {
                        for qp in qps.all_mut() {
                            dev.schedule(qp);
                        }
                    }
                }
                worked = true;
            }
            over |= !worked && source.is_over();
        }
        if over {
            doorbells.retain(|source| !source.is_over());
        }
        worked
    }

    fn expire(&mut self, now: Instant) -> bool {
        let Self { qps, dev, .. } = self;
        let mut worked = false;
        while let Some(&(at, slot)) = dev.timers.first().filter(|&&(at, _)| at <= now) {
            dev.timers.remove(&(at, slot));
            let Some(qp) = qps.at(slot) else { continue };
            qp.armed = None;
            if qp.deadline.is_some_and(|deadline| deadline <= now) {
                worked = true;
                requester::expire(qp, dev, now);
                responder::expire(qp, dev, now);
            }
            dev.update_timer(qp);
        }
        worked
    }

    fn serve_queue_pairs(&mut self, now: Instant) -> bool {
        let Self { qps, dev, .. } = self;
        let mut worked = false;
        // Pending datagrams first: new ones would overtake them.
        for port in 0..dev.ports.len() {
            worked |= dev.send_parked(port);
        }
        // First, because queue pairs that send without pause leave no room for the agent.
        for port in &mut dev.ports {
            worked |= port.send_answers(&mut dev.counters);
        }
        for _ in 0..dev.ready.len().min(SERVED_QPS) {
            let Some(slot) = dev.ready.pop_front() else { break };
            let Some(qp) = qps.at(slot) else { continue };
            qp.queued = false;
            worked |= serve(qp, dev, now);
        }
        dev.ready.append(&mut dev.served);
        for port in &mut dev.ports {
            worked |= sma::send_traps(port, now);
            worked |= port.send_answers(&mut dev.counters);
        }
        worked
    }
}

/// Serves one queue pair, and schedules it again if there is more to do.
fn serve(qp: &mut Qp, dev: &mut Device, now: Instant) -> bool {
    let mut worked = false;
    if qp.rc.is_some() {
        match rc::reply(qp, dev) {
            Ok(answered) => worked = answered,
            Err(_) => {
                dev.schedule(qp);
                return false;
            }
        }
    }
    if qp.state == QpState::Err {
        return dev.flush(qp) | worked;
    }
    let mut sent = 0;
    loop {
        if sent >= SEND_BURST {
            dev.schedule_behind(qp);
            break;
        }
        let step = match qp.kind {
            QpKind::Rc | QpKind::XrcInitiator => requester::step(qp, dev, now),
            QpKind::XrcTarget => Step::Idle,
            QpKind::Uc => uc::requester::step(qp, dev),
            QpKind::Ud | QpKind::Gsi | QpKind::Smi => ud::step(qp, dev),
            QpKind::Umr => umr::step(qp, dev),
        };
        match step {
            Step::Sent => {
                worked = true;
                sent += 1;
                sent += middle::send(qp, dev, SEND_BURST - sent);
            }
            Step::Idle => break,
            Step::Blocked if worked => {
                dev.schedule_behind(qp);
                break;
            }
            Step::Blocked => {
                dev.schedule(qp);
                break;
            }
        }
    }
    if qp.kind.is_reliable() {
        dev.update_timer(qp);
    }
    if qp.state == QpState::SqDraining && !qp.has_begun_sends() {
        qp.state = QpState::SqDrained;
        if std::mem::take(&mut qp.notify_drained) {
            dev.events.push(DeviceEvent::SqDrained(qp.qpn));
        }
    }
    worked
}

fn not_found(what: &'static str, name: impl ToString) -> HcaError {
    HcaError::NotFound { what, name: name.to_string() }
}

fn unsupported(what: &'static str, value: u64) -> HcaError {
    HcaError::Unsupported { what, value, limit: "a power of two of entries".into() }
}
