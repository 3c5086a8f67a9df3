//! The present state of a port, and the view that each link has of it.

use hca::PortState;
use ib_wire::{Gid, Lid, Mtu, PKey, ServiceLevel};

use crate::link::{LinkSettings, PortFacts};

/// The present state of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Logical state; only `Active` carries links.
    pub state: PortState,
    /// Base LID.
    pub lid: Lid,
    /// LID mask control: the port has 2^lmc LIDs.
    pub lmc: u8,
    /// GID at index 0 of the port's table.
    pub gid: Gid,
    /// LID of the subnet manager.
    pub sm_lid: Lid,
    /// Service level of the path to it.
    pub sm_sl: ServiceLevel,
    /// MTU in use.
    pub mtu: Mtu,
    /// Packets to other ports need a GRH, whatever their path says.
    pub grh_required: bool,
    /// The P_Key table, by index; 0 in an empty entry.
    pub pkeys: Vec<PKey>,
}

impl Default for Facts {
    /// A port that is down.
    fn default() -> Self {
        let PortFacts { state, lid, lmc, gid, sm_lid, sm_sl, mtu, grh_required, .. } = PortFacts::DOWN;
        Self { state, lid, lmc, gid, sm_lid, sm_sl, mtu, grh_required, pkeys: Vec::new() }
    }
}

impl Facts {
    /// Index of the default P_Key in the table: that of full membership if both are present; 0 if there is
    /// none.
    fn default_pkey_index(&self) -> u16 {
        let index_of = |wanted: PKey| self.pkeys.iter().position(|key| *key == wanted);
        let at = index_of(PKey::DEFAULT).or_else(|| index_of(PKey(PKey::DEFAULT.base())));
        at.and_then(|at| u16::try_from(at).ok()).unwrap_or(0)
    }

    /// The port's state as seen by a link with these settings. The index of the full member's P_Key is
    /// preferred. That of a limited member is used only if the link accepts it, since other limited members
    /// cannot receive from it.
    #[must_use]
    pub fn of(&self, settings: &LinkSettings) -> PortFacts {
        let pkey = settings.pkey;
        let same = |key: &&PKey| key.base() == pkey.base() && key.base() != 0;
        let full = self.pkeys.iter().position(|key| same(&key) && key.is_full());
        let any = || self.pkeys.iter().position(|key| same(&key));
        let at = full.or_else(|| if settings.limited_will_do { any() } else { None });
        PortFacts {
            state: self.state,
            lid: self.lid,
            lmc: self.lmc,
            gid: self.gid,
            sm_lid: self.sm_lid,
            sm_sl: self.sm_sl,
            mtu: self.mtu,
            grh_required: self.grh_required,
            default_pkey_index: self.default_pkey_index(),
            pkey_index: at.and_then(|at| u16::try_from(at).ok()),
            limited: at.is_none() && self.pkeys.iter().any(|key| same(&key)),
        }
    }
}
