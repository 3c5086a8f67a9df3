//! The open ports of the gateway, by index, and the requests of the control lcore that go to all of them.

use std::time::Instant;

use pmd::eth::{EthError, EthLink, EthPort};
use pmd::hca::Backend;

use super::GatewayControl;
use crate::event::What;
use crate::forward::{EndpointIndex, EthernetIndex, SegmentIndex};
use crate::gateway::error::GatewayError;
use crate::gateway::gids::GatewayGids;
use crate::gateway::partial_checksum::PartialChecksums;
use crate::gateway::worker::{GatewayCommand, GatewayNote};
use endpoint::Endpoint;
use ipoib::drop_reason::DropReason;
use ipoib::link::{Link, LinkIndex};
use ipoib::net::ethernet::MacAddress;

/// An InfiniBand port of the gateway.
pub(in crate::gateway) type GatewayEndpoint<B> = Endpoint<B, GatewayCommand, GatewayNote>;

/// An Ethernet port.
#[derive(Debug)]
pub(in crate::gateway) struct EthernetPort {
    pub(in crate::gateway) port: EthPort,
    pub(in crate::gateway) mac: MacAddress,
    /// Packets with incomplete checksums from hosts.
    pub(in crate::gateway) partial: PartialChecksums,
}

/// Counters of an Ethernet port and its driver.
#[derive(Clone, Copy, Debug)]
pub(in crate::gateway) struct Counted {
    /// Frames, by direction.
    pub(in crate::gateway) packets: [(&'static str, u64); 2],
    /// Bytes of these frames.
    pub(in crate::gateway) bytes: [(&'static str, u64); 2],
    /// Frames that were lost, by reason.
    pub(in crate::gateway) losses: [(&'static str, u64); 4],
}

impl EthernetPort {
    pub(in crate::gateway) fn new(port: EthPort) -> Self {
        Self { mac: MacAddress(port.mac()), port, partial: PartialChecksums::default() }
    }

    /// Reads the counters. Makes system calls.
    pub(in crate::gateway) fn counted(&self) -> Counted {
        let stats = self.port.stats();
        Counted {
            packets: [("receive", stats.received), ("transmit", stats.sent)],
            bytes: [("receive", stats.received_bytes), ("transmit", stats.sent_bytes)],
            losses: [
                ("missed", stats.missed),
                ("receive_errors", stats.receive_errors),
                ("send_errors", stats.send_errors),
                ("no_buffer", stats.no_buffer),
            ],
        }
    }

    /// Its link. For a bond, a member whose link is up carries the traffic from now on.
    pub(in crate::gateway) fn link(&self) -> EthLink {
        if let Some(member) = self.port.mind_members() {
            tracing::warn!("{}: its active link is gone: its traffic now goes by {member}", self.port.name());
        }
        self.port.link()
    }

    /// True if [`Self::link`] is up.
    pub(in crate::gateway) fn is_up(&self) -> bool {
        self.link().up
    }

    /// The reason why its segments wait; `None` if its link is up.
    pub(super) fn waits_for(&self) -> Option<String> {
        let EthLink { up, gone, .. } = self.port.link();
        let name = self.port.name();
        match (up, gone) {
            (true, _) => None,
            (false, false) => Some(format!("Ethernet port {name} has no link")),
            (false, true) => Some(format!(
                "the interface of Ethernet port {name} is gone: restart the gateway once it exists again"
            )),
        }
    }
}

/// All InfiniBand ports.
#[derive(Debug)]
pub(in crate::gateway) struct Endpoints<B: Backend> {
    /// Indexed by [`EndpointIndex`].
    list: Vec<GatewayEndpoint<B>>,
    /// The URLs of the links of software ports, in the same order.
    urls: Vec<Option<String>>,
    /// Why ports are down, in the same order.
    troubles: Vec<PortTrouble>,
}

/// The reason why a port was down at the last check, and the reason that was logged.
#[derive(Clone, Default, Debug)]
struct PortTrouble {
    last: Option<String>,
    logged: Option<String>,
}

impl PortTrouble {
    /// Takes the current reason. Returns it if it should be logged: once it has lasted for two checks, since
    /// a link that is being connected has transient reasons.
    fn take(&mut self, why: Option<String>) -> Option<&str> {
        let lasts = self.last == why;
        self.last = why;
        if !lasts || self.logged == self.last {
            return None;
        }
        self.logged.clone_from(&self.last);
        self.logged.as_deref()
    }
}

impl<B: Backend> Endpoints<B> {
    /// `list` is indexed by [`EndpointIndex`].
    pub(in crate::gateway) const fn new(list: Vec<GatewayEndpoint<B>>, urls: Vec<Option<String>>) -> Self {
        Self { list, urls, troubles: Vec::new() }
    }

    /// The reason why a port is down, with the URL of its link, if the device knows one.
    pub(super) fn port_trouble(&mut self, index: EndpointIndex) -> Option<String> {
        let endpoint = self.list.get_mut(index.at())?;
        let port = endpoint.port();
        let why = endpoint.hca().port_trouble(port)?;
        Some(match self.urls.get(index.at()).and_then(Option::as_ref) {
            Some(url) => format!("link {url}: {why}"),
            None => why,
        })
    }

    /// A port.
    pub(in crate::gateway) fn at(&mut self, index: EndpointIndex) -> Option<&mut GatewayEndpoint<B>> {
        self.list.get_mut(index.at())
    }

    /// All ports, in the order of their indexes.
    pub(in crate::gateway) fn iter(&self) -> impl Iterator<Item = &GatewayEndpoint<B>> {
        self.list.iter()
    }

    /// All ports, for changes.
    pub(in crate::gateway) fn iter_mut(&mut self) -> impl Iterator<Item = &mut GatewayEndpoint<B>> {
        self.list.iter_mut()
    }

    /// The indexes of all ports.
    pub(in crate::gateway) fn indices(&self) -> impl Iterator<Item = EndpointIndex> + use<B> {
        (0..self.list.len() as u8).map(EndpointIndex)
    }

    /// A link of a port.
    pub(in crate::gateway) fn link(&mut self, port: EndpointIndex, link: LinkIndex) -> Option<&mut Link> {
        self.at(port)?.link_at(link)
    }

    /// True if a port's device is gone.
    pub(in crate::gateway) fn is_gone(&self, port: EndpointIndex) -> bool {
        self.list.get(port.at()).is_some_and(Endpoint::is_gone)
    }

    /// Logs why ports are down, when that changes.
    pub(super) fn log_troubles(&mut self) {
        self.troubles.resize(self.list.len(), PortTrouble::default());
        for index in self.indices() {
            let why = self.port_trouble(index);
            let trouble = self.troubles.get_mut(index.at());
            if let Some(why) = trouble.and_then(|trouble| trouble.take(why).map(str::to_owned)) {
                tracing::warn!("an InfiniBand port is down: {why}");
            }
        }
    }

    /// All ports, to close them.
    pub(in crate::gateway) fn into_list(self) -> Vec<GatewayEndpoint<B>> {
        self.list
    }
}

impl<B: Backend> GatewayControl<B> {
    /// Polls every port. True if there was anything to do.
    pub(super) fn tick_endpoints(&mut self, now: Instant) -> bool {
        let Self { endpoints, board, times, own, events, .. } = self;
        let mut busy = false;
        for index in endpoints.indices() {
            let Some(endpoint) = endpoints.at(index) else { continue };
            busy |= endpoint.tick(now, &mut board.of_endpoint(index), |h| times.add_service(&h));
            let losses = endpoint.take_losses();
            own.drops(DropReason::NoBuffers, losses.no_buffers);
            own.drops(DropReason::IbQueueFull, losses.queue_full);
            own.drops(DropReason::SendFailed, losses.refused);
            if losses.events > 0 {
                let text =
                    format!("{} queue pair events were lost: the control lcore is too slow", losses.events);
                tracing::warn!(event = What::ControlSlow.journal(), "{text}");
                let said = || (text, serde_json::json!({ "events": losses.events }));
                events.report(now, What::ControlSlow, None, said);
            }
        }
        busy
    }

    /// Checks for devices and interfaces that are gone. They take their segments down, and no others; an
    /// error if it was the last one of its kind.
    pub(super) fn look_for_devices(&mut self, now: Instant) -> Result<(), GatewayError> {
        let Self { endpoints, segments, events, .. } = self;
        for index in endpoints.indices() {
            let Some(gone) = endpoints.at(index).and_then(Endpoint::take_gone) else { continue };
            tracing::error!(event = What::DeviceGone.journal(), "{gone}");
            let said = || (gone.to_string(), serde_json::Value::Null);
            events.report(now, What::DeviceGone, None, said);
            if endpoints.iter().all(Endpoint::is_gone) {
                return Err(gone.into());
            }
            for duty in segments.iter().filter(|duty| duty.endpoint == index) {
                tracing::error!(
                    segment = duty.name.as_str(),
                    event = What::DeviceGone.journal(),
                    "{}: down with its device; other segments go on. Restart the gateway once the device is back",
                    duty.name
                );
            }
        }
        match self.ethernets.last() {
            Some(last) if self.ethernets.iter().all(|end| end.port.is_gone()) => {
                Err(EthError::Gone(last.port.name().to_owned()).into())
            }
            _ => Ok(()),
        }
    }

    /// Updates the copies of devices' GID tables. The endpoints report to the links what a change means to
    /// them.
    pub(super) fn follow_gids(&mut self, now: Instant) {
        let Self { endpoints, gids, .. } = self;
        for (index, gids) in gids.iter_mut() {
            // Readers of the copy of a device that is gone see that it has no writer any more.
            let Some(endpoint) = endpoints.at(*index).filter(|e| !e.is_gone()) else { continue };
            let changed = endpoint.take_gid_news();
            match gids.refresh(endpoint.hca(), now, changed) {
                Ok(changes) => {
                    for change in changes {
                        let what = if change.is_addition() { "new" } else { "gone" };
                        let entry = change.entry();
                        tracing::info!(
                            "GID {} of port {}: {} is {what}",
                            entry.index,
                            entry.port.0,
                            entry.gid()
                        );
                    }
                }
                Err(error) => tracing::debug!("{error}"),
            }
        }
    }

    /// How often shared receive queues ran low.
    pub(in crate::gateway) fn srq_low(&self) -> u64 {
        self.endpoints.iter().map(Endpoint::srq_low).sum()
    }

    /// An Ethernet port.
    pub(super) fn ethernet(&self, index: EthernetIndex) -> Option<&EthernetPort> {
        self.ethernets.get(index.at())
    }

    /// The segment of a link.
    pub(super) fn segment_of(&self, port: EndpointIndex, link: LinkIndex) -> Option<SegmentIndex> {
        self.segments.iter().find(|duty| (duty.endpoint, duty.link) == (port, link)).map(|duty| duty.index)
    }
}

/// The copy of a device's GID table, and the first of its ports, through which the device is queried.
pub(in crate::gateway) type DeviceGids = (EndpointIndex, GatewayGids);

/// The name of a port for users: `mlx5_0/1`.
pub(in crate::gateway) fn port_name<B: Backend>(endpoint: &mut GatewayEndpoint<B>) -> String {
    let port = endpoint.port().0;
    format!("{}/{port}", endpoint.hca().device().name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_logged_once_and_when_it_has_lasted() {
        let mut trouble = PortTrouble::default();
        let mut take = |why: Option<&str>| trouble.take(why.map(str::to_owned)).map(str::to_owned);
        assert_eq!([take(None), take(None), take(Some("a")), take(Some("b"))], [None, None, None, None]);
        assert_eq!([take(Some("b")), take(Some("b"))], [Some("b".to_owned()), None]);
        // The reason ends and recurs.
        assert_eq!([take(None), take(Some("b")), take(Some("b"))], [None, None, None]);
        assert_eq!([take(None), take(None), take(Some("b"))], [None, None, None]);
        assert_eq!(take(Some("b")).as_deref(), Some("b"));
    }
}
