//! Delivery of events: from the engine to the subscribed event queue, and its interrupts.

use connectx::DeviceEvent;
use hca::{AsyncEvent, PortNumber};
use prm::bar::HealthSyndrome;
use prm::{Eqe, EventType, port_event};
use tracing::{debug, warn};

use super::Hca;
use super::event_queue::{EventQueue, Full};
use crate::bar::Illness;

impl Hca {
    /// Writes pending events to their event queues and raises the interrupts.
    pub(super) fn report_events(&mut self) {
        if !self.space.is_master() {
            return;
        }
        while let Some(number) = self.engine.next_completion_event() {
            let Some(eqn) = self.objects.cqs.get(&number).map(|cq| cq.eqn) else { continue };
            self.raise(eqn, EventType::Completion, 0, Eqe::of_queue(number));
        }
        while let Some(event) = self.engine.next_event() {
            debug!(?event, "event");
            self.report_event(event);
        }
        let lost = self.engine.take_lost_events();
        if lost > 0 {
            // The guest did not let the device use its memory meanwhile.
            warn!("{lost} events were lost: queues of asynchronous events are in error");
            self.counters.lost_events += lost;
            self.objects.eqs.values_mut().filter(|eq| eq.takes(EventType::Port)).for_each(EventQueue::fail);
        }
    }

    fn report_event(&mut self, event: DeviceEvent) {
        let queue = Eqe::of_queue;
        let (kind, subtype, data) = match event {
            DeviceEvent::SrqLimit(number) => (EventType::SrqLimit, 0, queue(number)),
            DeviceEvent::SrqError(number) => (EventType::SrqError, 0, queue(number)),
            DeviceEvent::QpRequestError(qpn) => (EventType::QpRequestError, 0, queue(qpn.get())),
            DeviceEvent::QpAccessError(qpn) => (EventType::QpAccessError, 0, queue(qpn.get())),
            DeviceEvent::SqDrained(qpn) => (EventType::SqDrained, 0, queue(qpn.get())),
            DeviceEvent::CqOverrun(number) => (EventType::CqError, 0, Eqe::of_overrun(number)),
            DeviceEvent::Async(event) => {
                let port = |kind: u8, port: PortNumber| (EventType::Port, kind, Eqe::of_port(port.0));
                match event {
                    AsyncEvent::PortActive(p) => port(port_event::ACTIVE, p),
                    AsyncEvent::PortError(p) => port(port_event::DOWN, p),
                    AsyncEvent::LidChange(p) | AsyncEvent::SmChange(p) => port(port_event::LID, p),
                    AsyncEvent::PKeyChange(p) => port(port_event::PKEY, p),
                    AsyncEvent::GidChange(p) => port(port_event::GUID, p),
                    AsyncEvent::ClientReregister(p) => port(port_event::REREGISTER, p),
                    AsyncEvent::LastWqeReached(q) => (EventType::LastWqe, 0, queue(q.get())),
                    AsyncEvent::CommunicationEstablished(q) => {
                        (EventType::CommunicationEstablished, 0, queue(q.get()))
                    }
                    AsyncEvent::QpFatal(q) => (EventType::QpFatal, 0, queue(q.get())),
                    // This engine does not raise these.
                    AsyncEvent::SrqLimitReached(_) | AsyncEvent::Fatal => return,
                }
            }
        };
        self.raise_asynchronous(kind, subtype, data);
    }

    /// Writes an event to the first queue that accepts its type.
    pub(super) fn raise_asynchronous(&mut self, kind: EventType, subtype: u8, data: [u8; Eqe::DATA]) {
        match self.objects.eqs.iter().find(|(_, eq)| eq.takes(kind)).map(|(&eqn, _)| eqn) {
            Some(eqn) => self.raise(eqn, kind, subtype, data),
            None => self.counters.lost_events += 1,
        }
    }

    fn raise(&mut self, eqn: u32, kind: EventType, subtype: u8, data: [u8; Eqe::DATA]) {
        let Some(eq) = self.objects.eqs.get_mut(&eqn) else {
            self.counters.lost_events += 1;
            return;
        };
        match eq.push(kind, subtype, data) {
            Ok(()) => {
                self.counters.events += 1;
                self.interrupt(eqn);
            }
            Err(Full { first }) => {
                self.counters.lost_events += 1;
                if first {
                    warn!(
                        "event queue {eqn} was full and is in error; the health buffer reports this to the guest"
                    );
                }
            }
        }
    }

    /// The error condition for the health buffer. Only a new driver, or destruction of the queue, clears it.
    pub(super) fn illness(&self) -> Option<Illness> {
        if self.deaf {
            return Some(Illness { syndrome: HealthSyndrome::MemoryUnreadable, detail: 0 });
        }
        let (&eqn, eq) = self.objects.eqs.iter().find(|(_, eq)| eq.has_overrun())?;
        let asynchronous = eq.is_asynchronous();
        let syndrome = if asynchronous { HealthSyndrome::AsyncEqOverrun } else { HealthSyndrome::EqError };
        Some(Illness { syndrome, detail: eqn as u16 })
    }

    /// Raises the interrupt of an event queue if it is due. It stays due until it can be delivered.
    pub(super) fn interrupt(&mut self, eqn: u32) {
        // A message-signaled interrupt is a memory write and needs bus mastering.
        if !self.space.is_master() {
            return;
        }
        let Some(eq) = self.objects.eqs.get_mut(&eqn) else { return };
        if eq.is_due() && self.vectors.raise(eq.vector) {
            eq.disarm();
            self.counters.interrupts += 1;
        }
    }

    /// Raises all due interrupts.
    pub(super) fn interrupt_all(&mut self) {
        let numbers: Vec<u32> = self.objects.eqs.keys().copied().collect();
        for eqn in numbers {
            self.interrupt(eqn);
        }
    }
}
