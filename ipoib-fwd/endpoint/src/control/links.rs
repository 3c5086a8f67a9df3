//! Adds and removes links while the others carry traffic.
//!
//! A link's datagram queue pairs are made before it and destroyed after it:
//!
//! ```text
//!   add_link: create_ud, InsertUd ──> Link ── OpenUd … at work
//!   remove_link: Link::shutdown ── Stopped, tables taken up ──> → ERR, CloseUd ── UdClosed ──> RemoveUd ── UdRemoved ──> destroy_ud
//! ```

use std::time::Instant;

use pmd::hca::{Backend, QpState, QpTransition, UdConfig};

use super::link::{LinkEnd, Removal};
use super::{Endpoint, EndpointError, MAX_LINKS, Ud};
use crate::message::Command;
use ipoib::link::{LinkError, LinkIndex, LinkSettings, WorkerIndex, WorkerSettings};

impl<B: Backend, C, N> Endpoint<B, C, N> {
    /// Adds a link while the others carry traffic. The endpoint fills in the link's workers from the datagram
    /// queue pairs that it creates. The link comes up when the port is a full member of its partition.
    pub fn add_link(&mut self, now: Instant, settings: LinkSettings) -> Result<LinkIndex, EndpointError> {
        let index = self.add_link_held(now, settings)?;
        self.release_link(now, index);
        Ok(index)
    }

    /// Lets a link come up that [`Endpoint::add_link_held`] added.
    pub fn release_link(&mut self, now: Instant, index: LinkIndex) {
        self.port.release(now, index);
    }

    /// Adds a link as [`Endpoint::add_link`] does, but the link does not come up before it is
    /// [released](Endpoint::release_link). Otherwise, events would be lost before its owner knows it.
    pub fn add_link_held(
        &mut self,
        now: Instant,
        mut settings: LinkSettings,
    ) -> Result<LinkIndex, EndpointError> {
        let full = LinkError::Full(usize::from(MAX_LINKS));
        // A link that is being removed keeps its slot until its queue pairs are back.
        let is_free = |index: &LinkIndex| self.links.get(usize::from(index.0)).is_none_or(Option::is_none);
        let index = self.port.vacancies().find(|i| i.0 < MAX_LINKS && is_free(i)).ok_or(full)?;
        let mut made: Vec<Ud<B>> = Vec::with_capacity(self.workers.len());
        let added = self.make_datagrams(&mut made).and_then(|()| {
            settings.workers = made.iter().map(|ud| WorkerSettings { ud_qpn: B::ud_qpn(ud) }).collect();
            Ok(self.port.add_held(now, index, settings)?)
        });
        if added.is_err() {
            for ud in made {
                let destroyed = self.hca.destroy_ud(ud);
                self.check(destroyed);
            }
            return added;
        }
        for (end, ud) in self.workers.iter_mut().zip(made) {
            end.send(Command::InsertUd { link: index, ud });
        }
        let end = self.port.link(index).map(LinkEnd::new);
        let at = usize::from(index.0);
        if self.links.len() <= at {
            self.links.resize_with(at + 1, || None);
        }
        if let Some(place) = self.links.get_mut(at) {
            *place = end;
        }
        added
    }

    fn make_datagrams(&mut self, made: &mut Vec<Ud<B>>) -> Result<(), EndpointError> {
        for worker in 0..self.workers.len() {
            let config = UdConfig {
                queues: self.queues_id(WorkerIndex(worker as u8)),
                port: self.number,
                send_depth: self.ud_send_depth,
            };
            made.push(self.hca.create_ud(&config)?);
        }
        Ok(())
    }

    /// Removes a link: closes its connections, leaves its groups and destroys its queue pairs. Other links
    /// are not affected. The removal takes some ticks; [`Endpoint::poll_removed`] returns the index when it
    /// is free again. False if there is no such link.
    pub fn remove_link(&mut self, now: Instant, index: LinkIndex) -> bool {
        let end = self.links.get_mut(usize::from(index.0)).and_then(Option::as_mut);
        let (Some(end), Some(link)) = (end, self.port.link_mut(index)) else { return false };
        if end.removal == Removal::None {
            end.removal = Removal::Stopping;
            link.shutdown(now);
        }
        true
    }

