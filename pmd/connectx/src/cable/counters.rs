//! What an end of a cable counts.

/// Counters of one end; they only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CableCounters {
    /// Packets sent.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Packets received (before an injector had its way).
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Sends that were held back because the other end is slow.
    pub tx_full: u64,
    /// Packets dropped because the cable was down.
    pub tx_down: u64,
    /// Packets dropped because they were empty or longer than [`super::MAX_PACKET`].
    pub tx_bad_length: u64,
    /// Packets that the network refused or cut (UDP).
    pub tx_errors: u64,
    /// Errors that the socket reported for datagrams sent before. With UDP these are ICMP messages, which anybody can forge:
    /// they are only counted, and silence of the other end takes the cable down.
    pub socket_errors: u64,
    /// Datagrams that were neither packet nor hello, or too long (UDP).
    pub rx_invalid: u64,
    /// Datagrams with session numbers that no end of this cable can have now, or that the cable's key did not sign (UDP):
    /// a host forges them.
    pub rx_forged: u64,
    /// Datagrams as an end sends them that has restarted, or has not noticed yet that the other one has (UDP): hellos that
    /// have heard nobody while the cable is up, hellos that have heard another session and packets while it is down.
    pub rx_stale: u64,
    /// Packets in flight, in either direction, when the cable went down.
    pub lost_going_down: u64,
    /// Times the cable came up.
    pub ups: u64,
    /// Times the cable went down.
    pub downs: u64,
    /// Times the other end broke the rules (an impossible index or length, a malformed hello) and was cut off.
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
