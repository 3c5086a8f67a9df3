//! Connection states (IBA 12.9.5, 12.9.6) and all transitions between them.

/// State of one end of a connection. Listening is not a state: a listener is a service ID in the table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// No connection: before the first message and after the last.
    Idle,
    /// Active: REQ sent.
    ReqSent,
    /// Active: the peer has received the REQ and needs time (MRA).
    MraReqRcvd,
    /// Active: REP received, the owner is changing its queue pair's state.
    RepRcvd,
    /// Active: REP received, MRA sent.
    MraRepSent,
    /// Passive: REQ received, the owner must respond.
    ReqRcvd,
    /// Passive: REQ received, MRA sent.
    MraReqSent,
    /// Passive: REP sent.
    RepSent,
    /// Passive: the peer has received the REP and needs time.
    MraRepRcvd,
    /// Established.
    Established,
    /// DREQ sent.
    DreqSent,
    /// DREQ received, DREP not sent yet.
    DreqRcvd,
    /// Ended; packets may still be in flight.
    Timewait,
}

/// Input of the state machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Input {
    /// Send REQ.
    SendReq,
    /// REQ received.
    RecvReq,
    /// Send MRA.
    SendMra,
    /// MRA for the REQ received.
    RecvMraReq,
    /// MRA for the REP received.
    RecvMraRep,
    /// Send REP.
    SendRep,
    /// REP received.
    RecvRep,
    /// Send RTU.
    SendRtu,
    /// RTU received.
    RecvRtu,
    /// Data received on the queue pair.
    Data,
    /// Send REJ.
    SendRej,
    /// REJ received.
    RecvRej,
    /// REJ with reason "stale connection" received.
    RecvRejStale,
    /// Send DREQ.
    SendDreq,
    /// DREQ received.
    RecvDreq,
    /// Send DREP.
    SendDrep,
    /// DREP received.
    RecvDrep,
    /// No response after the last retransmission.
    Exhausted,
    /// TIMEWAIT is over.
    TimewaitOver,
}

impl Input {
    /// All inputs.
    pub const ALL: [Self; 19] = [
        Self::SendReq,
        Self::RecvReq,
        Self::SendMra,
        Self::RecvMraReq,
        Self::RecvMraRep,
        Self::SendRep,
        Self::RecvRep,
        Self::SendRtu,
        Self::RecvRtu,
        Self::Data,
        Self::SendRej,
        Self::RecvRej,
        Self::RecvRejStale,
        Self::SendDreq,
        Self::RecvDreq,
        Self::SendDrep,
        Self::RecvDrep,
        Self::Exhausted,
        Self::TimewaitOver,
    ];
}

impl State {
    /// All states.
    pub const ALL: [Self; 13] = [
        Self::Idle,
        Self::ReqSent,
        Self::MraReqRcvd,
        Self::RepRcvd,
        Self::MraRepSent,
        Self::ReqRcvd,
        Self::MraReqSent,
        Self::RepSent,
        Self::MraRepRcvd,
        Self::Established,
        Self::DreqSent,
        Self::DreqRcvd,
        Self::Timewait,
    ];

    /// Returns the next state, or `None` if the input is not allowed and changes nothing.
    #[must_use]
    pub const fn after(self, input: Input) -> Option<Self> {
        use Input as I;
        Some(match (self, input) {
            (Self::Idle, I::SendReq) => Self::ReqSent,
            (Self::Idle, I::RecvReq) => Self::ReqRcvd,

            (Self::ReqSent, I::RecvMraReq) => Self::MraReqRcvd,
            (Self::ReqSent | Self::MraReqRcvd, I::RecvRep) => Self::RepRcvd,
            (Self::ReqSent | Self::MraReqRcvd, I::SendRej | I::RecvRej | I::Exhausted) => Self::Idle,
            (Self::ReqSent | Self::MraReqRcvd, I::RecvRejStale) => Self::Timewait,

            (Self::RepRcvd, I::SendMra) => Self::MraRepSent,
            (Self::RepRcvd | Self::MraRepSent, I::SendRtu) => Self::Established,
            (Self::RepRcvd | Self::MraRepSent, I::SendRej | I::RecvRej | I::RecvRejStale) => Self::Timewait,
            (Self::RepRcvd | Self::MraRepSent, I::RecvDreq) => Self::DreqRcvd,

            (Self::ReqRcvd, I::SendMra) => Self::MraReqSent,
            (Self::ReqRcvd | Self::MraReqSent, I::SendRep) => Self::RepSent,
            (Self::ReqRcvd | Self::MraReqSent, I::SendRej | I::RecvRej | I::Exhausted) => Self::Idle,
            (Self::ReqRcvd | Self::MraReqSent, I::RecvRejStale) => Self::Timewait,

            (Self::RepSent, I::RecvMraRep) => Self::MraRepRcvd,
            (Self::RepSent | Self::MraRepRcvd, I::RecvRtu | I::Data) => Self::Established,
            (Self::RepSent | Self::MraRepRcvd, I::SendRej | I::RecvRej | I::RecvRejStale | I::Exhausted) => {
                Self::Timewait
            }
            (Self::RepSent | Self::MraRepRcvd, I::RecvDreq) => Self::DreqRcvd,

            (Self::Established, I::SendDreq) => Self::DreqSent,
            (Self::Established, I::RecvDreq) => Self::DreqRcvd,
            (Self::Established, I::RecvRej | I::RecvRejStale) => Self::Timewait,

            (Self::DreqSent, I::RecvDreq) => Self::DreqRcvd,
            (Self::DreqSent, I::RecvDrep | I::RecvRej | I::RecvRejStale | I::Exhausted) => Self::Timewait,

            (Self::DreqRcvd, I::SendDrep | I::RecvDrep) => Self::Timewait,

            (Self::Timewait, I::TimewaitOver) => Self::Idle,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_reached_and_left() {
        for state in State::ALL {
            let into = State::ALL
                .iter()
                .flat_map(|s| Input::ALL.iter().map(move |i| (s, i)))
                .any(|(s, i)| *s != state && s.after(*i) == Some(state));
            assert!(into, "{state:?} is never entered");
            assert!(Input::ALL.iter().any(|i| state.after(*i).is_some()), "{state:?} is never left");
        }
    }

    #[test]
    fn every_state_leads_back_to_idle() {
        for start in State::ALL {
            let mut seen = vec![start];
            let mut at = 0;
            while let Some(&state) = seen.get(at) {
                for next in Input::ALL.iter().filter_map(|i| state.after(*i)) {
                    if !seen.contains(&next) {
                        seen.push(next);
                    }
                }
                at += 1;
            }
            assert!(seen.contains(&State::Idle), "{start:?}");
        }
    }
}
