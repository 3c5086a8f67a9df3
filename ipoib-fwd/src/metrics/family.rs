//! The metric families.

hca::counted! {
    /// A metric family.
    Family {
        /// Version of the running program.
        BuildInfo = "build_info",
        /// Start time of the gateway, in seconds since 1970.
        StartTimeSeconds = "start_time_seconds",
        /// Packets by worker and path.
        WorkerPackets = "worker_packets",
        /// Bytes by worker and path.
        WorkerBytes = "worker_bytes",
        /// Iterations of a worker's loop that processed something.
        WorkerBusyTurns = "worker_busy_turns",
        /// Time spent in these iterations.
        WorkerBusySeconds = "worker_busy_seconds",
        /// Time that a worker was idle. The rest of the time it polled and found nothing.
        WorkerRestSeconds = "worker_rest_seconds",
        /// Dropped packets by reason, workers and control lcore together.
        Drops = "drops",
        /// Packets of a segment by path.
        SegmentPackets = "segment_packets",
        /// Bytes of a segment by path.
        SegmentBytes = "segment_bytes",
        /// Dropped packets of a segment by reason.
        SegmentDrops = "segment_drops",
        /// Packets sent by the gateway that came back from the other side of a segment.
        SegmentLoops = "segment_loops",
        /// Whether a segment's link is up.
        SegmentUp = "segment_up",
        /// Whether a segment waits for an external condition; `ctl links` shows which.
        SegmentWaiting = "segment_waiting",
        /// 1 for the gateway's role in a segment.
        SegmentRole = "segment_role",
        /// Live gateways of a segment other than this one, by the sides on which they are heard: `both`, or
        /// `one`.
        SegmentPeers = "segment_peers",
        /// Known hosts of a segment by side.
        SegmentNeighbours = "segment_neighbours",
        /// RC connections that carry packets, by the side that opened them.
        SegmentConnections = "segment_connections",
        /// Whether an Ethernet port has a link.
        EthernetPortUp = "ethernet_port_up",
        /// Frames of an Ethernet port by direction, from the driver's counters.
        EthernetPortPackets = "ethernet_port_packets",
        /// Bytes of these frames.
        EthernetPortBytes = "ethernet_port_bytes",
        /// Frames that an Ethernet port or its driver lost, by reason: `missed` means no descriptor or a full
        /// ring.
        EthernetPortLosses = "ethernet_port_losses",
        /// Sampled packets of an Ethernet port with an incomplete TCP or UDP checksum: InfiniBand hosts drop
        /// such packets.
        EthernetPortPartialChecksums = "ethernet_port_partial_checksums",
        /// Whether a link of an InfiniBand port is up.
        InfinibandPortUp = "infiniband_port_up",
        /// Times that a port's shared receive queue reached its limit.
        SrqLow = "srq_low",
        /// Errors that a port's device has reported.
        DeviceErrors = "device_errors",
        /// Times that the control lcore did not run for longer than other gateways wait for a hello.
        ControlStalls = "control_stalls",
        /// Packet buffers, by state.
        Buffers = "buffers",
        /// Packets of captures by outcome: `missing` were too many for the writer thread or for the disk.
        CapturePackets = "capture_packets",
        /// Configuration reloads by outcome.
        Reloads = "reloads",
        /// Duration of workers' iterations that processed something, since the start.
        BusyTurnSeconds = "busy_turn_seconds",
        /// Time to establish a connection, since the start.
        ConnectionSetupSeconds = "connection_setup_seconds",
    }
}

impl Family {
    /// True if the family's metrics only grow; their names end in `_total`.
    #[must_use]
    pub const fn is_counter(self) -> bool {
        match self {
            Self::WorkerPackets
            | Self::WorkerBytes
            | Self::WorkerBusyTurns
            | Self::WorkerBusySeconds
            | Self::WorkerRestSeconds
            | Self::Drops
            | Self::SegmentPackets
            | Self::SegmentBytes
            | Self::SegmentDrops
            | Self::SegmentLoops
            | Self::EthernetPortPackets
            | Self::EthernetPortBytes
            | Self::EthernetPortLosses
            | Self::EthernetPortPartialChecksums
            | Self::SrqLow
            | Self::DeviceErrors
            | Self::ControlStalls
            | Self::CapturePackets
            | Self::Reloads => true,
            Self::BuildInfo
            | Self::StartTimeSeconds
            | Self::SegmentUp
            | Self::SegmentWaiting
            | Self::SegmentRole
            | Self::SegmentPeers
            | Self::SegmentNeighbours
            | Self::SegmentConnections
            | Self::EthernetPortUp
            | Self::InfinibandPortUp
            | Self::Buffers
            | Self::BusyTurnSeconds
            | Self::ConnectionSetupSeconds => false,
        }
    }

    /// Name of the family's metrics in a monitoring system.
    #[must_use]
    pub fn figure(self) -> String {
        let total = if self.is_counter() { "_total" } else { "" };
        format!("{PREFIX}_{}{total}", self.name())
    }
}

/// A table of counters that each are a family, since their sum has no meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Table {
    /// The counters of a segment's link.
    SegmentLink,
}

impl Table {
    /// The family of a counter.
    pub(super) fn family(self, counter: &str) -> String {
        match self {
            Self::SegmentLink => format!("segment_link_{counter}"),
        }
    }

    /// Name of a counter's metric in a monitoring system.
    #[must_use]
    pub fn figure(self, counter: &str) -> String {
        format!("{PREFIX}_{}_total", self.family(counter))
    }
}

/// Prefix of all families' names.
pub(super) const PREFIX: &str = "ipoib_fwd";
