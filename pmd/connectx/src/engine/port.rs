//! Engine calls on ports and their tables.

use gidcache::{Attributes, Entry};
use ib_wire::mad::{MAD_LEN, MadHeader, MgmtClass};
use ib_wire::sa::Notice;
use ib_wire::smp::{Capabilities, GuidBlock, PortInfo, Smp};
use ib_wire::{Gid, Lid, Mtu, PKey};

use super::{Engine, not_found};
use crate::cable::{CableEnd, CableTrouble};
use crate::gids::Refused;
use crate::port::Port;
use crate::sma::{MKeyCheck, Response};
use crate::{pma, sma};
use hca::{AsyncEvent, HcaError, LinkLayer, PortAttributes, PortNumber, PortState};

impl Engine {
    pub(crate) fn port_mut(&mut self, port: PortNumber) -> Result<&mut Port, HcaError> {
        let index = usize::from(port.0).wrapping_sub(1);
        self.dev.ports.get_mut(index).ok_or_else(|| not_found("port", port.0))
    }

    pub(super) fn port(&self, port: PortNumber) -> Result<&Port, HcaError> {
        let index = usize::from(port.0).wrapping_sub(1);
        self.dev.ports.get(index).ok_or_else(|| not_found("port", port.0))
    }

    /// True for an Ethernet port.
    pub fn is_ethernet(&self, port: PortNumber) -> bool {
        self.port(port).is_ok_and(|p| p.ethernet.is_some())
    }

    /// The response of a port's agents to a subnet or performance management request from its own host, which
    /// does not use the cable. `None` if there is no response: the MAD is no request, is of another class, or
    /// has a wrong M_Key.
    pub fn management(
        &mut self,
        port: PortNumber,
        mad: &[u8; MAD_LEN],
        check: MKeyCheck,
    ) -> Option<Box<[u8; MAD_LEN]>> {
        let Self { dev, config, .. } = self;
        let ports = dev.ports.len() as u8;
        let port = dev.ports.get_mut(usize::from(port.0).wrapping_sub(1))?;
        match MadHeader::of(mad).class {
            MgmtClass::Perf => pma::respond(mad, |named| port.tally(named)),
            class if class.is_smp() => {
                let smp = Smp::from_mad(mad).ok()?;
                match sma::respond(port, config, ports, &smp, check, &mut dev.events) {
                    Response::Answer(answer) => Some(answer.to_bytes()),
                    Response::None | Response::NotForAgent => None,
                    Response::Refused => {
                        sma::raise_bad_mkey_trap(port, port.lid, &smp);
                        None
                    }
                }
            }
            _ => None,
        }
    }

    /// PortInfo of a port, without its M_Key.
    pub fn port_info(&self, port: PortNumber) -> Result<PortInfo, HcaError> {
        Ok(sma::port_info(self.port(port)?))
    }

    /// Sets the capabilities of a port that `mask` selects to their value in `value`, and notifies the subnet
    /// manager of a change (trap 144).
    pub fn set_capabilities(
        &mut self,
        port: PortNumber,
        mask: Capabilities,
        value: Capabilities,
    ) -> Result<(), HcaError> {
        let port = self.port_mut(port)?;
        let capabilities = port.capabilities.difference(mask) | value.intersection(mask);
        if port.capabilities != capabilities {
            port.capabilities = capabilities;
            port.traps.raise(&Notice::capability_change(port.lid, capabilities));
        }
        Ok(())
    }

    /// Sets the node description, and notifies the subnet manager (trap 144).
    pub fn set_description(&mut self, description: String) {
        let Self { dev, config, .. } = self;
        if config.description != description {
            config.description = description;
            for port in &mut dev.ports {
                port.traps.raise(&Notice::description_change(port.lid, port.capabilities));
            }
        }
    }

    /// Connects a cable to a port, or disconnects it.
    pub fn set_cable(&mut self, port: PortNumber, cable: Option<CableEnd>) -> Result<(), HcaError> {
        let Self { dev, .. } = self;
        let index = usize::from(port.0).wrapping_sub(1);
        let p = dev.ports.get_mut(index).ok_or_else(|| not_found("port", port.0))?;
        if cable.as_ref().is_some_and(|cable| cable.is_ethernet() != p.ethernet.is_some()) {
            return Err(HcaError::Environment(
                "an InfiniBand port takes a shm: or udp: link, an Ethernet port a roce: link".into(),
            ));
        }
        if cable.is_none() {
            p.set_state(PortState::Down, &mut dev.events);
        }
        p.cable = cable;
        Ok(())
    }

    /// The cable of a port.
    pub fn cable(&self, port: PortNumber) -> Option<&CableEnd> {
        self.port(port).ok()?.cable.as_ref()
    }

