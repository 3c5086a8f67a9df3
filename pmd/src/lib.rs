//! Poll-mode drivers: EAL, packet buffers, Ethernet ports, and host channel adapters.
//!
//! * [`compare`] – several words at once.
//! * [`eal`] – the safe face of DPDK's environment: start, lcores.
//! * [`mem`] – packet buffers (mbufs) in hugepage pools.
//! * [`eth`] – Ethernet ports (ethdevs).
//! * [`fetch`] – hints to the processor of what will be touched soon.
//! * [`gids`] – copies of devices' GID tables, for this process or shared.
//! * [`hca`] – the device seam: what a host channel adapter offers, cold and hot.
//! * [`mlx5`] – the driver of mlx5 rings, generic over the bus that its doorbells cross.
//! * [`shm`] – words of memory that processes share: published GID tables.
//! * [`soft`] – the software ConnectX (crate [`connectx`]) as such an adapter.
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
