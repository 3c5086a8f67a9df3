//! Sets of counters for the requests and receives of queue pairs. Each queue pair is in one set.

hca::counted! {
    /// A counter of a set of queue pairs.
    QueueCount {
        /// RDMA WRITEs received.
        WriteRequests = "rx_write_requests",
        /// RDMA READs received.
        ReadRequests = "rx_read_requests",
        /// Atomic operations received.
        AtomicRequests = "rx_atomic_requests",
        /// Packets without a posted receive: a datagram is lost, a message on a connection is retransmitted.
        OutOfBuffer = "out_of_buffer",
        /// Requests behind a gap in the sequence.
        OutOfSequence = "out_of_sequence",
        /// Duplicate requests.
        DuplicateRequests = "duplicate_request",
        /// RNR NAKs received: the peer has no receive.
        ReceiverNotReady = "rnr_nak_retry_err",
        /// Sequence error NAKs received: the peer lacks an earlier packet.
        SequenceErrors = "packet_seq_err",
        /// Responses that imply that an earlier one is missing.
        ImpliedSequenceErrors = "implied_nak_seq_err",
        /// Timeouts without an acknowledge.
        AcknowledgeTimeouts = "local_ack_timeout_err",
    }
}

/// Number of sets of a device. Set 0 is that of queue pairs without a set.
pub const COUNTER_SETS: u8 = 64;

type Set = [u64; QueueCount::ALL.len()];

/// All sets of a device.
#[derive(Debug)]
pub(crate) struct QueueCounters {
    sets: [Set; COUNTER_SETS as usize],
}

impl Default for QueueCounters {
    fn default() -> Self {
        Self { sets: [Set::default(); COUNTER_SETS as usize] }
    }
}

impl QueueCounters {
    pub(crate) fn count(&mut self, set: u8, what: QueueCount) {
        if let Some(n) = self.sets.get_mut(usize::from(set)).and_then(|set| set.get_mut(what as usize)) {
            *n += 1;
        }
    }

    pub(crate) fn get(&self, set: u8, what: QueueCount) -> u64 {
        self.sets.get(usize::from(set)).and_then(|set| set.get(what as usize)).copied().unwrap_or_default()
    }

    pub(crate) fn clear(&mut self, set: u8) {
        if let Some(set) = self.sets.get_mut(usize::from(set)) {
            *set = Set::default();
        }
    }
}
