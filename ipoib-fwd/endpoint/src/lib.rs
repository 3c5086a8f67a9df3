//! An IPoIB link at work on a device: what joins the sans-IO [`Link`](ipoib::link::Link) to a device's two faces.
//!
//! ```text
//!   control lcore: Endpoint ── commands ──> LinkWorker :worker lcore
//!     Link, Backend         <── notes ────   Queues
//!                           ── tables ────>  (published by a Board, immutable)
//! ```
//!
//! The gateway has one endpoint and N workers on lcores; a virtual host of the software fabric has one endpoint and one
//! worker that take turns on one thread. The rings carry what an application adds beside (`C` and `N`).

mod control;
mod message;
mod view;
mod worker;

pub use control::{Endpoint, EndpointConfig, EndpointError, RING, WorkerSizes};
pub use message::{Command, Losses, Note};
pub use view::{Board, LinkUpdate, LinkView, Peer, ViewBoard};
pub use worker::{LinkWorker, Sent, UD, note, send};
