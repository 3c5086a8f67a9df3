//! A virtual InfiniBand host: a kernel's IP stack behind a TUN interface on one side, a software channel
//! adapter with an IPoIB link on the other. Its peers see a host with a 20-byte address of its own.
//!
//! Its endpoint's control part and its one worker take turns on one thread: what crosses a ring in the
//! gateway is a call here.

mod counters;
mod outgoing;
mod parked;

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use dataplane::latency::Recorder;
use dataplane::table::Reader;
use endpoint::{
    Endpoint, EndpointConfig, EndpointError, EndpointPlace, LinkView, LinkWorker, UD, ViewBoard, WorkerSizes,
};
use ib_wire::ipoib::Arp;
use ib_wire::{Lid, Qpn};
use interface::tun::{Delivery, Tun, TunConfig, TunError};
use ipoib::bucket::Bucket;
use ipoib::link::{ArpResponder, Event, LinkSettings, WorkerIndex};
use ipoib::net::IPOIB_HEADER_LEN;
use ipoib::net::ipv4::Ipv4View;
use pmd::hca::{Backend, PortNumber, Queues, Received, RxBurst, Source, UdSource};
use pmd::mem::{Mbuf, Pool};

use crate::config::HostConfig;

pub use counters::{Drop, HostCounters};
use parked::{For, Parked};

/// The only worker.
const WORKER: WorkerIndex = WorkerIndex(0);
/// The only port in use.
const PORT: PortNumber = PortNumber(1);
/// Most packets taken from the interface in one iteration.
const BURST: usize = 32;
/// Most segments of a message: more than the largest one needs, fewer than the limit of an iovec.
const MAX_SEGMENTS: usize = 20;
/// Period of slow work: timers, port, neighbours.
const TICK: Duration = Duration::from_micros(200);
/// Period of reports on the neighbours in use.
const USAGE: Duration = Duration::from_secs(1);
/// Buffers that a host needs: its receives, of which those of connections have 17 segments each, its sends,
/// and some packets that wait.
pub const BUFFERS: u32 = 256 * 17 + 256 + 2 * 64 * 17 + 1024;
/// Most bursts of received messages in one iteration.
const RECEIVE_ROUNDS: usize = 4;
/// Sizes of its queues. The ring of a shared receive queue has one slot more than its depth, rounded to a
/// power of two.
const SIZES: WorkerSizes = WorkerSizes {
    ud_send_depth: 256,
    ud_recv_depth: 256,
    srq_depth: 255,
    srq_limit: 32,
    send_buffers: 1,
    rc_send_depth: 256,
    max_rc: 512,
    signal_every: 8,
    send_segments: None,
    long_messages: endpoint::LongMessages::Copy,
};

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];

/// Why a host cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Its interface.
    #[error("host {name}")]
    Tun {
        /// The host.
        name: String,
        /// The cause.
        #[source]
        source: TunError,
    },
    /// Its IPoIB link or device.
    #[error("host {name}")]
    Endpoint {
        /// The host.
        name: String,
        /// The cause.
        #[source]
        source: EndpointError,
    },
}

type Destination<B> = <<B as Backend>::Queues as Queues>::Destination;

/// A virtual host on a device of type `B`.
pub struct Host<B: Backend> {
    config: HostConfig,
    tun: Tun,
    /// The interface failed; the host has left the fabric.
    interface_failed: bool,
    endpoint: Endpoint<B, (), ()>,
    worker: LinkWorker<B::Queues, (), ()>,
    board: ViewBoard<Destination<B>>,
    view: Reader<LinkView<Destination<B>>>,
    responder: ArpResponder,
    pool: Pool,
    times: Recorder,
    burst: RxBurst,
    /// Buffers for the next packet of the interface.
    fresh: Option<Mbuf>,
    /// A packet whose send queue was full; nothing is read from the interface until it is sent.
    held: Option<Mbuf>,
    /// The interface was empty, and is not read before this time.
    next_look: Instant,
    parked: Parked,
    /// Limits errors to senders of packets that are too long.
    errors: Bucket,
    lid: Lid,
    next_tick: Instant,
    next_usage: Instant,
    counters: HostCounters,
}

impl<B: Backend> std::fmt::Debug for Host<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("config", &self.config).field("lid", &self.lid).finish_non_exhaustive()
    }
}

