//! What a worker's queues keep of their queue pairs, whatever drives them.

mod connections;
mod health;

pub(crate) use connections::{Connected, Connections};
pub(crate) use health::{Completed, Health};
