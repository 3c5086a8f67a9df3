//! Counters of an end of a cable.

/// Counters of one end; they only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CableCounters {
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets received, before fault injection.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Sends held back because the receiver is slow.
    pub tx_full: u64,
    /// Packets dropped because the cable was down.
    pub tx_down: u64,
    /// Packets dropped because they were empty or longer than [`super::MAX_PACKET`].
    pub tx_bad_length: u64,
    /// Packets that the network refused or truncated (UDP).
    pub tx_errors: u64,
    /// Errors that the socket reported for earlier datagrams. With UDP these are ICMP messages, which anyone
    /// can forge. They are only counted; silence of the other end takes the cable down.
    pub socket_errors: u64,
    /// Datagrams that were neither packet nor hello, or too long (UDP).
    pub rx_invalid: u64,
    /// Forged datagrams (UDP): with session numbers that no end of this cable can have now, or without a
    /// valid code of the cable's key.
    pub rx_forged: u64,
    /// Datagrams of an end that has restarted, or has not noticed yet that the other one has (UDP). They are
    /// hellos without a received session while the cable is up, and hellos with an old session and packets
    /// while it is down.
    pub rx_stale: u64,
    /// Packets in flight, in either direction, when the cable went down.
    pub lost_going_down: u64,
    /// Times the cable came up.
    pub ups: u64,
    /// Times the cable went down.
    pub downs: u64,
    /// Times the other end violated the protocol (an impossible index or length, a malformed hello) and was
    /// disconnected.
    pub violations: u64,
}

impl CableCounters {
    /// Names and values, for reports.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        [
            ("tx_packets", self.tx_packets),
            ("tx_bytes", self.tx_bytes),
            ("rx_packets", self.rx_packets),
            ("rx_bytes", self.rx_bytes),
            ("tx_full", self.tx_full),
            ("tx_down", self.tx_down),
            ("tx_bad_length", self.tx_bad_length),
            ("tx_errors", self.tx_errors),
            ("socket_errors", self.socket_errors),
            ("rx_invalid", self.rx_invalid),
            ("rx_forged", self.rx_forged),
            ("rx_stale", self.rx_stale),
            ("lost_going_down", self.lost_going_down),
            ("ups", self.ups),
            ("downs", self.downs),
            ("violations", self.violations),
        ]
        .into_iter()
    }
}
