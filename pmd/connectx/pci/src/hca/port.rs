//! Commands on ports and groups.

use connectx::MKeyCheck;
use hca::{PortNumber, PortState};
use ib_wire::mad::MAD_LEN;
use ib_wire::smp::{Capabilities, NodeDescription};
use ib_wire::{Gid, Qpn};
use prm::command::CommandStatus;
use prm::port::{Pmtu, Ptys, Pvlc, VportContext, register};
use zerocopy::big_endian::U32;

use super::Hca;
use super::command::{Fault, Input, Output};

/// Offset of a register's content in input and output.
const REGISTER: usize = 0x10;
/// Modifier of a command that writes a register.
const WRITE: u16 = 0;
/// Modifier bit of a management datagram: its sender need not know the M_Key.
const IGNORE_MKEY: u16 = 1;
/// Offset of a management datagram in input and output.
const MAD: usize = 0x10;
/// Offset of a port's context in input and output.
const VPORT: usize = 0x10;
/// Index of P_Key and GID queries that selects all entries.
const ALL: u16 = 0xffff;
/// 1x and 4x.
const WIDTHS: u16 = 0x5;
const X4: u16 = 0x4;
/// SDR to EDR.
const SPEEDS: u16 = 0x3f;
const EDR: u16 = 0x20;
/// The port is up, and its state is not set by an administrator.
const UP: u8 = 0x11;

/// Position of the port number in commands on ports: the four bits above the number of a virtual port.
const PORT_SHIFT: u32 = 16;

impl Hca {
    /// The port that a command names. Drivers of a device with one port do not name it.
    fn named_port(&self, input: &Input) -> Result<PortNumber, Fault> {
        let named = (input.header().number.get() >> PORT_SHIFT & 0xf) as u8;
        self.existing_port(if named == 0 && self.config.second_port.is_none() { 1 } else { named })
    }

    /// The port with this number, if it exists.
    pub(super) fn existing_port(&self, number: u8) -> Result<PortNumber, Fault> {
        let known = self.config.ports().map(|(known, _)| known).find(|known| known.0 == number);
        known.ok_or_else(|| Fault::parameter(format!("no port {number}")))
    }

    pub(super) fn query_vport(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let number = self.named_port(input)?;
        let port = self.engine.port_attributes(number)?;
        // Polling, or LinkUp (IBA 14.2.5.6).
        let physical = if port.state == PortState::Down { 2 } else { 5 };
        let state = match port.state {
            PortState::Down => 1,
            PortState::Init => 2,
            PortState::Armed => 3,
            PortState::Active => 4,
        };
        let node = self.config.node_guid.0;
        let info = self.engine.port_info(number)?;
        output.put(
            VPORT,
            &VportContext {
                flags: VportContext::HAS_SMI | if port.grh_required { VportContext::GRH_REQUIRED } else { 0 },
                physical_policy: physical << 4,
                states: state << 4 | state,
                system_guid: node.into(),
                port_guid: port.guid.0.into(),
                node_guid: node.into(),
                capabilities: info.capabilities.bits().into(),
                capabilities_mutable: u32::MAX.into(),
                lid: port.lid.0.into(),
                lmc_timeout: port.lmc << 5 | info.subnet_timeout.code(),
                sm_lid: port.sm_lid.0.into(),
                sm_sl: port.sm_sl.get() << 4,
                qkey_violations: info.qkey_violations.into(),
                pkey_violations: info.pkey_violations.into(),
                ..VportContext::default()
            },
        )
    }

    /// Changes the capabilities that a host sets: a subnet manager runs behind the port, or communication
    /// management.
    pub(super) fn modify_vport(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let port = self.named_port(input)?;
        let wanted: VportContext = input.view(VPORT)?;
        let bits = |mask: U32| Capabilities::from_bits_retain(mask.get());
        Ok(self.engine.set_capabilities(
            port,
            bits(wanted.capabilities_mutable),
            bits(wanted.capabilities),
        )?)
    }

    pub(super) fn query_vport_state(&mut self, _: &Input, output: &mut Output) -> Result<(), Fault> {
        output.put(0xf, &UP)
    }

