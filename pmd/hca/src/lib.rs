//! The words of the device seam: what host channel adapters and those who use them say to each other, whatever drives
//! them. Numbers and attributes only: no packet buffer, no device. The traits that speak them are `pmd::hca`'s.
//!
//! * [`AddressVector`], [`UdDestination`] – where a packet goes.
//! * [`DeviceAttributes`], [`PortAttributes`], [`AsyncEvent`] – what a device is and what befalls it.
//! * [`QpState`], [`QpTransition`] – life of a queue pair (IBA 10.3.1).
//! * [`QueuesConfig`], [`UdConfig`], [`RcConfig`] – a worker's queues.
//! * [`Checksum`] – what a device tells of packets inside of messages.
//! * [`MemoryKey`], [`KeyRights`], [`FastRegistration`] – names of memory, and the rights that go with them.
//! * [`Source`], [`WcStatus`], [`QpEvent`] – what comes of receives and sends.
//! * [`counted!`] – what is counted, by reason: one table for variants, labels and words.
#![forbid(unsafe_code)]

mod address;
mod completion;
mod counted;
mod device;
mod error;
mod key;
mod offload;
mod qp;
mod queues;

pub use address::{AddressVector, GlobalRoute, UdDestination};
pub use completion::{PostError, QpEvent, QpFault, WcStatus};
pub use device::{AsyncEvent, DeviceAttributes, LinkLayer, PortAttributes, PortState};
pub use error::HcaError;
pub use ib_wire::PortNumber;
pub use key::{FastRegistration, Fence, KeyRights, MemoryKey, RegisteredBy};
pub use offload::Checksum;
pub use qp::{QpState, QpTransition, RcToReceive, RcToSend, RemoteAccess, UcToReceive};
pub use queues::{BURST, QueuesConfig, QueuesId, RcConfig, RcSlot, Source, UdConfig, UdSlot, UdSource};
