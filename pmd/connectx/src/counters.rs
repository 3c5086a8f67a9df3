//! Drop and activity counters of the device.

hca::counted! {
    /// Why the device dropped a packet.
    DropReason {
        /// Lengths or versions contradict each other.
        Malformed = "malformed" =>
            "A program at the other end of the cable, or a host on an Ethernet port, sends malformed packets. Capture them: `ibfab --capture` on the fabric, `tcpdump` on Ethernet.",
        /// The variant CRC is wrong.
        VariantCrc = "vcrc" =>
            "A UDP cable damages packets. Check the network between its ends, and `corrupt=` in its URL.",
        /// The invariant CRC is wrong.
        InvariantCrc = "icrc" =>
            "As for `vcrc`; on an Ethernet port a NIC or a switch damages frames.",
        /// The destination LID is not one of the port's.
        NotOurLid = "not_our_lid" =>
            "Normal for a moment when the subnet manager changes LIDs. If it persists, the subnet manager's routes are wrong, or a host uses an outdated path.",
        /// The destination GID in the GRH is not one of the port's.
        NotOurGid = "not_our_gid" =>
            "Normal for a moment when the GID changes. If it persists, a host uses an outdated address of the port.",
        /// A packet without a GRH at a port that shares its LID with others.
        NoGrh = "no_grh" =>
            "A host sends to a virtual port by LID only, because the subnet manager's paths have a hop limit of 0 (`hop_limit` of `ibfab`).",
        /// An Ethernet frame to another MAC address.
        NotOurMac = "not_our_mac" =>
            "Normal where a switch floods frames.",
        /// An Ethernet frame that is not RoCEv2, ARP or neighbor discovery.
        OtherTraffic = "other_traffic" =>
            "Normal: other hosts' traffic on the same Ethernet network.",
        /// The port's state permits only subnet management.
        PortState = "port_state" =>
            "Normal until the subnet manager has made the port active. If it persists, check that a subnet manager runs (`sminfo`).",
        /// A packet other than an SMP on lane 15, or an SMP on another lane.
        VirtualLane = "virtual_lane" =>
            "A program at the other end of the cable is broken or malicious. Capture its packets on the fabric.",
        /// No such queue pair.
        NoQueuePair = "no_queue_pair" =>
            "Normal for a moment after a restart, until hosts have resolved the address again. If it persists, a host has a static entry for the address, or guesses queue pair numbers.",
        /// The opcode does not match the queue pair's transport.
        Transport = "transport" =>
            "A few are normal after a restart, when a number belongs to another queue pair. If it persists, a host guesses queue pair numbers.",
        /// The queue pair cannot receive in its state.
        QueuePairState = "queue_pair_state" =>
            "Normal while connections are opened and closed. If it persists, a host continues a connection that has ended; see the log of that host.",
        /// The P_Key does not match the queue pair's.
        PartitionKey = "pkey" =>
            "A host sends in the wrong partition. Check the subnet manager's partition configuration and the host's P_Key.",
        /// The Q_Key does not match the queue pair's.
        QueueKey = "qkey" =>
            "A host's Q_Key differs from the broadcast group's, or a host guesses queue pair numbers.",
        /// No receive is posted on a datagram queue pair.
        NoReceive = "no_receive" =>
            "Datagrams arrive faster than the worker receives them. Use more workers, or increase `infiniband.ud-receive-depth`.",
        /// The datagram is longer than the receive.
        ReceiveTooShort = "receive_too_short" =>
            "A host sends more than the broadcast group's MTU. Check the MTU of its interface in datagram mode.",
        /// The datagram is longer than the port's MTU.
        OverMtu = "over_mtu" =>
            "A host sends more than the port's MTU. Check the MTU of its interface in datagram mode, and the MTU of the subnet manager's path.",
        /// No queue pair is attached to the multicast group.
        NotAttached = "not_attached" =>
            "Normal for a moment when a group is left. If it persists, the subnet manager's multicast routes are wrong.",
        /// A packet of a connection from a source other than the peer.
        WrongSource = "wrong_source" =>
            "Normal for a moment when a host's LID changes. If it persists, a host forges packets of connections.",
        /// An acknowledge of a packet that is not outstanding.
        StrayAcknowledge = "stray_acknowledge" =>
            "A few are normal where packets are retransmitted. If there are many, a host forges acknowledges.",
        /// A request behind a gap in the sequence; a NAK requests the missing one.
        OutOfSequence = "out_of_sequence" =>
            "Packets are lost on the path. Check the drops of the other devices and of the switch (`perfquery`), and the network between the ends of a UDP cable.",
        /// A packet of a message on an unreliable connection that lacks another packet: the message is lost.
        BrokenMessage = "broken_message" =>
            "As for `out_of_sequence`, but these messages are not retransmitted.",
        /// A write on an unreliable connection that the key or the queue pair does not permit.
        RemoteAccess = "remote_access" =>
            "The program at the other end uses a wrong key or address, or a host guesses keys.",
        /// A malformed subnet management packet.
        BadSmp = "bad_smp" =>
            "A host sends malformed management packets. Capture them on the fabric to identify it.",
        /// A subnet management packet with a wrong M_Key.
        MKey = "mkey" =>
            "A program manages the port without its M_Key: a second subnet manager with another key, or an unauthorized host.",
        /// The loopback queue was full.
        LoopbackFull = "loopback_full" =>
            "The program sends to queue pairs of its own port faster than they receive. Normal for a moment.",
        /// A response that the queue pair did not request, or a request that it cannot execute.
        Unsupported = "unsupported" =>
            "The program at the other end is broken or malicious, or requests more than this device supports. Capture its packets on the fabric.",
        /// Sent on an Ethernet port without a GRH, or from a GID index that is not a RoCEv2 GID without VLAN.
        NoRoute = "no_route" =>
            "The program sends from a wrong entry of the GID table. List the entries with `ipoib-fwd gids` or `show_gids`.",
        /// Sent on an Ethernet port to a GID that answers neither ARP nor neighbor discovery.
        NoNeighbour = "no_neighbour" =>
            "The host is off, or not on this network. Run `ping` to it from the same interface.",
        /// Sent on an Ethernet port to a GID with a full queue of pending datagrams.
        NeighbourQueueFull = "neighbour_queue_full" =>
            "As for `no_neighbour`; normal for a moment when much is sent to a host that is not resolved yet.",
        /// Sent with a service level that has no usable virtual lane.
        ServiceLevel = "service_level" =>
            "The subnet manager has assigned no available virtual lane to the path's service level. Check its SL-to-VL table.",
        /// Sent while the port's state permits only subnet management.
        SentOnDownPort = "sent_on_down_port" =>
            "As for `port_state`; a port without a cable drops everything.",
    }
}

hca::counted! {
    /// Activity of the transport.
    Activity {
        /// Packets handed to a cable.
        Sent = "sent",
        /// Packets received from a cable.
        Received = "received",
        /// Packets retransmitted.
        Retransmitted = "retransmitted",
        /// Duplicate requests acknowledged again.
        Duplicates = "duplicates",
        /// Acknowledges sent.
        Acknowledges = "acknowledges",
        /// Sequence error NAKs sent.
        SequenceNaks = "sequence_naks",
        /// RNR NAKs sent: no receive was posted for a message on a connection.
        RnrNaks = "rnr_naks",
        /// Local acknowledge timeouts.
        Timeouts = "timeouts",
        /// Work requests completed with an error other than a flush.
        Faults = "faults",
        /// Work requests flushed.
        Flushed = "flushed",
        /// Doorbells processed.
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
