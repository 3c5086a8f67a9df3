//! How many packet buffers the configured queues can hold at once, and whether they can hold what is promised.

use crate::error::ConfigError;
use crate::segment::Segment;
use crate::settings::{Config, MAX_BUFFERS, OpenPorts};

/// Send requests of all connections of a worker that are counted as outstanding at the same time. The queues refuse what more
/// stalled hosts would hold.
const FULL_SENDS: u32 = 8192;
/// Packets that wait for an address or a connection, of all segments together.
pub const PARKED_PACKETS: u32 = 256;
/// Packets that wait for a full queue of a worker on an InfiniBand port.
pub const HELD_MESSAGES: u32 = 512;
/// Frames that wait for an Ethernet port of a worker that takes none.
pub const WAITING_FRAMES: u32 = 320;
/// Announcements and answers of the control lcore on their way to a worker.
const MESSAGES: u32 = 512;
/// Send requests for which the rings of all connections of a worker have room. They are never all full at once: the queues
/// refuse what there are no completions or buffers for.
const PROMISED: u32 = 1 << 20;
/// Deepest send queue of a connection that nobody asked for. TCP to one host fills what is there, and what a full queue
/// refuses is lost: with 256 that were 10 % of the demo's frames.
const SEND_DEPTH: u32 = 1024;

/// Packet buffers by what may hold them, all workers together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Receive queues, all of them full.
    pub receives: u32,
    /// Send queues: Ethernet and datagram all full, and what all connections of each worker on each InfiniBand port may have
    /// outstanding, with what waits for full ones.
    pub sends: u32,
    /// Packets that wait for an address or a connection.
    pub parked: u32,
    /// Messages of the control lcore: announcements and answers.
    pub messages: u32,
    /// What workers keep at hand.
    pub caches: u32,
    /// What is left for receive queues to be filled again from.
    pub reserve: u32,
}

impl Budget {
    /// All of it.
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

/// What a worker gets of the gateway's connections on each InfiniBand port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionShare {
    /// Connections that the worker opens, at most.
    pub active: u32,
    /// Connections that hosts open to the worker, at most.
    pub passive: u32,
}

impl ConnectionShare {
    /// Both together.
    #[must_use]
    pub const fn both(&self) -> u32 {
        self.active + self.passive
    }
}

impl Config {
    /// Buffers that one message on a connection takes at most.
    #[must_use]
    pub fn segments_per_message(&self) -> u32 {
        // The encapsulation header's 4 bytes come on top of the packet.
        (u32::from(self.infiniband.receive_mtu) + 4).div_ceil(self.buffers.data_room.into())
    }

    /// Buffers that one Ethernet frame takes at most.
    #[must_use]
    pub fn segments_per_frame(&self) -> u32 {
        (u32::from(self.ethernet.mtu) + 22).div_ceil(self.buffers.data_room.into())
    }

    /// What a worker of `workers` gets of `max-connections` on each InfiniBand port.
    #[must_use]
    pub fn connection_share(&self, workers: u32) -> ConnectionShare {
        let most = self.infiniband.max_connections;
        let shares = workers.max(1) * self.infiniband_port_count().max(1);
        let each = |share: u32| share.div_ceil(shares).max(1);
        ConnectionShare { active: each(most / 2), passive: each(most - most / 2) }
    }

    /// Send requests of a connection that one of `workers` workers opens.
    #[must_use]
    pub fn connection_send_depth(&self, workers: u32) -> u32 {
        self.infiniband.connection_send_depth.unwrap_or_else(|| {
            let room = PROMISED / self.connection_share(workers).active;
            // A ring has a power of two of entries.
            1 << room.clamp(1, SEND_DEPTH).ilog2()
        })
    }

