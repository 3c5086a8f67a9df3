//! The families of figures.

hca::counted! {
    /// A family of figures.
    Family {
        /// The program that runs.
        BuildInfo = "build_info",
        /// When the gateway was started, in seconds since 1970.
        StartTimeSeconds = "start_time_seconds",
        /// Packets by worker and path.
        WorkerPackets = "worker_packets",
        /// Bytes by worker and path.
        WorkerBytes = "worker_bytes",
        /// Turns in which a worker had something to do.
        WorkerBusyTurns = "worker_busy_turns",
        /// Time that they took.
        WorkerBusySeconds = "worker_busy_seconds",
        /// Time in which a worker rested; what is left it polled and found nothing.
        WorkerRestSeconds = "worker_rest_seconds",
        /// Packets dropped, by reason, workers and control lcore together.
        Drops = "drops",
        /// Packets of a segment by way.
        SegmentPackets = "segment_packets",
        /// Bytes of a segment by way.
        SegmentBytes = "segment_bytes",
        /// Packets of a segment that were dropped, by reason.
        SegmentDrops = "segment_drops",
        /// Packets of its own that came back from a segment's other side.
        SegmentLoops = "segment_loops",
        /// Whether a segment's link is up.
        SegmentUp = "segment_up",
        /// Whether a segment waits for something outside; `ctl links` says for what.
        SegmentWaiting = "segment_waiting",
        /// 1 for the role that the gateway has in a segment.
        SegmentRole = "segment_role",
        /// Other gateways of a segment that are alive, by the sides on which they are heard: `both`, or `one`.
        SegmentPeers = "segment_peers",
        /// Hosts that a segment knows, by side.
        SegmentNeighbours = "segment_neighbours",
        /// RC connections that carry packets, by who opened them.
        SegmentConnections = "segment_connections",
        /// Whether an Ethernet port has a link.
        EthernetPortUp = "ethernet_port_up",
        /// Frames of an Ethernet port by direction, as its driver counts them.
        EthernetPortPackets = "ethernet_port_packets",
        /// Bytes of these frames.
        EthernetPortBytes = "ethernet_port_bytes",
        /// Frames that an Ethernet port or its driver lost, by reason: `missed` found no descriptor or a full ring.
        EthernetPortLosses = "ethernet_port_losses",
        /// Sampled packets of an Ethernet port whose TCP or UDP checksum nobody completed: InfiniBand hosts drop such packets.
        EthernetPortPartialChecksums = "ethernet_port_partial_checksums",
        /// Whether a link of an InfiniBand port is up.
        InfinibandPortUp = "infiniband_port_up",
        /// Times that a port's shared receive queue came down to its limit.
        SrqLow = "srq_low",
        /// Errors that a port's device has told of.
        DeviceErrors = "device_errors",
        /// Times that the control lcore did not run for longer than other gateways wait for a hello.
        ControlStalls = "control_stalls",
        /// Packet buffers, by state.
        Buffers = "buffers",
        /// Packets of captures, by outcome: `missing` were too many for who writes them, or for the disk.
        CapturePackets = "capture_packets",
        /// Reloads of the configuration, by outcome.
        Reloads = "reloads",
        /// Duration of a worker's busy turn, all workers since the start.
        BusyTurnSeconds = "busy_turn_seconds",
        /// Time from a connection's first step to its last, since the start.
        ConnectionSetupSeconds = "connection_setup_seconds",
    }
}

impl Family {
    /// True if its figures only grow; the text has `_total` behind their name.
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

    /// What a monitoring system calls its figures.
    #[must_use]
    pub fn figure(self) -> String {
        let total = if self.is_counter() { "_total" } else { "" };
        format!("{PREFIX}_{}{total}", self.name())
    }
}

/// A table of counters that each are a family, as nothing is their sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Table {
    /// Those of a segment's link.
    SegmentLink,
}

impl Table {
    /// A counter's family.
    pub(super) fn family(self, counter: &str) -> String {
        match self {
            Self::SegmentLink => format!("segment_link_{counter}"),
        }
    }

    /// What a monitoring system calls a counter's figures.
    #[must_use]
    pub fn figure(self, counter: &str) -> String {
        format!("{PREFIX}_{}_total", self.family(counter))
    }
}

/// What names stand in front of every family's.
pub(super) const PREFIX: &str = "ipoib_fwd";
