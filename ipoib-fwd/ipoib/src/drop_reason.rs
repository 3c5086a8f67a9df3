//! Why a packet was dropped: one enum for both directions, every queue and every table. Its names are the labels of
//! the counters and the rows of the documentation.

use std::fmt;

/// Defines the enum, its list, its labels and its descriptions from one table.
macro_rules! drop_reasons {
    ($($name:ident = $label:literal: $text:literal,)*) => {
        /// Why a packet was dropped.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum DropReason {
            $(#[doc = $text] $name,)*
        }

        impl DropReason {
            /// Every reason, in the order of its number: `ALL[r as usize] == r`.
            pub const ALL: [Self; { [$(Self::$name),*].len() }] = [$(Self::$name),*];

            /// The counter's label, kebab-case.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)*
                }
            }

            /// One sentence for people.
            #[must_use]
            pub const fn describe(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

drop_reasons! {
    Truncated = "truncated": "The packet ends before its headers do.",
    BadLength = "bad-length": "A length field contradicts the packet or the standard.",
    BadIpv4Version = "bad-ipv4-version": "The packet is announced as IPv4 but its version field says otherwise.",
    BadIpv4Checksum = "bad-ipv4-checksum": "The checksum of the IPv4 header is wrong.",
    BadArp = "bad-arp": "An ARP packet whose hardware type, protocol type, lengths or operation are not what this side uses.",
    HostileArp = "hostile-arp": "An ARP packet whose sender addresses no host may have, or which claims the gateway's own address.",
    ForgedArp = "forged-arp": "An ARP packet of InfiniBand that names another queue pair than the one that sent it.",
    AddressConflict = "address-conflict": "An ARP packet that claims an address whose owner on the other side answers for it, or which has moved too often.",
    NotForUs = "not-for-us": "The frame's destination address is not one that the gateway answers for.",
    UnknownEthertype = "unknown-ethertype": "A protocol other than IPv4 and ARP.",
    VlanUnknown = "vlan-unknown": "A frame of a VLAN, or without a tag, of which no segment is.",
    VlanStacked = "vlan-stacked": "A frame with a service tag or two tags (802.1ad); such traffic is not forwarded.",
    SegmentGone = "segment-gone": "The segment of a packet that waited is not there any more.",
    LinkUnknown = "link-unknown": "A message of an InfiniBand link of which no segment is.",
    Ipv6 = "ipv6": "An IPv6 packet; IPv6 is not forwarded yet.",
    NotIpoib = "not-ipoib": "A message that does not begin with the IPoIB encapsulation header.",
    WrongPkey = "wrong-pkey": "A datagram of another partition.",
    LoopSelf = "loop-self": "One of the gateway's own packets that came back.",
    SameSide = "same-side": "Source and destination are on the same side; there is nothing to forward.",
    Martian = "martian": "A source or destination address that no packet may have here: loopback, reserved, spoofed, or a host of the other side.",
    LinkBroadcastOfUnicast = "link-broadcast-of-unicast": "A link-layer broadcast or multicast that carries a packet for one host (RFC 1122 3.3.6).",
    TtlExceeded = "ttl-exceeded": "The time to live of the packet is 0.",
    OffSubnet = "off-subnet": "The destination lies outside of the segment's subnets, and no route leads there.",
    PeerGateway = "peer-gateway": "A packet to all or to a group that another gateway of the segment has forwarded already, or its ARP.",
    Storm = "storm": "One packet to all or to a group came too often in a tenth of a second, or too many did.",
    BadHello = "bad-hello": "A message between gateways that is malformed, of another version or made with another key.",
    Standby = "standby": "Another gateway forwards this segment's packets.",
    SegmentBlocked = "segment-blocked": "The segment is blocked because there is a loop around the gateway.",
    NeighbourUnresolved = "neighbour-unresolved": "The destination did not answer ARP, or its path could not be found.",
    NeighbourQueueFull = "neighbour-queue-full": "Too many packets wait for the destination to be resolved.",
    NeighbourTableFull = "neighbour-table-full": "The table of neighbours is full.",
    GroupUnknown = "group-unknown": "A multicast group that is not forwarded.",
    TooBigAnswered = "too-big-answered": "The packet does not fit and may not be fragmented; the source was told by ICMP.",
    TooBig = "too-big": "The packet does not fit, may not be fragmented, and no ICMP was due or allowed by the rate limit.",
    PuntQueueFull = "punt-queue-full": "The queue to the control lcore is full.",
    PuntUnresolved = "punt-unresolved": "Packets for unknown destinations have filled their part of the queue to the control lcore.",
    PuntLocal = "punt-local": "Packets for the gateway itself, and those that are too big, have filled their part of the queue to the control lcore.",
    NotHandled = "not-handled": "A packet for the gateway itself that it has no use for.",
    EthQueueFull = "eth-queue-full": "The Ethernet port takes no more packets at the moment.",
    IbQueueFull = "ib-queue-full": "The InfiniBand send queue takes no more packets at the moment.",
    NoBuffers = "no-buffers": "The buffer pool is empty.",
    TooManySegments = "too-many-segments": "The packet is spread over more buffers than one send can gather.",
    NoConnection = "no-connection": "The connection went away before the packet was sent, and the packet does not fit a datagram.",
    SendFailed = "send-failed": "The device refused the packet or reported its send as failed.",
    ReceiveFailed = "receive-failed": "The device reported a receive as failed.",
    LinkDown = "link-down": "The other side's link is down or its broadcast group not joined.",
    Shutdown = "shutdown": "The gateway was stopping.",
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
            assert!(reason.describe().ends_with('.'), "{name}");
        }
    }
}
