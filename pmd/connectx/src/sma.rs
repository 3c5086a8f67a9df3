//! The subnet management agent in the firmware (IBA 14.2, 14.3). It serves NodeInfo, NodeDescription,
//! PortInfo, P_KeyTable, GUIDInfo, SLtoVLMappingTable and VLArbitrationTable of a port, independent of the
//! host.

use std::time::Instant;

use ib_wire::mad::{MAD_LEN, MadStatus, Method};
use ib_wire::packet::{Bth, Deth, Extended, Headers, Lrh, Opcode, Packet, VirtualLane};
use ib_wire::sa::Notice;
use ib_wire::smp::{
    ArbitrationTables, Capabilities, DATA_LEN, DirectedStep, ExtendedSpeeds, GuidBlock, LinkWidth, Lmc,
    Nibble, NodeDescription, NodeInfo, NodeType, Origin, PKEY_BLOCK_LEN, PKeyBlock, PortInfo,
    PortPhysicalState, PortState as WireState, Smp, VlArbitrationBlock, attribute, step,
};
use ib_wire::{Lid, PKey, Psn, QKey, Qpn, ServiceLevel, TimeoutCode};

use super::config::EngineConfig;
use super::counters::DropReason;
use super::device::Device;
use super::event::Events;
use super::port::{PKEYS, Port};
use hca::{AsyncEvent, PortState};

/// Device ID of a ConnectX-5.
const DEVICE_ID: u16 = 0x1017;
/// OUI of Mellanox, whose formats this device uses.
const VENDOR_ID: u32 = 0x0000_02c9;

/// Result of handling a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handled {
    /// The packet was for the agent.
    Answered,
    /// A response or a trap, for a manager on queue pair 0.
    NotForAgent,
}

/// Handles a subnet management packet received on port `index`.
pub(crate) fn handle(
    dev: &mut Device,
    config: &EngineConfig,
    index: u8,
    packet: &Packet<'_>,
) -> Result<Handled, DropReason> {
    let bytes: &[u8; MAD_LEN] = packet.payload().try_into().map_err(|_| DropReason::BadSmp)?;
    let mut smp = Smp::from_mad(bytes).map_err(|_| DropReason::BadSmp)?;
    let ports = dev.ports.len() as u8;
    let port = dev.ports.get_mut(usize::from(index)).ok_or(DropReason::BadSmp)?;
    let dlid = packet.lrh().dlid;
    if smp.is_directed() {
        match step(&mut smp, NodeType::ChannelAdapter, Origin::Port(port.number.0)) {
            DirectedStep::Deliver => {}
            _ => return Err(DropReason::BadSmp),
        }
    } else if !port.has_lid(dlid) && dlid != Lid::PERMISSIVE {
        return Err(DropReason::NotOurLid);
    }
    if smp.header.attribute == attribute::SM_INFO && port.capabilities.contains(Capabilities::SM) {
        return Ok(Handled::NotForAgent);
    }
    let mut answer = match respond(port, config, ports, &smp, MKeyCheck::Due, &mut dev.events) {
        Response::Answer(answer) => *answer,
        Response::None => return Ok(Handled::Answered),
        Response::NotForAgent => return Ok(Handled::NotForAgent),
        Response::Refused => {
            raise_bad_mkey_trap(port, packet.lrh().slid, &smp);
            return Err(DropReason::MKey);
        }
    };
    let mut lrh = Lrh {
        vl: VirtualLane::MANAGEMENT,
        sl: ServiceLevel::new(0),
        dlid: packet.lrh().slid,
        // LID-routed: from the LID that the request went to (IBA 13.5.4).
        slid: if smp.is_directed() && dlid != Lid::PERMISSIVE { port.lid } else { dlid },
    };
    if answer.is_directed() {
        match step(&mut answer, NodeType::ChannelAdapter, Origin::Local) {
            DirectedStep::Send(_) => lrh.dlid = Lid::PERMISSIVE,
            DirectedStep::SendByLid(lid) => lrh.dlid = lid,
            DirectedStep::Deliver | DirectedStep::Discard => return Err(DropReason::BadSmp),
        }
    }
    let src_qpn = packet.extended().deth().map_or(Qpn::SMI, |deth| deth.src_qpn);
    port.answer(frame(lrh, src_qpn, &answer));
    Ok(Handled::Answered)
}

