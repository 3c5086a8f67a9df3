//! The software ConnectX: a device model behind mlx5 rings, and the cables that join its ports.
//!
//! [`engine::Engine`] owns the device's side of the rings that a driver writes: it executes work queue entries, runs the
//! transports, writes completions, and answers as the subnet management agent of its ports. It shares the formats in memory
//! with the driver ([`prm`]) and nothing else, so that the two check each other.
//!
//! A port is an InfiniBand or an Ethernet port. The latter speaks RoCEv2 and finds its neighbours by itself ([`ethernet`]); the
//! transports do not see the difference.
//!
//! It works in turns ([`engine::Engine::step`]), each bounded, with the time given from outside; any thread may give it
//! one. Input from the cables and from the rings is hostile to it: checked, bounded, counted by reason.
//!
//! `unsafe` is where memory is shared (rings, records and buffers of the host, rings of cables) and where the system has no
//! safe call.

mod addressing;
pub mod cable;
mod clock;
mod config;
mod connection;
mod counters;
mod device;
pub mod doorbell;
pub mod engine;
pub mod ethernet;
mod event;
mod frame;
mod gids;
mod ingress;
mod memory;
mod object;
pub mod pma;
mod port;
mod queue_counters;
mod rc;
mod region;
mod scatter;
mod sma;
#[cfg(test)]
mod tests;
pub mod trap;
mod uc;
mod ud;
mod umr;
mod wqe;

pub use clock::{CLOCK_KHZ, ticks};
pub use counters::{Activity, Counters, DropReason};
pub use event::DeviceEvent;
pub use gids::{DEFAULT_GIDS, MAX_GIDS};
pub use memory::HostMemory;
pub use object::fast::{FastKey, KeyStatus, ListKind, MAX_OCTOWORDS};
pub use object::mcast::{MAX_GROUP_MEMBERS, MAX_GROUPS};
pub use object::mr::{Access, ProtectionDomain, RESERVED_KEY};
pub use object::qp::{QpKind, RemoteOperations};
pub use object::xrc::{XrcDomain, XrcQueue};
pub use port::PortConfig;
pub use queue_counters::{COUNTER_SETS, QueueCount};
pub use rc::atomic::AnswerOrder;
pub use region::{MemoryPieces, RegionMemory};
pub use sma::MKeyCheck;
