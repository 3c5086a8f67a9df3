//! What is to be done about drops: the operator's manual is made of it. A reason without a remedy does not compile.

use super::DropReason;

impl DropReason {
    /// True if a network that is well makes such drops without end, so that many of them alarm nobody.
    #[must_use]
    pub const fn is_ordinary(self) -> bool {
        matches!(
            self,
            Self::NotForUs
                | Self::UnknownEthertype
                | Self::Ipv6
                | Self::ArpOffSubnet
                | Self::PeerGateway
                | Self::Standby
                | Self::GroupUnknown
                | Self::TooBigAnswered
                | Self::Shutdown
        )
    }

    /// What an operator does about it. Ordinary is what needs nobody.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Truncated => {
                "On a port of `net_af_packet` more than `[buffers] data-room` takes: the kernel joins fragments and received segments before the port gets them, so switch that off (`ethtool -K INTERFACE gro off`) or enlarge `data-room`. Elsewhere a host sends broken packets: capture and find it by its address."
            }
            Self::BadLength => {
                "A host or something on the way breaks packets: `--capture`, and look for the sender's address."
            }
            Self::BadIpv4Version => {
                "A host sends something else under the type of IPv4: `--capture`, and look for the sender's address."
            }
            Self::BadIpv4Checksum => {
                "Packets are damaged on the way, or a kernel's interface hands over packets whose sums it has left to a NIC: `ethtool -K INTERFACE tx off` on the host's end of a veth."
            }
            Self::BadArp => {
                "A host speaks ARP that is not of this side; nothing of it is needed. Many of them: find the sender by a capture."
            }
            Self::HostileArp => {
                "Somebody claims the gateway's own address or one that no host may have: look for a second machine with `gateway.address`, then for an attacker, by a capture of ARP."
            }
            Self::ArpOffSubnet => {
                "Ordinary where hosts of another subnet are on the same wire: the gateway leaves their ARP alone. If it is to forward for them, add their subnet to `subnets` of the segment."
            }
            Self::ForgedArp => {
                "A host of the InfiniBand side answers for another one. A few come of bonded interfaces that move; many are an attack: the log and a capture name the sender."
            }
            Self::AddressConflict => {
                "Two hosts have one address: `ipoib-fwd ctl neighbours` shows its owner, `disputed` in `ipoib-fwd ctl events address` both. Take it from one of them."
            }
            Self::NotForUs => {
                "Ordinary on a port with `promiscuous = true` or behind a switch that floods. Many without that: a host has a wrong neighbour entry for the gateway."
            }
            Self::UnknownEthertype => {
                "Ordinary: LLDP, spanning tree and the like do not cross. Nothing is to be done."
            }
            Self::VlanUnknown => {
                "The switch sends VLANs that no `[[segment]]` names: add one with that `vlan`, or take the VLAN off the switch's port."
            }
            Self::VlanStacked => "The switch sends double tags (802.1ad): have it take the outer one off.",
            Self::SegmentGone => "Ordinary for a moment after a reload that took a segment away.",
            Self::LinkUnknown => {
                "Ordinary for a moment after a reload that took a segment away; else the P_Key table changes under the gateway: `ipoib-fwd ctl links`."
            }
            Self::Ipv6 => "IPv6 is not forwarded. Switch it off on hosts that wait for it, or ignore this.",
            Self::NotIpoib => {
                "Something that is no IPoIB sends to the gateway's queue pair: find the program by a capture."
            }
            Self::WrongPkey => {
                "A host is in the partition with another key, or the subnet manager has changed it: compare `ipoib-fwd ctl links` with the partitions' configuration."
            }
            Self::LoopSelf => {
                "A few are echoes of multicasts. Many: the two networks are joined elsewhere, too; look for a bridge."
            }
            Self::SameSide => {
                "Hosts send to the gateway what they could send to each other: a host's neighbour entry or route is wrong, or `subnets` of the segment are."
            }
            Self::Martian => {
                "A host sends from an address that is not its own, or from one of the other side: `ipoib-fwd ctl neighbours` and a capture tell which."
            }
            Self::LinkBroadcastOfUnicast => {
                "A host sends unicast packets to all: its neighbour table or a load balancer's mode is wrong."
            }
            Self::TtlExceeded => "A routing loop between the hosts' routers.",
            Self::OffSubnet => {
                "Hosts use the gateway as router to where it knows no way: add the subnet or a route (`subnets`, `[[segment.route]]`) or correct the hosts' routes."
            }
            Self::PeerGateway => "Ordinary with several gateways: what one has forwarded the others drop.",
            Self::Storm => {
                "A host broadcasts too much, or there is a loop: a capture of broadcasts tells the sender. The bound is the gateway's own."
            }
            Self::BadHello => {
                "Gateways of one segment with different versions or `pair-key`, or somebody forges hellos: `ipoib-fwd ctl links` says under `stranger` what is wrong and on which side."
            }
            Self::Standby => "Ordinary on a gateway that stands by.",
            Self::LeaseOver => {
                "The control lcore did not run (`control-stalled` in `ipoib-fwd ctl events alarm` and the log say for how long), or worker 0 did not. Give each lcore a processor of its own, or enlarge `gateway.hello-ms`."
            }
            Self::SegmentBlocked => {
                "Something joins both networks: find the bridge. The gateway forwards again by itself when its probes do not come back."
            }
            Self::NeighbourUnresolved => {
                "The host does not answer ARP or has no path: is it up, in the same partition (`ipoib-fwd ctl neighbours`), and does the subnet manager answer (`sa_timeouts` in `ipoib-fwd ctl links`)?"
            }
            Self::NeighbourQueueFull => {
                "Many packets to hosts that do not answer: as for `neighbour-unresolved`; a scan of addresses does it, too."
            }
            Self::NeighbourTableFull => {
                "More hosts than a table holds, or somebody feigns them: divide the network into segments, or find who does."
            }
            Self::LookupLimited => {
                "A host asks for many addresses that nobody has, as a scan does: `ipoib-fwd ctl trace proto=arp` names it. Other hosts are not affected."
            }
            Self::GroupUnknown => {
                "Multicast beyond link-local is not forwarded. Switch it off where it is sent, or ignore this."
            }
            Self::TooBigAnswered => {
                "Ordinary: path MTU discovery at work. If transfers hang all the same, a firewall at the source drops ICMP."
            }
            Self::TooBig => {
                "As for `too-big-answered`, but faster than answers are given; set the source's MTU, or use connected mode at the far end."
            }
            Self::PuntQueueFull => {
                "The control lcore has more to do than it can: is its processor its own? A flood of ARP does it, too: see which counters under `neighbours` grow. So does a flood of hellos or probes, of which one side of a segment hands over 640 a second and worker: see `hellos` in `ipoib-fwd ctl stats`."
            }
            Self::PuntUnresolved => {
                "Many packets to hosts that are not known: as for `neighbour-queue-full`."
            }
            Self::PuntLocal => {
                "Somebody floods the gateway's own address, or sends much that is too big: a capture tells who."
            }
            Self::NotHandled => {
                "The gateway answers ping and nothing else on its address: hosts that ask it for more are configured wrongly."
            }
            Self::EthQueueFull => {
                "The Ethernet side is slower than the InfiniBand side, or its flow control stops it: more workers (lcores of `-l`), more `ethernet.tx-descriptors`, a faster port."
            }
            Self::IbQueueFull => {
                "A peer or the fabric is slower than what is sent to it: congestion counters of the port (`perfquery`), and `infiniband.connection-send-depth`."
            }
            Self::NoBuffers => {
                "Too few packet buffers: `buffers.count = 0` has them counted; or fewer workers and shorter queues, if hugepages are short."
            }
            Self::TooManySegments => {
                "A packet in more pieces than the device takes: a larger `buffers.data-room`, or `infiniband.long-messages` by key or by copy."
            }
            Self::NoConnection => {
                "Ordinary when a peer goes away. Constantly: `ipoib-fwd ctl connections` and the REJ reasons of `ipoib-fwd ctl links` say why connections end."
            }
            Self::SendFailed => {
                "The device reports errors: `last_device_error` of `ipoib-fwd ctl links`, the kernel's log, the cable."
            }
            Self::ReceiveFailed => {
                "As for `send-failed`; a peer that sends more than was agreed does it, too."
            }
            Self::LinkDown => {
                "A cable, a switch or the subnet manager: `ipoib-fwd ctl links` says what the segment waits for."
            }
            Self::Shutdown => "Ordinary at the gateway's end.",
        }
    }
}