/// Whether a request needs the port's M_Key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MKeyCheck {
    /// As required by the port's protection level.
    Due,
    /// A request of the port's own host: it may read without the key. Writing needs the key in any case.
    Waived,
}

/// Result of a packet at the agent.
#[derive(Debug)]
pub(crate) enum Response {
    /// The response.
    Answer(Box<Smp>),
    /// The packet was for the agent and has no response.
    None,
    /// A response or a trap.
    NotForAgent,
    /// The M_Key does not match.
    Refused,
}

/// Processes a packet at the agent, wherever it came from.
pub(crate) fn respond(
    port: &mut Port,
    config: &EngineConfig,
    ports: u8,
    smp: &Smp,
    check: MKeyCheck,
    events: &mut Events,
) -> Response {
    let method = smp.header.method;
    if !matches!(method, Method::Get | Method::Set | Method::TrapRepress) {
        return Response::NotForAgent;
    }
    let waived = check == MKeyCheck::Waived && method == Method::Get;
    if !waived && !port.guard.admits(smp) {
        return Response::Refused;
    }
    let mut answer = *smp;
    let result = match method {
        Method::TrapRepress => {
            // Includes traps that the agent did not raise: the packet has the port's M_Key, which the host
            // must not learn.
            port.traps.repress(smp.header.tid);
            return Response::None;
        }
        Method::Set => set(port, smp, events).and_then(|()| get(port, config, ports, smp, &mut answer)),
        _ => get(port, config, ports, smp, &mut answer),
    };
    Response::Answer(Box::new(answer.answer(result.err().unwrap_or(MadStatus::OK))))
}

/// Notifies the subnet manager of a request with a wrong M_Key, sent from the port with LID `source` (trap
/// 256). A TrapRepress with a wrong M_Key raises no trap, because it might repress that same trap.
pub(crate) fn raise_bad_mkey_trap(port: &mut Port, source: Lid, smp: &Smp) {
    if smp.header.method != Method::TrapRepress {
        port.traps.raise_alone(&Notice::bad_mkey(NodeType::ChannelAdapter, port.lid, source, smp));
    }
}

/// Sends the due traps of a port. A port without a subnet manager has no destination for them. Returns true
/// if it sent any.
pub(crate) fn send_traps(port: &mut Port, now: Instant) -> bool {
    let known = matches!(port.state, PortState::Armed | PortState::Active) && port.sm_lid.0 != 0;
    if !known {
        port.traps.clear();
        return false;
    }
    let Some(smp) = port.traps.poll(now) else { return false };
    let lrh = Lrh { vl: VirtualLane::MANAGEMENT, sl: port.sm_sl, dlid: port.sm_lid, slid: port.lid };
    port.answer(frame(lrh, Qpn::SMI, &smp));
    true
}

/// Builds the complete packet of a response.
fn frame(lrh: Lrh, to: Qpn, smp: &Smp) -> Box<[u8]> {
    let bth = Bth {
        opcode: Opcode::UdSendOnly,
        solicited: false,
        migrated: true,
        pkey: PKey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qpn: to,
        ack_request: false,
        psn: Psn::default(),
    };
    let deth = Deth { qkey: QKey(0), src_qpn: Qpn::SMI };
    let headers = Headers { lrh, grh: None, bth, extended: Extended::Deth(deth) };
    let mut packet = vec![0; headers.packet_len(MAD_LEN)];
    // The buffer has exactly the packet's length.
    let _ = headers.write_packet(&smp.to_bytes()[..], &mut packet);
    packet.into_boxed_slice()
}

