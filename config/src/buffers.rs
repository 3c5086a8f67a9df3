//! Number of packet buffers that the configured queues can hold at once, compared with the configured number.

use crate::error::ConfigError;
use crate::segment::Segment;
use crate::settings::{Config, MAX_BUFFERS, OpenPorts};

/// Maximum number of outstanding send requests of all connections of a worker for this calculation. The
/// queues reject further requests for stalled hosts.
const FULL_SENDS: u32 = 8192;
/// Number of packets that wait for an address or a connection, over all segments.
pub const PARKED_PACKETS: u32 = 256;
/// Number of packets that wait for a full queue of a worker on an InfiniBand port.
pub const HELD_MESSAGES: u32 = 512;
/// Number of frames that wait for an Ethernet port of a worker that accepts none.
pub const WAITING_FRAMES: u32 = 320;
/// Number of announcements and responses of the control lcore in transit to a worker.
const MESSAGES: u32 = 512;
/// Number of send requests for which the rings of all connections of a worker have room. The rings are never
/// all full at once: the queues reject requests without completions or buffers.
const PROMISED: u32 = 1 << 20;
/// Maximum default send queue depth of a connection. TCP to one host fills the queue, and rejected packets
/// are lost: a depth of 256 loses 10 % of the demo's frames.
const SEND_DEPTH: u32 = 1024;

/// Packet buffers by their holder, for all workers together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Full receive queues.
    pub receives: u32,
    /// Send queues: Ethernet and datagram queues all full, the maximum outstanding sends of all connections
    /// of each worker on each InfiniBand port, and packets that wait for full queues.
    pub sends: u32,
    /// Packets that wait for an address or a connection.
    pub parked: u32,
    /// Messages of the control lcore: announcements and responses.
    pub messages: u32,
    /// Caches of the workers.
    pub caches: u32,
    /// Reserve for refilling receive queues.
    pub reserve: u32,
}

impl Budget {
    /// Returns the total.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.receives
            .saturating_add(self.sends)
            .saturating_add(self.parked)
            .saturating_add(self.messages)
            .saturating_add(self.caches)
            .saturating_add(self.reserve)
    }
}

/// A worker's share of the gateway's connections on each InfiniBand port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionShare {
    /// Maximum number of connections that the worker opens.
    pub active: u32,
    /// Maximum number of connections that hosts open to the worker.
    pub passive: u32,
}

impl ConnectionShare {
    /// Returns the sum of both.
    #[must_use]
    pub const fn both(&self) -> u32 {
        self.active + self.passive
    }
}

impl Config {
    /// Maximum number of buffers of a message on a connection.
    #[must_use]
    pub fn segments_per_message(&self) -> u32 {
        // The packet is preceded by the 4-byte encapsulation header.
        (u32::from(self.infiniband.receive_mtu) + 4).div_ceil(self.buffers.data_room.into())
    }

    /// Maximum number of buffers of an Ethernet frame.
    #[must_use]
    pub fn segments_per_frame(&self) -> u32 {
        (u32::from(self.ethernet.mtu) + 22).div_ceil(self.buffers.data_room.into())
    }

    /// Returns one worker's share of `max-connections` on each InfiniBand port.
    #[must_use]
    pub fn connection_share(&self, workers: u32) -> ConnectionShare {
        let most = self.infiniband.max_connections;
        let shares = workers.max(1) * self.infiniband_port_count().max(1);
        let each = |share: u32| share.div_ceil(shares).max(1);
        ConnectionShare { active: each(most / 2), passive: each(most - most / 2) }
    }

    /// Returns the number of send requests of a connection that one of `workers` workers opens.
    #[must_use]
    pub fn connection_send_depth(&self, workers: u32) -> u32 {
        self.infiniband.connection_send_depth.unwrap_or_else(|| {
            let room = PROMISED / self.connection_share(workers).active;
            // The number of ring entries is a power of two.
            1 << room.clamp(1, SEND_DEPTH).ilog2()
        })
    }

    /// Returns the maximum number of buffers for each use with `workers` workers.
    #[must_use]
    pub fn budget(&self, workers: u32) -> Budget {
        let ib = &self.infiniband;
        let segments = u32::try_from(self.segments.len()).unwrap_or(u32::MAX);
        let (ethernet, ports) = (count(self.ethernet_ports()), self.infiniband_port_count());
        // An Ethernet receive takes several buffers one after another.
        let frame = self.segments_per_frame();
        let message = self.segments_per_message();
        let receives = ethernet * u32::from(self.ethernet.rx_descriptors)
            + ports.saturating_mul(ib.srq_depth.saturating_mul(message))
            // A worker's datagram queue pairs on a port share their receives.
            + ports.saturating_mul(ib.ud_receive_depth);
        let rings = self.connection_share(workers).active.saturating_mul(self.connection_send_depth(workers));
        let sends = ethernet * (u32::from(self.ethernet.tx_descriptors) + WAITING_FRAMES * frame)
            + segments * ib.ud_send_depth * frame
            + ports * rings.min(FULL_SENDS) * frame
            + ports * HELD_MESSAGES * frame;
        let mut budget = Budget {
            receives: receives.saturating_mul(workers),
            sends: sends.saturating_mul(workers),
            parked: PARKED_PACKETS * (frame + message),
            messages: MESSAGES.saturating_mul(workers),
            // A cache holds up to 50 % more before it returns buffers.
            caches: (u32::from(self.buffers.cache) * 3 / 2).saturating_mul(workers + 1),
            reserve: 0,
        };
        // The reserve is its percentage of the total.
        let percent = u32::from(self.buffers.receive_reserve);
        let others = u64::from(budget.total());
        let reserve = others * u64::from(percent) / u64::from(100 - percent.min(99));
        budget.reserve = u32::try_from(reserve).unwrap_or(u32::MAX);
        budget
    }

