//! State shared by all queue pairs of a device (memory, queues, ports, timers, schedule) and the operations
//! on it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use ib_wire::Qpn;

use super::addressing::{self, Unframed};
use super::clock;
use super::counters::{Activity, Counters, DropReason};
use super::ethernet::ParkedDatagram;
use super::event::{DeviceEvent, Events};
use super::frame::Outgoing;
use super::object::cq::{Arm, Cq, Overrun};
use super::object::mcast::Multicast;
use super::object::moderation::{Moderation, Notify};
use super::object::mr::{Member, MrTable};
use super::object::qp::{Qp, Receives};
use super::object::receive::{Srq, Taken};
use super::object::table::slot_of;
use super::object::xrc::Target;
use super::port::{Blocked, Port};
use super::queue_counters::QueueCounters;
use super::rc::atomic::AnswerOrder;
use super::scatter::{ReceiveWqe, ScatterError, Spot, put, scatter};
use super::wqe::{self, Control, Wqe};
use hca::{AsyncEvent, QpState, WcStatus};
use prm::{Cqe, CqeOpcode, DataSegment, Syndrome};

/// Everything except the queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Device {
    pub(crate) ports: Vec<Port>,
    pub(crate) mrs: MrTable,
    pub(crate) cqs: Vec<Option<Cq>>,
    pub(crate) srqs: Vec<Option<Srq>>,
    pub(crate) multicast: Multicast,
    pub(crate) events: Events,
    pub(crate) counters: Counters,
    pub(crate) queue_counters: QueueCounters,
    /// Start of the device's clock, which timestamps completions; `None` disables timestamps.
    pub(crate) clock: Option<Instant>,
    /// Byte order in which responses to atomic operations are written to the host.
    pub(crate) answer_order: AnswerOrder,
    /// Copy of the send in progress.
    pub(crate) wqe: Wqe,
    /// Copy of the receive in progress, if it is read more than once.
    pub(crate) receive: ReceiveWqe,
    /// Slot of the connection that accepted the last packet as its expected one, until the caller takes it.
    pub(crate) accepted: Option<u32>,
    /// Queue pairs with work to do, each at most once.
    pub(crate) ready: VecDeque<u32>,
    /// Queue pairs served in this round that have more to do. They are scheduled behind those not yet served
    /// or blocked.
    pub(crate) served: VecDeque<u32>,
    /// Completion queues with an event to fetch, each at most once.
    pub(crate) awake: VecDeque<u32>,
    /// Completion queues whose event is delayed by moderation, with the latest time of the event. The time is
    /// `None` until [`Device::time_held`] has computed it.
    pub(crate) held: BTreeMap<u32, Option<Instant>>,
    /// Queue pairs that have lost a completion.
    pub(crate) unheard: BTreeSet<u32>,
    /// Deadlines of queue pairs, each pair at most once.
    pub(crate) timers: BTreeSet<(Instant, u32)>,
}

/// The fields that completions copy from a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Face {
    qpn: Qpn,
    user_index: u32,
    send_cq: u32,
    recv_cq: u32,
}

impl Face {
    pub(crate) const fn new(qp: &Qp) -> Self {
        Self { qpn: qp.qpn, user_index: qp.user_index, send_cq: qp.send_cq, recv_cq: qp.recv_cq }
    }

    /// The fields for completions of receives. For an XRC target they are those of the shared receive queue
    /// that the packet names.
    pub(crate) fn receiving(qp: &Qp, dev: &Device) -> Self {
        let face = Self::new(qp);
        let Receives::Named(Target { named: Some(number), .. }) = qp.receives else { return face };
        let Some(xrc) = dev.srq(number).and_then(|srq| srq.xrc) else { return face };
        Self { user_index: xrc.user_index.unwrap_or(number), recv_cq: xrc.cq, ..face }
    }
}

/// Result of taking a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Receive {
    Taken(u16),
    Empty,
    Broken,
}

/// Result of one attempt to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// A packet was sent, or a work request without packets has completed or failed.
    Sent,
    /// Nothing to do until an event.
    Idle,
    /// The cable is full.
    Blocked,
}

/// Why a packet was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unsent {
    /// The cable or the loopback queue is full.
    Full,
    /// The peer's MAC address is being resolved.
    NoAddress,
}

