//! Builds the parts of a segment of the configuration: its link, its table, its duty on the control lcore.
//! Segments of the start and segments that a reload adds or changes are built here.

use std::time::{Duration, Instant};

use config::{Config, Segment};
use ib_wire::{Gid, Guid, Lid, PKey, Qpn};
use ipoib::link::{LINK_LOCAL_GROUPS, LinkIndex, LinkSettings, Mode};
use ipoib::net::ethernet::MacAddress;
use pmd::hca::{Backend, Queues};

use super::board::GatewayBoard;
use super::control::duties::{Duties, SegmentDuty};
use super::control::news::News;
use super::control::pair_duty::PairDuty;
use super::control::ports::{Endpoints, EthernetPort};
use super::error::GatewayError;
use super::port_names::PortNames;
use super::random::random;
use crate::forward::{
    EndpointIndex, EthernetIndex, GatewayAddress, MAX_NEIGHBOURS, Prefix, Role, Route, Routes, SegmentIndex,
    Settings,
};
use crate::segment::pair::{self, Drain, Identity, Pair, SegmentId, Station};
use crate::segment::{Ageing, Own, SegmentSettings};

/// Indexes of a segment, and the gateway's addresses on the ports that it joins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ground {
    pub(super) index: SegmentIndex,
    /// The InfiniBand port and the link on it.
    pub(super) endpoint: EndpointIndex,
    pub(super) link: LinkIndex,
    pub(super) ethernet: EthernetIndex,
    /// Address of the Ethernet port.
    pub(super) mac: MacAddress,
    /// GUID of the InfiniBand port.
    pub(super) guid: Guid,
}

/// Builds the parts of segments from the configuration.
#[derive(Clone, Debug)]
pub(super) struct SegmentMaker {
    pub(super) config: Config,
    /// The open ports.
    pub(super) names: PortNames,
    pub(super) workers: u8,
    /// Random number of this start: distinguishes this gateway from its earlier runs.
    pub(super) instance: u64,
    /// When the gateway was started.
    pub(super) started: Instant,
    /// The receive MTU that was set at run time instead of the configured one.
    pub(super) receive_mtu: Option<u16>,
    /// The mode that was set at run time, for all segments.
    pub(super) mode: Option<Mode>,
    pub(super) priority: Option<u8>,
    /// The gateway is drained: new segments do not forward, either.
    pub(super) drained: bool,
}

impl SegmentMaker {
    /// The same builder with another configuration. A mode or priority that was set at run time is discarded
    /// if the file changes the value for any segment.
    pub(super) fn with(&self, config: Config) -> Self {
        let differs = |is_other: &dyn Fn(&Segment, &Segment) -> bool| {
            let old = &self.config.segments;
            config.segments.iter().any(|new| old.iter().any(|old| old.name == new.name && is_other(old, new)))
        };
        let mode = self.mode.filter(|_| !differs(&|old, new| old.mode != new.mode));
        let priority = self.priority.filter(|_| !differs(&|old, new| old.priority != new.priority));
        Self { config, mode, priority, ..self.clone() }
    }

    /// The priority of a segment; `None` if there is no such segment.
    pub(super) fn priority_of(&self, name: &str) -> Option<u8> {
        let segment = self.config.segments.iter().find(|segment| segment.name.as_str() == name)?;
        Some(self.priority.unwrap_or(segment.priority))
    }

    /// The mode of a segment; `None` if there is no such segment.
    pub(super) fn mode_of(&self, name: &str) -> Option<Mode> {
        let segment = self.config.segments.iter().find(|segment| segment.name.as_str() == name)?;
        Some(self.mode.unwrap_or(mode(segment.mode)))
    }

    /// The location of a segment with this index; its link is the first on its port. `None` if one of its
    /// ports is not open.
    pub(super) fn ground<B: Backend>(
        &self,
        segment: &Segment,
        index: SegmentIndex,
        ethernets: &[EthernetPort],
        endpoints: &mut Endpoints<B>,
    ) -> Option<Ground> {
        let (ethernet, endpoint) = self.names.of_segment(&self.config, segment)?;
        let mac = ethernets.get(ethernet.at())?.mac;
        let end = endpoints.at(endpoint)?;
        let number = end.port();
        let guid = end.hca().port(number).map_or(end.hca().device().node_guid, |p| p.guid);
        Some(Ground { index, endpoint, link: LinkIndex(0), ethernet, mac, guid })
    }

    /// Adds a segment with an existing link: its table and its duty.
    pub(super) fn install<B: Backend>(
        &self,
        now: Instant,
        segment: &Segment,
        ground: Ground,
        endpoints: &mut Endpoints<B>,
        board: &mut GatewayBoard<<B::Queues as Queues>::Destination>,
        duties: &mut Duties,
    ) -> Result<(), GatewayError> {
        let table = self.table(segment, ground)?;
        let duty = self.duty(now, segment, ground, &table);
        if let Some(link) = endpoints.link(ground.endpoint, ground.link) {
            // The gateway answers for no other host until it knows whether another gateway does.
            link.speak(false);
        }
        board.add(ground.index, table, random());
        duties.insert(duty);
        Ok(())
    }

