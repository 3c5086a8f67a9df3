//! What each reason of a REJ (IBA 12.6.7.2) means to a dial.

use ib_wire::cm::RejectReason as Reason;

/// What follows a rejected dial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It is a matter of the moment: dialled again, with back-off.
    Again,
    /// The path that the request named is not right any more: looked up anew, then dialled again with back-off.
    NewPath,
    /// The peer listens at the other form of service id, or not at all: that one is dialled, then as [`Verdict::Again`].
    OtherServiceId,
    /// The same request will be rejected again: not dialled for a long while, unless the peer changes its address.
    Final,
}

/// What follows a rejection. Datagrams go on in every case.
pub(super) const fn verdict(reason: Reason) -> Verdict {
    match reason {
        // Want of something, or traces of an earlier connection that the peer is clearing away; a consumer says no for reasons
        // of its own.
        Reason::NoQp
        | Reason::NoEec
        | Reason::NoResources
        | Reason::Timeout
        | Reason::InvalidCommId
        | Reason::InvalidCommInstance
        | Reason::StaleConnection
        | Reason::Consumer
        | Reason::DuplicateCommId => Verdict::Again,
        Reason::InvalidServiceId => Verdict::OtherServiceId,
        // The MTU is the path's, too.
        Reason::PrimaryGid
        | Reason::PrimaryLid
        | Reason::PrimarySl
        | Reason::PrimaryTrafficClass
        | Reason::PrimaryHopLimit
        | Reason::PrimaryRate
        | Reason::PrimaryFlowLabel
        | Reason::InvalidMtu => Verdict::NewPath,
        // Redirection is not followed: IPoIB's peers are who ARP says they are. Of alternate paths we name none.
        Reason::Unsupported
        | Reason::InvalidTransport
        | Reason::NoRdc
        | Reason::AlternateGid
        | Reason::AlternateLid
        | Reason::AlternateSl
        | Reason::AlternateTrafficClass
        | Reason::AlternateHopLimit
        | Reason::AlternateRate
        | Reason::AlternateFlowLabel
        | Reason::PortCmRedirect
        | Reason::PortRedirect
        | Reason::InsufficientResources
        | Reason::RnrRetry
        | Reason::ClassVersion => Verdict::Final,
        // Vendors' reasons: who knows.
        _ => Verdict::Again,
    }
}
