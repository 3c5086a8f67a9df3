//! The types of the device abstraction: what host channel adapters and their users exchange, whatever the
//! driver. Numbers and attributes only: no packet buffers, no devices. The traits that use them are in
//! `pmd::hca`.
//!
//! * [`AddressVector`], [`UdDestination`] – destination of a packet.
//! * [`DeviceAttributes`], [`PortAttributes`], [`AsyncEvent`] – attributes of a device, and its asynchronous
//!   events.
//! * [`QpState`], [`QpTransition`] – states of a queue pair (IBA 10.3.1).
//! * [`QueuesConfig`], [`UdConfig`], [`RcConfig`] – a worker's queues.
//! * [`Checksum`] – RX checksum metadata of packets inside messages.
//! * [`MemoryKey`], [`KeyRights`], [`FastRegistration`] – memory keys and their rights.
//! * [`Source`], [`WcStatus`], [`QpEvent`] – results of receives and sends.
//! * [`counted!`] – counters by reason: one table for variants, labels and descriptions.
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
