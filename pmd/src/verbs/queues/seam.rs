//! Implementation of the device traits.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use arrayvec::ArrayVec;
use ib_wire::Qpn;
use verbs_sys as sys;

use super::completions::{note_failure, room};
use super::pairs::Door;
use super::receive::{DatagramReceives, SharedReceives};
use super::send::SendSide;
use super::{Kind, VerbsQueues, VerbsRc, VerbsUd, untag};
use crate::bookkeeping::{Place, Work};
use crate::hca::{
    BURST, Checksum, Done, PostError, QpEvent, Queues, QueuesId, RcSlot, Received, Refused, RxBurst, UdSlot,
    WcStatus,
};
use crate::mem::Mbuf;
use crate::verbs::address::VerbsDestination;

/// Number of send completion polls in one iteration. It can thus reap all the sends that it may post.
const SEND_ROUNDS: usize = 8;

impl Queues for VerbsQueues {
    type Ud = VerbsUd;
    type Rc = VerbsRc;
    type Destination = VerbsDestination;

    fn id(&self) -> QueuesId {
        self.id
    }

    fn turn(&mut self) -> bool {
        false
    }

    #[inline]
    fn send_ud(&mut self, slot: UdSlot, to: &VerbsDestination, buf: Mbuf) -> Result<(), Refused> {
        let Some(ud) = self.uds.get_mut(slot.0.into()).filter(|ud| ud.door == Door::Open) else {
            return Err(Refused { buf, error: PostError::NoConnection });
        };
        if !self.credit.has_room() {
            return Err(Refused { buf, error: PostError::Full });
        }
        let was_dirty = ud.side.has_queued();
        ud.side
            .queue(buf, Some(to.clone()), &mut self.regions)
            .map_err(|(buf, error)| Refused { buf, error })?;
        self.credit.take();
        if !was_dirty {
            self.uds.wait(slot.0.into());
        }
        Ok(())
    }

    #[inline]
    fn send_rc(&mut self, slot: RcSlot, buf: Mbuf) -> Result<(), Refused> {
        let Some(rc) = self.rcs.get_mut(slot.0) else {
            return Err(Refused { buf, error: PostError::NoConnection });
        };
        if rc.passive || rc.side.health.failed() {
            return Err(Refused { buf, error: PostError::NoConnection });
        }
        if !self.credit.admits(rc.side.outstanding()) {
            return Err(Refused { buf, error: PostError::Full });
        }
        let was_dirty = rc.side.has_queued();
        rc.side.queue(buf, None, &mut self.regions).map_err(|(buf, error)| Refused { buf, error })?;
        self.credit.take();
        if !was_dirty {
            self.rcs.wait(slot.0);
        }
        Ok(())
    }

    fn ring(&mut self) {
        let Self { uds, rcs, lists, regions, faults, credit, done, .. } = self;
        // Requests that the library does not accept are dropped.
        let mut ring = |side: &mut SendSide, slot: Option<RcSlot>| {
            let before = side.outstanding();
            let taken = side.ring(lists, regions, |Work { ticket, operation }| {
                let status = WcStatus::General;
                done.extend(slot.map(|slot| Done { slot, ticket, status, what: operation.ended(status) }));
            });
            credit.give_back(before.saturating_sub(side.outstanding()));
            taken
        };
        uds.ring(|_, ud| {
            if !ring(&mut ud.side, None) {
                note_failure(faults, ud.qpn(), false);
            }
        });
        rcs.ring(|at, rc| {
            if !ring(&mut rc.side, Some(RcSlot(at))) {
                let flushed = rc.side.outstanding() == 0;
                if flushed {
                    rc.side.health.flushed();
                }
                note_failure(faults, rc.qpn(), flushed);
            }
        });
    }

    fn poll_receive(&mut self, burst: &mut RxBurst, events: &mut ArrayVec<QpEvent, BURST>) {
        loop {
            let most = room(events).min(burst.remaining_capacity());
            let mut wc = [sys::ibv_wc::default(); BURST];
            let wc = Self::poll(&self.recv_cq, wc.get_mut(..most).unwrap_or_default(), &mut self.anomalies);
            // A poll that returns fewer completions than requested has emptied the queue.
            self.progress.polled(wc.len(), wc.len() < most);
            for wc in wc {
                let Some((kind, place)) = untag(wc.wr_id) else {
                    self.anomalies.unknown_entry += 1;
                    continue;
                };
                let arrived = match kind {
                    Kind::Send | Kind::Drain => {
                        self.send_completion(wc, kind, place, events);
                        None
                    }
                    _ if wc.status != sys::IBV_WC_SUCCESS => {
                        self.receive_failed(wc, kind, place, events);
                        None
                    }
                    Kind::Datagram => self.datagram(wc, place),
                    Kind::Shared => self.message(wc, place),
                };
                if let Some((buf, source)) = arrived {
                    let place = self.numbers.find(wc.qp_num);
                    let (ud, rc) = (place.map(Place::ud), place.and_then(Place::rc));
                    // Set only for datagrams, on devices that check.
                    let checksum = if wc.wc_flags & sys::IBV_WC_IP_CSUM_OK != 0 {
                        Checksum::Good
                    } else {
                        Checksum::Unknown
                    };
                    burst.push(Received { buf, qpn: Qpn::new(wc.qp_num), ud, rc, source, checksum });
                }
            }
            if wc.len() < most || most == 0 {
                break;
            }
        }
    }

