//! Runtime of the data plane: the parts of a poll-mode application around its forwarding step.
//!
//! * [`worker`] – the loop of a worker lcore, with its idle policy.
//! * [`ring`] – bounded rings between one worker and the control lcore.
//! * [`quiescence`] – memory reclamation (QSBR): grace periods after which no worker can reach an object any
//!   more.
//! * [`table`] – publication of immutable tables to workers; only the publisher frees old versions.
//! * [`usage`] – usage tracking: the objects that a worker has used recently.
//! * [`counter`] and [`latency`] – counters and HDR histograms that a worker owns and others may read.
//! * [`capture`] – capture files, written from taps.
//! * [`filter`] – packet filters for captures and traces.
//! * [`control`] – the control lcore's event loop: ticks, signals, requests.
//! * [`service`] – the service manager: readiness, status, watchdog.
//! * [`telemetry`] – the control socket, in the format of DPDK telemetry v2, and its client.
#![forbid(unsafe_code)]

pub mod capture;
pub mod control;
pub mod counter;
pub mod filter;
pub mod latency;
pub mod quiescence;
pub mod ring;
pub mod service;
pub mod table;
pub mod telemetry;
pub mod usage;
pub mod worker;