    /// What may hold buffers with `workers` workers.
    #[must_use]
    pub fn budget(&self, workers: u32) -> Budget {
        let ib = &self.infiniband;
        let segments = u32::try_from(self.segments.len()).unwrap_or(u32::MAX);
        let (ethernet, ports) = (count(self.ethernet_ports()), self.infiniband_port_count());
        // A frame in buffers: an Ethernet receive takes one after the other.
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
            // A cache holds up to half as much again before it gives back.
            caches: (u32::from(self.buffers.cache) * 3 / 2).saturating_mul(workers + 1),
            reserve: 0,
        };
        // So that the reserve is its share of the sum.
        let percent = u32::from(self.buffers.receive_reserve);
        let others = u64::from(budget.total());
        let reserve = others * u64::from(percent) / u64::from(100 - percent.min(99));
        budget.reserve = u32::try_from(reserve).unwrap_or(u32::MAX);
        budget
    }

    /// Buffers that `workers` workers need, so that every queue can be full ([`Config::budget`]).
    #[must_use]
    pub fn buffers_needed(&self, workers: u32) -> u32 {
        self.budget(workers).total()
    }

    /// Checks what is promised against what `workers` workers can hold.
    pub fn check(&self, workers: u32) -> Result<(), ConfigError> {
        self.promises(workers).into_iter().next().map_or(Ok(()), Err)
    }

    /// All that is promised beyond what `workers` workers can hold.
    pub(crate) fn promises(&self, workers: u32) -> Vec<ConfigError> {
        let mut all = self.beyond_devices();
        all.extend(self.beyond_queue_pairs(workers));
        let mut promise = |key, what, remedy: String| all.push(ConfigError::Promise { key, what, remedy });
        let needed = self.buffers_needed(workers);
        if needed > MAX_BUFFERS {
            let what = format!(
                "the queues of {workers} worker(s) need {needed} buffers, and there are at most {MAX_BUFFERS}"
            );
            let remedy =
                "make it smaller, and receive-mtu and the other queues' depths; or take fewer workers";
            promise("infiniband.srq-depth", what, remedy.to_owned());
        }
        if let Some(count) = self.buffers.count
            && count.get() < needed
        {
            let what = format!("{count} are too few for {workers} worker(s), whose queues need {needed}");
            let remedy = "write 0 to have them counted, or make srq-depth smaller";
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
                "write at most {}, make max-connections smaller, or give the gateway more workers",
                1 << (PROMISED / share.active).max(4).ilog2()
            );
            promise("infiniband.connection-send-depth", what, remedy);
        }
        all
    }

    /// The Ethernet ports, in the order in which segments name them, then those that are open and that no
    /// segment names any more; `None` = the only one that there is.
    pub fn ethernet_ports(&self) -> impl Iterator<Item = Option<&str>> {
        let open = self.open.ethernets.iter().map(Option::as_deref);
        first_of_each(self.segments.iter().map(|s| s.ethernet.as_deref()).chain(open))
    }

    /// The InfiniBand ports, each with its device, in the same order; `None` =
    /// the first device that there is.
    pub fn infiniband_ports(&self) -> impl Iterator<Item = (Option<&str>, u8)> {
        let open = self.open.infinibands.iter().map(|(device, port)| (device.as_deref(), *port));
        first_of_each(self.segments.iter().map(|segment| (self.device_of(segment), segment.port)).chain(open))
    }

    /// The names of these ports, for a configuration that takes this one's place while they stay open.
    pub(crate) fn open_ports(&self) -> OpenPorts {
        OpenPorts {
            ethernets: self.ethernet_ports().map(|name| name.map(str::to_owned)).collect(),
            infinibands: self
                .infiniband_ports()
                .map(|(device, port)| (device.map(str::to_owned), port))
                .collect(),
        }
    }

    /// A segment's InfiniBand device; `None` = the first one that there is.
    #[must_use]
    pub fn device_of<'s>(&'s self, segment: &'s Segment) -> Option<&'s str> {
        segment.device.as_deref().or_else(|| self.first_soft())
    }

    fn infiniband_port_count(&self) -> u32 {
        count(self.infiniband_ports())
    }

    /// The name of the software device that segments without a device are on.
    fn first_soft(&self) -> Option<&str> {
        let soft = self.infiniband.soft.first().filter(|_| self.infiniband.is_soft());
        soft.map(|soft| soft.name.as_str())
    }
}

pub(crate) fn count<T>(things: impl Iterator<Item = T>) -> u32 {
    u32::try_from(things.count()).unwrap_or(u32::MAX)
}

/// Each thing once, in the order in which they come first.
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
