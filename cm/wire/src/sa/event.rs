//! Subscription to events and their delivery: InformInfo (IBA 13.4.8.3) and Notice (13.4.8.2).

use crate::layout::{Field, layout, narrow_number};
use crate::{Gid, Lid, Qpn, TimeoutCode};

/// First LID of a subscription to the events of every port.
pub const SUBSCRIBE_ALL_LIDS: Lid = Lid(0xffff);

/// Trap numbers of subnet management (IBA 14.2.5.1).
pub mod trap {
    /// A GID came into service.
    pub const GID_IN_SERVICE: u16 = 64;
    /// A GID went out of service.
    pub const GID_OUT_OF_SERVICE: u16 = 65;
    /// A multicast group was created.
    pub const GROUP_CREATED: u16 = 66;
    /// A multicast group was deleted.
    pub const GROUP_DELETED: u16 = 67;
    /// A link of a switch changed its state.
    pub const LINK_STATE: u16 = 128;
    /// A port's capabilities, node description, link width or speed changed.
    pub const CAPABILITY_CHANGE: u16 = 144;
    /// Wrong M_Key.
    pub const BAD_MKEY: u16 = 256;
    /// Wrong P_Key.
    pub const BAD_PKEY: u16 = 257;
    /// Wrong Q_Key.
    pub const BAD_QKEY: u16 = 258;
}

layout! {
    /// Starts or ends a subscription.
    pub struct InformInfo[36] {
        /// GID of the port whose events are reported; zero selects the LID range.
        gid: Gid = 0 @ 0, 128;
        /// First LID; [`SUBSCRIBE_ALL_LIDS`] selects all.
        lid_begin: Lid = 16 @ 0, 16;
        /// Last LID; 0 selects only the first.
        lid_end: Lid = 18 @ 0, 16;
        /// 1 for traps of the specification, 0 for a vendor's.
        is_generic: u8 = 22 @ 0, 8;
        /// 1 starts the subscription, 0 ends it.
        subscribe: u8 = 23 @ 0, 8;
        /// Type of the events; 0xffff selects all.
        kind: u16 = 24 @ 0, 16;
        /// Trap number; 0xffff selects all.
        trap_number: u16 = 26 @ 0, 16;
        /// Queue pair that receives the reports; 1 when subscribing.
        qpn: Qpn = 28 @ 0, 24;
        /// Time that the subscriber takes to respond.
        response_time: TimeoutCode = 31 @ 3, 5;
        /// Producer of the event: 1 CA, 2 switch, 3 router, 4 class manager, 0xffffff all.
        producer: Qpn = 33 @ 0, 24;
    }
}

impl InformInfo {
    /// Starts or ends a subscription to one trap of all ports.
    #[must_use]
    pub const fn trap(trap_number: u16, subscribe: bool) -> Self {
        Self {
            gid: Gid::ZERO,
            lid_begin: SUBSCRIBE_ALL_LIDS,
            lid_end: Lid(0),
            is_generic: 1,
            subscribe: subscribe as u8,
            kind: 0xffff,
            trap_number,
            qpn: Qpn::GSI,
            response_time: TimeoutCode::new(19),
            producer: Qpn::new(Qpn::MASK),
        }
    }
}

narrow_number! {
    /// Type of a notice, 7 bits: 0 fatal, 1 urgent, 2 security, 3 subnet management, 4 informational.
    NoticeType(u8, 7)
}

narrow_number! {
    /// Count of notices, 15 bits.
    NoticeCount(u16, 15)
}

layout! {
    /// An event.
    pub struct Notice[80] {
        /// True for traps of the specification.
        is_generic: bool = 0 @ 0, 1;
        /// Type.
        kind: NoticeType = 0 @ 1, 7;
        /// Producer: 1 CA, 2 switch, 3 router, 4 class manager.
        producer: Qpn = 1 @ 0, 24;
        /// Trap number.
        trap_number: u16 = 4 @ 0, 16;
        /// LID of the issuer.
        issuer_lid: Lid = 6 @ 0, 16;
        /// Toggle of a Notice attribute; 0 in traps.
        toggle: bool = 8 @ 0, 1;
        /// Count.
        count: NoticeCount = 8 @ 1, 15;
        /// Details; their layout depends on the trap.
        details: [u8; 54] = 10 @ 0, 432;
        /// GID of the issuer.
        issuer_gid: Gid = 64 @ 0, 128;
    }
}

impl Notice {
    /// Builds a trap of the class manager about a GID: numbers 64 to 67.
    #[must_use]
    pub fn about_gid(trap_number: u16, issuer_lid: Lid, gid: Gid) -> Self {
        let mut details = [0; 54];
        gid.put(&mut details, 6 * 8, 128);
        Self {
            is_generic: true,
            kind: NoticeType::new(3),
            producer: Qpn::new(4),
            trap_number,
            issuer_lid,
            toggle: false,
            count: NoticeCount::new(0),
            details,
            issuer_gid: Gid::ZERO,
        }
    }

    /// The GID or MGID of traps 64 to 67.
    #[must_use]
    pub fn gid(&self) -> Option<Gid> {
        (self.is_generic && (trap::GID_IN_SERVICE..=trap::GROUP_DELETED).contains(&self.trap_number))
            .then(|| Gid::get(&self.details, 6 * 8, 128))
    }
}