    fn poll_send(&mut self, events: &mut ArrayVec<QpEvent, BURST>) -> usize {
        self.report_faults(events);
        let mut freed = 0;
        for _ in 0..SEND_ROUNDS {
            let most = room(events);
            let mut wc = [sys::ibv_wc::default(); BURST];
            let wc = Self::poll(&self.send_cq, wc.get_mut(..most).unwrap_or_default(), &mut self.anomalies);
            if wc.is_empty() && most > 0 {
                self.credit.settle();
            }
            for wc in wc.iter() {
                match untag(wc.wr_id) {
                    Some((kind @ (Kind::Send | Kind::Drain), place)) => {
                        freed += self.send_completion(wc, kind, place, events);
                    }
                    _ => self.anomalies.unknown_entry += 1,
                }
            }
            if wc.len() < most || most == 0 {
                break;
            }
        }
        freed
    }

    fn refill(&mut self) -> usize {
        let Self { stash, pool, regions, .. } = self;
        let mut posted = match &mut self.datagrams {
            Some(shared) => shared.refill(stash, pool, regions),
            None => {
                let open = self.uds.all_mut().filter(|ud| ud.door == Door::Open);
                open.map(|ud| ud.refill_own(stash, pool, regions)).sum()
            }
        };
        if let Some(srq) = &mut self.shared {
            posted += srq.refill(stash, pool, regions);
        }
        posted
    }

    fn insert_ud(&mut self, slot: UdSlot, ud: VerbsUd) -> Result<(), VerbsUd> {
        if !self.uds.is_free(slot.0.into()) || !self.numbers.insert(ud.qpn().get(), Place::Ud(slot)) {
            return Err(ud);
        }
        self.uds.insert(slot.0.into(), ud)
    }

    fn open_ud(&mut self, slot: UdSlot) {
        // The library restarts its ring indices at 0 itself.
        if let Some(ud) = self.uds.get_mut(slot.0.into()) {
            ud.side.health.restart();
            ud.door = Door::Open;
        }
    }

    fn close_ud(&mut self, slot: UdSlot) {
        if let Some(ud) = self.uds.get_mut(slot.0.into()) {
            ud.door = Door::Closed(self.progress.mark());
        }
    }

    fn ud_outstanding(&self, slot: UdSlot) -> u32 {
        self.uds.get(slot.0.into()).map_or(0, |ud| {
            let unread = matches!(ud.door, Door::Closed(mark) if !self.progress.is_past(mark));
            ud.side.outstanding() + ud.own.as_ref().map_or(0, DatagramReceives::posted) + u32::from(unread)
        })
    }

    fn ud_sends(&self, slot: UdSlot) -> u32 {
        self.uds.get(slot.0.into()).map_or(0, |ud| ud.side.sends())
    }

    fn remove_ud(&mut self, slot: UdSlot) -> Option<VerbsUd> {
        let ud = self.uds.remove(slot.0.into())?;
        self.numbers.remove(ud.qpn().get());
        self.credit.orphan(ud.side.sends());
        Some(ud)
    }

    fn ud_qpn(&self, slot: UdSlot) -> Option<Qpn> {
        self.uds.get(slot.0.into()).map(VerbsUd::qpn)
    }

    fn arm(&mut self) -> bool {
        self.recv_cq.arm()
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.recv_cq.events()
    }

    fn wait(&mut self, at_most: Duration) -> bool {
        self.recv_cq.wait(at_most) > 0
    }

    fn receives_posted(&self) -> (u32, u32) {
        let own = || self.uds.all().filter_map(|ud| ud.own.as_ref()).map(DatagramReceives::posted).sum();
        let datagrams = self.datagrams.as_ref().map_or_else(own, |shared| shared.receives.posted());
        (datagrams, self.shared.as_ref().map_or(0, SharedReceives::posted))
    }

    fn limit_send_segments(&mut self, most: usize) {
        self.max_segments = most;
    }

    fn insert_rc(&mut self, slot: RcSlot, mut rc: VerbsRc) -> Result<(), VerbsRc> {
        if !self.rcs.is_free(slot.0) || !self.numbers.insert(rc.qpn().get(), Place::Rc(slot, rc.beside)) {
            return Err(rc);
        }
        rc.side.limit_segments(self.max_segments);
        self.rcs.insert(slot.0, rc)
    }

    fn post_drain(&mut self, slot: RcSlot) -> Result<(), PostError> {
        let rc = self.rcs.get_mut(slot.0).ok_or(PostError::NoConnection)?;
        rc.side.health.fail();
        rc.side.post_drain()
    }

    fn remove_rc(&mut self, slot: RcSlot) -> Option<VerbsRc> {
        let mut rc = self.rcs.remove(slot.0)?;
        self.numbers.remove(rc.qpn().get());
        self.credit.orphan(rc.side.sends());
        let status = WcStatus::Flushed;
        self.done.extend(rc.side.take_key_works().map(|Work { ticket, operation }| {
            let what = operation.ended(status);
            Done { slot, ticket, status, what }
        }));
        Some(rc)
    }

    fn rc_outstanding(&self, slot: RcSlot) -> usize {
        self.rcs.get(slot.0).map_or(0, |rc| rc.side.outstanding() as usize)
    }
}
