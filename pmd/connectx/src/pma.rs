//! The performance management agent in the firmware (IBA 16.1): what a port's cable has counted.

use ib_wire::mad::{MAD_LEN, MadHeader, MadStatus, Method};
use ib_wire::perf::{DATA, DATA_LEN, EXTENDED_WIDTH, PortCounters, PortCountersExtended, attribute};

use super::cable::CableCounters;
use super::port::Port;

/// Bytes of a word in which data are counted.
const WORD: u64 = 4;
/// Names all ports.
const ALL_PORTS: u8 = 255;

/// The answer to a request; `None` if it is none.
pub(crate) fn respond(port: &mut Port, mad: &[u8; MAD_LEN]) -> Option<Box<[u8; MAD_LEN]>> {
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

fn attribute(port: &mut Port, id: u16, set: bool, data: &mut [u8; DATA_LEN]) -> Result<(), MadStatus> {
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
            names_us(port, asked.port)?;
            if set && asked.select != 0 {
                forget(port);
            }
            let c = since(port);
            data.fill(0);
            let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
            let tiny = |n: u64| u16::try_from(n).unwrap_or(u16::MAX);
            PortCounters {
                port: asked.port,
                select: asked.select,
                link_downed: u8::try_from(c.downs).unwrap_or(u8::MAX),
                receive_errors: tiny(c.rx_invalid),
                send_discards: tiny(c.tx_down + c.tx_bad_length + c.tx_errors),
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
            names_us(port, asked.port)?;
            if set && asked.select != 0 {
                forget(port);
            }
            let c = since(port);
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

fn names_us(port: &Port, named: u8) -> Result<(), MadStatus> {
    if named == port.number.0 || named == ALL_PORTS { Ok(()) } else { Err(MadStatus::INVALID_FIELD) }
}

fn now(port: &Port) -> CableCounters {
    port.cable.as_ref().map(crate::cable::CableEnd::counters).unwrap_or_default()
}

/// A Set clears, whichever counters it names: those of a cable go together.
fn forget(port: &mut Port) {
    port.counted = now(port);
}

/// What was counted since the last Set.
fn since(port: &Port) -> CableCounters {
    let (now, then) = (now(port), &port.counted);
    // Another cable begins at 0.
    if now.tx_packets < then.tx_packets || now.rx_packets < then.rx_packets {
        return now;
    }
    CableCounters {
        tx_packets: now.tx_packets - then.tx_packets,
        tx_bytes: now.tx_bytes.saturating_sub(then.tx_bytes),
        rx_packets: now.rx_packets - then.rx_packets,
        rx_bytes: now.rx_bytes.saturating_sub(then.rx_bytes),
        tx_full: now.tx_full.saturating_sub(then.tx_full),
        tx_down: now.tx_down.saturating_sub(then.tx_down),
        tx_bad_length: now.tx_bad_length.saturating_sub(then.tx_bad_length),
        tx_errors: now.tx_errors.saturating_sub(then.tx_errors),
        rx_invalid: now.rx_invalid.saturating_sub(then.rx_invalid),
        downs: now.downs.saturating_sub(then.downs),
        ..now
    }
}
