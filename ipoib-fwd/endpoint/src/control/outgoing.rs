//! Management datagrams that wait for room on the device.

use std::collections::VecDeque;

use ib_wire::cm::AttributeId;
use ib_wire::mad::{Mad, MgmtClass};
use ib_wire::sa::attribute;
use pmd::hca::HcaError;

/// Largest number of management datagrams of each kind that wait for room on the device.
const WAITING: usize = 4096;
/// The same for rejections. A host that floods with requests waits for none of them, and a host that waits
/// repeats its request.
const WAITING_REJECTIONS: usize = 256;
/// Number of kinds of datagrams.
const KINDS: usize = 4;
const REJECT: u16 = AttributeId::Reject.code();
const FULL: HcaError = HcaError::Exhausted("room for management datagrams that wait");

/// Datagrams by kind, oldest first, in order of urgency:
///
/// 1. REP, RTU and DREP, whose receivers give up after seconds;
/// 2. memberships of groups;
/// 3. paths;
/// 4. rejections of connections.
///
/// A kernel that has reached its limit of requests to subnet administration refuses further ones for seconds.
/// A host that floods with requests for connections can cause any number of rejections.
///
/// A kind that was refused sends one datagram before all others in the next flush. So hosts that keep the
/// first kind busy by requesting connections do not starve the others.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    connections: VecDeque<Mad>,
    memberships: VecDeque<Mad>,
    paths: VecDeque<Mad>,
    rejections: VecDeque<Mad>,
    /// True for kinds that were refused in the last flush, by index.
    refused: [bool; KINDS],
    /// Index of the kind that last went before all others.
    preferred: usize,
}

/// Sends up to `most` datagrams of a kind; false if there is no room.
fn send_some(
    kind: &mut VecDeque<Mad>,
    most: usize,
    send: &mut impl FnMut(&Mad) -> Result<(), HcaError>,
    lost: &mut Vec<HcaError>,
) -> bool {
    for _ in 0..most {
        let Some(mad) = kind.front() else { break };
        match send(mad) {
            Err(HcaError::Exhausted(_)) => return false,
            Err(error) => lost.push(error),
            Ok(()) => {}
        }
        kind.pop_front();
    }
    true
}

impl Outgoing {
    fn kinds(&mut self) -> [&mut VecDeque<Mad>; KINDS] {
        [&mut self.connections, &mut self.memberships, &mut self.paths, &mut self.rejections]
    }

    pub(super) fn push(&mut self, mad: Mad) -> Result<(), HcaError> {
        let header = mad.header();
        let (kind, most) = match (header.class, header.attribute) {
            (MgmtClass::SubnAdm, attribute::MC_MEMBER_RECORD) => (&mut self.memberships, WAITING),
            (MgmtClass::SubnAdm, _) => (&mut self.paths, WAITING),
            (MgmtClass::ComMgt, REJECT) => (&mut self.rejections, WAITING_REJECTIONS),
            _ => (&mut self.connections, WAITING),
        };
        if kind.len() >= most {
            return Err(FULL);
        }
        kind.push_back(mad);
        Ok(())
    }

    /// Sends what there is room for; returns the errors of the lost datagrams.
    pub(super) fn flush(&mut self, mut send: impl FnMut(&Mad) -> Result<(), HcaError>) -> Vec<HcaError> {
        let mut lost = Vec::new();
        let refused = std::mem::take(&mut self.refused);
        let after = (1..=KINDS).map(|n| (self.preferred + n) % KINDS);
        if let Some(next) = after.into_iter().find(|at| refused.get(*at) == Some(&true)) {
            self.preferred = next;
            if let Some(kind) = self.kinds().into_iter().nth(next) {
                send_some(kind, 1, &mut send, &mut lost);
            }
        }
        self.refused = self.kinds().map(|kind| !send_some(kind, usize::MAX, &mut send, &mut lost));
        lost
    }

