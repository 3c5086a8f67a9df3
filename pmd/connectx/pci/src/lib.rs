//! The software ConnectX as a PCI device.
//!
//! `softhca` serves vfio-user ([`vfio_user`]): a virtual machine monitor attaches the device to its guest, whose own mlx5 drivers
//! bind to it, unmodified. This room plays what lies between them and the engine (`connectx`): configuration space ([`pci`]),
//! registers ([`bar`]), the guest's memory ([`memory`]), commands, queues of events and interrupts ([`hca`]).
//!
//! Everything that the guest says is hostile: addresses are looked up, lengths and numbers bounded, what is decided about is copied
//! first. A guest that breaks its side gets a command status or loses its own packets and events.
//!
//! One thread does all ([`serve`]), on a core of its own if so told ([`lcore`]). `unsafe` is in one file, where the guest's memory is mapped.
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
