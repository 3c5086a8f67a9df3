//! Packets as they cross a link, LRH to VCRC (IBA chapters 5 to 9).
//!
//! [`Packet`] is a checked view over received bytes. [`Headers`] is the same information as a value.
//! [`Headers::write`] writes it into the caller's memory and [`Frame::seal`] finishes the packet, without
//! allocation.

mod bth;
mod encode;
mod extended;
mod grh;
mod lrh;
mod opcode;
mod parse;
mod roce;
mod series;
#[cfg(test)]
mod tests;
mod xrc;

pub use bth::{BTH_LEN, Bth};
pub use encode::{EncodeError, Frame, Headers};
pub use extended::{
    AETH_LEN, Aeth, AtomicEth, Credit, DETH_LEN, Deth, Extended, NakCode, RETH_LEN, Reth, RnrTimer, Syndrome,
};
pub use grh::{GRH_LEN, GRH_NEXT_HEADER, Grh};
pub use lrh::{LRH_LEN, Lnh, Lrh, VirtualLane};
pub use opcode::{Layout, Opcode, Service};
pub use parse::{Packet, ParseError, Transport};
pub use roce::{ROCEV2_FLOWS, ROCEV2_PORT, RoceFrame, RoceHeaders, RoceNetwork, RocePacket};
pub use series::Series;
pub use xrc::{XRCETH_LEN, XrcEth};
