//! Packets from the interface to the fabric.

use std::io::{IoSlice, IoSliceMut};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use endpoint::{self, UD};
use ipoib::net::fragment::{Fragment, fragments};
use ipoib::net::icmp::{ICMP_ERROR_MAX, fragmentation_needed, may_answer};
use ipoib::net::ipv4::Ipv4View;
use ipoib::net::{IPOIB_HEADER_LEN, IPOIB_IPV4_HEADER};
use pmd::hca::{Backend, PostError, Queues};
use pmd::mem::{Mbuf, Pool};

use super::parked::For;
use super::{BURST, Drop, Host, MAX_SEGMENTS, WORKER, is_group, is_local};

/// Time between two reads of an interface that was empty: each is a system call, and most of them find
/// nothing.
const LOOK: Duration = Duration::from_micros(10);

/// Next action on a packet.
enum Action {
    /// It was sent, or waits elsewhere.
    Done,
    /// Its send queue is full.
    Full(Mbuf),
    /// It waits for this neighbour's address.
    Resolve(Ipv4Addr, Mbuf),
    /// It is too long for a datagram and waits for this neighbour's connection.
    Dial(Ipv4Addr, Mbuf),
    /// It is longer than this, the limit of its path.
    TooBig(u16, Mbuf),
    /// It is dropped.
    Drop(Drop),
}

impl<B: Backend> Host<B> {
    /// Takes packets from the interface and sends them. True if there were any.
    pub(super) fn take_from_interface(&mut self, now: Instant) -> bool {
        if let Some(packet) = self.held.take() {
            self.send(now, packet);
        }
        let mut any = false;
        if now < self.next_look || self.interface_failed {
            return false;
        }
        for _ in 0..BURST {
            if self.held.is_some() {
                break;
            }
            let Some(packet) = self.read(now) else { break };
            any = true;
            self.send(now, packet);
        }
        self.next_look = if any { now } else { now + LOOK };
        any
    }

    /// Reads the next packet of the interface.
    fn read(&mut self, now: Instant) -> Option<Mbuf> {
        let mut buffer = match self.fresh.take() {
            Some(buffer) => buffer,
            // Without buffers, nothing is lost: the packet stays in the interface's queue.
            None => chain(&self.pool, self.config.mtu as usize)?,
        };
        let result = {
            let mut room: ArrayVec<IoSliceMut<'_>, MAX_SEGMENTS> =
                buffer.io_slices_mut().take(MAX_SEGMENTS).collect();
            self.tun.read(&mut room)
        };
        match result {
            // A packet that fits the first of many buffers is copied, so that the chain can be reused.
            Ok(Some(len)) if len <= buffer.data().len() && buffer.len() > buffer.data().len() => {
                let copy = buffer.data().get(..len).and_then(|packet| self.pool.copy_from_slice(packet));
                self.fresh = Some(buffer);
                if copy.is_none() {
                    self.counters.drop(Drop::NoBuffers);
                }
                copy
            }
            // A read is never longer than the buffers.
            Ok(Some(len)) => buffer.truncate(len).then_some(buffer),
            Ok(None) => {
                self.fresh = Some(buffer);
                None
            }
            Err(error) => {
                self.lose_interface(now, &error);
                None
            }
        }
    }

    /// Sends an IPv4 packet, or carries out the action that it needs.
    fn send(&mut self, now: Instant, packet: Mbuf) {
        match self.try_send(packet) {
            Action::Done => {}
            Action::Full(packet) => self.held = Some(packet),
            Action::Resolve(hop, packet) => {
                self.endpoint.link().resolve(now, WORKER, self.config.address, hop);
                self.park(now, hop, For::Address, packet);
            }
            Action::Dial(hop, packet) => {
                if !self.parked.waits(hop, For::Connection) {
                    self.endpoint.link().handle_used(now, WORKER, &[], &[hop.into()]);
                }
                self.park(now, hop, For::Connection, packet);
            }
            Action::TooBig(mtu, packet) => self.refuse(now, mtu, packet),
            Action::Drop(reason) => self.counters.drop(reason),
        }
    }

    fn park(&mut self, now: Instant, hop: Ipv4Addr, what: For, packet: Mbuf) {
        if self.parked.park(now, hop, what, packet).is_err() {
            self.counters.drop(Drop::QueueFull);
        }
    }

