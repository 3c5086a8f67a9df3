//! SMInfo (IBA 14.2.5.13).

use crate::Guid;
use crate::layout::{layout, narrow_number, open_enum};

open_enum! {
    /// State of a subnet manager.
    pub enum SmState(u8) {
        /// Keeps still.
        NotActive = 0,
        /// Looks around.
        Discovering = 1,
        /// Waits for the master to fail.
        Standby = 2,
        /// Runs the subnet.
        Master = 3,
    }
}

narrow_number! {
    /// Priority of a subnet manager; the highest becomes master.
    SmPriority(u8, 4)
}

layout! {
    /// What a subnet manager says of itself.
    pub struct SmInfo[21] {
        /// Its port.
        guid: Guid = 0 @ 0, 64;
        /// SM_Key, shown only to those that have it.
        sm_key: u64 = 8 @ 0, 64;
        /// Counts what it did: a standby sees that the master lives.
        act_count: u32 = 16 @ 0, 32;
        /// Priority.
        priority: SmPriority = 20 @ 0, 4;
        /// State.
        state: SmState = 20 @ 4, 4;
    }
}
