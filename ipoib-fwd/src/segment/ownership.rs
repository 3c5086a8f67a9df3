//! Address ownership: the meaning of an ARP packet, the knowledge about the addresses in it, and the
//! resulting action.
//!
//! An address is *proven* to be on a side after the other side was queried for it and stayed silent. Before
//! that, nothing is announced, answered or queried in the name of an address. A proven owner keeps its
//! address while it answers. During the first 10 s an answer of the other side may be a late one: then
//! neither side is believed.
//!
//! [`SENDERS`] decides about the address that a packet claims for its sender, [`TARGETS`] about the address
//! that it requests. Unicast and broadcast packets are treated alike, and so are both sides.

use std::time::Duration;

use ArpKind::{Announcement, Probe, Reply, Request};
use SenderAction as Sender;
use SenderKnowledge as Claimed;
use TargetAction as Target;
use TargetKnowledge as Requested;

/// An owner that was heard within this time is not queried before a request for its address is answered.
pub(super) const FRESH: Duration = Duration::from_secs(5);

/// An answer that comes within this time after silence has proven the address counts as late.
pub(super) const LATE: Duration = Duration::from_secs(10);

/// Defines an enum with its list and a word or a sentence for each value.
macro_rules! described {
    ($(#[$doc:meta])* $enum:ident { $($name:ident = $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $enum {
            $(#[doc = $text] $name,)*
        }

        impl $enum {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// A description of the value.
            #[must_use]
            pub const fn describe(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

described! {
    /// The kind of an ARP packet.
    ArpKind {
        Request = "request";
        Probe = "probe";
        Reply = "reply";
        Announcement = "announcement";
    }
}

described! {
    /// The knowledge about the address that a packet claims for its sender.
    SenderKnowledge {
        Own = "It is the gateway's own.";
        OwnAtPeer = "It is the gateway's own, and the hardware address is another gateway's.";
        PeerGateway = "The hardware address is another gateway's.";
        Contested = "Both sides answered for it within the last 10 s.";
        Here = "It is on this side, at this hardware address.";
        Elsewhere = "It is on this side, at another hardware address.";
        Across = "It is on the other side, proven.";
        AcrossLately = "It is on the other side, proven within the last 10 s.";
        AcrossUnproven = "A host of the other side has answered for it, but is not proven.";
        ClaimedAcross = "A host of the other side claims it.";
        SoughtAcross = "The other side is being queried for it and has not answered.";
        Awaited = "This side was queried for it.";
        Discovered = "The gateway has just started to forward: it queried both sides for it, or this side because of a report that anybody may have sent.";
        ClaimedHere = "A host of this side claims it, and the other side is being queried.";
        Unknown = "Nothing.";
    }
}

impl SenderKnowledge {
    /// True if the packet claims the gateway's own address.
    pub(super) const fn is_own(self) -> bool {
        matches!(self, Self::Own | Self::OwnAtPeer)
    }
}

described! {
    /// The action for the sender of a packet.
    SenderAction {
        Report = "Drop the packet, report its sender, and announce the gateway's own address there: at once, and again 10 s later if there are further claims.";
        ReportPeer = "Drop the packet and report the other gateway, once in 10 s at most. The gateway does not announce its own address: the other one would do the same, in turn without end.";
        Drop = "Drop the packet.";
        Refuse = "Drop the packet and count a refused claim.";
        Serve = "Learn nothing. A request is served.";
        Confirm = "Refresh the entry and refuse an open claim of the other side; announce the owner on that side.";
        Doubt = "Believe the new hardware address and query the old one, which keeps the address if it answers. Query the other side twice; an announcement is forwarded there after 0.25 s if it stays silent.";
        AskOwner = "Query the owner three times within a second, the last time by a query to its whole side. If it answers, the claim is refused, otherwise the address moves.";
        Note = "Query the owner when this gateway starts to forward.";
        Contest = "Believe neither side for 10 s, and count it.";
        Refute = "Refuse the claim of the other side. Take the answer if this side was queried for a host of the other; it is proven when the other side has been queried and stayed silent. A request is served.";
        Take = "Take the answer; it is proven when the other side has been queried and stayed silent.";
        Prove = "Query the other side twice within 0.3 s. If it stays silent the address is proven, and an announcement is forwarded.";
        ProveAndAnnounce = "Query the other side twice within 0.3 s. If it stays silent, announce the address there.";
        ServeAndProve = "Serve the request, and prove its sender if it requests a host of the other side or the gateway.";
    }
}

described! {
    /// The knowledge about the address that a packet requests.
    TargetKnowledge {
        Own = "It is the gateway's own.";
        Disputed = "A claim to it is open.";
        Contested = "Both sides answered for it within the last 10 s.";
        AcrossFresh = "It is on the other side, proven, and was heard within the last 5 s.";
        Across = "It is on the other side, proven, and was not heard within the last 5 s.";
        AcrossUnproven = "A host of the other side has answered for it, but is not proven.";
        HereFresh = "It is on this side and was heard within the last 5 s.";
        Here = "It is on this side and was not heard within the last 5 s.";
        Unknown = "Nothing.";
    }
}

described! {
    /// The action for the address that a packet requests.
    TargetAction {
        Answer = "Answer with the gateway's hardware address.";
        Ignore = "Do not answer: the host hears the request itself, or no owner is proven.";
        Wait = "Answer when the claim is settled.";
        AskOwner = "Query the owner three times within a second; answer when it does.";
        AskOwnSide = "Query the requester's own side twice; answer after 0.25 s if it stays silent.";
        AskHere = "Query the host three times within a second; if it is silent, look for it on the other side.";
        LookUp = "Query the other side, and the requester's own side before anything is answered. A probe from Ethernet is forwarded to the other side, and its answer is forwarded back: the prober queries its own side itself.";
    }
}

/// A row of [`SENDERS`].
#[derive(Clone, Copy, Debug)]
pub struct SenderRow {
    /// The knowledge about the address.
    pub known: SenderKnowledge,
    /// The kinds of packets.
    pub kinds: &'static [ArpKind],
    /// The action of the gateway that forwards.
    pub forwarding: SenderAction,
    /// The action of any other gateway.
    pub standby: SenderAction,
}

/// A row of [`TARGETS`].
#[derive(Clone, Copy, Debug)]
pub struct TargetRow {
    /// The knowledge about the address.
    pub known: TargetKnowledge,
    /// The kinds of packets.
    pub kinds: &'static [ArpKind],
    /// The action of the gateway that forwards.
    pub forwarding: TargetAction,
    /// The action of any other gateway.
    pub standby: TargetAction,
}

const fn sender(
    known: SenderKnowledge,
    kinds: &'static [ArpKind],
    forwarding: SenderAction,
    standby: SenderAction,
) -> SenderRow {
    SenderRow { known, kinds, forwarding, standby }
}

const fn target(
    known: TargetKnowledge,
    kinds: &'static [ArpKind],
    forwarding: TargetAction,
    standby: TargetAction,
) -> TargetRow {
    TargetRow { known, kinds, forwarding, standby }
}

/// Packets that claim an address for their sender. A probe claims none.
const CLAIMS: &[ArpKind] = &[Request, Reply, Announcement];
/// Packets that request an address.
const QUERIES: &[ArpKind] = &[Request, Probe];

/// Actions for the address that a packet claims for its sender, by the knowledge about that address.
pub const SENDERS: &[SenderRow] = &[
    sender(Claimed::Own, CLAIMS, Sender::Report, Sender::Report),
    sender(Claimed::OwnAtPeer, CLAIMS, Sender::ReportPeer, Sender::ReportPeer),
    sender(Claimed::PeerGateway, ArpKind::ALL, Sender::Drop, Sender::Drop),
    sender(Claimed::Contested, &[Request], Sender::Serve, Sender::Serve),
    sender(Claimed::Contested, &[Reply, Announcement], Sender::Refuse, Sender::Refuse),
    sender(Claimed::Here, CLAIMS, Sender::Confirm, Sender::Confirm),
    sender(Claimed::Elsewhere, CLAIMS, Sender::Doubt, Sender::Doubt),
    sender(Claimed::Across, CLAIMS, Sender::AskOwner, Sender::Note),
    sender(Claimed::AcrossLately, &[Request, Announcement], Sender::AskOwner, Sender::Note),
    // It may be the owner, which was queried and answers late.
    sender(Claimed::AcrossLately, &[Reply], Sender::Contest, Sender::Note),
    sender(Claimed::AcrossUnproven, CLAIMS, Sender::Contest, Sender::Note),
    sender(Claimed::ClaimedAcross, CLAIMS, Sender::Refute, Sender::Serve),
    sender(Claimed::SoughtAcross, CLAIMS, Sender::Take, Sender::Serve),
    sender(Claimed::Awaited, CLAIMS, Sender::Take, Sender::Take),
    sender(Claimed::Discovered, &[Request], Sender::ServeAndProve, Sender::Serve),
    sender(Claimed::Discovered, &[Reply], Sender::ProveAndAnnounce, Sender::Serve),
    sender(Claimed::Discovered, &[Announcement], Sender::Prove, Sender::Serve),
    sender(Claimed::ClaimedHere, &[Request], Sender::ServeAndProve, Sender::Serve),
    sender(Claimed::ClaimedHere, &[Reply], Sender::Serve, Sender::Serve),
    sender(Claimed::ClaimedHere, &[Announcement], Sender::Prove, Sender::Serve),
    sender(Claimed::Unknown, &[Request], Sender::ServeAndProve, Sender::Serve),
    sender(Claimed::Unknown, &[Reply], Sender::Serve, Sender::Serve),
    sender(Claimed::Unknown, &[Announcement], Sender::Prove, Sender::Serve),
];

/// Actions for the address that a packet requests, by the knowledge about that address.
pub const TARGETS: &[TargetRow] = &[
    target(Requested::Own, QUERIES, Target::Answer, Target::Answer),
    target(Requested::Disputed, QUERIES, Target::Wait, Target::Ignore),
    target(Requested::Contested, QUERIES, Target::Ignore, Target::Ignore),
    target(Requested::AcrossFresh, &[Request], Target::Answer, Target::Ignore),
    target(Requested::AcrossFresh, &[Probe], Target::AskOwner, Target::Ignore),
    target(Requested::Across, QUERIES, Target::AskOwner, Target::Ignore),
    target(Requested::AcrossUnproven, QUERIES, Target::AskOwnSide, Target::Ignore),
    target(Requested::HereFresh, QUERIES, Target::Ignore, Target::Ignore),
    target(Requested::Here, QUERIES, Target::AskHere, Target::Ignore),
    target(Requested::Unknown, QUERIES, Target::LookUp, Target::Ignore),
];

/// The action for the sender of a packet. A probe has none.
pub(super) fn of_sender(kind: ArpKind, known: SenderKnowledge, forwards: bool) -> SenderAction {
    let row = SENDERS.iter().find(|row| row.known == known && row.kinds.contains(&kind));
    row.map_or(SenderAction::Serve, |row| if forwards { row.forwarding } else { row.standby })
}

/// The action for the address that a packet requests. Replies and announcements request none.
pub(super) fn of_target(kind: ArpKind, known: TargetKnowledge, forwards: bool) -> TargetAction {
    let row = TARGETS.iter().find(|row| row.known == known && row.kinds.contains(&kind));
    row.map_or(TargetAction::Ignore, |row| if forwards { row.forwarding } else { row.standby })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_has_one_row() {
        for kind in ArpKind::ALL {
            for known in SenderKnowledge::ALL {
                let rows = SENDERS.iter().filter(|row| row.known == *known && row.kinds.contains(kind));
                // A probe has no sender but the hardware address.
                let has = *kind != Probe || *known == Claimed::PeerGateway;
                assert_eq!(rows.count(), usize::from(has), "{kind:?} {known:?}");
            }
            for known in TargetKnowledge::ALL {
                let rows = TARGETS.iter().filter(|row| row.known == *known && row.kinds.contains(kind));
                assert_eq!(rows.count(), usize::from(QUERIES.contains(kind)), "{kind:?} {known:?}");
            }
        }
        let used = |action: &&SenderAction| {
            SENDERS.iter().any(|row| row.forwarding == **action || row.standby == **action)
        };
        assert_eq!(SenderAction::ALL.iter().filter(used).count(), SenderAction::ALL.len());
        let used = |action: &&TargetAction| TARGETS.iter().any(|row| row.forwarding == **action);
        assert_eq!(TargetAction::ALL.iter().filter(used).count(), TargetAction::ALL.len());
    }

    /// Checks the properties of the table, case by case.
    #[test]
    fn no_unproven_host_is_believed_and_no_probe_is_answered_without_a_query() {
        for (kind, known) in
            CLAIMS.iter().flat_map(|kind| SenderKnowledge::ALL.iter().map(move |k| (*kind, *k)))
        {
            let action = of_sender(kind, known, true);
            let learns = matches!(action, Sender::Confirm | Sender::Doubt | Sender::Take);
            let may = matches!(
                known,
                Claimed::Here | Claimed::Elsewhere | Claimed::Awaited | Claimed::SoughtAcross
            );
            // `Refute` learns a queried host only.
            assert_eq!(learns, may, "{kind:?} {known:?}: only a known or queried host is learned at once");
            if known == Claimed::Across || (known == Claimed::AcrossLately && kind != Reply) {
                assert_eq!(action, Sender::AskOwner, "an owner is queried first");
            }
            let queries_others = [
                Sender::AskOwner,
                Sender::Prove,
                Sender::ServeAndProve,
                Sender::ProveAndAnnounce,
                Sender::Contest,
            ];
            let standby = of_sender(kind, known, false);
            assert!(!queries_others.contains(&standby), "{kind:?} {known:?}: the forwarder decides");
        }
        for known in TargetKnowledge::ALL {
            let answers = |kind| of_target(kind, *known, true) == Target::Answer;
            assert_eq!(answers(Probe), *known == Requested::Own, "{known:?}");
            assert_eq!(
                answers(Request),
                matches!(known, Requested::Own | Requested::AcrossFresh),
                "{known:?}"
            );
            let standby = of_target(Request, *known, false);
            assert_eq!(standby == Target::Answer, *known == Requested::Own, "{known:?}");
        }
    }
}
