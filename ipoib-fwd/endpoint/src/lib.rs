//! IPoIB links of a port on a device: joins the sans-IO [`Port`](ipoib::port::Port) and its links to the
//! control path and the data path of a device.
//!
//! ```text
//!   control lcore: Endpoint ── commands ──> LinkWorker :worker lcore
//!     Port, Backend         <── notes ────   Queues: a datagram queue pair for each link, at its index
//!                           ── tables ────>  (published by a Board, immutable)
//! ```
//!
//! Links are added and removed at run time ([`Endpoint::add_link`], [`Endpoint::remove_link`]). An owner of
//! exactly one link accesses it by [`Endpoint::link`].
//!
//! The gateway has one endpoint and N workers on lcores. A virtual host of the software fabric has one
//! endpoint and one worker that take turns on one thread. The rings also carry messages that an application
//! adds (`C` and `N`).

mod backoff;
mod control;
mod held;
mod long;
mod message;
mod query;
mod view;
mod worker;

pub use backoff::Backoff;
pub use control::{Endpoint, EndpointConfig, EndpointError, EndpointPlace, RING, WorkerSizes};
pub use held::HELD;
pub use long::{KeyNote, LongMessages, LongStatistics};
pub use message::{Command, Losses, Note};
pub use view::{Board, LinkUpdate, LinkView, Peer, ViewBoard};
pub use worker::{LinkWorker, RESERVE, Sent, Tag, Taken, UD, Waited, note, send};
