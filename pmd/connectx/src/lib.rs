//! The software ConnectX: a device model behind mlx5 rings, and the cables that connect its ports.
//!
//! [`engine::Engine`] is the device's side of the rings that a driver writes. It executes work queue entries,
//! runs the transports and writes completions. It also answers as the subnet management agent of its ports.
//! It shares only the in-memory formats with the driver ([`prm`]), so that each side checks the other.
//!
//! A port is an InfiniBand or an Ethernet port. An Ethernet port speaks RoCEv2 and resolves its neighbors
//! without the host ([`ethernet`]). The transports do not see the difference.
//!
//! Each call of [`engine::Engine::step`] does a bounded amount of work; the caller passes the time. Any
//! thread may call it. The device treats input from cables and rings as hostile: it checks and bounds it, and
//! counts drops by reason.
//!
//! `unsafe` is used where memory is shared (the host's rings, records and buffers, and the rings of cables),
//! and where the system offers no safe call.

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