    pub(super) fn is_empty(&self) -> bool {
        let kinds = [&self.connections, &self.memberships, &self.paths, &self.rejections];
        kinds.iter().all(|kind| kind.is_empty())
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_wire::mad::{MadAddress, MadHeader, Method};
    use ib_wire::{Lid, ServiceLevel, Tid};

    fn mad(class: MgmtClass, attribute: u16, n: u64) -> Mad {
        let mut bytes = Box::new([0; 256]);
        MadHeader::new(class, 2, Method::Get, Tid(n), attribute).put(&mut bytes);
        Mad { peer: MadAddress::gsi(Lid(1), ServiceLevel::new(0)), bytes }
    }

    fn path(n: u64) -> Mad {
        mad(MgmtClass::SubnAdm, attribute::PATH_RECORD, n)
    }

    /// Flushes to a kernel with room for some requests to subnet administration, and always for other
    /// datagrams.
    fn flush(outgoing: &mut Outgoing, mut room: usize) -> Vec<(u8, u64)> {
        let mut sent = Vec::new();
        let lost = outgoing.flush(|mad| {
            let header = mad.header();
            if header.class == MgmtClass::SubnAdm {
                room = room.checked_sub(1).ok_or(HcaError::Exhausted("requests"))?;
            }
            sent.push((header.class.code(), header.tid.0));
            Ok(())
        });
        assert!(lost.is_empty());
        sent
    }

    #[test]
    fn connections_do_not_wait_for_subnet_administration() {
        let mut outgoing = Outgoing::default();
        for n in 0..200 {
            outgoing.push(path(n)).unwrap();
        }
        assert_eq!(flush(&mut outgoing, 128).len(), 128);
        outgoing.push(mad(MgmtClass::ComMgt, 0x13, 1000)).unwrap();
        outgoing.push(mad(MgmtClass::SubnAdm, attribute::MC_MEMBER_RECORD, 1001)).unwrap();
        assert_eq!(flush(&mut outgoing, 0), [(7, 1000)], "while no request has an answer");
        assert_eq!(flush(&mut outgoing, 2), [(3, 1001), (3, 128)], "groups before paths, and those in order");
        assert_eq!(flush(&mut outgoing, 1000).len(), 71);
        assert!(outgoing.is_empty());
    }

    /// The device has room for one datagram at a time, and there is always a next one about connections.
    #[test]
    fn connections_do_not_starve_the_others() {
        let mut outgoing = Outgoing::default();
        for n in 0..3 {
            outgoing.push(path(n)).unwrap();
            outgoing.push(mad(MgmtClass::SubnAdm, attribute::MC_MEMBER_RECORD, 10 + n)).unwrap();
        }
        let mut sent = Vec::new();
        for n in 0..20 {
            outgoing.push(mad(MgmtClass::ComMgt, 0x13, 100 + n)).unwrap();
            outgoing.push(mad(MgmtClass::ComMgt, 0x13, 200 + n)).unwrap();
            let mut room = 1_u32;
            outgoing.flush(|mad| {
                room = room.checked_sub(1).ok_or(HcaError::Exhausted("room"))?;
                sent.push(mad.header().tid.0);
                Ok(())
            });
        }
        sent.retain(|n| *n < 100);
        sent.sort_unstable();
        assert_eq!(sent, [0, 1, 2, 10, 11, 12]);
    }

    #[test]
    fn rejections_wait_behind_all_others_and_take_no_room_of_theirs() {
        let mut outgoing = Outgoing::default();
        let rejected =
            (0..).take_while(|n| outgoing.push(mad(MgmtClass::ComMgt, REJECT, *n)).is_ok()).count();
        assert_eq!(rejected, WAITING_REJECTIONS);
        outgoing.push(mad(MgmtClass::ComMgt, 0x13, 1000)).unwrap();
        outgoing.push(path(1001)).unwrap();
        let sent = flush(&mut outgoing, 1);
        assert_eq!(sent[..3], [(7, 1000), (3, 1001), (7, 0)]);
        assert_eq!(sent.len(), WAITING_REJECTIONS + 2);
    }

    #[test]
    fn each_kind_has_room_of_its_own() {
        let mut outgoing = Outgoing::default();
        let taken = (0..).take_while(|n| outgoing.push(path(*n)).is_ok()).count();
        assert_eq!(taken, WAITING);
        assert!(outgoing.push(mad(MgmtClass::ComMgt, 0x13, 1)).is_ok());
        assert!(outgoing.push(mad(MgmtClass::SubnAdm, attribute::MC_MEMBER_RECORD, 1)).is_ok());
    }

    #[test]
    fn a_datagram_that_cannot_be_sent_holds_up_no_other() {
        let mut outgoing = Outgoing::default();
        for n in 0..3 {
            outgoing.push(path(n)).unwrap();
        }
        let mut sent = 0;
        let lost = outgoing.flush(|mad| {
            if mad.header().tid == Tid(1) {
                return Err(HcaError::Gone("it".into()));
            }
            sent += 1;
            Ok(())
        });
        assert_eq!((sent, lost.len(), outgoing.is_empty()), (2, 1, true));
    }

    /// If the kernel repeated a request that its sender has given up, the request might undo what follows,
    /// and would use room of others.
    #[test]
    fn the_kernel_repeats_no_request_that_has_ended() {
        assert!(pmd::verbs::REQUEST_TIME <= cm::port::PATIENCE);
    }
}
