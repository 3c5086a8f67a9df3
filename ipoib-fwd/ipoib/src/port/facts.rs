//! What a port is at the moment, for all its links; and what that is to each of them.

use hca::PortState;
use ib_wire::{Gid, Lid, Mtu, PKey, ServiceLevel};

use crate::link::{LinkSettings, PortFacts};

/// What a port is at the moment.
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
    /// Service level towards it.
    pub sm_sl: ServiceLevel,
    /// MTU in use.
    pub mtu: Mtu,
    /// Packets to other ports need a GRH, whatever their path says.
    pub grh_required: bool,
    /// The P_Key table, by index; 0 where it is empty.
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
    /// Where the default P_Key is in the table, as full member if there are both; the first place if there is none.
    fn default_pkey_index(&self) -> u16 {
        let place = |wanted: PKey| self.pkeys.iter().position(|key| *key == wanted);
        let at = place(PKey::DEFAULT).or_else(|| place(PKey(PKey::DEFAULT.base())));
        at.and_then(|at| u16::try_from(at).ok()).unwrap_or(0)
    }

    /// What the port is to a link with these settings. A full member's place in the table is best; a limited one's will do only
    /// where the link can live with it, since other limited members do not hear it.
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