    /// Returns why the device does not open a link's datagram queue pairs, and how often it has refused. The
    /// endpoint retries with a backoff of up to a minute.
    #[must_use]
    pub fn refusal(&self, index: LinkIndex) -> Option<(&str, u32)> {
        self.links.get(usize::from(index.0))?.as_ref()?.refusal()
    }

    /// Returns the next link whose removal is complete.
    pub fn poll_removed(&mut self) -> Option<LinkIndex> {
        self.removed.pop_front()
    }

    /// Advances the removal of links. True if the queue pairs of one were put in error. That takes the device
    /// some commands for each worker, so each tick does it for one link only.
    pub(super) fn advance_removals(&mut self, now: Instant) -> bool {
        let mut has_closed = false;
        for at in 0..self.links.len() {
            let index = LinkIndex(at as u16);
            let Some(end) = self.links.get(at).and_then(Option::as_ref) else { continue };
            match end.removal {
                Removal::None | Removal::Closing { left: 1.. } => {}
                // The port removes it once all workers have taken up tables without it.
                Removal::Stopping if has_closed => {}
                Removal::Stopping => {
                    if self.port.remove(now, index).is_some() {
                        self.close_all_datagrams(now, index);
                        has_closed = true;
                    }
                }
                Removal::Closing { left: 0 } => {
                    if let Some(place) = self.links.get_mut(at) {
                        *place = None;
                    }
                    self.removed.push_back(index);
                }
            }
        }
        has_closed
    }

    /// Closes a removed link's datagram queue pairs on all workers.
    fn close_all_datagrams(&mut self, now: Instant, link: LinkIndex) {
        let Some(end) = self.links.get_mut(usize::from(link.0)).and_then(Option::as_mut) else { return };
        end.removal = Removal::Closing { left: end.datagrams.len() };
        let qpns: Vec<_> = end.datagrams.iter().map(super::datagrams::Datagrams::qpn).collect();
        for (qpn, worker) in qpns.into_iter().zip(0u8..) {
            // In RESET nothing is posted (IBA 10.3.1), and there is nothing to flush.
            if !matches!(self.hca.qp_state(qpn), Ok(QpState::Reset)) {
                let flushed = self.hca.modify_qp(qpn, &QpTransition::ToError);
                self.check(flushed);
                self.flush_again(now, link, WorkerIndex(worker));
            }
            if let Some(end) = self.worker(WorkerIndex(worker)) {
                end.send(Command::CloseUd(link));
            }
        }
    }

    /// True if the datagram queue pairs of a link are being closed for its removal.
    pub(super) fn takes_datagrams_back(&self, link: LinkIndex) -> bool {
        let end = self.links.get(usize::from(link.0)).and_then(Option::as_ref);
        end.is_some_and(|end| matches!(end.removal, Removal::Closing { .. }))
    }

    /// Handles the insertion of a datagram queue pair by a worker, or its refusal.
    pub(super) fn datagrams_inserted(&mut self, refused: Option<Ud<B>>) {
        if let Some(ud) = refused {
            // Not reachable: a slot is reused only after its previous queue pair is back. The link remains
            // without this worker.
            let destroyed = self.hca.destroy_ud(ud);
            self.check(destroyed);
        }
    }

    /// Destroys a datagram queue pair that a worker has returned.
    pub(super) fn datagrams_removed(&mut self, link: LinkIndex, ud: Option<Ud<B>>) {
        if let Some(ud) = ud {
            let destroyed = self.hca.destroy_ud(ud);
            self.check(destroyed);
        }
        if let Some(end) = self.links.get_mut(usize::from(link.0)).and_then(Option::as_mut)
            && let Removal::Closing { left } = &mut end.removal
        {
            *left = left.saturating_sub(1);
        }
    }
}
