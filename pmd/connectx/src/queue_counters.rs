//! Sets of counters that queue pairs are in, each pair in one: what became of their requests and receives.

hca::counted! {
    /// What is counted of the queue pairs of a set.
    QueueCount {
        /// RDMA WRITEs that came in.
        WriteRequests = "rx_write_requests",
        /// RDMA READs that came in.
        ReadRequests = "rx_read_requests",
        /// Atomic operations that came in.
        AtomicRequests = "rx_atomic_requests",
        /// Packets for which no receive was posted: a datagram is lost, a connection's message comes again.
        OutOfBuffer = "out_of_buffer",
        /// Requests behind a gap.
        OutOfSequence = "out_of_sequence",
        /// Requests that had come before.
        DuplicateRequests = "duplicate_request",
        /// Answers that the other end has no receive.
        ReceiverNotReady = "rnr_nak_retry_err",
        /// Answers that something before is missing.
        SequenceErrors = "packet_seq_err",
        /// Answers from which it follows that one before is missing.
        ImpliedSequenceErrors = "implied_nak_seq_err",
        /// Times that no acknowledge came in time.
        AcknowledgeTimeouts = "local_ack_timeout_err",
    }
}

/// Sets of a device. Number 0 is that of queue pairs that are in none.
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