    fn try_send(&mut self, mut packet: Mbuf) -> Action {
        let len = packet.len();
        let Ok(view) = Ipv4View::parse(packet.data(), len) else {
            return Action::Drop(if packet.data().first().is_some_and(|b| b >> 4 == 4) {
                Drop::BadIpv4
            } else {
                Drop::NotIpv4
            });
        };
        let destination = view.destination();
        let view = self.view.refresh();
        if !view.state.up {
            return Action::Drop(Drop::LinkDown);
        }
        let message = len + IPOIB_HEADER_LEN;
        let ud_limit = (view.state.ud_mtu as usize).saturating_sub(IPOIB_HEADER_LEN);
        let ud_mtu = u16::try_from(ud_limit).unwrap_or(u16::MAX);
        let (own, prefix) = (self.config.address, self.config.prefix);
        if is_group(own, prefix, destination) {
            // A group that is not joined is sent to the broadcast group, which every host receives.
            let known = view.groups.iter().find(|(group, _)| *group == destination).map(|(_, to)| to);
            let Some(to) = known.or(view.broadcast.as_ref()) else { return Action::Drop(Drop::LinkDown) };
            if len > ud_limit {
                return Action::TooBig(ud_mtu, packet);
            }
            if !encapsulate(&mut packet) {
                return Action::Drop(Drop::NoBuffers);
            }
            return match self.worker.queues().send_ud(UD, to, packet) {
                Ok(()) => {
                    self.counters.sent_to_group(message);
                    Action::Done
                }
                Err(refused) => refusal(refused.error, refused.buf),
            };
        }
        let hop = if is_local(own, prefix, destination) {
            destination
        } else {
            match self.config.gateway {
                Some(gateway) => gateway,
                None => return Action::Drop(Drop::NoRoute),
            }
        };
        let Some(neighbour) = view.neighbours.get(hop) else { return Action::Resolve(hop, packet) };
        let rc = neighbour.rc(WORKER.0);
        let fits_rc = rc.is_some_and(|rc| message <= rc.mtu as usize);
        if !fits_rc && len > ud_limit {
            return match rc {
                Some(rc) => Action::TooBig((rc.mtu as usize - IPOIB_HEADER_LEN).min(0xffff) as u16, packet),
                None if neighbour.dial => Action::Dial(hop, packet),
                None => Action::TooBig(ud_mtu, packet),
            };
        }
        if !fits_rc && neighbour.ud.is_none() {
            return Action::Resolve(hop, packet);
        }
        if !encapsulate(&mut packet) {
            return Action::Drop(Drop::NoBuffers);
        }
        let (queues, notes) = self.worker.parts();
        match endpoint::send(queues, notes, view, WORKER.0, neighbour, packet) {
            Ok(way) => {
                self.counters.sent(way, message);
                Action::Done
            }
            Err(refused) => refusal(refused.error, refused.buf),
        }
    }

    /// Handles a packet that is too long for its path: fragments it if allowed, otherwise notifies its
    /// sender.
    fn refuse(&mut self, now: Instant, mtu: u16, packet: Mbuf) {
        let len = packet.len();
        let Ok(view) = Ipv4View::parse(packet.data(), len) else { return };
        if !view.dont_fragment() {
            let pieces: Option<Vec<Mbuf>> =
                fragments(&view, mtu).and_then(|all| all.map(|f| piece(&self.pool, &packet, &f)).collect());
            for piece in pieces.into_iter().flatten() {
                match self.try_send(piece) {
                    Action::Done => {}
                    Action::Drop(reason) => self.counters.drop(reason),
                    _ => self.counters.drop(Drop::Refused),
                }
            }
            return;
        }
        self.counters.drop(Drop::TooBig);
        if may_answer(packet.data(), len) && self.errors.take(now) {
            let mut error = [0; ICMP_ERROR_MAX];
            let from = view.destination();
            if let Some(error) =
                fragmentation_needed(&mut error, packet.data(), from, mtu).and_then(|n| error.get(..n))
            {
                self.deliver(now, &[IoSlice::new(error)]);
            }
        }
    }

    /// Sends packets that waited and can be sent now.
    pub(super) fn send_parked(&mut self, now: Instant) {
        if self.parked.is_empty() || self.held.is_some() {
            return;
        }
        for (hop, what) in self.parked.wanted() {
            let neighbour = self.view.refresh().neighbours.get(hop);
            let ready = neighbour.is_some_and(|n| match what {
                For::Address => n.ud.is_some(),
                For::Connection => n.rc(WORKER.0).is_some() || !n.dial,
            });
            if !ready {
                continue;
            }
            for packet in self.parked.take(hop, what) {
                match self.try_send(packet) {
                    Action::Done => {}
                    Action::Dial(hop, packet) => {
                        self.endpoint.link().handle_used(now, WORKER, &[], &[hop.into()]);
                        self.park(now, hop, For::Connection, packet);
                    }
                    Action::TooBig(mtu, packet) => self.refuse(now, mtu, packet),
                    Action::Full(_) | Action::Resolve(..) => self.counters.drop(Drop::QueueFull),
                    Action::Drop(reason) => self.counters.drop(reason),
                }
            }
        }
    }
}

/// Prepends the encapsulation header; false if there is no headroom, which does not occur.
fn encapsulate(packet: &mut Mbuf) -> bool {
    match packet.prepend(IPOIB_HEADER_LEN) {
        Some(header) => {
            header.copy_from_slice(&IPOIB_IPV4_HEADER);
            true
        }
        None => false,
    }
}

/// Returns the action on a refused message, which still has its encapsulation header.
fn refusal(error: PostError, mut message: Mbuf) -> Action {
    match error {
        PostError::Full if message.trim_front(IPOIB_HEADER_LEN) => Action::Full(message),
        _ => Action::Drop(Drop::Refused),
    }
}

/// Allocates a chain of buffers with room for `len` bytes (at least one).
fn chain(pool: &Pool, len: usize) -> Option<Mbuf> {
    let room = pool.data_room();
    let mut left = len;
    let mut whole: Option<Mbuf> = None;
    while left > 0 {
        // From the last buffer to the first; all but the last are full.
        let here = left - (left - 1) / room * room;
        let mut next = pool.alloc()?;
        next.append(here)?;
        if let Some(tail) = whole.take() {
            next.append_chain(tail);
        }
        whole = Some(next);
        left -= here;
    }
    whole
}

/// Copies one fragment of `packet` to a buffer of its own.
fn piece(pool: &Pool, packet: &Mbuf, fragment: &Fragment) -> Option<Mbuf> {
    let mut bytes = vec![0; fragment.header.len() + fragment.len];
    let (header, body) = bytes.split_at_mut(fragment.header.len());
    header.copy_from_slice(&fragment.header);
    (packet.read(fragment.offset, body) == fragment.len).then(|| pool.copy_from_slice(&bytes))?
}
