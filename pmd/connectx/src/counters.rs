//! Drop and activity counters of the device.

hca::counted! {
    /// Why the device dropped a packet.
    DropReason {
        /// Lengths or versions contradict each other.
        Malformed = "malformed" =>
            "A program at the other end of the cable, or a host of an Ethernet port, sends broken packets: `--capture` of `ibfab` has the fabric's, `tcpdump` those of Ethernet.",
        /// The variant CRC is wrong.
        VariantCrc = "vcrc" =>
            "A UDP cable damages packets: look at the network between its ends, and for `corrupt=` in its URL.",
        /// The invariant CRC is wrong.
        InvariantCrc = "icrc" =>
            "As for `vcrc`; on an Ethernet port a NIC or a switch that damages frames.",
        /// The destination LID is not ours.
        NotOurLid = "not_our_lid" =>
            "Ordinary for a moment when the subnet manager gives other LIDs. Without end: its routes lead wrong, or a host keeps a path that is no more.",
        /// The GRH's destination is none of our GIDs.
        NotOurGid = "not_our_gid" =>
            "Ordinary for a moment when the GID changes. Without end: a host keeps an address that the port had.",
        /// A packet without a GRH at a port that shares its LID with others.
        NoGrh = "no_grh" =>
            "A host sends by LID alone to a virtual port: its subnet manager gives paths a hop limit of 0 (`hop_limit` of `ibfab`).",
        /// An Ethernet frame to somebody else.
        NotOurMac = "not_our_mac" =>
            "Ordinary where a switch floods frames.",
        /// An Ethernet frame that is not RoCEv2, ARP or neighbour discovery.
        OtherTraffic = "other_traffic" =>
            "Ordinary: other hosts' traffic on the same Ethernet network.",
        /// The port's state lets only subnet management pass.
        PortState = "port_state" =>
            "Ordinary until the subnet manager has made the port active. Without end: is there one (`sminfo`)?",
        /// Something else than an SMP on lane 15, or an SMP on another lane.
        VirtualLane = "virtual_lane" =>
            "A program at the other end of the cable is broken or dishonest: a capture of the fabric has its packets.",
        /// No such queue pair.
        NoQueuePair = "no_queue_pair" =>
            "Ordinary for a moment after a restart, until hosts have asked for the address anew. Without end: a host was given the address by hand, or somebody guesses queue pairs.",
        /// The opcode does not go with the queue pair's transport.
        Transport = "transport" =>
            "Few are ordinary after a restart, when a number is another queue pair's. Without end: somebody guesses queue pairs.",
        /// The queue pair's state does not receive.
        QueuePairState = "queue_pair_state" =>
            "Ordinary while connections come and go. Without end: a host goes on with a connection that has ended; its log has why.",
        /// The P_Key is not the queue pair's.
        PartitionKey = "pkey" =>
            "A host sends in another partition than it is to: the partitions' configuration of the subnet manager, and the host's P_Key.",
        /// The Q_Key is not the queue pair's.
        QueueKey = "qkey" =>
            "A host has another Q_Key than the broadcast group, or somebody guesses queue pairs.",
        /// No receive is posted on a datagram queue pair.
        NoReceive = "no_receive" =>
            "The worker is slower than datagrams come: more workers, or a greater `infiniband.ud-receive-depth`.",
        /// The datagram is longer than the receive.
        ReceiveTooShort = "receive_too_short" =>
            "A host sends more than the broadcast group's MTU: the MTU of its interface in datagram mode.",
        /// The datagram is longer than the MTU.
        OverMtu = "over_mtu" =>
            "A host sends more than the port's MTU: the MTU of its interface in datagram mode, and the one that the subnet manager gives the path.",
        /// No queue pair is attached to the group.
        NotAttached = "not_attached" =>
            "Ordinary for a moment when a group is left. Without end: the subnet manager's routes of groups lead wrong.",
        /// A connected packet from another source than the connection's.
        WrongSource = "wrong_source" =>
            "Ordinary for a moment when a host's LID changes. Without end: somebody forges packets of connections.",
        /// An acknowledge outside of what is outstanding.
        StrayAcknowledge = "stray_acknowledge" =>
            "Few are ordinary where packets are repeated. Many: somebody forges acknowledges.",
        /// A request behind a gap; a NAK asks for what is missing.
        OutOfSequence = "out_of_sequence" =>
            "Packets get lost on the way: drops of the other devices and of the switch (`perfquery`), and the network between the ends of a UDP cable.",
        /// Part of a message over an unreliable connection of which another part is missing: the message is lost.
        BrokenMessage = "broken_message" =>
            "As for `out_of_sequence`; nobody repeats these.",
        /// A write over an unreliable connection that the key, or the queue pair, does not allow.
        RemoteAccess = "remote_access" =>
            "The program at the other end uses a wrong key or address, or somebody guesses keys.",
        /// A subnet management packet that is none.
        BadSmp = "bad_smp" =>
            "Somebody sends broken management packets: a capture of the fabric tells who.",
        /// A subnet management packet whose M_Key is not the port's.
        MKey = "mkey" =>
            "Somebody manages the port without its M_Key: a second subnet manager with another one, or a host that is none.",
        /// The queue of packets to ourselves was full.
        LoopbackFull = "loopback_full" =>
            "The program sends more to queue pairs of its own port than these receive: ordinary for a moment.",
        /// A response that the queue pair did not ask for, or a request that it cannot carry out.
        Unsupported = "unsupported" =>
            "The program at the other end is broken or dishonest, or asks for more than this device can: a capture of the fabric has it.",
        /// Sent on an Ethernet port without a GRH, or from an index of the GID table that is no RoCEv2 GID without VLAN.
        NoRoute = "no_route" =>
            "The program sends by a wrong entry of the GID table: `ipoib-fwd gids` and `show_gids` have those that there are.",
        /// Sent on an Ethernet port to a GID that answers neither ARP nor neighbour discovery.
        NoNeighbour = "no_neighbour" =>
            "The host is off, or not on this network: `ping` it from the same interface.",
        /// Sent on an Ethernet port to a GID that many datagrams already wait for.
        NeighbourQueueFull = "neighbour_queue_full" =>
            "As for `no_neighbour`; ordinary for a moment when much is sent to a host that is not known yet.",
        /// Sent with a service level that the subnet manager has given no lane that is there.
        ServiceLevel = "service_level" =>
            "The subnet manager has given the port no lane for the service level of the path: its table of service levels and lanes.",
        /// Sent while the port's state lets only subnet management pass.
        SentOnDownPort = "sent_on_down_port" =>
            "As for `port_state`; a port without a cable drops all that is sent.",
    }
}

