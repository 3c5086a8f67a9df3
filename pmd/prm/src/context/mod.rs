//! Contexts: what a driver tells the device of a queue or a key when it creates it.

mod qp;
mod queue;
mod rmp;

pub use qp::{AddressPath, QpContext, opt_param, qp_service, qp_state, rq_type};
pub use queue::{CqContext, EqContext, SrqContext};
pub use rmp::{RmpContext, WorkQueueContext};