impl<B: Backend> Host<B> {
    /// Creates the interface and the link. `pool` serves this host's queues.
    pub fn new(config: &HostConfig, hca: B, pool: &Pool, seed: u64, now: Instant) -> Result<Self, HostError> {
        let tun = Tun::create(&TunConfig {
            name: config.tun.clone(),
            netns: config.netns.clone(),
            mtu: config.mtu,
            address: config.address,
            prefix: config.prefix,
        })
        .map_err(|source| HostError::Tun { name: config.name.clone(), source })?;
        let mut link = LinkSettings::new(config.pkey, Qpn::default(), seed);
        link.mode = config.mode;
        link.limited_will_do = true;
        // Every host is in the all-hosts group (RFC 1112 4).
        link.groups = vec![Ipv4Addr::new(224, 0, 0, 1)];
        let endpoint = EndpointConfig {
            place: EndpointPlace::ONLY,
            port: PORT,
            workers: 1,
            links: 1,
            sizes: SIZES,
            link,
        };
        let failed = |source| HostError::Endpoint { name: config.name.clone(), source };
        let (mut endpoint, mut workers) = Endpoint::new(hca, endpoint, pool, now).map_err(failed)?;
        let Some(worker) = workers.pop() else {
            return Err(failed(ipoib::link::LinkError::Workers(0).into()));
        };
        let mut board = ViewBoard::new(Arc::clone(endpoint.link().state()));
        Ok(Self {
            config: config.clone(),
            tun,
            interface_failed: false,
            endpoint,
            worker,
            view: board.reader(),
            board,
            responder: ArpResponder::new([(config.address, WORKER)]),
            pool: pool.clone(),
            times: Recorder::default(),
            burst: RxBurst::new(),
            fresh: None,
            held: None,
            next_look: now,
            parked: Parked::default(),
            errors: Bucket::new(now, 20, 10),
            lid: Lid(0),
            next_tick: now,
            next_usage: now,
            counters: HostCounters::default(),
        })
    }

    /// Returns its configuration.
    #[must_use]
    pub const fn config(&self) -> &HostConfig {
        &self.config
    }