hca::counted! {
    /// What the transport did.
    Activity {
        /// Packets given to a cable.
        Sent = "sent",
        /// Packets taken from a cable.
        Received = "received",
        /// Packets sent again.
        Retransmitted = "retransmitted",
        /// Duplicates acknowledged again.
        Duplicates = "duplicates",
        /// Acknowledges sent.
        Acknowledges = "acknowledges",
        /// Sequence error NAKs sent.
        SequenceNaks = "sequence_naks",
        /// RNR NAKs sent: a connected message found no receive.
        RnrNaks = "rnr_naks",
        /// Local acknowledge timeouts.
        Timeouts = "timeouts",
        /// Work requests completed with an error other than a flush.
        Faults = "faults",
        /// Work requests flushed.
        Flushed = "flushed",
        /// Doorbells taken.
        Doorbells = "doorbells",
    }
}

/// The counters of one device.
#[derive(Clone, Debug)]
pub struct Counters {
    drops: [u64; DropReason::ALL.len()],
    activity: [u64; Activity::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self { drops: [0; DropReason::ALL.len()], activity: [0; Activity::ALL.len()] }
    }
}

impl Counters {
    /// Number of packets dropped for `reason`.
    #[must_use]
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops.get(reason as usize).copied().unwrap_or_default()
    }

    /// How often `activity` happened.
    #[must_use]
    pub fn activity(&self, activity: Activity) -> u64 {
        self.activity.get(activity as usize).copied().unwrap_or_default()
    }

    pub(super) fn drop_packet(&mut self, reason: DropReason) {
        if let Some(n) = self.drops.get_mut(reason as usize) {
            *n += 1;
        }
    }

    pub(super) fn count(&mut self, activity: Activity) {
        self.add(activity, 1);
    }

    pub(super) fn add(&mut self, activity: Activity, times: u64) {
        if let Some(n) = self.activity.get_mut(activity as usize) {
            *n += times;
        }
    }
}