    /// Returns the number of buffers that `workers` workers need for all queues to be full
    /// ([`Config::budget`]).
    #[must_use]
    pub fn buffers_needed(&self, workers: u32) -> u32 {
        self.budget(workers).total()
    }

    /// Checks that `workers` workers have enough buffers and connections.
    pub fn check(&self, workers: u32) -> Result<(), ConfigError> {
        self.promises(workers).into_iter().next().map_or(Ok(()), Err)
    }

    /// Returns all errors about limits that `workers` workers exceed.
    pub(crate) fn promises(&self, workers: u32) -> Vec<ConfigError> {
        let mut all = self.beyond_devices();
        all.extend(self.beyond_queue_pairs(workers));
        let mut promise = |key, what, remedy: String| all.push(ConfigError::Promise { key, what, remedy });
        let needed = self.buffers_needed(workers);
        if needed > MAX_BUFFERS {
            let what = format!(
                "the queues of {workers} worker(s) need {needed} buffers, but the limit is {MAX_BUFFERS}"
            );
            let remedy = "reduce it, receive-mtu and the other queues' depths; or use fewer workers";
            promise("infiniband.srq-depth", what, remedy.to_owned());
        }
        if let Some(count) = self.buffers.count
            && count.get() < needed
        {
            let what = format!("{count} are too few for {workers} worker(s), whose queues need {needed}");
            let remedy = "write 0 for the required number, or reduce srq-depth";
            promise("buffers.count", what, remedy.to_owned());
        }
        let ib = &self.infiniband;
        if ib.max_connections / 2 < workers {
            let what = format!("{} are too few for {workers} workers", ib.max_connections);
            let remedy = format!("write at least {}: one for each worker and direction", 2 * workers);
            promise("infiniband.max-connections", what, remedy);
        }
        let share = self.connection_share(workers);
        let depth = self.connection_send_depth(workers);
        if u64::from(share.active) * u64::from(depth.next_power_of_two()) > u64::from(PROMISED) {
            let what = format!(
                "{} connections of a worker with {depth} send requests each are more than the {PROMISED} that all \
                 rings may have together",
                share.active
            );
            let remedy = format!(
                "write at most {}, reduce max-connections, or use more workers",
                1 << (PROMISED / share.active).max(4).ilog2()
            );
            promise("infiniband.connection-send-depth", what, remedy);
        }
        all
    }

    /// Returns the Ethernet ports in the order in which segments name them, followed by open ports that no
    /// segment names any more. `None` is the only existing port.
    pub fn ethernet_ports(&self) -> impl Iterator<Item = Option<&str>> {
        let open = self.open.ethernets.iter().map(Option::as_deref);
        first_of_each(self.segments.iter().map(|s| s.ethernet.as_deref()).chain(open))
    }

    /// Returns the InfiniBand ports with their devices, in the same order. `None` is the first existing
    /// device.
    pub fn infiniband_ports(&self) -> impl Iterator<Item = (Option<&str>, u8)> {
        let open = self.open.infinibands.iter().map(|(device, port)| (device.as_deref(), *port));
        first_of_each(self.segments.iter().map(|segment| (self.device_of(segment), segment.port)).chain(open))
    }

    /// Returns the names of these ports, for a new configuration while they stay open.
    pub(crate) fn open_ports(&self) -> OpenPorts {
        OpenPorts {
            ethernets: self.ethernet_ports().map(|name| name.map(str::to_owned)).collect(),
            infinibands: self
                .infiniband_ports()
                .map(|(device, port)| (device.map(str::to_owned), port))
                .collect(),
        }
    }

    /// Returns a segment's InfiniBand device. `None` is the first existing device.
    #[must_use]
    pub fn device_of<'s>(&'s self, segment: &'s Segment) -> Option<&'s str> {
        segment.device.as_deref().or_else(|| self.first_soft())
    }

    fn infiniband_port_count(&self) -> u32 {
        count(self.infiniband_ports())
    }

    /// Returns the software device of segments without a device.
    fn first_soft(&self) -> Option<&str> {
        let soft = self.infiniband.soft.first().filter(|_| self.infiniband.is_soft());
        soft.map(|soft| soft.name.as_str())
    }
}

pub(crate) fn count<T>(things: impl Iterator<Item = T>) -> u32 {
    u32::try_from(things.count()).unwrap_or(u32::MAX)
}

/// Returns each item once, in order of first occurrence.
pub(crate) fn first_of_each<T: PartialEq + Clone>(
    things: impl Iterator<Item = T>,
) -> impl Iterator<Item = T> {
    let mut seen = Vec::new();
    things.filter(move |thing| {
        let new = !seen.contains(thing);
        if new {
            seen.push(thing.clone());
        }
        new
    })
}
