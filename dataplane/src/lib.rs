//! The runtime of the data plane: what every poll-mode application needs around its forwarding step.
//!
//! * [`worker`] – the loop of a worker lcore, with its idle policy.
//! * [`ring`] – bounded rings between one worker and the control lcore.
//! * [`quiescence`] – who may still use it: when no worker can reach a thing any more.
//! * [`table`] – publication of immutable tables to workers; old versions are freed by the publisher only.
//! * [`usage`] – what was used: which of many things a worker has used lately.
//! * [`counter`] and [`latency`] – counters and HDR histograms that a worker owns and others may read.
//! * [`capture`] – capture files, written from taps.
//! * [`filter`] – which packets a capture or a trace wants.
//! * [`control`] – the control lcore's event loop: ticks, signals, requests.
//! * [`service`] – the service manager: readiness, status, watchdog.
//! * [`telemetry`] – the control socket, in the shape of DPDK telemetry v2, and its client.
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
