//! Limits of the software ConnectX.

use crate::buffers::count;
use crate::error::ConfigError;
use crate::settings::Config;

const MAX_CONNECTIONS: &str = "infiniband.max-connections";
/// Number of queue pairs of a software device.
const QUEUE_PAIRS: u32 = 8192;
/// Number of datagram queue pairs of a worker on each port: one for each segment that a reload may add.
const DATAGRAM_PAIRS: u32 = 128;
/// Maximum number of send requests of a datagram queue pair: each takes two WQEBBs of a ring of 32,768.
const DATAGRAM_SENDS: u32 = 16_384;
/// Maximum number of receive requests of a shared receive queue.
const SHARED_RECEIVES: u32 = 32_767;

impl Config {
    /// Returns all errors about limits of software devices that do not depend on the number of workers.
    pub(crate) fn beyond_devices(&self) -> Vec<ConfigError> {
        let ib = &self.infiniband;
        if !ib.is_soft() {
            return Vec::new();
        }
        let depths = [
            ("infiniband.ud-send-depth", ib.ud_send_depth, DATAGRAM_SENDS),
            ("infiniband.ud-receive-depth", ib.ud_receive_depth, SHARED_RECEIVES),
            ("infiniband.srq-depth", ib.srq_depth, SHARED_RECEIVES),
        ];
        let beyond = depths.into_iter().filter(|(_, depth, most)| depth > most);
        beyond
            .map(|(key, depth, most)| ConfigError::Promise {
                key,
                what: format!("{depth} exceeds the limit of {most} of a software ConnectX"),
                remedy: format!("write at most {most}"),
            })
            .collect()
    }

    /// Returns an error if one worker has more connections on one port than a software device's queues
    /// support.
    pub(crate) fn beyond_queue_pairs(&self, workers: u32) -> Option<ConfigError> {
        let each = QUEUE_PAIRS - DATAGRAM_PAIRS;
        if !self.infiniband.is_soft() || self.connection_share(workers).both() <= each {
            return None;
        }
        let most = self.most_with_share(each, workers).min(self.most_connections(workers));
        let (what, remedy) = self.too_many_connections(most, workers);
        Some(ConfigError::Promise { key: MAX_CONNECTIONS, what, remedy })
    }

    /// Returns a problem with its remedy if `workers` workers may together have more connections than their
    /// software device has queue pairs, although each worker's queues fit.
    #[must_use]
    pub fn overcommitted_connections(&self, workers: u32) -> Option<(String, String)> {
        let most = self.most_connections(workers);
        let is_over = self.infiniband.is_soft()
            && self.infiniband.max_connections > most
            && self.beyond_queue_pairs(workers).is_none();
        is_over.then(|| self.too_many_connections(most, workers))
    }

    fn too_many_connections(&self, most: u32, workers: u32) -> (String, String) {
        let what = format!(
            "a software ConnectX has room for {most} connections with {workers} worker{}, and max-connections = {}",
            if workers == 1 { "" } else { "s" },
            self.infiniband.max_connections
        );
        let remedy = match most {
            0..2 => "use fewer workers: their datagram queue pairs leave none for connections".to_owned(),
            most => format!("write at most {most}"),
        };
        (what, remedy)
    }

    /// Returns the maximum `max-connections` for which each software device has enough queue pairs for all
    /// workers.
    fn most_connections(&self, workers: u32) -> u32 {
        let ports: Vec<_> = self.infiniband_ports().collect();
        let of_worker = QUEUE_PAIRS / workers.max(1);
        let each = ports.iter().map(|(device, _)| {
            let used = count(ports.iter().filter(|(other, _)| other == device));
            let datagrams = count(self.segments.iter().filter(|segment| self.device_of(segment) == *device));
            of_worker.saturating_sub(datagrams) / used.max(1)
        });
        self.most_with_share(each.min().unwrap_or(of_worker), workers)
    }

    /// Returns the maximum `max-connections` that gives a worker at most `each` on a port
    /// ([`Config::connection_share`]).
    fn most_with_share(&self, each: u32, workers: u32) -> u32 {
        let shares = workers.max(1).saturating_mul(count(self.infiniband_ports()).max(1));
        (each - each % 2).saturating_mul(shares).saturating_add(each % 2)
    }
}
