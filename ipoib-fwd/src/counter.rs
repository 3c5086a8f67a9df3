//! What a worker counts: traffic by path, and drops by reason.

use dataplane::counter::{CounterReader, Counters};
use serde_json::{Map, Value, json};

use ipoib::drop_reason::DropReason;

/// A path that packets take through a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Traffic {
    /// Frames from the Ethernet port.
    EthReceive,
    /// Frames to the Ethernet port.
    EthTransmit,
    /// Datagrams to us.
    IbUdUnicastReceive,
    /// Datagrams to a group.
    IbUdMulticastReceive,
    /// Messages by connections.
    IbRcReceive,
    /// Datagrams to a host.
    IbUdUnicastTransmit,
    /// Datagrams to a group.
    IbUdMulticastTransmit,
    /// Messages by connections.
    IbRcTransmit,
    /// Packets handed to the control lcore.
    Punt,
    /// Packets that were fragmented.
    Fragmented,
}

impl Traffic {
    /// Every path, in the order of its number.
    pub const ALL: [Self; 10] = [
        Self::EthReceive,
        Self::EthTransmit,
        Self::IbUdUnicastReceive,
        Self::IbUdMulticastReceive,
        Self::IbRcReceive,
        Self::IbUdUnicastTransmit,
        Self::IbUdMulticastTransmit,
        Self::IbRcTransmit,
        Self::Punt,
        Self::Fragmented,
    ];

    /// Label of the counter.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EthReceive => "eth_receive",
            Self::EthTransmit => "eth_transmit",
            Self::IbUdUnicastReceive => "ib_ud_unicast_receive",
            Self::IbUdMulticastReceive => "ib_ud_multicast_receive",
            Self::IbRcReceive => "ib_rc_receive",
            Self::IbUdUnicastTransmit => "ib_ud_unicast_transmit",
            Self::IbUdMulticastTransmit => "ib_ud_multicast_transmit",
            Self::IbRcTransmit => "ib_rc_transmit",
            Self::Punt => "punt",
            Self::Fragmented => "fragmented",
        }
    }
}

const TRAFFIC: usize = Traffic::ALL.len();
/// Counters of one worker.
pub const COUNT: usize = 2 * TRAFFIC + DropReason::ALL.len();

/// A worker's counters.
#[derive(Debug, Default)]
pub struct WorkerCounters(Counters<COUNT>);

/// A reader of them.
pub type WorkerCounterReader = CounterReader<COUNT>;

impl WorkerCounters {
    /// Counts one packet of `bytes` on a path.
    pub fn packet(&mut self, path: Traffic, bytes: usize) {
        self.0.add(2 * path as usize, 1);
        self.0.add(2 * path as usize + 1, bytes as u64);
    }

    /// Counts `packets` of `bytes` altogether on a path.
    pub fn packets(&mut self, path: Traffic, packets: u64, bytes: u64) {
        self.0.add(2 * path as usize, packets);
        self.0.add(2 * path as usize + 1, bytes);
    }

    /// Counts one drop.
    pub fn drop(&mut self, reason: DropReason) {
        self.0.add(2 * TRAFFIC + reason as usize, 1);
    }

    /// Counts `n` drops.
    pub fn drops(&mut self, reason: DropReason, n: u64) {
        self.0.add(2 * TRAFFIC + reason as usize, n);
    }

    /// A reader for the control lcore.
    #[must_use]
    pub fn reader(&self) -> WorkerCounterReader {
        self.0.reader()
    }
}

/// Counters summed over workers.
#[derive(Clone, Debug)]
pub struct Totals([u64; COUNT]);

impl Totals {
    /// The sums at this moment, with the control lcore's own drops.
    #[must_use]
    pub fn of<'a>(readers: impl IntoIterator<Item = &'a WorkerCounterReader>) -> Self {
        let mut sums = [0; COUNT];
        for reader in readers {
            for (sum, value) in sums.iter_mut().zip(reader.read()) {
                *sum += value;
            }
        }
        Self(sums)
    }

    /// Packets on a path.
    #[must_use]
    pub const fn packets(&self, path: Traffic) -> u64 {
        self.0[2 * path as usize]
    }

    /// Bytes on a path.
    #[must_use]
    pub const fn bytes(&self, path: Traffic) -> u64 {
        self.0[2 * path as usize + 1]
    }

    /// Drops for a reason.
    #[must_use]
    pub const fn drops(&self, reason: DropReason) -> u64 {
        self.0[2 * TRAFFIC + reason as usize]
    }

    /// Packets and bytes by path.
    #[must_use]
    pub fn traffic_json(&self) -> Value {
        Traffic::ALL
            .iter()
            .map(|&p| (p.name().to_owned(), json!({"packets": self.packets(p), "bytes": self.bytes(p)})))
            .collect::<Map<_, _>>()
            .into()
    }

    /// Drops by reason, those that happened.
    #[must_use]
    pub fn drops_json(&self) -> Value {
        DropReason::ALL
            .iter()
            .filter(|&&r| self.drops(r) > 0)
            .map(|&r| (r.name().to_owned(), json!(self.drops(r))))
            .collect::<Map<_, _>>()
            .into()
    }
}