    /// Returns an entry of the table, or all, from offset 16 on, and their number at offset 12.
    pub(super) fn query_gid(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let wanted = input.header().parameter.get() as u16;
        let port = self.named_port(input)?;
        let table = self.engine.port_attributes(port)?.gid_table_len;
        let range = if wanted == ALL { 0..table } else { wanted..wanted.saturating_add(1) };
        let count = range.len() as u16;
        for (n, index) in range.enumerate() {
            output.put(0x10 + 16 * n, &self.engine.gid(port, index)?.0)?;
        }
        output.put(0xc, &count.to_be_bytes())
    }

    /// Returns an entry of the table, or as many as fit, from offset 16 on, each at the end of four bytes.
    pub(super) fn query_pkey(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let wanted = input.header().parameter.get() as u16;
        let port = self.named_port(input)?;
        let table = self.engine.port_attributes(port)?.pkey_table_len;
        let range = if wanted == ALL { 0..table } else { wanted..wanted.saturating_add(1) };
        for (n, index) in range.enumerate() {
            output.put(0x10 + 4 * n, &u32::from(self.engine.pkey(port, index)?.0).to_be_bytes())?;
        }
        Ok(())
    }

    /// Reads or writes a register, and returns its content.
    pub(super) fn access_register(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        // Registers of a port have its number in their second byte.
        let named = || {
            let [_, number] = input.view(REGISTER)?;
            self.existing_port(number)
        };
        match input.header().number.get() as u16 {
            register::PTYS => output.put(
                REGISTER,
                &Ptys {
                    port: named()?.0,
                    protocol: 1,
                    width_supported: WIDTHS.into(),
                    speed_supported: SPEEDS.into(),
                    width: X4.into(),
                    speed: EDR.into(),
                    ..Ptys::default()
                },
            ),
            register::PMTU => {
                let port = named()?;
                let attributes = self.engine.port_attributes(port)?;
                let active = attributes.active_mtu.bytes() as u16;
                output.put(
                    REGISTER,
                    &Pmtu {
                        port: port.0,
                        max: (attributes.max_mtu.bytes() as u16).into(),
                        admin: active.into(),
                        operational: active.into(),
                        ..Pmtu::default()
                    },
                )
            }
            // VL 0, as in the agent's PortInfo.
            register::PVLC => {
                let port = named()?.0;
                output
                    .put(REGISTER, &Pvlc { port, supported: 1, admin: 1, operational: 1, ..Pvlc::default() })
            }
            register::NODE_DESCRIPTION => {
                if input.header().modifier.get() == WRITE {
                    let text = input.view(REGISTER)?;
                    self.engine.set_description(NodeDescription { text }.name());
                }
                output.put(REGISTER, &NodeDescription::new(&self.engine.config().description).text)
            }
            register::HOST_ENDIANNESS => Ok(()),
            other => Err(Fault::parameter(format!("no register {other:#x}"))),
        }
    }

    /// Sends a request of the host to the agents of its own port in the firmware.
    pub(super) fn management(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let mad: [u8; MAD_LEN] = input.view(MAD)?;
        let waived = input.header().modifier.get() & IGNORE_MKEY != 0;
        let check = if waived { MKeyCheck::Waived } else { MKeyCheck::Due };
        let port = self.existing_port(input.header().number.get() as u8)?;
        let answer = self.engine.management(port, &mad, check);
        // Including requests with a wrong M_Key.
        let unanswered =
            || Fault::new(CommandStatus::BadPacket, "no agent of the device answers this datagram");
        let answer = answer.ok_or_else(unanswered)?;
        output.put(MAD, &answer[..])
    }

    pub(super) fn attach_group(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let (qpn, group) = (Qpn::new(input.number()), Gid(input.view(0x10)?));
        Ok(self.engine.attach_multicast(qpn, group)?)
    }

    pub(super) fn detach_group(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let (qpn, group) = (Qpn::new(input.number()), Gid(input.view(0x10)?));
        Ok(self.engine.detach_multicast(qpn, group)?)
    }
}
