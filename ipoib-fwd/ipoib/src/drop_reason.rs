//! Reasons for which a packet is dropped: one enum for both directions, every queue and every table. Its
//! names are the labels of the counters and the rows of the documentation.

mod remedy;

use std::fmt;

hca::counted! {
    /// The reason for which a packet was dropped.
    DropReason {
        /// The packet ends before its headers do.
        Truncated = "truncated",
        /// A length field contradicts the packet or the standard.
        BadLength = "bad-length",
        /// The packet is announced as IPv4 but its version field says otherwise.
        BadIpv4Version = "bad-ipv4-version",
        /// The checksum of the IPv4 header is wrong.
        BadIpv4Checksum = "bad-ipv4-checksum",
        /// An ARP packet whose hardware type, protocol type, lengths or operation are not those that this
        /// side uses.
        BadArp = "bad-arp",
        /// An ARP packet whose sender addresses no host may have, or which claims the gateway's own address.
        HostileArp = "hostile-arp",
        /// An ARP packet about an address outside of the segment's subnets.
        ArpOffSubnet = "arp-off-subnet",
        /// An ARP packet of InfiniBand that names another queue pair than the one that sent it.
        ForgedArp = "forged-arp",
        /// An ARP packet that claims an address whose owner answers for it, or which has moved too often.
        AddressConflict = "address-conflict",
        /// The frame's destination address is not one that the gateway answers for.
        NotForUs = "not-for-us",
        /// A protocol other than IPv4 and ARP.
        UnknownEthertype = "unknown-ethertype",
        /// A frame whose VLAN, or whose lack of a tag, belongs to no segment.
        VlanUnknown = "vlan-unknown",
        /// A frame with a service tag or two tags (802.1ad); such traffic is not forwarded.
        VlanStacked = "vlan-stacked",
        /// The segment of a queued packet no longer exists.
        SegmentGone = "segment-gone",
        /// No segment uses the InfiniBand link that the message came from.
        LinkUnknown = "link-unknown",
        /// An IPv6 packet; IPv6 is not forwarded yet.
        Ipv6 = "ipv6",
        /// A message that does not begin with the IPoIB encapsulation header.
        NotIpoib = "not-ipoib",
        /// A datagram of another partition.
        WrongPkey = "wrong-pkey",
        /// One of the gateway's own packets that came back.
        LoopSelf = "loop-self",
        /// Source and destination are on the same side; there is nothing to forward.
        SameSide = "same-side",
        /// A source or destination address that no packet may have here: loopback, reserved, spoofed, or a
        /// host of the other side.
        Martian = "martian",
        /// A link-layer broadcast or multicast that carries a packet for one host (RFC 1122 3.3.6).
        LinkBroadcastOfUnicast = "link-broadcast-of-unicast",
        /// The time to live of the packet is 0.
        TtlExceeded = "ttl-exceeded",
        /// The destination lies outside of the segment's subnets, and no route leads there.
        OffSubnet = "off-subnet",
        /// A broadcast or multicast packet that another gateway of the segment has forwarded already, or its
        /// ARP.
        PeerGateway = "peer-gateway",
        /// One broadcast or multicast packet came too often in a tenth of a second, or too many did.
        Storm = "storm",
        /// A message between gateways that is malformed, of another version or made with another key.
        BadHello = "bad-hello",
        /// Another gateway forwards this segment's packets.
        Standby = "standby",
        /// The control lcore has sent no hello for as long as the other gateways wait for one: another may
        /// forward this segment's packets by now.
        LeaseOver = "lease-over",
        /// The segment is blocked because there is a loop around the gateway.
        SegmentBlocked = "segment-blocked",
        /// The destination did not answer ARP, or its path could not be found.
        NeighbourUnresolved = "neighbour-unresolved",
        /// Too many packets wait for the destination to be resolved.
        NeighbourQueueFull = "neighbour-queue-full",
        /// The table of neighbours is full.
        NeighbourTableFull = "neighbour-table-full",
        /// A host exceeded its share of pending lookups.
        LookupLimited = "lookup-limited",
        /// A multicast group that is not forwarded.
        GroupUnknown = "group-unknown",
        /// The packet does not fit and may not be fragmented; the source was notified by ICMP.
        TooBigAnswered = "too-big-answered",
        /// The packet does not fit, may not be fragmented, and no ICMP was due or allowed by the rate limit.
        TooBig = "too-big",
        /// The queue to the control lcore is full, or more hellos came than one side of a segment may hand
        /// over.
        PuntQueueFull = "punt-queue-full",
        /// Packets for unknown destinations have filled their part of the queue to the control lcore.
        PuntUnresolved = "punt-unresolved",
        /// Packets for the gateway itself, and those that are too big, have filled their part of the queue to
        /// the control lcore.
        PuntLocal = "punt-local",
        /// A packet for the gateway itself of a kind that it does not handle.
        NotHandled = "not-handled",
        /// The transmit queue of the Ethernet port is full.
        EthQueueFull = "eth-queue-full",
        /// The InfiniBand send queue is full.
        IbQueueFull = "ib-queue-full",
        /// The buffer pool is empty.
        NoBuffers = "no-buffers",
        /// The packet is spread over more buffers than one send can gather.
        TooManySegments = "too-many-segments",
        /// The connection went away before the packet was sent, and the packet does not fit a datagram.
        NoConnection = "no-connection",
        /// The device refused the packet or reported its send as failed.
        SendFailed = "send-failed",
        /// The device reported a receive as failed.
        ReceiveFailed = "receive-failed",
        /// The other side's link is down or its broadcast group not joined.
        LinkDown = "link-down",
        /// The gateway was stopping.
        Shutdown = "shutdown",
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn list_is_in_order_and_labels_are_kebab_case_and_unique() {
        let mut seen = HashSet::new();
        for (i, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, i);
            let name = reason.name();
            assert!(seen.insert(name), "{name} twice");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{name}");
            assert!(reason.describe().ends_with('.') && reason.remedy().ends_with(['.', '?']), "{name}");
        }
    }
}
