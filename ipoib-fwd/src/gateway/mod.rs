//! The gateway: workers between Ethernet ports and IPoIB links, and their control lcore.

mod board;
mod control;
mod cut;
mod devices;
mod end;
mod error;
mod frames;
mod gids;
mod keeper;
mod leases;
mod partial_checksum;
mod port_names;
mod privileges;
mod punts;
mod random;
mod report;
mod segment_parts;
mod sighting;
mod start;
mod tag;
mod worker;
mod writer;

pub use crate::state_directory::StateDirectoryInUse;
pub use end::Report;
pub use error::{GatewayError, Placed};
pub use leases::Leases;
pub use punts::Cause;
pub(crate) use random::random;
pub use start::Start;
pub use worker::{GatewayCommand, GatewayNote, GatewayWorker, WorkerParts};