    /// The table settings of a segment that does not forward yet.
    fn table<D>(&self, segment: &Segment, ground: Ground) -> Result<Settings<D>, GatewayError> {
        let mut settings = Settings::new(ground.mac);
        settings.vlan = segment.vlan.map(config::VlanId::value);
        (settings.ethernet, settings.endpoint) = (ground.ethernet, ground.endpoint);
        settings.link = u8::try_from(ground.link.0).unwrap_or(u8::MAX);
        settings.eth_mtu = segment.mtu;
        (settings.address, settings.routes) = networks(segment)?;
        // The segment forwards nothing until it knows whether another gateway does.
        settings.role = Role::Standby;
        Ok(settings)
    }

    /// The control lcore's duty for a segment.
    fn duty<D>(&self, now: Instant, segment: &Segment, ground: Ground, table: &Settings<D>) -> SegmentDuty {
        let mut named = Settings::new(ground.mac);
        (named.address, named.routes, named.role) = (table.address, table.routes.clone(), table.role);
        let settings = SegmentSettings {
            own: Own { settings: named, workers: self.workers },
            ageing: self.ageing(),
            // Until it has its share among the other segments.
            most_parked: 0,
            seed: random(),
        };
        SegmentDuty {
            name: segment.name.to_string(),
            index: ground.index,
            endpoint: ground.endpoint,
            link: ground.link,
            ethernet: ground.ethernet,
            pkey: PKey(segment.pkey.value()),
            segment: crate::segment::Segment::new(now, &settings),
            news: News::new(now),
            counted_before: Vec::new(),
            cleared: None,
            duty: PairDuty::new(now, self.pair(now, segment, ground)),
        }
    }

    pub(super) fn ageing(&self) -> Ageing {
        let seconds = |n: u32| Duration::from_secs(n.into());
        Ageing {
            idle: seconds(self.config.infiniband.neighbour_idle_seconds),
            hold: seconds(self.config.gateway.address_hold_seconds),
            ..Ageing::default()
        }
    }

    /// The state machine of this gateway in a segment's pair.
    fn pair(&self, now: Instant, segment: &Segment, ground: Ground) -> Pair {
        let gateway = &self.config.gateway;
        let settings = pair::Settings {
            priority: self.priority.unwrap_or(segment.priority),
            hello: Duration::from_millis(gateway.hello_ms.into()),
            segment: segment_id(segment),
            key: gateway.pair_key.map(|key| pair::Key::new(key.bytes())),
        };
        let identity = Identity { guid: ground.guid, instance: self.instance };
        let station = Station { mac: ground.mac, lid: Lid(0), gid: Gid::ZERO, qpns: Vec::new() };
        let uptime = now.saturating_duration_since(self.started);
        let mut pair = Pair::new(now, settings, identity, station).numbered_from(uptime);
        pair.set_drained(now, self.drained.then_some(Drain::Alone));
        pair
    }

    /// The settings of a segment's link.
    pub(super) fn link_settings(&self, segment: &Segment) -> LinkSettings {
        let ib = &self.config.infiniband;
        let workers = usize::from(self.workers);
        let share = self.config.connection_share(self.workers.into());
        let mut link = LinkSettings::new(PKey(segment.pkey.value()), Qpn::new(0), random());
        link.scope = segment.scope;
        link.mode = self.mode.unwrap_or(mode(segment.mode));
        link.receive_mtu = u32::from(self.receive_mtu.unwrap_or(ib.receive_mtu)) + 4;
        link.retry_count = ib.retry_count;
        link.rnr_retry = ib.rnr_retry;
        link.passive_idle = Duration::from_secs(ib.connection_idle_seconds.into());
        // Workers' slots are assigned to the segments on demand.
        link.max_passive = share.passive as usize;
        // At most a quarter for the port of one host, so that it cannot displace the connections of other
        // hosts.
        link.max_passive_from_lid = (link.max_passive * workers / 4).max(1);
        link.groups = LINK_LOCAL_GROUPS.to_vec();
        // The capacity of its table.
        link.max_neighbours = MAX_NEIGHBOURS;
        link.neighbour_idle = Duration::from_secs(ib.neighbour_idle_seconds.into());
        link
    }
}

/// The identifier of a segment between gateways: its partition, and the subnet of its address, or else its
/// first subnet, if it has any.
pub(super) fn segment_id(segment: &Segment) -> SegmentId {
    let of_address = segment.address.map(|own| (own.address, own.prefix_len));
    let first = || segment.subnets.first().map(|subnet| (subnet.address(), subnet.prefix_len()));
    SegmentId::of(segment.pkey.value(), of_address.or_else(first))
}

/// The mode of a segment's unicast packets.
pub(super) const fn mode(mode: config::Mode) -> Mode {
    match mode {
        config::Mode::Datagram => Mode::Datagram,
        config::Mode::Connected => Mode::Connected,
    }
}

/// The gateway's address in a segment, and the routes of its packets to other networks.
pub(super) fn networks(segment: &Segment) -> Result<(Option<GatewayAddress>, Routes), GatewayError> {
    let prefix = |p: config::Prefix| Prefix::of(p.address(), p.prefix_len());
    let subnets: Vec<Prefix> = segment.subnets.iter().filter_map(|p| prefix(*p)).collect();
    let routes: Vec<Route> =
        segment.routes.iter().filter_map(|r| Some(Route { to: prefix(r.to)?, via: r.via })).collect();
    let routes = Routes::new(&subnets, &routes)
        .map_err(|e| GatewayError::Unsupported(format!("segment.route: {e}")))?;
    let address = segment.address.and_then(|a| GatewayAddress::new(a.address, a.prefix_len));
    Ok((address, routes))
}