/// Fills in the requested attribute.
fn get(
    port: &mut Port,
    config: &EngineConfig,
    ports: u8,
    smp: &Smp,
    answer: &mut Smp,
) -> Result<(), MadStatus> {
    match smp.header.attribute {
        attribute::NODE_DESCRIPTION => answer.set_attribute(&NodeDescription::new(&config.description)),
        attribute::NODE_INFO => answer.set_attribute(&NodeInfo {
            base_version: 1,
            class_version: 1,
            node_type: NodeType::ChannelAdapter,
            num_ports: ports,
            system_image_guid: config.node_guid,
            node_guid: config.node_guid,
            port_guid: port.guid,
            partition_cap: PKEYS as u16,
            device_id: DEVICE_ID,
            revision: 0,
            local_port: port.number.0,
            vendor_id: Qpn::new(VENDOR_ID),
        }),
        attribute::PORT_INFO => {
            names_us(port, smp)?;
            // The response to a Set shows the result, not the requested value.
            answer.data = [0; 64];
            let mut info = port_info(port);
            port.guard.show(smp, &mut info);
            answer.set_attribute(&info);
        }
        attribute::PKEY_TABLE => {
            answer.set_attribute(&PKeyBlock { keys: *pkey_block(port, smp)? });
        }
        attribute::GUID_INFO => {
            let block = port.gids.block(smp.header.modifier).ok_or(MadStatus::INVALID_FIELD)?;
            answer.set_attribute(&block);
        }
        attribute::SL_TO_VL => answer.set_attribute(&port.lanes),
        attribute::VL_ARBITRATION => answer.set_attribute(arbitration(port, smp)?),
        // FDR10 is not supported.
        attribute::MELLANOX_PORT_INFO => answer.data = [0; DATA_LEN],
        _ => return Err(MadStatus::UNSUPPORTED_ATTRIBUTE),
    }
    Ok(())
}

/// The block of the arbitration tables that the packet names.
fn arbitration<'p>(port: &'p mut Port, smp: &Smp) -> Result<&'p mut VlArbitrationBlock, MadStatus> {
    let (block, _) = VlArbitrationBlock::place(smp.header.modifier);
    port.arbitration.block(block).ok_or(MadStatus::INVALID_FIELD)
}

fn set(port: &mut Port, smp: &Smp, events: &mut Events) -> Result<(), MadStatus> {
    match smp.header.attribute {
        attribute::PORT_INFO => {
            names_us(port, smp)?;
            let want = smp.attribute::<PortInfo>().ok_or(MadStatus::INVALID_FIELD)?;
            set_port_info(port, &want, events)
        }
        attribute::PKEY_TABLE => {
            let wanted = smp.attribute::<PKeyBlock>().ok_or(MadStatus::INVALID_FIELD)?;
            let keys = pkey_block(port, smp)?;
            if *keys != wanted.keys {
                *keys = wanted.keys;
                events.raise(AsyncEvent::PKeyChange(port.number));
            }
            Ok(())
        }
        attribute::GUID_INFO => {
            let block = smp.attribute::<GuidBlock>().ok_or(MadStatus::INVALID_FIELD)?;
            if port.gids.set_block(smp.header.modifier, &block).ok_or(MadStatus::INVALID_FIELD)? {
                events.raise(AsyncEvent::GidChange(port.number));
            }
            Ok(())
        }
        attribute::SL_TO_VL => {
            port.lanes = smp.attribute().ok_or(MadStatus::INVALID_FIELD)?;
            Ok(())
        }
        attribute::VL_ARBITRATION => {
            let wanted = smp.attribute().ok_or(MadStatus::INVALID_FIELD)?;
            *arbitration(port, smp)? = wanted;
            Ok(())
        }
        _ => Err(MadStatus::UNSUPPORTED_ATTRIBUTE),
    }
}

/// Checks the port number. On a channel adapter the modifier of PortInfo is the port; 0 means the receiving
/// port.
fn names_us(port: &Port, smp: &Smp) -> Result<(), MadStatus> {
    let named = smp.header.modifier & 0xff;
    if named == 0 || named == u32::from(port.number.0) { Ok(()) } else { Err(MadStatus::INVALID_FIELD) }
}

/// The block of the P_Key table that the packet names.
fn pkey_block<'p>(port: &'p mut Port, smp: &Smp) -> Result<&'p mut [PKey; PKEY_BLOCK_LEN], MadStatus> {
    let (blocks, _) = port.pkeys.as_chunks_mut();
    blocks.get_mut(usize::from(smp.header.modifier as u16)).ok_or(MadStatus::INVALID_FIELD)
}

