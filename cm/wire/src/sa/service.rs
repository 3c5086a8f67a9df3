//! ServiceRecord (IBA 15.2.5.14).

use crate::layout::layout;
use crate::{Gid, PKey, ServiceId};

layout! {
    /// A service that a port offers.
    pub struct ServiceRecord[176] {
        /// Service id.
        id: ServiceId = 0 @ 0, 64;
        /// The port.
        gid: Gid = 8 @ 0, 128;
        /// Partition.
        pkey: PKey = 24 @ 0, 16;
        /// Lease in seconds; 0xffffffff = unlimited.
        lease: u32 = 28 @ 0, 32;
        /// Key that protects the registration.
        key: [u8; 16] = 32 @ 0, 128;
        /// Name, UTF-8, padded with zeros.
        name: [u8; 64] = 48 @ 0, 512;
        /// Service data.
        data: [u8; 64] = 112 @ 0, 512;
    }
}

bitflags::bitflags! {
    /// Components of a ServiceRecord. The 64 parts of its data, bits 7 and up, have no names here but are
    /// kept.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct ServiceMask: u64 {
        /// Service id.
        const ID = 1 << 0;
        /// GID.
        const GID = 1 << 1;
        /// P_Key.
        const PKEY = 1 << 2;
        /// Lease.
        const LEASE = 1 << 4;
        /// Key.
        const KEY = 1 << 5;
        /// Name.
        const NAME = 1 << 6;
        const _ = !0;
    }
}
