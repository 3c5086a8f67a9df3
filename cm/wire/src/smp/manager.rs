//! SMInfo (IBA 14.2.5.13).

use crate::Guid;
use crate::layout::{layout, narrow_number, open_enum};

open_enum! {
    /// State of a subnet manager.
    pub enum SmState(u8) {
        /// Inactive.
        NotActive = 0,
        /// Discovering the subnet.
        Discovering = 1,
        /// Standby until the master fails.
        Standby = 2,
        /// Managing the subnet.
        Master = 3,
    }
}

narrow_number! {
    /// Priority of a subnet manager; the highest becomes master.
    SmPriority(u8, 4)
}

layout! {
    /// The attributes of a subnet manager.
    pub struct SmInfo[21] {
        /// GUID of its port.
        guid: Guid = 0 @ 0, 64;
        /// SM_Key, visible only to requesters that know it.
        sm_key: u64 = 8 @ 0, 64;
        /// Activity counter, which shows a standby that the master is alive.
        act_count: u32 = 16 @ 0, 32;
        /// Priority.
        priority: SmPriority = 20 @ 0, 4;
        /// State.
        state: SmState = 20 @ 4, 4;
    }
}
