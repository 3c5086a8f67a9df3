//! Connected queue pairs of hosts: created when a connection starts, moved through the states by its
//! handshake, in ERR after its end, and destroyed when none of its packets is in flight.

use std::collections::HashMap;

use cm::connection::QpAttributes;
use ib_wire::Qpn;
use pmd::hca::{
    AddressVector, Backend, Control as _, QpTransition, Queues, RcConfig, RcSlot, RcToReceive, RcToSend,
    UdSlot,
};
use pmd::soft::SoftHca;

use crate::Error;
use crate::hosts::{DriverQueues, PORT};

/// Places for the connections of a group of hosts, and of those sends that wait on one.
pub(crate) const PLACES: u16 = 1024;
const SENDS: u32 = 16;
/// Retries of all kinds.
const RETRIES: u8 = 7;
/// 0.64 ms.
const RNR_TIMER: u8 = 12;

/// A queue pair in the table of its group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) qpn: Qpn,
    pub(crate) slot: RcSlot,
}

/// Resources of a device for connections, by group of hosts.
#[derive(Debug)]
pub(crate) struct Pairs {
    free: Vec<Vec<RcSlot>>,
    /// The host of a connection, by group and slot.
    hosts: HashMap<(usize, RcSlot), usize>,
    /// In ERR, and in no table: their numbers must not be used yet.
    ended: HashMap<Qpn, <DriverQueues as Queues>::Rc>,
}

impl Pairs {
    pub(crate) fn new(groups: usize) -> Self {
        let free = (0..groups).map(|_| (0..PLACES).rev().map(RcSlot).collect()).collect();
        Self { free, hosts: HashMap::new(), ended: HashMap::new() }
    }

    /// The host whose connection has this slot.
    pub(crate) fn host(&self, group: usize, slot: RcSlot) -> Option<usize> {
        self.hosts.get(&(group, slot)).copied()
    }

    /// A queue pair in INIT for host `at`; `passive` is one by which it only receives.
    pub(crate) fn make(
        &mut self,
        hca: &mut SoftHca,
        (group, queues): (usize, &mut DriverQueues),
        (at, beside): (usize, UdSlot),
        passive: bool,
    ) -> Result<Pair, Error> {
        let slot = self.free.get_mut(group).and_then(Vec::pop).ok_or(Error::Slot)?;
        let config = RcConfig { queues: queues.id(), port: PORT, beside, send_depth: SENDS, passive };
        let rc = hca.create_rc(&config)?;
        let qpn = SoftHca::rc_qpn(&rc);
        queues.insert_rc(slot, rc).map_err(|_| Error::Slot)?;
        self.hosts.insert((group, slot), at);
        hca.modify_qp(qpn, &QpTransition::RcToInit { pkey_index: 0 })?;
        Ok(Pair { qpn, slot })
    }

    /// Stops using a queue pair: moves it to ERR, and frees its slot.
    pub(crate) fn fail(
        &mut self,
        hca: &mut SoftHca,
        (group, queues): (usize, &mut DriverQueues),
        pair: Pair,
    ) -> Result<(), Error> {
        hca.modify_qp(pair.qpn, &QpTransition::ToError)?;
        let rc = queues.remove_rc(pair.slot).ok_or(Error::Slot)?;
        self.ended.insert(pair.qpn, rc);
        self.hosts.remove(&(group, pair.slot));
        if let Some(free) = self.free.get_mut(group) {
            free.push(pair.slot);
        }
        Ok(())
    }

    /// Destroys a queue pair when none of its packets is in flight.
    pub(crate) fn unmake(&mut self, hca: &mut SoftHca, qpn: Qpn) -> Result<(), Error> {
        if let Some(rc) = self.ended.remove(&qpn) {
            hca.destroy_rc(rc)?;
        }
        Ok(())
    }
}

/// Moves a queue pair from INIT to RTS.
pub(crate) fn open(hca: &mut SoftHca, qpn: Qpn, with: &QpAttributes) -> Result<(), Error> {
    let path = &with.path;
    let av = AddressVector { dlid: path.dlid, sl: path.sl, src_path_bits: 0, rate: path.rate, grh: None };
    let mtu = with.path_mtu.min(hca.port(PORT)?.active_mtu);
    let receive = RcToReceive {
        av,
        dest_qpn: with.dest_qpn,
        rq_psn: with.rq_psn,
        path_mtu: mtu,
        min_rnr_timer: RNR_TIMER,
    };
    let send = RcToSend {
        sq_psn: with.sq_psn,
        timeout: with.ack_timeout.code(),
        retry_count: RETRIES,
        rnr_retry: RETRIES,
    };
    hca.modify_qp(qpn, &QpTransition::RcToReceive(receive))?;
    hca.modify_qp(qpn, &QpTransition::RcToSend(send))?;
    Ok(())
}

/// The answer to a message with an IPv4 packet: the same packet with exchanged addresses.
pub(crate) fn answer(message: &[u8]) -> Option<Vec<u8>> {
    const IPV4: [u8; 4] = [0x08, 0x00, 0, 0];
    let mut answer = message.to_vec();
    let packet = answer.get_mut(IPV4.len()..)?;
    if !message.starts_with(&IPV4) {
        return None;
    }
    // Checksums stay valid: their sums do not change.
    let (sources, destinations) = packet.get_mut(12..20)?.split_at_mut(4);
    sources.swap_with_slice(destinations);
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_goes_back_to_whom_the_message_is_from() {
        let mut message = vec![0x08, 0x00, 0, 0, 0x45];
        message.resize(4 + 12, 7);
        message.extend([10, 77, 0, 1, 10, 76, 0, 9, 1, 2, 3]);
        let answered = answer(&message).unwrap();
        assert_eq!(answered[..16], message[..16]);
        assert_eq!(answered[16..], [10, 76, 0, 9, 10, 77, 0, 1, 1, 2, 3]);
        for (len, first) in [(0, 8), (3, 8), (4, 8), (23, 8), (40, 9)] {
            let mut other = message.clone();
            other.resize(len, 0);
            if let Some(byte) = other.first_mut() {
                *byte = first;
            }
            assert_eq!(answer(&other), None, "{len} bytes");
        }
    }
}
