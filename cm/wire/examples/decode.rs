//! Prints the headers of the InfiniBand packets in a capture: `decode FILE`, as `ipoib-fwd --capture`
//! and `ibfab --capture` write it.
//!
//! The file is a pcap file of ERF records (link type 197). A packet that cannot be
//! read is printed with the reason.
//!
//! ```text
//! cargo run -p ib-wire --example decode -- cm/wire/tests/data/generated-packets.erf.pcap
//! ```

use std::error::Error;
use std::io::Write as _;

use ib_wire::packet::{Extended, Packet};

/// Magic number of a pcap file with timestamps in microseconds or nanoseconds.
const PCAP: [u32; 2] = [0xa1b2_c3d4, 0xa1b2_3c4d];
const LINKTYPE_ERF: u32 = 197;
/// ERF record type of an InfiniBand packet, in the low seven bits; the top bit says that an
/// extension header of 8 bytes follows.
const ERF_INFINIBAND: u8 = 21;
const ERF_HEADER: usize = 16;

/// A pcap file in memory, which is read record by record.
struct Capture<'a> {
    rest: &'a [u8],
    number: fn([u8; 4]) -> u32,
}

impl<'a> Capture<'a> {
    fn open(file: &'a [u8]) -> Result<Self, Box<dyn Error>> {
        let (header, rest) = file.split_at_checked(24).ok_or("not a pcap file: too short")?;
        let word =
            |at: usize| header.get(at..at + 4).and_then(|word| word.try_into().ok()).unwrap_or_default();
        // The writer's byte order is that in which its magic number is right.
        let orders: [fn([u8; 4]) -> u32; 2] = [u32::from_le_bytes, u32::from_be_bytes];
        let number = orders.into_iter().find(|number| PCAP.contains(&number(word(0))));
        let number = number.ok_or("not a pcap file: wrong magic number")?;
        match number(word(20)) {
            LINKTYPE_ERF => Ok(Self { rest, number }),
            other => Err(format!("link type {other}; InfiniBand captures have {LINKTYPE_ERF} (ERF)").into()),
        }
    }
}

impl<'a> Iterator for Capture<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (header, rest) = self.rest.split_at_checked(16)?;
        let captured = (self.number)(header.get(8..12)?.try_into().ok()?);
        let (record, rest) = rest.split_at_checked(captured as usize)?;
        self.rest = rest;
        Some(record)
    }
}

/// The InfiniBand packet in an ERF record, LRH to VCRC; `None` if it is something else or was cut.
fn infiniband(record: &[u8]) -> Option<&[u8]> {
    let mut kind = *record.get(8)?;
    let length = usize::from(u16::from_be_bytes(record.get(14..16)?.try_into().ok()?));
    let mut body = record.get(ERF_HEADER..)?;
    if kind & 0x7f != ERF_INFINIBAND {
        return None;
    }
    while kind & 0x80 != 0 {
        kind = *body.first()?;
        body = body.get(8..)?;
    }
    body.get(..length)
}

/// One line about a packet.
fn describe(bytes: &[u8]) -> String {
    let packet = match Packet::parse(bytes) {
        Ok(packet) => packet,
        Err(error) => return format!("{} bytes: {error}", bytes.len()),
    };
    let (lrh, bth) = (packet.lrh(), packet.bth());
    let mut line = format!(
        "LID {} > {}  QP {}  {:?}  P_Key {}  PSN {}  {} bytes",
        lrh.slid,
        lrh.dlid,
        bth.dest_qpn,
        bth.opcode,
        bth.pkey,
        bth.psn,
        packet.payload().len()
    );
    if let Some(grh) = packet.grh() {
        line += &format!("  GID {} > {}", grh.sgid, grh.dgid);
    }
    if let Extended::Deth(deth) | Extended::DethImmediate(deth, _) = packet.extended() {
        line += &format!("  from QP {}, Q_Key {}", deth.src_qpn, deth.qkey);
    }
    if !packet.icrc_is_right() {
        line += "  wrong ICRC";
    }
    line
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: decode FILE")?;
    let file = std::fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
    let mut out = std::io::stdout().lock();
    for (number, record) in Capture::open(&file)?.enumerate() {
        let line = infiniband(record).map_or_else(|| "not a whole InfiniBand packet".to_owned(), describe);
        writeln!(out, "{:4}  {line}", number + 1)?;
    }
    Ok(())
}
