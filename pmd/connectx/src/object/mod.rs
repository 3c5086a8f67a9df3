//! Objects that the host creates on the device: memory regions, queues, queue pairs, group attachments.

pub(super) mod cq;
pub(super) mod fast;
pub(super) mod mcast;
pub(super) mod moderation;
pub(super) mod mr;
pub(super) mod qp;
pub(super) mod receive;
pub(super) mod send;
pub(super) mod table;
pub(super) mod xrc;
