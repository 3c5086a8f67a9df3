//! The application: address translation, neighbours, IPoIB links and connections, and the forwarding step.
#![forbid(unsafe_code)]

pub mod counter;
pub mod ctl;
pub mod drop_reason;
pub mod endpoint;
pub mod forward;
pub mod gateway;
pub mod gids;
pub mod link;
pub mod packet;
