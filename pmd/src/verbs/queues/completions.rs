//! Completions: received messages, completed sends, and failures.

use arrayvec::ArrayVec;
use ib_wire::{Lid, Qpn, ServiceLevel};
use verbs_sys as sys;

use super::receive::{DatagramReceives, GRH_AREA};
use super::{Kind, VerbsQueues};
use crate::bookkeeping::{Completed, Health, Place, Work};
use crate::hca::{BURST, Done, MemoryKey, QpEvent, QpFault, Source, UdSource, WcStatus};
use crate::mem::{HEADROOM, Mbuf};
use crate::verbs::object::CompletionQueue;

/// Distance from the start of the data back to the first byte of the destination GID.
const DGID_BEFORE_DATA: usize = 16;

impl VerbsQueues {
    pub(super) fn poll<'w>(
        cq: &CompletionQueue,
        wc: &'w mut [sys::ibv_wc],
        anomalies: &mut super::Anomalies,
    ) -> &'w [sys::ibv_wc] {
        // SAFETY: the queue lives, and only this worker polls it.
        let count = unsafe { sys::inline::poll_cq(cq.raw(), wc) };
        match usize::try_from(count) {
            Ok(count) => wc.get(..count).unwrap_or_default(),
            Err(_) => {
                anomalies.bad_poll += 1;
                &[]
            }
        }
    }

    /// Processes a completed send or drain request. Returns the number of buffers freed.
    #[inline]
    pub(super) fn send_completion(
        &mut self,
        wc: &sys::ibv_wc,
        kind: Kind,
        entry: u32,
        events: &mut ArrayVec<QpEvent, BURST>,
    ) -> usize {
        let qpn = Qpn::new(wc.qp_num);
        let found = match self.numbers.find(wc.qp_num) {
            Some(Place::Ud(slot)) => self.uds.get_mut(slot.0.into()).map(|ud| (&mut ud.side, None)),
            Some(Place::Rc(slot, _)) => self.rcs.get_mut(slot.0).map(|rc| (&mut rc.side, Some(slot))),
            None => None,
        };
        let Some((side, slot)) = found else {
            self.anomalies.unknown_qp += 1;
            return 0;
        };
        let (mut freed, mut drained) = (0, false);
        let known = if kind == Kind::Drain {
            drained = side.drained();
            drained
        } else {
            let status = status(wc.status);
            let done = &mut self.done;
            let reaped = side.complete(entry, |work, named| {
                let status = if named { status } else { WcStatus::Success };
                let Work { ticket, operation } = work;
                done.extend(slot.map(|slot| Done { slot, ticket, status, what: operation.ended(status) }));
            });
            freed = reaped.freed;
            self.credit.give_back(freed as u32);
            reaped.known
        };
        if !known {
            self.anomalies.unknown_entry += 1;
            return 0;
        }
        let outstanding = side.outstanding();
        let what =
            Completed { qpn, status: status(wc.status), drained, outstanding, datagram: slot.is_none() };
        side.health.completed(what, events);
        freed
    }

    /// Returns the datagram receive queue of this queue pair.
    pub(super) fn datagrams_of(&mut self, qpn: u32) -> Option<&mut DatagramReceives> {
        match &mut self.datagrams {
            Some(shared) => Some(&mut shared.receives),
            None => match self.numbers.find(qpn) {
                Some(Place::Ud(slot)) => self.uds.get_mut(slot.0.into())?.own.as_mut(),
                _ => None,
            },
        }
    }

    pub(super) fn datagram(&mut self, wc: &sys::ibv_wc, slot: u32) -> Option<(Mbuf, Source)> {
        let Some(mut buf) = self.datagrams_of(wc.qp_num).and_then(|receives| receives.take(slot)) else {
            self.anomalies.unknown_entry += 1;
            return None;
        };
        // The queue pair may have been removed since.
        if !matches!(self.numbers.find(wc.qp_num), Some(Place::Ud(_))) {
            self.anomalies.unknown_qp += 1;
            return None;
        }
        let len = (wc.byte_len as usize).checked_sub(GRH_AREA);
        if !len.is_some_and(|len| buf.set_data(HEADROOM, len)) {
            self.anomalies.bad_length += 1;
            return None;
        }
        let has_grh = wc.wc_flags & sys::IBV_WC_GRH != 0;
        let source = UdSource {
            qpn: Qpn::new(wc.src_qp),
            slid: Lid(wc.slid),
            sl: ServiceLevel::new(wc.sl),
            dlid_path_bits: wc.dlid_path_bits & 0x7f,
            pkey_index: wc.pkey_index,
            has_grh,
            // A multicast datagram always has a GRH (IBA 10.5.2.1).
            multicast: has_grh
                && buf.before_data(DGID_BEFORE_DATA).is_some_and(|gid| gid.first() == Some(&0xff)),
        };
        Some((buf, Source::Ud(source)))
    }

    pub(super) fn message(&mut self, wc: &sys::ibv_wc, slot: u32) -> Option<(Mbuf, Source)> {
        match self.shared.as_mut().map_or(Err(false), |srq| srq.message(slot, wc.byte_len as usize)) {
            Ok(buf) if wc.wc_flags & sys::IBV_WC_WITH_INV != 0 => {
                // SAFETY: the flag selects this member of the union.
                let key = unsafe { wc.__bindgen_anon_1.invalidated_rkey };
                Some((buf, Source::RcInvalidated(MemoryKey::new(key))))
            }
            Ok(buf) => Some((buf, Source::Rc)),
            Err(known) => {
                let count =
                    if known { &mut self.anomalies.bad_length } else { &mut self.anomalies.unknown_entry };
                *count += 1;
                None
            }
        }
    }

    /// Processes a failed or flushed receive.
    pub(super) fn receive_failed(
        &mut self,
        wc: &sys::ibv_wc,
        kind: Kind,
        slot: u32,
        events: &mut ArrayVec<QpEvent, BURST>,
    ) {
        let known = match kind {
            Kind::Datagram => self.datagrams_of(wc.qp_num).is_some_and(|all| all.take(slot).is_some()),
            _ => self.shared.as_mut().is_some_and(|srq| srq.recycle(slot)),
        };
        if !known {
            self.anomalies.unknown_entry += 1;
        }
        let status = status(wc.status);
        if status != WcStatus::Flushed {
            let event = QpEvent { qpn: Qpn::new(wc.qp_num), fault: QpFault::Receive(status) };
            let _ = events.try_push(event);
        }
    }

    pub(super) fn report_faults(&mut self, events: &mut ArrayVec<QpEvent, BURST>) {
        while events.remaining_capacity() > 0 {
            let Some(event) = self.faults.pop() else { break };
            events.push(event);
        }
    }
}

