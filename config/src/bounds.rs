//! What the software ConnectX has room for: known before it is opened.

use crate::error::ConfigError;
use crate::settings::Config;

/// Queue pairs of a software device.
const QUEUE_PAIRS: u32 = 8192;
/// Datagram queue pairs that a worker keeps room for on each port: one for each segment that a reload may add.
const DATAGRAM_PAIRS: u32 = 128;
/// Most send requests of a datagram queue pair: each takes two blocks of a ring of 32,768.
const DATAGRAM_SENDS: u32 = 16_384;
/// Most receive requests of a shared receive queue.
const SHARED_RECEIVES: u32 = 32_767;

impl Config {
    /// All that software devices cannot give, whatever the number of workers.
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
                what: format!("{depth} are more than the {most} of a software ConnectX"),
                remedy: format!("write at most {most}"),
            })
            .collect()
    }

    /// The connections of `workers` workers, if their software device does not have that many queue pairs.
    pub(crate) fn beyond_queue_pairs(&self, workers: u32) -> Option<ConfigError> {
        if !self.infiniband.is_soft() {
            return None;
        }
        let most = self.most_connections(workers);
        (self.infiniband.max_connections > most).then(|| ConfigError::Promise {
            key: "infiniband.max-connections",
            what: format!(
                "{} connections are more than the {QUEUE_PAIRS} queue pairs of a software ConnectX hold with {workers} worker(s)",
                self.infiniband.max_connections
            ),
            remedy: match most {
                0..2 => "take fewer workers: their datagram queue pairs leave none for connections".to_owned(),
                most => format!("write at most {most}"),
            },
        })
    }

    /// The most that `max-connections` may be with `workers` workers on software devices.
    fn most_connections(&self, workers: u32) -> u32 {
        let ports: Vec<_> = self.infiniband_ports().collect();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).max(1);
        // The device with the most ports in use is full first.
        let on_one =
            ports.iter().map(|(device, _)| ports.iter().filter(|(other, _)| other == device).count());
        let on_one = count(on_one.max().unwrap_or(1));
        let each = (QUEUE_PAIRS / (workers.max(1) * on_one)).saturating_sub(DATAGRAM_PAIRS);
        each.saturating_mul(workers.max(1)).saturating_mul(count(ports.len()))
    }
}
