//! Performance management agents (IBA 16.1): what a port has counted since it was cleared.

use ib_wire::mad::{MAD_LEN, MadHeader, MadStatus, Method};
use ib_wire::perf::{DATA, DATA_LEN, EXTENDED_WIDTH, PortCounters, PortCountersExtended, attribute};

use super::cable::CableCounters;

/// Bytes of a word in which data are counted.
const WORD: u64 = 4;
/// Names all ports.
pub const ALL_PORTS: u8 = 255;

/// What a port counts; it only grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// At its cable.
    pub cable: CableCounters,
    /// Packets with errors that the cable has not seen.
    pub receive_errors: u64,
    /// Packets that a switch had no way for, where they came in.
    pub relay_errors: u64,
    /// Packets that could not be sent, before the cable.
    pub send_discards: u64,
    /// Packets of partitions that may not leave here.
    pub send_constraint_errors: u64,
    /// Packets of partitions that may not come in here.
    pub receive_constraint_errors: u64,
    /// Packets of the management lane that found no room.
    pub vl15_dropped: u64,
}

/// What a port counted, and what it had counted when it was cleared last.
#[derive(Debug)]
pub struct Tally<'p> {
    /// Now.
    pub now: Counted,
    /// Then.
    pub cleared: &'p mut Counted,
}

/// The answer to a request; `None` if it is none. `port` finds a port by the number in the request ([`ALL_PORTS`] for all together).
pub fn respond<'p>(
    mad: &[u8; MAD_LEN],
    port: impl FnOnce(u8) -> Option<Tally<'p>>,
) -> Option<Box<[u8; MAD_LEN]>> {
    let mut header = MadHeader::of(mad);
    let set = match header.method {
        Method::Get => false,
        Method::Set => true,
        _ => return None,
    };
    let mut answer = Box::new(*mad);
    let status = match answer.get_mut(DATA..).and_then(<[u8]>::first_chunk_mut) {
        Some(data) => attribute(port, header.attribute, set, data).err().unwrap_or(MadStatus::OK),
        None => MadStatus::INVALID_FIELD,
    };
    header.method = header.method.response().unwrap_or(Method::GetResp);
    header.status = status;
    header.put(&mut answer);
    Some(answer)
}

fn attribute<'p>(
    port: impl FnOnce(u8) -> Option<Tally<'p>>,
    id: u16,
    set: bool,
    data: &mut [u8; DATA_LEN],
) -> Result<(), MadStatus> {
    // A Set clears, whichever counters it names: those of a port go together.
    let tally = |named: u8, cleared: bool| {
        let Tally { now, cleared: then } = port(named).ok_or(MadStatus::INVALID_FIELD)?;
        if cleared {
            *then = now;
        }
        Ok((since(&now.cable, &then.cable), now, *then))
    };
    match id {
        attribute::CLASS_PORT_INFO if !set => {
            data.fill(0);
            // Base and class version, capability mask.
            let info = [1, ib_wire::perf::CLASS_VERSION, (EXTENDED_WIDTH >> 8) as u8, EXTENDED_WIDTH as u8];
            if let Some(head) = data.first_chunk_mut() {
                *head = info;
            }
        }
        attribute::PORT_COUNTERS => {
            let asked = PortCounters::parse(data);
            let (c, now, then) = tally(asked.port, set && asked.select != 0)?;
            data.fill(0);
            let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
            let tiny = |n: u64| u16::try_from(n).unwrap_or(u16::MAX);
            let byte = |n: u64| u8::try_from(n).unwrap_or(u8::MAX);
            let discards = now.send_discards.saturating_sub(then.send_discards);
            PortCounters {
                port: asked.port,
                select: asked.select,
                link_downed: byte(c.downs),
                receive_errors: tiny(c.rx_invalid + now.receive_errors.saturating_sub(then.receive_errors)),
                relay_errors: tiny(now.relay_errors.saturating_sub(then.relay_errors)),
                send_discards: tiny(c.tx_down + c.tx_bad_length + c.tx_errors + discards),
                send_constraint_errors: byte(
                    now.send_constraint_errors.saturating_sub(then.send_constraint_errors),
                ),
                receive_constraint_errors: byte(
                    now.receive_constraint_errors.saturating_sub(then.receive_constraint_errors),
                ),
                vl15_dropped: tiny(now.vl15_dropped.saturating_sub(then.vl15_dropped)),
                send_data: small(c.tx_bytes / WORD),
                receive_data: small(c.rx_bytes / WORD),
                send_packets: small(c.tx_packets),
                receive_packets: small(c.rx_packets),
                send_wait: small(c.tx_full),
                ..PortCounters::parse(&[0; DATA_LEN])
            }
            .write(data);
        }
        attribute::PORT_COUNTERS_EXTENDED => {
            let asked = PortCountersExtended::parse(data);
            let (c, ..) = tally(asked.port, set && asked.select != 0)?;
            data.fill(0);
            PortCountersExtended {
                port: asked.port,
                select: asked.select,
                send_data: c.tx_bytes / WORD,
                receive_data: c.rx_bytes / WORD,
                send_packets: c.tx_packets,
                receive_packets: c.rx_packets,
            }
            .write(data);
        }
        _ => return Err(MadStatus::UNSUPPORTED_ATTRIBUTE),
    }
    Ok(())
}

/// What a cable counted between two times; another one may have been plugged in meanwhile.
fn since(now: &CableCounters, then: &CableCounters) -> CableCounters {
    CableCounters {
        tx_packets: now.tx_packets.saturating_sub(then.tx_packets),
        tx_bytes: now.tx_bytes.saturating_sub(then.tx_bytes),
        rx_packets: now.rx_packets.saturating_sub(then.rx_packets),
        rx_bytes: now.rx_bytes.saturating_sub(then.rx_bytes),
        tx_full: now.tx_full.saturating_sub(then.tx_full),
        tx_down: now.tx_down.saturating_sub(then.tx_down),
        tx_bad_length: now.tx_bad_length.saturating_sub(then.tx_bad_length),
        tx_errors: now.tx_errors.saturating_sub(then.tx_errors),
        rx_invalid: now.rx_invalid.saturating_sub(then.rx_invalid),
        rx_forged: now.rx_forged.saturating_sub(then.rx_forged),
        rx_stale: now.rx_stale.saturating_sub(then.rx_stale),
        socket_errors: now.socket_errors.saturating_sub(then.socket_errors),
        downs: now.downs.saturating_sub(then.downs),
        ..*now
    }
}