/// Stores a posting failure until events are polled.
pub(super) fn note_failure(faults: &mut ArrayVec<QpEvent, BURST>, qpn: Qpn, flushed: bool) {
    let _ = faults.try_push(QpEvent { qpn, fault: QpFault::Send(WcStatus::General) });
    if flushed {
        let _ = faults.try_push(QpEvent { qpn, fault: QpFault::Flushed });
    }
}

/// Maximum number of completions of one poll.
pub(super) fn room(events: &ArrayVec<QpEvent, BURST>) -> usize {
    (events.remaining_capacity() / Health::MAX_EVENTS).min(BURST)
}

/// Converts the library's statuses (IBA 11.6.2).
const fn status(status: sys::ibv_wc_status) -> WcStatus {
    match status {
        sys::IBV_WC_SUCCESS => WcStatus::Success,
        sys::IBV_WC_LOC_LEN_ERR => WcStatus::LocalLength,
        sys::IBV_WC_LOC_QP_OP_ERR => WcStatus::LocalQpOperation,
        sys::IBV_WC_LOC_PROT_ERR => WcStatus::LocalProtection,
        sys::IBV_WC_WR_FLUSH_ERR => WcStatus::Flushed,
        sys::IBV_WC_MW_BIND_ERR => WcStatus::MemoryWindowBind,
        sys::IBV_WC_BAD_RESP_ERR => WcStatus::BadResponse,
        sys::IBV_WC_LOC_ACCESS_ERR => WcStatus::LocalAccess,
        sys::IBV_WC_REM_INV_REQ_ERR => WcStatus::RemoteInvalidRequest,
        sys::IBV_WC_REM_ACCESS_ERR => WcStatus::RemoteAccess,
        sys::IBV_WC_REM_OP_ERR => WcStatus::RemoteOperation,
        sys::IBV_WC_RETRY_EXC_ERR => WcStatus::RetryExceeded,
        sys::IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::RnrRetryExceeded,
        sys::IBV_WC_REM_ABORT_ERR => WcStatus::RemoteAborted,
        _ => WcStatus::General,
    }
}
