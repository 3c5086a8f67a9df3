//! The software ConnectX as a PCI device.
//!
//! `softhca` serves vfio-user ([`vfio_user`]): a virtual machine monitor attaches the device to its guest,
//! whose unmodified mlx5 drivers bind to it. This crate is the layer between the drivers and the engine
//! (`connectx`): configuration space ([`pci`]), registers ([`bar`]), the guest's memory ([`memory`]),
//! commands, event queues and interrupts ([`hca`]).
//!
//! All input from the guest is hostile: addresses are looked up, lengths and numbers are bounded, and data is
//! copied before it is checked. A guest that violates the interface gets a command status, or loses its own
//! packets and events.
//!
//! One thread does all work ([`serve`]), optionally pinned to a core ([`lcore`]). `unsafe` is confined to the
//! file that maps the guest's memory.
#![deny(unsafe_code)]

pub mod bar;
pub mod hca;
pub mod lcore;
pub mod memory;
pub mod options;
pub mod pci;
pub mod serve;
pub mod vectors;
pub mod vfio_user;
