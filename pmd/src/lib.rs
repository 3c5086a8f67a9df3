//! Poll-mode drivers: EAL, packet buffers, Ethernet ports, and host channel adapters.
//!
//! * [`compare`] – comparison of several integers at once.
//! * [`eal`] – safe interface to DPDK's EAL: start, lcores.
//! * [`mem`] – packet buffers (mbufs) in hugepage pools.
//! * [`eth`] – Ethernet ports (ethdevs).
//! * [`fetch`] – software prefetch.
//! * [`gids`] – copies of devices' GID tables, private or shared.
//! * [`hca`] – the device abstraction: control path and data path of a host channel adapter.
//! * [`mlx5`] – the driver for mlx5 rings, generic over the bus that carries its doorbells.
//! * [`shm`] – memory shared by processes, used for published GID tables.
//! * [`soft`] – the software ConnectX (crate [`connectx`]) as a host channel adapter.
//! * [`verbs`] – host channel adapters through libibverbs, management datagrams through libibumad.

mod bookkeeping;
pub mod compare;
pub mod eal;
pub mod eth;
pub mod fetch;
pub mod gids;
pub mod hca;
pub mod mem;
pub mod mlx5;
pub mod shm;
pub mod soft;
pub mod verbs;
