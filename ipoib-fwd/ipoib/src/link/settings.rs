//! The inputs of a link: its settings at start, and the present state of its port.

use std::net::Ipv4Addr;
use std::time::Duration;

use cm::Subnet;
use hca::{AsyncEvent, PortNumber, PortState};
use ib_wire::{Gid, Lid, Mtu, PKey, Qpn, ServiceLevel};
use serde::Serialize;

/// How unicast IPoIB packets travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By UD only (RFC 4391).
    Datagram,
    /// By RC connections to peers that accept them, else by UD (RFC 4755).
    Connected,
}

/// Index of a worker of a link, from 0. Worker 0's datagram queue pair is the one attached to multicast
/// groups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(transparent)]
pub struct WorkerIndex(pub u8);

/// Index of a link of a port, from 0; reused after the link has been removed. Each worker has a datagram
/// queue pair for each link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct LinkIndex(pub u16);

/// A worker as its link sees it.
#[derive(Clone, Copy, Debug)]
pub struct WorkerSettings {
    /// Number of its datagram queue pair: with the port's GID it forms the worker's link-layer address.
    pub ud_qpn: Qpn,
}

/// Settings of a link.
#[derive(Clone, Debug)]
pub struct LinkSettings {
    /// The partition. The full-membership bit is set where it goes into multicast GIDs.
    pub pkey: PKey,
    /// Limited membership of the partition is sufficient. That is so for a host, but not for a gateway to the
    /// whole partition.
    pub limited_will_do: bool,
    /// Scope of the link's multicast groups, four bits; 2 = link-local.
    pub scope: u8,
    /// Mode to start in.
    pub mode: Mode,
    /// The workers, at least one and at most 255.
    pub workers: Vec<WorkerSettings>,
    /// IPv4 groups to join in addition to the broadcast group, for as long as the link exists.
    pub groups: Vec<Ipv4Addr>,
    /// Largest message that our connections accept, encapsulation header included: 5 to 65,524.
    pub receive_mtu: u32,
    /// Retries of our connections after timeouts or sequence errors, 0 to 7.
    pub retry_count: u8,
    /// Retries of our connections after RNR NAKs, 0 to 7; 7 = unlimited.
    pub rnr_retry: u8,
    /// A passive connection that received nothing for this long is closed.
    pub passive_idle: Duration,
    /// Most passive connections of each worker, over all links of the port; one more evicts that worker's
    /// longest idle one.
    pub max_passive: usize,
    /// Most passive connections with one port of the fabric, over all workers and links, those being torn
    /// down included; one more is refused, and evicts one of that port.
    pub max_passive_from_lid: usize,
    /// Most neighbours.
    pub max_neighbours: usize,
    /// Most multicast groups in addition to the broadcast group.
    pub max_groups: usize,
    /// A neighbour that is unused for this long is forgotten.
    pub neighbour_idle: Duration,
    /// Time limit of the teardown of a connection, and of leaving the groups at the end:
    /// [`super::Link::shutdown`] takes at most twice that, as long as actions are answered.
    pub teardown_timeout: Duration,
    /// Seed of PSNs and jitter.
    pub seed: u64,
}

impl LinkSettings {
    /// Linux's defaults, for one worker.
    #[must_use]
    pub fn new(pkey: PKey, ud_qpn: Qpn, seed: u64) -> Self {
        Self {
            pkey,
            limited_will_do: false,
            scope: 2,
            mode: Mode::Connected,
            workers: vec![WorkerSettings { ud_qpn }],
            groups: Vec::new(),
            receive_mtu: super::MAX_MESSAGE,
            retry_count: 0,
            rnr_retry: 0,
            passive_idle: Duration::from_secs(512),
            max_passive: 4096,
            max_passive_from_lid: 1024,
            max_neighbours: 4096,
            max_groups: 64,
            neighbour_idle: Duration::from_secs(60),
            teardown_timeout: Duration::from_secs(5),
            seed,
        }
    }
}

/// The present state of the link's port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortFacts {
    /// Logical state; only `Active` carries a link.
    pub state: PortState,
    /// Base LID.
    pub lid: Lid,
    /// LID mask control: the port has 2^lmc LIDs.
    pub lmc: u8,
    /// GID at index 0 of the port's table.
    pub gid: Gid,
    /// LID of the subnet manager.
    pub sm_lid: Lid,
    /// Service level of the path to it.
    pub sm_sl: ServiceLevel,
    /// MTU in use.
    pub mtu: Mtu,
    /// Packets to other ports need a GRH, whatever their path says.
    pub grh_required: bool,
    /// Index of the default P_Key in the port's table: subnet administration is addressed by it.
    pub default_pkey_index: u16,
    /// Index of the link's P_Key in the port's table, if the port is a full member of the partition.
    pub pkey_index: Option<u16>,
    /// The port is a limited member of the partition, which cannot carry a broadcast domain (RFC 4391 4).
    pub limited: bool,
}

impl PortFacts {
    /// A port without a link.
    pub const DOWN: Self = Self {
        state: PortState::Down,
        lid: Lid(0),
        lmc: 0,
        gid: Gid::ZERO,
        sm_lid: Lid(0),
        sm_sl: ServiceLevel::new(0),
        mtu: Mtu::B2048,
        grh_required: false,
        default_pkey_index: 0,
        pkey_index: None,
        limited: false,
    };
}

impl PortFacts {
    /// The port's subnet.
    #[must_use]
    pub const fn subnet(&self) -> Subnet {
        Subnet { prefix: self.gid.prefix(), lmc: self.lmc }
    }
}

/// The effect of a port's asynchronous event on a link; see [`crate::port::Port::handle_port_event`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortEvent {
    /// SM change, client reregistration or GID change: paths are queried again, groups joined again.
    Light,
    /// Port error, port active or LID change: the link goes down, forgets its paths, and comes up again.
    Normal,
    /// P_Key change: if our index changed, queue pairs are reopened as well.
    Heavy,
}

impl PortEvent {
    /// The port that a device's event concerns and the event's effect on that port's links; `None` for events
    /// of other objects.
    #[must_use]
    pub const fn from_async(event: &AsyncEvent) -> Option<(PortNumber, Self)> {
        Some(match *event {
            AsyncEvent::SmChange(p) | AsyncEvent::ClientReregister(p) | AsyncEvent::GidChange(p) => {
                (p, Self::Light)
            }
            AsyncEvent::PortActive(p) | AsyncEvent::PortError(p) | AsyncEvent::LidChange(p) => {
                (p, Self::Normal)
            }
            AsyncEvent::PKeyChange(p) => (p, Self::Heavy),
            AsyncEvent::LastWqeReached(_)
            | AsyncEvent::CommunicationEstablished(_)
            | AsyncEvent::QpFatal(_)
            | AsyncEvent::SrqLimitReached(_)
            | AsyncEvent::Fatal => return None,
        })
    }
}