impl From<Blocked> for Unsent {
    fn from(_: Blocked) -> Self {
        Self::Full
    }
}

impl Device {
    pub(crate) fn port(&self, index: u8) -> Option<&Port> {
        self.ports.get(usize::from(index))
    }

    /// Sends one packet from a port. `fill` writes the payload and may read it from the current work queue
    /// entry.
    // Inlined with its callees into the sender, so that headers are built in place in the packet.
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        port: u8,
        frame: impl FnOnce(&mut Port) -> Result<Outgoing, Unframed>,
        payload: usize,
        fill: impl Fn(&Wqe, &mut [u8]),
    ) -> Result<(), Unsent> {
        let Self { ports, wqe, counters, .. } = self;
        let Some(port) = ports.get_mut(usize::from(port)) else { return Ok(()) };
        match &frame(port) {
            // Matched in place: its headers are large.
            Ok(outgoing) => Ok(port.transmit(counters, outgoing, payload, |out| fill(wqe, out))?),
            Err(Unframed::Wait) => Err(Unsent::NoAddress),
            Err(Unframed::Drop(reason)) => {
                counters.drop_packet(*reason);
                Ok(())
            }
        }
    }

    /// Sends a port's pending datagrams whose destination MAC address is resolved, in order. Returns true if
    /// it sent any.
    pub(crate) fn send_parked(&mut self, port: usize) -> bool {
        let Self { ports, counters, .. } = self;
        let Some(port) = ports.get_mut(port) else { return false };
        let Some(ethernet) = &mut port.ethernet else { return false };
        let news = ethernet.neighbours.take_news() || ethernet.parked.is_held_up();
        if !news || ethernet.parked.is_empty() {
            return false;
        }
        let mut list = ethernet.parked.take();
        let before = list.len();
        let mut blocked = false;
        list.retain(|d| {
            if blocked {
                return true;
            }
            match addressing::address(port, &d.av, &d.bth, &d.extended, d.flow, false) {
                Ok(outgoing) => {
                    let payload = &d.payload;
                    let sent =
                        port.transmit(counters, &outgoing, payload.len(), |out| out.copy_from_slice(payload));
                    blocked = sent.is_err();
                    blocked
                }
                Err(Unframed::Wait) => true,
                Err(Unframed::Drop(reason)) => {
                    counters.drop_packet(reason);
                    false
                }
            }
        });
        let worked = list.len() < before;
        if let Some(ethernet) = &mut port.ethernet {
            ethernet.parked.give_back(list, blocked);
        }
        worked
    }

    /// Queues a datagram until its destination MAC address is resolved. The datagram is dropped if the queue
    /// is full.
    pub(crate) fn park(&mut self, port: u8, datagram: ParkedDatagram) {
        let ethernet = self.ports.get_mut(usize::from(port)).and_then(|port| port.ethernet.as_mut());
        if ethernet.is_some_and(|ethernet| !ethernet.parked.park(datagram)) {
            self.counters.drop_packet(DropReason::NeighbourQueueFull);
        }
    }

    /// Schedules a queue pair.
    pub(crate) fn schedule(&mut self, qp: &mut Qp) {
        if !qp.queued {
            qp.queued = true;
            self.ready.push_back(qp.slot);
        }
    }

    /// Schedules a queue pair that has just sent, behind those that wait for their first service or were
    /// blocked. Otherwise the same queue pairs would always take the free slots of a busy cable.
    pub(crate) fn schedule_behind(&mut self, qp: &mut Qp) {
        if !qp.queued {
            qp.queued = true;
            self.served.push_back(qp.slot);
        }
    }

    /// Updates the timer list with a queue pair's deadline. An entry that is too early stays and is corrected
    /// when it expires, so that moving a deadline back is free.
    pub(crate) fn update_timer(&mut self, qp: &mut Qp) {
        qp.deadline = qp
            .rc
            .as_ref()
            .and_then(|rc| rc.requester.deadline().into_iter().chain(rc.responder.goes_on_by).min());
        let Some(deadline) = qp.deadline else { return };
        if qp.armed.is_some_and(|at| at <= deadline) {
            return;
        }
        self.disarm(qp);
        self.timers.insert((deadline, qp.slot));
        qp.armed = Some(deadline);
    }

    /// Removes a queue pair from the timer list.
    pub(crate) fn disarm(&mut self, qp: &mut Qp) {
        if let Some(at) = qp.armed.take() {
            self.timers.remove(&(at, qp.slot));
        }
    }

    /// Writes an entry of a completion queue, if the queue exists, and notifies its waiters.
    fn complete(&mut self, qp: &Face, number: u32, write: impl FnOnce(&mut Cq) -> Result<Notify, Overrun>) {
        let Some(cq) = self.cq(number) else { return };
        match write(cq) {
            Ok(Notify::Nothing) => {}
            Ok(notification) => self.notify(number, notification),
            Err(Overrun { first }) => {
                if first {
                    self.events.push(DeviceEvent::CqOverrun(number));
                }
                self.unheard.insert(slot_of(qp.qpn));
            }
        }
    }

    fn notify(&mut self, number: u32, notification: Notify) {
        match notification {
            Notify::Nothing => _ = self.held.remove(&number),
            Notify::Held => _ = self.held.entry(number).or_insert(None),
            Notify::Event => {
                self.held.remove(&number);
                self.announce(number);
            }
        }
    }

    /// Arms a completion queue for one event. Returns false if the queue does not exist.
    pub(crate) fn arm_cq(&mut self, number: u32, consumer: u32, arm: Arm) -> bool {
        let Some(cq) = self.cq(number) else { return false };
        let notification = cq.arm(consumer, arm);
        self.notify(number, notification);
        true
    }

    /// Sets the event moderation of a completion queue and delivers a delayed event at once. Returns false if
    /// the queue does not exist.
    pub(crate) fn moderate_cq(&mut self, number: u32, moderation: Option<Moderation>) -> bool {
        let Some(cq) = self.cq(number) else { return false };
        cq.moderate(moderation);
        if cq.release() {
            self.notify(number, Notify::Event);
        }
        true
    }

    /// Computes the deadlines of events delayed since the last call.
    pub(crate) fn time_held(&mut self, now: Instant) {
        let Self { held, cqs, .. } = self;
        for (number, end) in held.iter_mut().filter(|(_, end)| end.is_none()) {
            let cq = cqs.get(*number as usize).and_then(Option::as_ref);
            *end = Some(cq.and_then(Cq::moderation).map_or(now, |moderation| now + moderation.period()));
        }
    }

    /// Delivers delayed events whose deadline has passed. Returns true if there were any.
    pub(crate) fn release_held(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(number) =
            self.held.iter().find(|(_, end)| end.is_some_and(|end| end <= now)).map(|(number, _)| *number)
        {
            self.held.remove(&number);
            if self.cq(number).is_some_and(Cq::release) {
                self.announce(number);
                any = true;
            }
        }
        any
    }

    /// Earliest deadline of a delayed event; `now` if a deadline is not computed yet.
    pub(crate) fn held_until(&self, now: Instant) -> Option<Instant> {
        self.held.values().map(|end| end.unwrap_or(now)).min()
    }

    fn announce(&mut self, number: u32) {
        let Some(cq) = self.cq(number) else { return };
        if let Some(bell) = &cq.bell {
            // A full eventfd is already readable.
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        } else if !std::mem::replace(&mut cq.announced, true) {
            self.awake.push_back(number);
        }
    }

    /// Signals the eventfd of one completion queue that is armed.
    pub(crate) fn wake_one(&mut self) {
        let waiting = self.cqs.iter().position(|cq| cq.as_ref().is_some_and(Cq::would_ring));
        if let Some(number) = waiting {
            self.announce(number as u32);
        }
    }

    /// The next completion queue with an event.
    pub(crate) fn next_awake(&mut self) -> Option<u32> {
        let number = self.awake.pop_front()?;
        if let Some(cq) = self.cq(number) {
            cq.announced = false;
        }
        Some(number)
    }

    pub(crate) fn srq(&self, number: u32) -> Option<&Srq> {
        self.srqs.get(number as usize)?.as_ref()
    }

    pub(crate) fn cq(&mut self, number: u32) -> Option<&mut Cq> {
        self.cqs.get_mut(number as usize)?.as_mut()
    }

    fn time(&self) -> u64 {
        self.clock.map_or(0, |begin| clock::ticks(begin.elapsed()))
    }

    /// Completes a send.
    pub(crate) fn complete_send(&mut self, qp: &Face, control: &Control, length: u32) {
        let mut cqe = Cqe::default();
        cqe.srqn_uidx.set(qp.user_index);
        cqe.sop_drop_qpn.set(u32::from(control.opcode) << 24 | qp.qpn.get());
        cqe.wqe_counter.set(control.index);
        cqe.byte_cnt.set(length);
        cqe.timestamp.set(self.time());
        self.complete(qp, qp.send_cq, |cq| cq.complete(cqe, CqeOpcode::Requester, false));
    }

    /// Completes a send that has failed or is flushed.
    pub(crate) fn fail_send(&mut self, qp: &Face, control: &Control, status: WcStatus) {
        self.fail(qp.send_cq, CqeOpcode::RequesterError, qp, control.opcode, control.index, status);
    }

    /// Completes a receive that has failed or is flushed.
    pub(crate) fn fail_receive(&mut self, qp: &Face, counter: u16, status: WcStatus) {
        self.fail(qp.recv_cq, CqeOpcode::ResponderError, qp, 0, counter, status);
    }

    fn fail(&mut self, cq: u32, opcode: CqeOpcode, qp: &Face, wqe: u8, counter: u16, status: WcStatus) {
        let flushed = status == WcStatus::Flushed;
        self.counters.count(if flushed { Activity::Flushed } else { Activity::Faults });
        let syndrome = Syndrome::of(status).unwrap_or(Syndrome::LocalQpOperation);
        self.complete(qp, cq, |cq| cq.fail(opcode, qp.qpn, qp.user_index, wqe, counter, syndrome));
    }

    /// Completes a receive. The caller fills `cqe` except for the fields that depend on the queue pair.
    pub(crate) fn complete_receive(&mut self, qp: &Face, mut cqe: Cqe, opcode: CqeOpcode, solicited: bool) {
        cqe.srqn_uidx.set(qp.user_index);
        cqe.sop_drop_qpn.set(qp.qpn.get());
        cqe.timestamp.set(self.time());
        self.complete(qp, qp.recv_cq, |cq| cq.complete(cqe, opcode, solicited));
    }

    /// The next receive in a queue pair's own or shared receive queue.
    pub(crate) fn front_receive(&self, receives: &Receives) -> Option<u16> {
        match receives {
            Receives::Own(rq) => rq.front(),
            other => self.srq(other.shared()?)?.front(),
        }
    }

    /// Takes a receive from a queue pair's own or shared receive queue.
    pub(crate) fn take_receive(&mut self, receives: &mut Receives) -> Receive {
        match receives {
            Receives::Own(rq) => rq.take().map_or(Receive::Empty, Receive::Taken),
            other => {
                let Some(number) = other.shared() else { return Receive::Empty };
                let Some(Some(srq)) = self.srqs.get_mut(number as usize) else { return Receive::Broken };
                match srq.take() {
                    Taken::Slot(slot, below) => {
                        if below {
                            self.events.push(DeviceEvent::SrqLimit(number));
                        }
                        Receive::Taken(slot)
                    }
                    Taken::Empty => Receive::Empty,
                    Taken::Broken(first) => {
                        if first {
                            self.events.push(DeviceEvent::SrqError(number));
                        }
                        Receive::Broken
                    }
                }
            }
        }
    }

    /// Copies the data segments of a receive.
    pub(crate) fn load_receive(&mut self, receives: &Receives, counter: u16) {
        let Self { receive, srqs, .. } = self;
        if let Receives::Own(rq) = receives {
            return receive.load(rq.domain, rq.segments(counter, 0));
        }
        match receives.shared().and_then(|number| srqs.get(number as usize)?.as_ref()) {
            Some(srq) => receive.load(srq.domain.into(), srq.segments(counter, 0)),
            None => receive.load(Member::default(), std::iter::empty()),
        }
    }

    /// A data segment of a receive, and the owner of its keys.
    #[inline]
    fn segment(&self, receives: &Receives, counter: u16, number: u16) -> Option<(Member, DataSegment)> {
        if let Receives::Own(rq) = receives {
            return Some((rq.domain, rq.segment(counter, number)?));
        }
        let srq = self.srq(receives.shared()?)?;
        Some((srq.domain.into(), srq.segment(counter, number)?))
    }

    /// Writes bytes to a receive that was taken, from byte `offset` on, and moves `spot` behind them. The
    /// data segments are read in place.
    #[inline]
    pub(crate) fn lay_down(
        &self,
        receives: &Receives,
        counter: u16,
        offset: u64,
        spot: &mut Spot,
        bytes: &[u8],
    ) -> Result<(), ScatterError> {
        let from = spot.segment;
        if let Some((domain, segment)) = self.segment(receives, counter, from)
            && put(self.mrs.of(domain), spot, &segment, offset, bytes)
        {
            return Ok(());
        }
        let Receives::Own(rq) = receives else {
            let srq = receives.shared().and_then(|number| self.srq(number));
            return match srq {
                Some(srq) => {
                    let segments = srq.segments(counter, from);
                    scatter(self.mrs.of(srq.domain.into()), spot, segments, offset, bytes)
                }
                None => scatter(self.mrs.of(Member::default()), spot, None, offset, bytes),
            };
        };
        scatter(self.mrs.of(rq.domain), spot, rq.segments(counter, from), offset, bytes)
    }

    /// Handles the failure of an unreliable queue pair's oldest send: flushes the sends behind it. The queue
    /// pair continues to receive (SQE, IBA 10.3.1.6).
    pub(crate) fn stop_sends(&mut self, qp: &mut Qp, control: &Control, status: WcStatus) {
        if let Some(uc) = &mut qp.uc {
            uc.outgoing = None;
        }
        qp.sq.head = qp.sq.head.wrapping_add(control.blocks);
        self.fail_send(&Face::new(qp), control, status);
        qp.state = QpState::Sqe;
        self.flush_sends(qp);
    }

    /// Completes all posted sends that have not started, as flushed. Returns true if there were any.
    pub(crate) fn flush_sends(&mut self, qp: &mut Qp) -> bool {
        let face = Face::new(qp);
        // A ring holds at most this many; the bound protects against a hostile record.
        let mut left = qp.sq.pending();
        let any = left > 0;
        while left > 0
            && let Some(control) = wqe::peek(&qp.sq)
        {
            self.fail_send(&face, &control, WcStatus::Flushed);
            qp.sq.head = qp.sq.head.wrapping_add(control.blocks);
            left = left.saturating_sub(control.blocks);
        }
        any
    }

    /// Completes every outstanding work request once, as flushed. Returns true if there were any.
    pub(crate) fn flush(&mut self, qp: &mut Qp) -> bool {
        let face = Face::new(qp);
        let mut any = false;
        while let Some(control) = qp.rc.as_mut().and_then(|rc| rc.requester.take_begun()) {
            self.fail_send(&face, &control, WcStatus::Flushed);
            any = true;
        }
        if let Some(rc) = &mut qp.rc {
            rc.requester.stop();
        }
        any |= self.flush_sends(qp);
        if let Some(uc) = &mut qp.uc {
            uc.outgoing = None;
        }
        if let Some(counter) = qp.take_begun_receive() {
            self.fail_receive(&Face::receiving(qp, self), counter, WcStatus::Flushed);
            any = true;
        }
        if let Receives::Own(rq) = &mut qp.receives {
            let mut left = rq.available();
            any |= left > 0;
            while left > 0
                && let Some(counter) = rq.take()
            {
                self.fail_receive(&face, counter, WcStatus::Flushed);
                left -= 1;
            }
        }
        self.disarm(qp);
        qp.deadline = None;
        any
    }

    /// Moves a queue pair to the error state on a device error.
    pub(crate) fn fail_qp(&mut self, qp: &mut Qp) {
        if qp.state != QpState::Err {
            qp.state = QpState::Err;
            self.enter_error(qp);
        }
    }

    /// Moves a queue pair to the error state on a device error that no completion reports (IBA 11.6.3.2).
    pub(crate) fn fail_qp_unheard(&mut self, qp: &mut Qp) {
        if qp.state != QpState::Err {
            self.fail_qp(qp);
            self.events.raise(AsyncEvent::QpFatal(qp.qpn));
        }
    }

    /// Performs the actions on entry to the error state.
    pub(crate) fn enter_error(&mut self, qp: &mut Qp) {
        if let Some(rc) = &mut qp.rc {
            rc.responder.fall_silent();
        }
        self.flush(qp);
        if qp.receives.are_shared() {
            // No receive of the shared queue can go to this queue pair any more (IBA 10.3.1).
            self.events.raise(AsyncEvent::LastWqeReached(qp.qpn));
        }
    }
}
