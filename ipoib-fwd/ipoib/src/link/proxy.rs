//! The neighbour interface for an owner that represents other hosts (proxy ARP).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use hca::{AddressVector, UdDestination, UdSource};
use ib_wire::ipoib::HardwareAddress;
use ib_wire::{Qpn, Rate};

use super::machine::Link;
use super::neighbours::{is_host, is_host_address};
use super::paths::Reason;
use super::settings::WorkerIndex;
use super::statistics::CloseReason;

impl Link {
    /// The link-layer address of a neighbour that has answered.
    #[must_use]
    pub fn neighbour_hardware(&self, ip: impl Into<IpAddr>) -> Option<HardwareAddress> {
        self.neighbours.get(ip.into())
    }

    /// Queries a neighbour that has answered before: one request by unicast, from `source` at `worker`'s
    /// link-layer address. Its ageing is not affected.
    pub fn ask_neighbour(
        &mut self,
        now: Instant,
        worker: WorkerIndex,
        source: impl Into<IpAddr>,
        ip: impl Into<IpAddr>,
    ) {
        let ip = ip.into();
        if let Some(hardware) = self.neighbours.get(ip) {
            self.send_query(now, (worker, source.into()), ip, Some(hardware));
        }
    }

    /// Sends one query by unicast to a link-layer address, whichever host is there; keeps no state.
    pub fn ask_address(
        &mut self,
        now: Instant,
        worker: WorkerIndex,
        source: impl Into<IpAddr>,
        ip: impl Into<IpAddr>,
        at: HardwareAddress,
    ) {
        if self.ground.is_at_work() && is_host_address(at) && !self.ground.is_own(at) {
            self.send_query(now, (worker, source.into()), ip.into(), Some(at));
        }
    }

    /// Verifies a neighbour from `source` at `worker`'s link-layer address: three queries within a second.
    /// Without an answer the neighbour is forgotten.
    pub fn verify_neighbour(
        &mut self,
        now: Instant,
        worker: WorkerIndex,
        source: impl Into<IpAddr>,
        ip: impl Into<IpAddr>,
    ) {
        let ip = ip.into();
        self.set_source(now, ip, (worker, source.into()));
        self.neighbours.ageing().verify(now, ip);
        self.attend_neighbours(now, CloseReason::NeighbourGone);
    }

    /// Sets the owner's own address. Queries are sent from it for as long as the neighbour is known. All
    /// other source addresses belong to hosts that the owner represents, and are used for some seconds only:
    /// those hosts may move.
    pub const fn set_own_name(&mut self, own: Option<IpAddr>) {
        self.neighbours.set_own_name(own);
    }

    /// True if the neighbour itself was heard at its address within `within` before `now`.
    #[must_use]
    pub fn is_confirmed(&self, now: Instant, ip: impl Into<IpAddr>, within: Duration) -> bool {
        self.neighbours.is_confirmed(now, ip.into(), within)
    }

    /// True if there is room for neighbours from untrusted reports ([`Ageing::has_room_for_reports`]).
    ///
    /// [`Ageing::has_room_for_reports`]: crate::neighbour::Ageing::has_room_for_reports
    #[must_use]
    pub fn has_room_for_reports(&self) -> bool {
        self.neighbours.has_room_for_reports()
    }

    /// True if a datagram comes from a neighbour: from its queue pair, and from the port that the path to it
    /// leads to.
    #[must_use]
    pub fn is_from(&self, from: &UdSource, ip: impl Into<IpAddr>) -> bool {
        let subnet = self.ground.port.subnet();
        self.neighbours.get(ip.into()).is_some_and(|at| {
            let path = self.paths.get(at.gid);
            at.qpn == from.qpn && path.is_some_and(|path| subnet.is_same_port(path.dlid, from.slid))
        })
    }

    /// True while an address that no neighbour has answered for is queried, or for a short time after that
    /// has failed.
    #[must_use]
    pub fn is_sought(&self, ip: impl Into<IpAddr>) -> bool {
        let ip = ip.into();
        self.neighbours.contains(ip) && self.neighbours.get(ip).is_none()
    }

    /// True while a neighbour that has answered before is being queried.
    #[must_use]
    pub fn is_asked(&self, ip: impl Into<IpAddr>) -> bool {
        self.neighbours.is_asked(ip.into())
    }

    /// Learns a neighbour that has announced its address without a query. `source` and `worker` as for
    /// [`Link::resolve`].
    pub fn meet_neighbour(
        &mut self,
        now: Instant,
        worker: WorkerIndex,
        source: impl Into<IpAddr>,
        hardware: HardwareAddress,
        ip: impl Into<IpAddr>,
    ) {
        let ip = ip.into();
        if !self.ground.is_at_work() || !is_host_address(hardware) || self.ground.is_own(hardware) {
            return;
        }
        if is_host(ip) {
            self.learn(now, ip, hardware, (worker, source.into()), Reason::Needed);
        }
    }

    /// Forgets a neighbour: its address belongs to a host that is not on this link.
    pub fn forget_neighbour(&mut self, now: Instant, ip: impl Into<IpAddr>) {
        self.neighbours.ageing().forget(ip.into());
        self.attend_neighbours(now, CloseReason::NeighbourGone);
    }

    /// True while a connection from a worker to a neighbour is being established.
    #[must_use]
    pub fn is_dialling(&self, ip: impl Into<IpAddr>, worker: WorkerIndex) -> bool {
        self.neighbours.get(ip.into()).is_some_and(|peer| self.conns.is_dialling(peer, worker))
    }

    /// The link-layer address at the other end of a connection.
    #[must_use]
    pub fn address_behind(&self, qpn: Qpn) -> Option<HardwareAddress> {
        self.conns.behind(qpn)
    }

    /// A neighbour at the other end of a connection.
    #[must_use]
    pub fn neighbour_behind(&self, qpn: Qpn) -> Option<IpAddr> {
        self.neighbours.at_address(self.conns.behind(qpn)?).next()
    }

    /// The destination for an answer to a datagram without a GRH: the LID that it came from. `None` if an
    /// answer needs a GRH.
    #[must_use]
    pub fn way_back(&self, source: &UdSource) -> Option<UdDestination> {
        let av = AddressVector {
            dlid: source.slid,
            sl: source.sl,
            src_path_bits: source.dlid_path_bits,
            rate: Rate::default(),
            grh: None,
        };
        // A datagram with a GRH may come from another subnet, where its LID leads nowhere, and the GIDs of
        // the GRH are not known here. A port that requires a GRH cannot send without one.
        let needs_grh = source.has_grh || self.ground.port.grh_required;
        let qkey = self.groups.qkey().filter(|_| self.ground.up && !needs_grh)?;
        Some(UdDestination { av, qpn: source.qpn, qkey: Some(qkey) })
    }
}
