//! Counters of a virtual host.

use endpoint::Sent;
use pmd::hca::{Source, UdSource};

hca::counted! {
    /// Why a host dropped a packet.
    Drop {
        /// From the interface, but not IPv4.
        NotIpv4 = "not_ipv4",
        /// An inconsistent IPv4 header, or one that contradicts the packet's length.
        BadIpv4 = "bad_ipv4",
        /// An invalid ARP packet.
        BadArp = "bad_arp",
        /// Our own multicast, copied back.
        OwnMulticast = "own_multicast",
        /// Outside of the subnet, without a configured gateway.
        NoRoute = "no_route",
        /// The link is down.
        LinkDown = "link_down",
        /// The destination's address was not resolved in time.
        Unresolved = "unresolved",
        /// Too many packets wait for addresses or connections.
        QueueFull = "queue_full",
        /// Too long for the path, and must not be fragmented; its sender was notified.
        TooBig = "too_big",
        /// No buffers.
        NoBuffers = "no_buffers",
        /// The send queue refused it permanently.
        Refused = "refused",
        /// The kernel did not accept it.
        InterfaceFull = "interface_full",
        /// The interface is down or was deleted.
        InterfaceDown = "interface_down",
    }
}

/// Packets and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flow {
    /// Packets.
    pub packets: u64,
    /// Bytes of the packets.
    pub bytes: u64,
}

impl Flow {
    const fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }
}

/// Counters of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostCounters {
    /// Messages received by connections.
    pub rc_received: Flow,
    /// Unicast datagrams received.
    pub ud_received: Flow,
    /// Multicast datagrams received.
    pub multicast_received: Flow,
    /// Messages sent by connections.
    pub rc_sent: Flow,
    /// Unicast datagrams sent.
    pub ud_sent: Flow,
    /// Multicast datagrams sent.
    pub multicast_sent: Flow,
    drops: [u64; Drop::ALL.len()],
}

impl HostCounters {
    /// Returns the number of packets that were dropped for this reason.
    #[must_use]
    pub fn dropped(&self, reason: Drop) -> u64 {
        self.drops.get(reason as usize).copied().unwrap_or(0)
    }

    /// Returns names and values of the flows.
    pub fn flows(&self) -> impl Iterator<Item = (&'static str, Flow)> {
        [
            ("rc_received", self.rc_received),
            ("ud_received", self.ud_received),
            ("multicast_received", self.multicast_received),
            ("rc_sent", self.rc_sent),
            ("ud_sent", self.ud_sent),
            ("multicast_sent", self.multicast_sent),
        ]
        .into_iter()
    }

    /// Returns the reasons that occurred, with their counts.
    pub fn reasons(&self) -> impl Iterator<Item = (Drop, u64)> {
        Drop::ALL.into_iter().zip(self.drops).filter(|&(_, n)| n > 0)
    }

    pub(super) fn drop(&mut self, reason: Drop) {
        self.drops(reason, 1);
    }

    pub(super) fn drops(&mut self, reason: Drop, n: u64) {
        if let Some(count) = self.drops.get_mut(reason as usize) {
            *count += n;
        }
    }

    pub(super) const fn received(&mut self, source: &Source, bytes: usize) {
        match source {
            Source::Rc | Source::RcInvalidated(_) => self.rc_received.add(bytes),
            Source::Ud(UdSource { multicast: true, .. }) => self.multicast_received.add(bytes),
            Source::Ud(_) => self.ud_received.add(bytes),
        }
    }

    pub(super) const fn sent(&mut self, way: Sent, bytes: usize) {
        match way {
            Sent::Rc => self.rc_sent.add(bytes),
            Sent::Ud => self.ud_sent.add(bytes),
        }
    }

    pub(super) const fn sent_to_group(&mut self, bytes: usize) {
        self.multicast_sent.add(bytes);
    }
}
