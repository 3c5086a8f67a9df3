//! Asynchronous events.

use std::time::Instant;

use verbs_sys as sys;

use super::{Adapter, DataPath, LIMIT_PAUSE};
use crate::hca::{AsyncEvent, PortNumber};

/// Converts events of a queue pair, a port or the device itself. Events of shared receive queues are handled
/// separately.
fn translate(event: &sys::ibv_async_event) -> Option<AsyncEvent> {
    let port = || {
        // SAFETY: these events name a port.
        let number = unsafe { event.element.port_num };
        PortNumber(u8::try_from(number).unwrap_or(0))
    };
    let qpn = || {
        // SAFETY: these events name a queue pair, which cannot be destroyed before the event is acknowledged.
        ib_wire::Qpn::new(unsafe { (*event.element.qp).qp_num })
    };
    Some(match event.event_type {
        sys::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive(port()),
        sys::IBV_EVENT_PORT_ERR => AsyncEvent::PortError(port()),
        sys::IBV_EVENT_LID_CHANGE => AsyncEvent::LidChange(port()),
        sys::IBV_EVENT_PKEY_CHANGE => AsyncEvent::PKeyChange(port()),
        sys::IBV_EVENT_GID_CHANGE => AsyncEvent::GidChange(port()),
        sys::IBV_EVENT_SM_CHANGE => AsyncEvent::SmChange(port()),
        sys::IBV_EVENT_CLIENT_REREGISTER => AsyncEvent::ClientReregister(port()),
        sys::IBV_EVENT_QP_LAST_WQE_REACHED => AsyncEvent::LastWqeReached(qpn()),
        sys::IBV_EVENT_COMM_EST => AsyncEvent::CommunicationEstablished(qpn()),
        sys::IBV_EVENT_QP_FATAL | sys::IBV_EVENT_QP_REQ_ERR | sys::IBV_EVENT_QP_ACCESS_ERR => {
            AsyncEvent::QpFatal(qpn())
        }
        sys::IBV_EVENT_CQ_ERR | sys::IBV_EVENT_SRQ_ERR | sys::IBV_EVENT_DEVICE_FATAL => AsyncEvent::Fatal,
        _ => return None,
    })
}

impl<P: DataPath> Adapter<P> {
    /// Returns the next relevant event of the device.
    pub(super) fn device_event(&mut self) -> Option<AsyncEvent> {
        if let Some(event) = self.own_events.pop() {
            return Some(event);
        }
        self.rearm_limits();
        loop {
            let mut event = sys::ibv_async_event::default();
            // SAFETY: the context is open and its events are nonblocking; the event is a local variable.
            if unsafe { sys::ibv_get_async_event(self.context.raw(), &mut event) } != 0 {
                return None;
            }
            let known = if event.event_type == sys::IBV_EVENT_SRQ_LIMIT_REACHED {
                // SAFETY: this event names a shared receive queue.
                let srq = unsafe { event.element.srq };
                self.limits_due = Some(Instant::now() + LIMIT_PAUSE);
                let of = self.workers.iter().find(|(_, worker)| worker.is_srq(srq));
                of.map(|(id, _)| AsyncEvent::SrqLimitReached(*id))
            } else {
                translate(&event).filter(|event| self.is_news(event))
            };
            // SAFETY: fetched above, acknowledged once.
            unsafe { sys::ibv_ack_async_event(&mut event) };
            if let Some(AsyncEvent::GidChange(_)) = known {
                self.path.handle_gid_change();
            }
            if known.is_some() {
                return known;
            }
        }
    }

    /// False for an event that was already reported on behalf of the device.
    fn is_news(&mut self, event: &AsyncEvent) -> bool {
        match event {
            AsyncEvent::LastWqeReached(qpn) => {
                self.qps.get_mut(qpn).is_none_or(super::QpRecord::report_last_wqe)
            }
            _ => true,
        }
    }

    fn rearm_limits(&mut self) {
        if self.limits_due.is_some_and(|due| Instant::now() >= due) {
            self.limits_due = None;
            for worker in self.workers.values() {
                if let Err(e) = worker.arm() {
                    tracing::debug!("{e}");
                }
            }
        }
    }
}
