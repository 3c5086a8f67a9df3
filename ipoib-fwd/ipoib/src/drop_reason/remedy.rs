//! Remedies for drops, from which the operator's manual is generated. A reason without a remedy does not
//! compile.

use super::DropReason;

impl DropReason {
    /// True if a healthy network causes such drops all the time: many of them are no alarm.
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

    /// Advice to the operator. Reasons that need no action are called ordinary.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Truncated => {
                "On a `net_af_packet` port, the packet is larger than `[buffers] data-room`. The kernel merges fragments and received segments before the port gets them: disable that (`ethtool -K INTERFACE gro off`) or enlarge `data-room`. On other ports a host sends broken packets: find it by its address in a capture."
            }
            Self::BadLength => {
                "A host or a device on the path breaks packets: use `--capture` and look for the sender's address."
            }
            Self::BadIpv4Version => {
                "A host sends another protocol with the ethertype of IPv4: use `--capture` and look for the sender's address."
            }
            Self::BadIpv4Checksum => {
                "Packets are damaged on the path, or a kernel interface delivers packets whose checksums it has left to a NIC: `ethtool -K INTERFACE tx off` at the host's end of a veth."
            }
            Self::BadArp => {
                "A host sends ARP that does not belong to this side; the gateway needs none of it. If there are many, find the sender with a capture."
            }
            Self::HostileArp => {
                "A host claims the gateway's own address or one that no host may have. Capture ARP: look for a second machine with `gateway.address`, then for an attacker."
            }
            Self::ArpOffSubnet => {
                "Ordinary if hosts of another subnet are on the same wire: the gateway ignores their ARP. To forward for them, add their subnet to `subnets` of the segment."
            }
            Self::ForgedArp => {
                "An InfiniBand host answers for another one. A few come from bonded interfaces that move; many are an attack: the log and a capture name the sender."
            }
            Self::AddressConflict => {
                "Two hosts have one address: `ipoib-fwd ctl neighbours` shows its owner, `disputed` in `ipoib-fwd ctl events address` shows both. Remove the address from one of them."
            }
            Self::NotForUs => {
                "Ordinary on a port with `promiscuous = true` or behind a switch that floods. Otherwise, if there are many, a host has a wrong neighbour entry for the gateway."
            }
            Self::UnknownEthertype => {
                "Ordinary: LLDP, spanning tree and similar protocols are not forwarded. No action is needed."
            }
            Self::VlanUnknown => {
                "The switch sends VLANs that no `[[segment]]` names: add one with that `vlan`, or remove the VLAN from the switch's port."
            }
            Self::VlanStacked => {
                "The switch sends double tags (802.1ad): configure it to remove the outer one."
            }
            Self::SegmentGone => "Ordinary for a moment after a reload that removed a segment.",
            Self::LinkUnknown => {
                "Ordinary for a moment after a reload that removed a segment; otherwise the P_Key table changes while the gateway runs: see `ipoib-fwd ctl links`."
            }
            Self::Ipv6 => "IPv6 is not forwarded. Disable it on hosts that wait for it, or ignore this.",
            Self::NotIpoib => {
                "A program sends something other than IPoIB to the gateway's queue pair: find it with a capture."
            }
            Self::WrongPkey => {
                "A host is in the partition with another P_Key, or the subnet manager has changed it: compare `ipoib-fwd ctl links` with the partitions' configuration."
            }
            Self::LoopSelf => {
                "A few are echoes of multicasts. Many mean that the two networks are also joined elsewhere: look for a bridge."
            }
            Self::SameSide => {
                "Hosts send packets to the gateway that they could send to each other: a host's neighbour entry or route is wrong, or `subnets` of the segment are."
            }
            Self::Martian => {
                "A host sends from an address that is not its own, or from one of the other side: `ipoib-fwd ctl neighbours` and a capture identify it."
            }
            Self::LinkBroadcastOfUnicast => {
                "A host sends unicast packets to a broadcast or multicast link-layer address: its neighbour table or a load balancer's mode is wrong."
            }
            Self::TtlExceeded => "There is a routing loop between the hosts' routers.",
            Self::OffSubnet => {
                "Hosts use the gateway as router to networks that it has no route to: add the subnet or a route (`subnets`, `[[segment.route]]`), or correct the hosts' routes."
            }
            Self::PeerGateway => {
                "Ordinary with several gateways: one forwards the packet, the others drop it."
            }
            Self::Storm => {
                "A host broadcasts too much, or there is a loop: a capture of broadcasts identifies the sender. The limit is the gateway's own."
            }
            Self::BadHello => {
                "Gateways of one segment have different versions or `pair-key`, or an attacker forges hellos: `stranger` in `ipoib-fwd ctl links` shows the fault and the side."
            }
            Self::Standby => "Ordinary on a standby gateway.",
            Self::LeaseOver => {
                "The control lcore did not run (`control-stalled` in `ipoib-fwd ctl events alarm` and the log show for how long), or worker 0 did not. Give each lcore a processor of its own, or enlarge `gateway.hello-ms`."
            }
            Self::SegmentBlocked => {
                "Something joins both networks: find the bridge. The gateway resumes forwarding automatically when its probes no longer come back."
            }
            Self::NeighbourUnresolved => {
                "The host does not answer ARP or has no path: is it up, in the same partition (`ipoib-fwd ctl neighbours`), and does the subnet manager answer (`sa_timeouts` in `ipoib-fwd ctl links`)?"
            }
            Self::NeighbourQueueFull => {
                "Many packets to hosts that do not answer: as for `neighbour-unresolved`. A scan of addresses also causes it."
            }
            Self::NeighbourTableFull => {
                "There are more hosts than a table holds, or an attacker fakes them: divide the network into segments, or find the attacker."
            }
            Self::LookupLimited => {
                "A host queries many addresses that no host has, as a scan does: `ipoib-fwd ctl trace proto=arp` names it. Other hosts are not affected."
            }
            Self::GroupUnknown => {
                "Multicast beyond link-local is not forwarded. Disable it at the sender, or ignore this."
            }
            Self::TooBigAnswered => {
                "Ordinary: path MTU discovery at work. If transfers still hang, a firewall at the source drops ICMP."
            }
            Self::TooBig => {
                "As for `too-big-answered`, but faster than answers are given: set the source's MTU, or use connected mode at the far end."
            }
            Self::PuntQueueFull => {
                "The control lcore is overloaded: check that nothing else uses its processor. A flood of ARP causes it, too: see which counters under `neighbours` grow. So does a flood of hellos or probes, of which each worker hands over at most 640 a second and side of a segment: see `hellos` in `ipoib-fwd ctl stats`."
            }
            Self::PuntUnresolved => "Many packets to unknown hosts: as for `neighbour-queue-full`.",
            Self::PuntLocal => {
                "A host floods the gateway's own address, or sends many packets that are too big: a capture identifies it."
            }
            Self::NotHandled => {
                "The gateway answers ping and nothing else on its address: hosts that expect more are configured wrongly."
            }
            Self::EthQueueFull => {
                "The Ethernet side is slower than the InfiniBand side, or flow control stops it: add workers (lcores of `-l`), enlarge `ethernet.tx-descriptors`, or use a faster port."
            }
            Self::IbQueueFull => {
                "A peer or the fabric is slower than the traffic to it: check the port's congestion counters (`perfquery`) and `infiniband.connection-send-depth`."
            }
            Self::NoBuffers => {
                "There are too few packet buffers: `buffers.count = 0` computes their number. If hugepages are short, use fewer workers and shorter queues."
            }
            Self::TooManySegments => {
                "A packet spans more buffers than the device can gather: enlarge `buffers.data-room`, or send `infiniband.long-messages` by key or by copy."
            }
            Self::NoConnection => {
                "Ordinary when a peer goes away. If it persists, `ipoib-fwd ctl connections` and the REJ reasons of `ipoib-fwd ctl links` show why connections are closed."
            }
            Self::SendFailed => {
                "The device reports errors: see `last_device_error` of `ipoib-fwd ctl links`, the kernel's log, the cable."
            }
            Self::ReceiveFailed => {
                "As for `send-failed`. A peer that sends more than was agreed also causes it."
            }
            Self::LinkDown => {
                "A cable, a switch or the subnet manager: `ipoib-fwd ctl links` shows what the segment waits for."
            }
            Self::Shutdown => "Ordinary when the gateway stops.",
        }
    }
}
