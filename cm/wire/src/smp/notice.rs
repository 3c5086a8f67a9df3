//! Traps of subnet management: a Notice cut to the 64 bytes of a subnet management packet (IBA 14.2.5.1).

use super::{Attribute, Capabilities, DATA_LEN, NodeType, Smp, attribute};

/// Maximum hops of a directed route in trap 256.
const NOTICE_HOPS: u8 = 30;

use crate::layout::Field;
use crate::mad::Method;
use crate::sa::{Notice, trap};
use crate::{Lid, Qpn, Tid};

impl Attribute for Notice {
    const ID: u16 = attribute::NOTICE;

    fn from_data(data: &[u8; DATA_LEN]) -> Self {
        // The issuer's GID lies after the cut and reads as zero.
        Field::get(data, 0, Self::LEN * 8)
    }

    fn to_data(&self, data: &mut [u8; DATA_LEN]) {
        Field::put(self, data, 0, Self::LEN * 8);
    }
}

impl Notice {
    /// Builds trap 128 of the switch at `lid`: one of its links changed its state.
    #[must_use]
    pub fn link_state_change(lid: Lid) -> Self {
        let mut notice = Self::about_gid(trap::LINK_STATE, lid, crate::Gid::ZERO);
        notice.kind = crate::sa::NoticeType::new(1);
        notice.producer = Qpn::new(2);
        lid.put(&mut notice.details, 0, 16);
        notice
    }

    /// Builds trap 144 of the channel adapter port at `lid`: its capabilities changed.
    #[must_use]
    pub fn capability_change(lid: Lid, capabilities: Capabilities) -> Self {
        let mut notice = Self::about_gid(trap::CAPABILITY_CHANGE, lid, crate::Gid::ZERO);
        notice.kind = crate::sa::NoticeType::new(4);
        notice.producer = Qpn::new(1);
        lid.put(&mut notice.details, 16, 16);
        capabilities.put(&mut notice.details, 48, 32);
        notice
    }

    /// Builds trap 144 of the channel adapter port at `lid`: its node description changed.
    #[must_use]
    pub fn description_change(lid: Lid, capabilities: Capabilities) -> Self {
        let mut notice = Self::capability_change(lid, capabilities);
        // OtherLocalChanges, and the flag NodeDescriptionChanged.
        true.put(&mut notice.details, 47, 1);
        true.put(&mut notice.details, 95, 1);
        notice
    }

    /// Builds trap 256 of the port at `lid` on a node of type `node`: the request `smp` from `source` has a
    /// wrong M_Key.
    #[must_use]
    pub fn bad_mkey(node: NodeType, lid: Lid, source: Lid, smp: &Smp) -> Self {
        let mut notice = Self::about_gid(trap::BAD_MKEY, lid, crate::Gid::ZERO);
        notice.kind = crate::sa::NoticeType::new(2);
        notice.producer = Qpn::new(node.code().into());
        let details = &mut notice.details;
        source.put(details, 16, 16);
        smp.header.method.put(details, 48, 8);
        smp.header.attribute.put(details, 64, 16);
        smp.header.modifier.put(details, 80, 32);
        smp.mkey.put(details, 112, 64);
        if smp.is_directed() {
            smp.dr_slid.put(details, 32, 16);
            true.put(details, 184, 1);
            let hops = smp.hop_count().min(NOTICE_HOPS);
            (hops < smp.hop_count()).put(details, 185, 1);
            (u16::from(hops)).put(details, 186, 6);
            let way = smp.return_path.iter().skip(1).take(hops.into());
            details.iter_mut().skip(24).zip(way).for_each(|(to, port)| *to = *port);
        }
        notice
    }

    /// Converts the notice to a trap for the subnet manager.
    #[must_use]
    pub fn to_trap(&self, tid: Tid) -> Smp {
        Smp::lid_routed(Method::Trap, tid, attribute::NOTICE, 0).with(self)
    }
}