    /// Returns a descriptor that is readable when the kernel has sent a packet; `None` once the interface has
    /// failed.
    #[must_use]
    pub fn waker(&self) -> Option<BorrowedFd<'_>> {
        (!self.interface_failed).then(|| self.tun.as_fd())
    }

    /// Returns its counters.
    #[must_use]
    pub const fn counters(&self) -> &HostCounters {
        &self.counters
    }

    /// Returns its endpoint.
    pub const fn endpoint(&mut self) -> &mut Endpoint<B, (), ()> {
        &mut self.endpoint
    }

    /// True if its link is up.
    pub fn is_up(&mut self) -> bool {
        self.endpoint.link().state().up
    }

    /// Runs one iteration; true if there was any work.
    pub fn turn(&mut self, now: Instant) -> bool {
        let mut busy = self.worker.commands(&mut self.times, |(), _| {}) > 0;
        busy |= self.worker.queues().turn();
        busy |= self.take_from_interface(now);
        self.worker.queues().ring();
        // The device may have filled more than one burst in its iteration, and the shared receive queue must
        // not run dry.
        for _ in 0..RECEIVE_ROUNDS {
            if !self.take_from_fabric(now) {
                break;
            }
            busy = true;
        }
        busy |= self.worker.finish();
        // The quiescent point of a host that has nothing to send.
        self.view.refresh();
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            busy |= self.tick(now);
        }
        busy
    }

    /// Passes a packet to the kernel.
    fn deliver(&mut self, now: Instant, packet: &[IoSlice<'_>]) {
        if self.interface_failed {
            return self.counters.drop(Drop::InterfaceDown);
        }
        match self.tun.write(packet) {
            Ok(Delivery::Accepted) => {}
            Ok(Delivery::NoMemory) => self.counters.drop(Drop::InterfaceFull),
            Ok(Delivery::Down) => self.counters.drop(Drop::InterfaceDown),
            Err(error) => {
                self.counters.drop(Drop::InterfaceDown);
                self.lose_interface(now, &error);
            }
        }
    }

    /// Removes this host from the fabric: it cannot work without its interface. Other hosts continue.
    fn lose_interface(&mut self, now: Instant, error: &io::Error) {
        let (name, tun) = (&self.config.name, self.tun.name());
        tracing::error!(
            "host {name} leaves the fabric: its interface {tun} failed ({error}); restart ibfab to bring it back"
        );
        self.interface_failed = true;
        self.held = None;
        self.shutdown(now);
    }

    /// Runs the control part: the endpoint's slow work and its events.
    fn tick(&mut self, now: Instant) -> bool {
        if now >= self.next_usage {
            self.next_usage = now + USAGE;
            let used = self.board.take_used();
            self.endpoint.link().handle_used(now, WORKER, &[], &used);
            let expired = self.parked.expire(now);
            self.counters.drops(Drop::Unresolved, expired as u64);
        }
        self.lid = self.endpoint.link().state().lid;
        let busy = self.endpoint.tick(now, &mut self.board, |_| {});
        let losses = self.endpoint.take_losses();
        self.counters.drops(Drop::NoBuffers, losses.no_buffers);
        self.counters.drops(Drop::QueueFull, losses.queue_full);
        self.counters.drops(Drop::Refused, losses.refused);
        while let Some(event) = self.endpoint.poll_event() {
            if self.responder.handle_event(now, self.endpoint.link(), &event) {
                continue;
            }
            match event {
                Event::NeighbourUnreachable { ip: IpAddr::V4(ip) } => {
                    let n = self.parked.take(ip, For::Address).len();
                    self.counters.drops(Drop::Unresolved, n as u64);
                }
                Event::Up => {
                    tracing::info!(host = self.config.name, "link up");
                    // Peers that knew us before may know another queue pair of ours.
                    self.endpoint.link().announce(now, WORKER, self.config.address);
                }
                Event::Readdressed { gid } => {
                    tracing::info!(host = self.config.name, %gid, "another GID");
                    self.endpoint.link().announce(now, WORKER, self.config.address);
                }
                Event::Down => tracing::warn!(host = self.config.name, "link down"),
                Event::ConnectionUp { passive, peer, setup, .. } => {
                    tracing::debug!(host = self.config.name, passive, %peer, ?setup, "connection up");
                }
                Event::ConnectionDown { passive, peer, reason, .. } => {
                    tracing::debug!(host = self.config.name, passive, %peer, ?reason, "connection down");
                }
                _ => {}
            }
        }
        self.send_parked(now);
        busy
    }

    /// Passes messages from the fabric to the interface.
    fn take_from_fabric(&mut self, now: Instant) -> bool {
        self.worker.receive(&mut self.burst);
        if self.burst.is_empty() {
            return false;
        }
        let mut burst = std::mem::take(&mut self.burst);
        for Received { buf, source, .. } in burst.drain(..) {
            match source {
                // The fabric copies a multicast back to its sender's port.
                Source::Ud(UdSource { multicast: true, slid, qpn: sender, .. })
                    if slid == self.lid && Some(sender) == self.worker.queues().ud_qpn(UD) =>
                {
                    self.counters.drop(Drop::OwnMulticast);
                    continue;
                }
                _ => {}
            }
            self.take_message(now, buf, &source);
        }
        self.burst = burst;
        true
    }

    fn take_message(&mut self, now: Instant, mut message: Mbuf, source: &Source) {
        let kind = message.data().first_chunk::<2>().copied();
        match (kind, source) {
            (Some(ETHERTYPE_IPV4), _) => {}
            // Address resolution never uses connections (RFC 4755 3.4).
            (Some(ETHERTYPE_ARP), Source::Ud(from)) => {
                match message.data().get(IPOIB_HEADER_LEN..).map(Arp::parse) {
                    Some(Ok(arp)) => self.endpoint.link().handle_arp(now, WORKER, from, arp),
                    _ => self.counters.drop(Drop::BadArp),
                }
                return;
            }
            _ => return self.counters.drop(Drop::NotIpv4),
        }
        let len = message.len();
        if !message.trim_front(IPOIB_HEADER_LEN)
            || Ipv4View::parse(message.data(), len - IPOIB_HEADER_LEN).is_err()
        {
            return self.counters.drop(Drop::BadIpv4);
        }
        self.counters.received(source, len);
        let pieces: ArrayVec<IoSlice<'_>, MAX_SEGMENTS> = message.io_slices().take(MAX_SEGMENTS).collect();
        self.deliver(now, &pieces);
    }

    /// Starts to close connections and leave groups. [`Host::is_stopped`] is true when that is done.
    pub fn shutdown(&mut self, now: Instant) {
        self.endpoint.link().shutdown(now);
    }

    /// True once nothing of the link is left.
    pub fn is_stopped(&mut self) -> bool {
        self.endpoint.link().is_stopped()
    }

    /// Destroys the host; every buffer is returned.
    pub fn close(self) -> Result<B, HostError> {
        let Self { config, endpoint, worker, .. } = self;
        endpoint
            .close(vec![worker.into_queues()])
            .map_err(|source| HostError::Endpoint { name: config.name, source })
    }
}

/// True if `ip` lies in the subnet of `address`/`prefix`.
fn is_local(address: Ipv4Addr, prefix: u8, ip: Ipv4Addr) -> bool {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    (u32::from(address) ^ u32::from(ip)) & mask == 0
}

/// True if `ip` is a group, the limited broadcast, or the broadcast address of the subnet.
fn is_group(address: Ipv4Addr, prefix: u8, ip: Ipv4Addr) -> bool {
    let hosts = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
    let broadcast = u32::from(address) | hosts;
    ip.is_multicast() || ip.is_broadcast() || (prefix < 31 && u32::from(ip) == broadcast)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnet_and_groups() {
        let own = Ipv4Addr::new(10, 77, 0, 2);
        for (ip, local, group) in [
            ([10, 77, 0, 9], true, false),
            ([10, 77, 0, 255], true, true),
            ([10, 77, 1, 9], false, false),
            ([224, 0, 0, 1], false, true),
            ([255, 255, 255, 255], false, true),
        ] {
            assert_eq!(
                (is_local(own, 24, ip.into()), is_group(own, 24, ip.into())),
                (local, group),
                "{ip:?}"
            );
        }
        assert!(is_local(own, 0, Ipv4Addr::new(1, 2, 3, 4)));
        assert!(!is_group(own, 31, Ipv4Addr::new(10, 77, 0, 3)), "a point-to-point link has no broadcast");
    }
}
