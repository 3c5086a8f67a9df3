//! Commands about ports and groups.

use hca::PortState;
use ib_wire::mad::MAD_LEN;
use ib_wire::{Gid, Qpn};
use prm::port::{Pmtu, Ptys, Pvlc, VportContext, register};

use super::command::{Fault, Input, Output};
use super::{Hca, PORT};

/// Where a register's contents begin, in input and output.
const REGISTER: usize = 0x10;
/// Where a management datagram is, in input and output.
const MAD: usize = 0x10;
/// Communication management, extended speeds, client reregistration, as the agent tells in PortInfo (IBA 14.2.5.6), and
/// the system's GUID.
const CAPABILITIES: u32 = 1 << 16 | 1 << 14 | 1 << 25 | 1 << 11;
/// Of the tables of P_Keys and GIDs: all entries.
const ALL: u16 = 0xffff;
/// Subnet time-out of a port whose subnet manager has said nothing.
const SUBNET_TIMEOUT: u8 = 18;
/// 1x and 4x.
const WIDTHS: u16 = 0x5;
const X4: u16 = 0x4;
/// SDR to EDR.
const SPEEDS: u16 = 0x3f;
const EDR: u16 = 0x20;
/// The port is up, and its state is not an administrator's.
const UP: u8 = 0x11;

impl Hca {
    pub(super) fn query_vport(&mut self, _: &Input, output: &mut Output) -> Result<(), Fault> {
        let port = self.engine.port_attributes(PORT)?;
        // Polling, or LinkUp (IBA 14.2.5.6).
        let physical = if port.state == PortState::Down { 2 } else { 5 };
        let state = match port.state {
            PortState::Down => 1,
            PortState::Init => 2,
            PortState::Armed => 3,
            PortState::Active => 4,
        };
        let node = self.config.node_guid.0;
        output.put(
            0x10,
            &VportContext {
                flags: VportContext::HAS_SMI,
                physical_policy: physical << 4,
                states: state << 4 | state,
                system_guid: node.into(),
                port_guid: port.guid.0.into(),
                node_guid: node.into(),
                capabilities: CAPABILITIES.into(),
                capabilities_mutable: u32::MAX.into(),
                lid: port.lid.0.into(),
                lmc_timeout: port.lmc << 5 | SUBNET_TIMEOUT,
                sm_lid: port.sm_lid.0.into(),
                sm_sl: port.sm_sl.get() << 4,
                ..VportContext::default()
            },
        )
    }

    pub(super) fn query_vport_state(&mut self, _: &Input, output: &mut Output) -> Result<(), Fault> {
        output.put(0xf, &UP)
    }

    /// Entry of the table, or all, from offset 16 on; how many at offset 12.
    pub(super) fn query_gid(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let wanted = input.header().parameter.get() as u16;
        let table = self.engine.port_attributes(PORT)?.gid_table_len;
        let range = if wanted == ALL { 0..table } else { wanted..wanted.saturating_add(1) };
        let count = range.len() as u16;
        for (n, index) in range.enumerate() {
            output.put(0x10 + 16 * n, &self.engine.gid(PORT, index)?.0)?;
        }
        output.put(0xc, &count.to_be_bytes())
    }

    /// Entry of the table, or as many as there is room for, from offset 16 on, each at the end of four bytes.
    pub(super) fn query_pkey(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let wanted = input.header().parameter.get() as u16;
        let table = self.engine.port_attributes(PORT)?.pkey_table_len;
        let range = if wanted == ALL { 0..table } else { wanted..wanted.saturating_add(1) };
        for (n, index) in range.enumerate() {
            output.put(0x10 + 4 * n, &u32::from(self.engine.pkey(PORT, index)?.0).to_be_bytes())?;
        }
        Ok(())
    }

    /// A register is read or written; what comes back is what it holds.
    pub(super) fn access_register(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let port = PORT.0;
        match input.header().number.get() as u16 {
            register::PTYS => output.put(
                REGISTER,
                &Ptys {
                    port,
                    protocol: 1,
                    width_supported: WIDTHS.into(),
                    speed_supported: SPEEDS.into(),
                    width: X4.into(),
                    speed: EDR.into(),
                    ..Ptys::default()
                },
            ),
            register::PMTU => {
                let attributes = self.engine.port_attributes(PORT)?;
                let active = attributes.active_mtu.bytes() as u16;
                output.put(
                    REGISTER,
                    &Pmtu {
                        port,
                        max: (attributes.max_mtu.bytes() as u16).into(),
                        admin: active.into(),
                        operational: active.into(),
                        ..Pmtu::default()
                    },
                )
            }
            // VL 0, as the agent tells.
            register::PVLC => output
                .put(REGISTER, &Pvlc { port, supported: 1, admin: 1, operational: 1, ..Pvlc::default() }),
            register::NODE_DESCRIPTION => {
                let text = self.config.description.as_bytes();
                output.put(REGISTER, text.get(..text.len().min(63)).unwrap_or_default())
            }
            register::HOST_ENDIANNESS => Ok(()),
            other => Err(Fault::parameter(format!("there is no register {other:#x}"))),
        }
    }

    /// The agents in the firmware answer what the host asks of its own port.
    pub(super) fn management(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let mad: [u8; MAD_LEN] = input.view(MAD)?;
        let answer = self.engine.management(PORT, &mad);
        let answer = answer.ok_or_else(|| Fault::parameter("no agent here answers this datagram"))?;
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
