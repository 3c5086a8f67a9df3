//! The effect of each REJ reason (IBA 12.6.7.2) on a dial.

use ib_wire::cm::RejectReason as Reason;

/// The reaction to a rejected dial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// A temporary condition: dialled again, with back-off.
    Again,
    /// The path that the request named is no longer right: looked up again, then dialled again with back-off.
    NewPath,
    /// The peer listens at the other form of service ID, or not at all: that form is dialled, then as
    /// [`Verdict::Again`].
    OtherServiceId,
    /// The same request would be rejected again: not dialled for a long time, unless the peer changes its
    /// address.
    Final,
}

/// The reaction to a rejection. Datagrams continue in every case.
pub(super) const fn verdict(reason: Reason) -> Verdict {
    match reason {
        // A lack of resources, or traces of an earlier connection that the peer is clearing away; or the
        // consumer refused for reasons of its own.
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
        // The MTU belongs to the path, too.
        Reason::PrimaryGid
        | Reason::PrimaryLid
        | Reason::PrimarySl
        | Reason::PrimaryTrafficClass
        | Reason::PrimaryHopLimit
        | Reason::PrimaryRate
        | Reason::PrimaryFlowLabel
        | Reason::InvalidMtu => Verdict::NewPath,
        // Redirection is not followed: ARP defines IPoIB's peers. Our requests name no alternate path.
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
        // Vendor-specific reasons have an unknown meaning.
        _ => Verdict::Again,
    }
}
