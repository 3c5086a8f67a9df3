//! Contexts: the attributes of a queue or a key in the commands that create it.

mod qp;
mod queue;
mod rmp;

pub use qp::{AddressPath, QpContext, opt_param, qp_service, qp_state, rq_type};
pub use queue::{CqContext, EqContext, SrqContext};
pub use rmp::{RmpContext, WorkQueueContext};
