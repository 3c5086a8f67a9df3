//! Execution of a packet's verdict.

use std::net::Ipv4Addr;

use pmd::hca::MemoryWork;
use pmd::mem::Mbuf;

use super::faces::EthernetFace;
use super::hands::{Hands, frame_header, mark};
use crate::counter::Traffic;
use crate::forward::{
    EthVerdict, IbVerdict, Plain, SegmentIndex, SegmentTable, Side, ToEthernet, ToInfiniBand,
};
use crate::gateway::cut;
use crate::gateway::punts::Cause;
use crate::gateway::sighting::Outcome;
use crate::segment::Origin;
use ipoib::drop_reason::DropReason;
use ipoib::net::{IPOIB_HEADER_LEN, IPOIB_IPV4_HEADER};

impl<Q: MemoryWork> Hands<'_, Q> {
    #[inline(always)]
    pub(super) fn carry_out_ethernet(
        &mut self,
        verdict: EthVerdict<'_, Q::Destination>,
        frame: Mbuf,
        front: usize,
        segment: SegmentIndex,
        table: &SegmentTable<Q::Destination>,
    ) -> Outcome {
        match verdict {
            EthVerdict::Forward { via, ip_len, neighbour, dial } => {
                let how = ToInfiniBand { via, ip_len, neighbour, dial };
                let marks = table.marks(Side::InfiniBand, self.common.worker);
                let uplink = table.settings.uplink();
                self.forward_frame(Plain { segment, uplink, table, marks, front, how }, frame)
            }
            EthVerdict::Fragment { via, ip_len, mtu, neighbour, dial } => {
                self.common.counters.packet(Traffic::Fragmented, frame.len());
                let pieces = match cut::pieces(self.pool, &frame, front, ip_len, mtu, &IPOIB_IPV4_HEADER) {
                    Ok(pieces) => pieces,
                    Err(reason) => return self.drop(segment, reason),
                };
                let mut outcome = Outcome::NO_PIECES;
                for piece in pieces {
                    outcome = outcome.and(match piece {
                        Some(piece) => self.send_message(segment, via, piece, table.settings.uplink()),
                        None => self.drop(segment, DropReason::NoBuffers),
                    });
                }
                self.note_use(table.marks(Side::InfiniBand, self.common.worker), neighbour, dial, table);
                outcome
            }
            EthVerdict::TooBig { mtu, dial } => {
                let dial = dial.map(Ipv4Addr::from);
                if let Some(ip) = dial {
                    self.want(ip, table);
                }
                self.punt_frame(Cause::TooBig { mtu, dial }, segment, front, frame, table)
            }
            EthVerdict::Punt(punt) => self.punt_frame(Cause::Punt(punt), segment, front, frame, table),
            EthVerdict::Drop(reason) => self.drop(segment, reason),
        }
    }

    #[inline(always)]
    pub(super) fn carry_out_infiniband(
        &mut self,
        verdict: IbVerdict,
        message: Mbuf,
        origin: Option<Origin>,
        segment: SegmentIndex,
        table: &SegmentTable<Q::Destination>,
    ) -> Outcome {
        match verdict {
            IbVerdict::Forward { to, ip_len, neighbour } => {
                let how = ToEthernet { to: &to, ip_len, neighbour };
                let marks = table.marks(Side::Ethernet, self.common.worker);
                let uplink = table.settings.uplink();
                let front = IPOIB_HEADER_LEN;
                self.forward_message(Plain { segment, uplink, table, marks, front, how }, message)
            }
            IbVerdict::Fragment { to, ip_len, mtu, neighbour } => {
                mark(table.marks(Side::Ethernet, self.common.worker), neighbour);
                if self.ethernets.get(table.settings.ethernet.at()).is_some_and(EthernetFace::is_crowded) {
                    return self.drop(segment, DropReason::EthQueueFull);
                }
                self.common.counters.packet(Traffic::Fragmented, message.len());
                let header = frame_header(to, table).to_bytes();
                let pieces = match cut::pieces(self.pool, &message, IPOIB_HEADER_LEN, ip_len, mtu, &header) {
                    Ok(pieces) => pieces,
                    Err(reason) => return self.drop(segment, reason),
                };
                let mut outcome = Outcome::NO_PIECES;
                for piece in pieces {
                    outcome = outcome.and(match piece {
                        Some(piece) => self.push_frame(segment, piece, &table.settings),
                        None => self.drop(segment, DropReason::NoBuffers),
                    });
                }
                outcome
            }
            IbVerdict::TooBig { mtu } => {
                self.punt_message(Cause::TooBig { mtu, dial: None }, segment, origin, message, table)
            }
            IbVerdict::Punt(punt) => self.punt_message(Cause::Punt(punt), segment, origin, message, table),
            IbVerdict::Drop(reason) => self.drop(segment, reason),
        }
    }
}
