//! Performance management agents (IBA 16.1): the counters of a port since they were last cleared.

use ib_wire::mad::{MAD_LEN, MadHeader, MadStatus, Method};
use ib_wire::perf::{DATA, DATA_LEN, EXTENDED_WIDTH, PortCounters, PortCountersExtended, attribute};

use super::cable::CableCounters;

/// Bytes of a word, the unit of data counters.
const WORD: u64 = 4;
/// Names all ports.
pub const ALL_PORTS: u8 = 255;

/// Counters of a port; they only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// Counters of its cable.
    pub cable: CableCounters,
    /// Packets with errors that the cable does not detect.
    pub receive_errors: u64,
    /// Packets without a route through a switch, counted at the ingress port.
    pub relay_errors: u64,
    /// Packets dropped before the cable because they could not be sent.
    pub send_discards: u64,
    /// Packets of partitions that may not leave here.
    pub send_constraint_errors: u64,
    /// Packets of partitions that may not enter here.
    pub receive_constraint_errors: u64,
    /// Packets dropped on the management lane for lack of room.
    pub vl15_dropped: u64,
}

/// Counters of a port now and at the last clear.
#[derive(Debug)]
pub struct Tally<'p> {
    /// Current values.
    pub now: Counted,
    /// Values at the last clear.
    pub cleared: &'p mut Counted,
}

/// Builds the response to a request; `None` for other MADs. `port` looks up a port by the number in the
/// request ([`ALL_PORTS`] for the sum of all).
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
    // A Set clears all counters of a port together, whichever it selects.
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
            let request = PortCounters::parse(data);
            let (c, now, then) = tally(request.port, set && request.select != 0)?;
            data.fill(0);
            let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
            let tiny = |n: u64| u16::try_from(n).unwrap_or(u16::MAX);
            let byte = |n: u64| u8::try_from(n).unwrap_or(u8::MAX);
            let discards = now.send_discards.saturating_sub(then.send_discards);
            PortCounters {
                port: request.port,
                select: request.select,
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
            let request = PortCountersExtended::parse(data);
            let (c, ..) = tally(request.port, set && request.select != 0)?;
            data.fill(0);
            PortCountersExtended {
                port: request.port,
                select: request.select,
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

/// Difference of a cable's counters between two times. Another cable may have been connected in between.
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