    /// Sets a port's LID and makes it ACTIVE, as a subnet manager would; for devices connected without one.
    pub fn activate(&mut self, port: PortNumber, lid: Lid, mtu: Mtu) -> Result<(), HcaError> {
        let Self { dev, .. } = self;
        let index = usize::from(port.0).wrapping_sub(1);
        let p = dev.ports.get_mut(index).ok_or_else(|| not_found("port", port.0))?;
        p.lid = lid;
        p.mtu = mtu.min(p.max_mtu);
        p.set_state(PortState::Active, &mut dev.events);
        Ok(())
    }

    /// Writes an entry of a port's P_Key table, as a subnet manager would.
    pub fn set_pkey(&mut self, port: PortNumber, index: u16, key: PKey) -> Result<(), HcaError> {
        let port = self.port_mut(port)?;
        *port.pkeys.get_mut(usize::from(index)).ok_or_else(|| not_found("P_Key index", index))? = key;
        Ok(())
    }

    /// Sets the prefix of an InfiniBand port's GIDs, as a subnet manager would.
    pub fn set_gid_prefix(&mut self, port: PortNumber, prefix: u64) -> Result<(), HcaError> {
        self.port_mut(port)?.gids.set_prefix(prefix);
        Ok(())
    }

    /// Writes a block of an InfiniBand port's further GUIDs, as a subnet manager would.
    pub fn set_guids(&mut self, port: PortNumber, block: u8, guids: &GuidBlock) -> Result<(), HcaError> {
        let written = self.port_mut(port)?.gids.set_block(block.into(), guids);
        written.map(drop).ok_or_else(|| not_found("block of GUIDs", block))
    }

    /// Why a port's cable is down.
    #[must_use]
    pub fn cable_trouble(&self, port: PortNumber) -> Option<CableTrouble> {
        self.port(port).ok()?.cable.as_ref()?.trouble()
    }

    /// Current attributes of a port.
    pub fn port_attributes(&self, port: PortNumber) -> Result<PortAttributes, HcaError> {
        let p = self.port(port)?;
        Ok(PortAttributes {
            state: p.state,
            link_layer: p.link_layer,
            lid: p.lid,
            lmc: p.lmc,
            sm_lid: p.sm_lid,
            sm_sl: p.sm_sl,
            active_mtu: p.mtu,
            max_mtu: p.max_mtu,
            gid_table_len: p.gids.len(),
            pkey_table_len: p.pkeys.len() as u16,
            guid: p.guid,
            grh_required: p.grh_required,
        })
    }

    /// Makes an InfiniBand port share its LID with others, as the port of a virtual function does: it sends
    /// and accepts data packets only with a GRH.
    pub fn require_grh(&mut self, port: PortNumber) -> Result<(), HcaError> {
        self.port_mut(port)?.grh_required = true;
        Ok(())
    }

    /// Entry of a port's GID table.
    pub fn gid(&self, port: PortNumber, index: u16) -> Result<Gid, HcaError> {
        let gids = &self.port(port)?.gids;
        if index >= gids.len() {
            return Err(not_found("GID index", index));
        }
        Ok(gids.gid(usize::from(index)))
    }

    /// All entries of all ports' GID tables.
    pub fn gids(&self) -> Vec<Entry> {
        let of = |port: &Port| {
            let number = port.number;
            let default = |index| port.link_layer == LinkLayer::InfiniBand && index == 0;
            let entries = port.gids.entries();
            let entry =
                move |(index, attributes)| Entry { port: number, index, attributes, default: default(index) };
            entries.map(entry).collect::<Vec<_>>()
        };
        self.dev.ports.iter().flat_map(of).collect()
    }

    /// Writes or clears an entry of an Ethernet port's GID table.
    pub fn set_gid(
        &mut self,
        port: PortNumber,
        index: u16,
        entry: Option<Attributes>,
    ) -> Result<(), HcaError> {
        let Self { dev, .. } = self;
        let at = usize::from(port.0).wrapping_sub(1);
        let p = dev.ports.get_mut(at).ok_or_else(|| not_found("port", port.0))?;
        match p.gids.write(index, entry) {
            Ok(true) => dev.events.raise(AsyncEvent::GidChange(port)),
            Ok(false) => {}
            Err(Refused::Index) => return Err(not_found("GID index", index)),
            Err(Refused::Kind) => {
                return Err(HcaError::Environment(format!(
                    "port {} has no writable GID of this index and type",
                    port.0
                )));
            }
        }
        Ok(())
    }

    /// Entry of a port's P_Key table; 0 if empty.
    pub fn pkey(&self, port: PortNumber, index: u16) -> Result<PKey, HcaError> {
        let key = self.port(port)?.pkeys.get(usize::from(index)).copied();
        key.ok_or_else(|| not_found("P_Key index", index))
    }

    /// Index of the first entry of a port's P_Key table that matches a P_Key, full members first.
    pub fn find_pkey(&self, port: PortNumber, key: PKey) -> Option<u16> {
        self.port(port).ok()?.find_pkey(key)
    }

    /// Index of one of a port's own GIDs.
    pub fn gid_index(&self, port: PortNumber, gid: Gid) -> Option<u8> {
        self.port(port).ok()?.gids.find(gid)
    }
}
