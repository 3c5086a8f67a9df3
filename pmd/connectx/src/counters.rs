//! What the device dropped and did, by reason.

hca::counted! {
    /// Why the device dropped a packet.
    DropReason {
        /// Lengths or versions contradict each other.
        Malformed = "malformed",
        /// The variant CRC is wrong.
        VariantCrc = "vcrc",
        /// The invariant CRC is wrong.
        InvariantCrc = "icrc",
        /// The destination LID is not ours.
        NotOurLid = "not_our_lid",
        /// The GRH's destination is none of our GIDs.
        NotOurGid = "not_our_gid",
        /// An Ethernet frame to somebody else.
        NotOurMac = "not_our_mac",
        /// An Ethernet frame that is not RoCEv2, ARP or neighbour discovery.
        OtherTraffic = "other_traffic",
        /// The port's state lets only subnet management pass.
        PortState = "port_state",
        /// Something else than an SMP on lane 15, or an SMP on another lane.
        VirtualLane = "virtual_lane",
        /// No such queue pair.
        NoQueuePair = "no_queue_pair",
        /// The opcode does not go with the queue pair's transport.
        Transport = "transport",
        /// The queue pair's state does not receive.
        QueuePairState = "queue_pair_state",
        /// The P_Key is not the queue pair's.
        PartitionKey = "pkey",
        /// The Q_Key is not the queue pair's.
        QueueKey = "qkey",
        /// No receive is posted on a datagram queue pair.
        NoReceive = "no_receive",
        /// The datagram is longer than the receive.
        ReceiveTooShort = "receive_too_short",
        /// The datagram is longer than the MTU.
        OverMtu = "over_mtu",
        /// No queue pair is attached to the group.
        NotAttached = "not_attached",
        /// A connected packet from another source than the connection's.
        WrongSource = "wrong_source",
        /// An acknowledge outside of what is outstanding.
        StrayAcknowledge = "stray_acknowledge",
        /// A request behind a gap; a NAK asks for what is missing.
        OutOfSequence = "out_of_sequence",
        /// Part of a message over an unreliable connection of which another part is missing: the message is lost.
        BrokenMessage = "broken_message",
        /// A write over an unreliable connection that the key, or the queue pair, does not allow.
        RemoteAccess = "remote_access",
        /// A subnet management packet that is none.
        BadSmp = "bad_smp",
        /// A subnet management packet whose M_Key is not the port's.
        MKey = "mkey",
        /// The queue of packets to ourselves was full.
        LoopbackFull = "loopback_full",
        /// A response that the queue pair did not ask for, or a request that it cannot carry out.
        Unsupported = "unsupported",
        /// Sent on an Ethernet port without a GRH, or from an index of the GID table that is no RoCEv2 GID without VLAN.
        NoRoute = "no_route",
        /// Sent on an Ethernet port to a GID that answers neither ARP nor neighbour discovery.
        NoNeighbour = "no_neighbour",
        /// Sent on an Ethernet port to a GID that many datagrams already wait for.
        NeighbourQueueFull = "neighbour_queue_full",
        /// Sent with a service level that the subnet manager has given no lane that is there.
        ServiceLevel = "service_level",
        /// Sent while the port's state lets only subnet management pass.
        SentOnDownPort = "sent_on_down_port",
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
    /// Packets dropped for `reason`.
    #[must_use]
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops.get(reason as usize).copied().unwrap_or_default()
    }

    /// Times that `activity` happened.
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
        if let Some(n) = self.activity.get_mut(activity as usize) {
            *n += 1;
        }
    }
}
