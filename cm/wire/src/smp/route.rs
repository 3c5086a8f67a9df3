//! Forwarding of a directed-route packet by a node: the subnet management interface of every port (IBA
//! 14.2.2).

use super::{MAX_HOPS, NodeType, Smp};
use crate::Lid;

/// Source of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The node's own agent or manager.
    Local,
    /// The link of this port.
    Port(u8),
}

/// The next step for a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectedStep {
    /// Deliver it locally: a request to the node's agent, a response to its manager.
    Deliver,
    /// Send it through this port. A channel adapter uses the port that received or sent the packet. If the
    /// node does not have the port, the packet is dropped.
    Send(u8),
    /// Send it by LID: its directed part has ended.
    SendByLid(Lid),
    /// Drop it: it is malformed.
    Discard,
}

/// Advances a directed-route packet by one hop and updates its hop pointer and return path.
#[must_use]
pub fn step(smp: &mut Smp, node: NodeType, origin: Origin) -> DirectedStep {
    if smp.hop_count() > MAX_HOPS || smp.hop_pointer() > smp.hop_count() + 1 {
        return DirectedStep::Discard;
    }
    if smp.is_returning() { step_back(smp, node, origin) } else { step_out(smp, node, origin) }
}

/// Advances an outgoing request (IBA 14.2.2.2).
fn step_out(smp: &mut Smp, node: NodeType, origin: Origin) -> DirectedStep {
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    match (origin, pointer) {
        (Origin::Local, 0) if count > 0 => {
            smp.set_hop_pointer(1);
            leave(&smp.initial_path, 1)
        }
        // Zero hops: the node itself. The packet has arrived, so the pointer is one past the last hop.
        (Origin::Local, 0) => {
            smp.set_hop_pointer(1);
            arrive(smp.dr_dlid)
        }
        (Origin::Port(entry), 1..) if pointer < count => {
            if node != NodeType::Switch {
                return DirectedStep::Discard;
            }
            note(&mut smp.return_path, pointer, entry);
            smp.set_hop_pointer(pointer + 1);
            leave(&smp.initial_path, pointer + 1)
        }
        (Origin::Port(entry), 1..) if pointer == count => {
            note(&mut smp.return_path, pointer, entry);
            smp.set_hop_pointer(pointer + 1);
            arrive(smp.dr_dlid)
        }
        _ => DirectedStep::Discard,
    }
}

/// Advances a returning response (IBA 14.2.2.4).
fn step_back(smp: &mut Smp, node: NodeType, origin: Origin) -> DirectedStep {
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    match (origin, pointer) {
        // Zero hops: the request came from the node itself.
        (Origin::Local, 1) if count == 0 => {
            smp.set_hop_pointer(0);
            arrive(smp.dr_slid)
        }
        (Origin::Local, _) if pointer == count + 1 => {
            smp.set_hop_pointer(pointer - 1);
            leave(&smp.return_path, pointer - 1)
        }
        (Origin::Port(_), 2..) if pointer <= count => {
            if node != NodeType::Switch {
                return DirectedStep::Discard;
            }
            smp.set_hop_pointer(pointer - 1);
            leave(&smp.return_path, pointer - 1)
        }
        (Origin::Port(_), 1) if count > 0 => {
            smp.set_hop_pointer(0);
            arrive(smp.dr_slid)
        }
        _ => DirectedStep::Discard,
    }
}

fn leave(path: &[u8; 64], at: u8) -> DirectedStep {
    path.get(usize::from(at)).map_or(DirectedStep::Discard, |&port| DirectedStep::Send(port))
}

fn note(path: &mut [u8; 64], at: u8, port: u8) {
    if let Some(entry) = path.get_mut(usize::from(at)) {
        *entry = port;
    }
}

const fn arrive(end: Lid) -> DirectedStep {
    if end.0 == Lid::PERMISSIVE.0 { DirectedStep::Deliver } else { DirectedStep::SendByLid(end) }
}