/// PortInfo of a port, without its M_Key.
pub(crate) fn port_info(port: &Port) -> PortInfo {
    let (state, physical) = match port.state {
        PortState::Down => (WireState::Down, PortPhysicalState::Polling),
        PortState::Init => (WireState::Init, PortPhysicalState::LinkUp),
        PortState::Armed => (WireState::Armed, PortPhysicalState::LinkUp),
        PortState::Active => (WireState::Active, PortPhysicalState::LinkUp),
    };
    PortInfo {
        gid_prefix: port.gids.prefix(),
        lid: port.lid,
        sm_lid: port.sm_lid,
        capabilities: port.capabilities,
        local_port: port.number.0,
        width_enabled: LinkWidth::X1 | LinkWidth::X4,
        width_supported: LinkWidth::X1 | LinkWidth::X4,
        width_active: LinkWidth::X4,
        speed_supported: Nibble::new(7),
        state,
        physical_state: physical,
        down_default: Nibble::new(2),
        lmc: Lmc::new(port.lmc),
        speed_active: Nibble::new(4),
        speed_enabled: Nibble::new(7),
        neighbor_mtu: port.mtu.into(),
        sm_sl: port.sm_sl,
        vl_cap: Nibble::new(1),
        vl_high_limit: port.vl_high_limit,
        vl_arb_high_cap: ArbitrationTables::CAP,
        vl_arb_low_cap: ArbitrationTables::CAP,
        mtu_cap: port.max_mtu.into(),
        operational_vls: Nibble::new(1),
        pkey_violations: port.pkey_violations,
        qkey_violations: port.qkey_violations,
        guid_cap: u8::try_from(port.gids.len()).unwrap_or(u8::MAX),
        subnet_timeout: port.subnet_timeout,
        response_time: TimeoutCode::new(16),
        speed_ext_active: Nibble::new(2),
        speed_ext_supported: Nibble::new(3),
        speed_ext_enabled: ExtendedSpeeds::new(3),
        ..PortInfo::default()
    }
}

/// Handles a Set of PortInfo (IBA 14.2.5.6). All fields are checked before any changes.
fn set_port_info(port: &mut Port, want: &PortInfo, events: &mut Events) -> Result<(), MadStatus> {
    let mtu = want.neighbor_mtu.mtu().filter(|mtu| *mtu <= port.max_mtu).ok_or(MadStatus::INVALID_FIELD)?;
    let unicast = want.lid.0 != 0 && want.lid.0 < Lid::FIRST_MULTICAST.0;
    if !unicast || want.sm_lid.0 >= Lid::FIRST_MULTICAST.0 {
        return Err(MadStatus::INVALID_FIELD);
    }
    let state = match (port.state, want.state) {
        (state, WireState::NoChange) => state,
        (PortState::Init | PortState::Armed, WireState::Armed) => PortState::Armed,
        (PortState::Armed | PortState::Active, WireState::Active) => PortState::Active,
        // The port retrains and comes up in INIT.
        (PortState::Init | PortState::Armed | PortState::Active, WireState::Down) => PortState::Init,
        _ => return Err(MadStatus::INVALID_FIELD),
    };
    port.guard.set(want);
    port.vl_high_limit = want.vl_high_limit;
    port.mtu = mtu;
    port.subnet_timeout = want.subnet_timeout;
    // Any write of a violation counter clears it (IBA 14.2.5.6).
    port.pkey_violations = want.pkey_violations.min(port.pkey_violations);
    port.qkey_violations = want.qkey_violations.min(port.qkey_violations);
    if (port.lid, port.lmc) != (want.lid, want.lmc.get()) {
        (port.lid, port.lmc) = (want.lid, want.lmc.get());
        events.raise(AsyncEvent::LidChange(port.number));
    }
    if (port.sm_lid, port.sm_sl) != (want.sm_lid, want.sm_sl) {
        (port.sm_lid, port.sm_sl) = (want.sm_lid, want.sm_sl);
        events.raise(AsyncEvent::SmChange(port.number));
    }
    if port.gids.set_prefix(want.gid_prefix) {
        events.raise(AsyncEvent::GidChange(port.number));
    }
    port.set_state(state, events);
    if want.client_reregister {
        events.raise(AsyncEvent::ClientReregister(port.number));
    }
    Ok(())
}
