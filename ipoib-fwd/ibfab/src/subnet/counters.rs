//! Counters of the subnet manager and of subnet administration.

/// Counters since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Sweeps that completed a discovery.
    pub sweeps: u64,
    /// Datagrams without a handler.
    pub unknown: u64,
    /// Answers without an outstanding request.
    pub unasked: u64,
    /// SMPs given up after all tries.
    pub smp_lost: u64,
    /// SMPs answered with an error.
    pub smp_refused: u64,
    /// Traps received.
    pub traps: u64,
    /// Nodes beyond the limit or without a GUID, and switches where none may be.
    pub nodes_ignored: u64,
    /// Nodes found that have the GUID of another one.
    pub duplicate_guids: u64,
    /// Ports and blocks of tables that differed from what was written; the next sweep writes them again.
    pub found_changed: u64,
    /// P_Keys for which the table of a port had no room.
    pub pkeys_left_out: u64,
    /// Broadcast groups for which no multicast LID was left.
    pub groups_left_out: u64,
    /// Switch ports that cannot enforce partitions, for their tables are too short.
    pub not_enforced: u64,
    /// Links that were up and were taken down, as one end could not be configured.
    pub links_taken_down: u64,
    /// Requests to subnet administration.
    pub sa_requests: u64,
    /// Requests to subnet administration that were refused.
    pub sa_refused: u64,
    /// The same by class-specific status ([`ib_wire::sa::status`]); index 0 is for statuses that all classes
    /// share.
    pub sa_refused_by: [u64; 8],
    /// Ports that could not join a group, once for each status; these are logged.
    pub ports_refused: u64,
    /// Event reports that were given up after all tries, or whose events were dropped because too many
    /// waited.
    pub reports_lost: u64,
    /// Answers dropped because too many waited to be sent.
    pub out_dropped: u64,
}
