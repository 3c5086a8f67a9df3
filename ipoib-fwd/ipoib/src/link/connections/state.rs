//! States of a connection and every transition between them: from the device's queue pair over the handshake (IBA 12.9) to use, and
//! back by the life cycle of ib-ipoib: error state, last-WQE event, drain, removal, destruction (IBA 10.3.1).
//!
//! [`State::rows`] is the table. What it has no row for changes nothing and is counted. This is what it says:
//!
#![doc = include_str!("states.md")]

/// An action of a connection's way up whose answer is awaited.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::link) enum Step {
    /// The queue pair is created.
    Create,
    /// RESET → INIT.
    Initialise,
    /// The worker takes it in.
    Insert,
    /// INIT → RTR.
    Receive,
    /// RTR → RTS.
    Send,
}

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::link) enum State {
    /// The device has been asked for a queue pair.
    Creating,
    /// RESET → INIT is under way.
    Initialising,
    /// The worker has been asked to take it in.
    Inserting,
    /// Active: REQ is out, no REP yet.
    Dialling,
    /// INIT → RTR is under way.
    ToReceive,
    /// RTR → RTS is under way.
    ToSend,
    /// Passive: REP is out, no RTU yet.
    Replied,
    /// In use.
    Live,
    /// Active: out of the published tables, but workers may still use it until they have taken these up.
    Retiring,
    /// Active: out of use; what was sent is on its way.
    Lingering,
    /// It is to end, and the answer to an action of its way up has to come first.
    Halting(Step),
    /// → ERR is under way.
    ToError,
    /// In ERR; the last-WQE event has to come (IBA 10.3.1).
    AwaitLastWqe,
    /// The worker has been asked to post the drain request; its completion has to come.
    AwaitDrained,
    /// The send queue was full; the drain request is posted again soon.
    DrainRetry,
    /// The worker has been asked to give it back.
    Removing,
    /// At rest; the handshake's end has to come before the number may be used again.
    AwaitRelease,
    /// Nothing is left of it.
    Gone,
}

/// What moves a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::link) enum Input {
    /// The device has made the queue pair.
    Created,
    /// There is no queue pair, no place for one, or no use for it any more.
    Refused,
    /// The outstanding action is done.
    Done,
    /// It has failed.
    Failed,
    /// Active: the peer has accepted.
    Replied,
    /// Active: the peer does not know the service id in the form that was dialled first.
    UnknownService,
    /// Passive: the RTU came, or data in its place.
    Established,
    /// To be closed so that nothing gets lost.
    Retire,
    /// To be closed.
    Close,
    /// No worker uses it any more.
    OutOfUse,
    /// The last-WQE event came.
    LastWqe,
    /// Nothing is outstanding on the send queue.
    Drained,
    /// The handshake has said its last word, TIMEWAIT included (IBA 12.9.8.4).
    Released,
    /// What the connection waits for has not come in time.
    Expired,
}

/// A condition on what else is known of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::link) enum When {
    /// None.
    Always,
    /// We opened it.
    Active,
    /// It has received something.
    Carried,
    /// Nothing is outstanding on the send queue.
    Drained,
    /// The drain request may be posted again.
    TriesLeft,
}

/// What a transition does, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::link) enum Act {
    /// Asks for RESET → INIT.
    Initialise,
    /// Asks the worker to take it in.
    Insert,
    /// Sends the REQ.
    Connect,
    /// Sends the REQ by the other form of service id.
    ConnectOther,
    /// Asks for INIT → RTR.
    Receive,
    /// Asks for RTR → RTS.
    Send,
    /// Sends the RTU.
    Rtu,
    /// Sends the REP.
    Rep,
    /// Tells that it is up; an active one goes into the tables.
    Up,
    /// Takes it out of the tables and tells that it is down.
    Withdraw,
    /// Counts its end and tells that it is down.
    Down,
    /// The tables are made anew without it.
    Unlist,
    /// Ends the handshake in the way that fits how far it has come.
    Disconnect,
    /// Lets what was sent arrive.
    Linger,
    /// Asks for → ERR.
    Error,
    /// Waits for the last-WQE event.
    AwaitLastWqe,
    /// Has the worker post the drain request.
    Drain,
    /// Lets some time pass before it is posted again.
    DrainLater,
    /// Counts a wait that was in vain.
    Overdue,
    /// Asks the worker to give it back.
    Remove,
    /// Waits for the handshake's last word.
    AwaitRelease,
    /// Destroys the queue pair, frees the place.
    Destroy,
    /// Keeps the input for a later state.
    Keep,
    /// What came early: the input has its effect now, if it was there.
    Recall(Input),
}

/// One transition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::link) struct Row {
    /// Its condition. Of several rows the first holds whose condition is met; the last one's always is.
    pub(in crate::link) when: When,
    /// The state after it; none if that stays.
    pub(in crate::link) to: Option<State>,
    /// What it does.
    pub(in crate::link) acts: &'static [Act],
}

const fn go(to: State, acts: &'static [Act]) -> Row {
    Row { when: When::Always, to: Some(to), acts }
}

const fn only(when: When, to: State, acts: &'static [Act]) -> Row {
    Row { when, to: Some(to), acts }
}

const fn stay(when: When, acts: &'static [Act]) -> Row {
    Row { when, to: None, acts }
}

/// Does not belong here: counted.
const STRAY: &[Row] = &[];
/// Late, or said again: of no consequence.
const NOTHING: &[Row] = &[stay(When::Always, &[])];
const KEEP: &[Row] = &[stay(When::Always, &[Act::Keep])];

/// Ends of the way up, by how far the queue pair has come.
const TO_ERROR: &[Row] = &[go(State::ToError, &[Act::Down, Act::Disconnect, Act::Error])];
const TO_REMOVING: &[Row] = &[go(State::Removing, &[Act::Down, Act::Disconnect, Act::Remove])];
const TO_RELEASE: &[Row] = &[go(
    State::AwaitRelease,
    &[Act::Down, Act::Disconnect, Act::AwaitRelease, Act::Recall(Input::Released)],
)];
/// Ends of use.
const LIVE_TO_ERROR: Row = go(State::ToError, &[Act::Down, Act::Unlist, Act::Disconnect, Act::Error]);
const RETIRED_TO_ERROR: &[Row] = &[go(State::ToError, &[Act::Disconnect, Act::Error])];
/// Steps of the teardown.
const ERROR: &[Row] = &[go(State::ToError, &[Act::Error])];
const REMOVE: &[Row] = &[go(State::Removing, &[Act::Remove])];
const REMOVE_OVERDUE: Row = go(State::Removing, &[Act::Overdue, Act::Remove]);
const RELEASE: &[Row] = &[go(State::AwaitRelease, &[Act::AwaitRelease, Act::Recall(Input::Released)])];
const DESTROY: &[Row] = &[go(State::Gone, &[Act::Destroy])];

impl State {
    /// What `input` does in this state: nothing, and is counted, if there is no row.
    pub(in crate::link) const fn rows(self, input: Input) -> &'static [Row] {
        use Input as E;
        match self {
            Self::Creating => match input {
                E::Created => const { &[go(Self::Initialising, &[Act::Initialise])] },
                E::Refused => TO_RELEASE,
                E::Retire | E::Close | E::Released | E::Expired => {
                    const { &[go(Self::Halting(Step::Create), &[Act::Down, Act::Disconnect])] }
                }
                E::Done | E::Failed | E::Replied | E::UnknownService | E::Established | E::OutOfUse => STRAY,
                E::LastWqe | E::Drained => STRAY,
            },
            Self::Initialising => match input {
                E::Done => const { &[go(Self::Inserting, &[Act::Insert])] },
                E::Failed => TO_RELEASE,
                E::Retire | E::Close | E::Released | E::Expired => {
                    const { &[go(Self::Halting(Step::Initialise), &[Act::Down, Act::Disconnect])] }
                }
                E::LastWqe | E::Drained => KEEP,
                E::Created | E::Refused | E::Replied | E::UnknownService => STRAY,
                E::Established | E::OutOfUse => STRAY,
            },
            Self::Inserting => match input {
                E::Done => {
                    const {
                        &[
                            only(When::Active, Self::Dialling, &[Act::Connect]),
                            go(Self::ToReceive, &[Act::Receive]),
                        ]
                    }
                }
                E::Failed => TO_RELEASE,
                E::Retire | E::Close | E::Released | E::Expired => {
                    const { &[go(Self::Halting(Step::Insert), &[Act::Down, Act::Disconnect])] }
                }
                E::LastWqe | E::Drained => KEEP,
                E::Created | E::Refused | E::Replied | E::UnknownService => STRAY,
                E::Established | E::OutOfUse => STRAY,
            },
            Self::Dialling => match input {
                E::Replied => const { &[go(Self::ToReceive, &[Act::Receive])] },
                E::UnknownService => const { &[stay(When::Always, &[Act::ConnectOther])] },
                E::Retire | E::Close | E::Released | E::Expired => TO_REMOVING,
                E::LastWqe | E::Drained => KEEP,
                E::Created | E::Refused | E::Done | E::Failed | E::Established | E::OutOfUse => STRAY,
            },
            Self::ToReceive => match input {
                E::Done => const { &[go(Self::ToSend, &[Act::Send])] },
                E::Failed => TO_REMOVING,
                E::UnknownService | E::Retire | E::Close | E::Released | E::Expired => {
                    const { &[go(Self::Halting(Step::Receive), &[Act::Down, Act::Disconnect])] }
                }
                E::Established | E::LastWqe | E::Drained => KEEP,
                E::Created | E::Refused | E::Replied | E::OutOfUse => STRAY,
            },
            Self::ToSend => match input {
                E::Done => {
                    const {
                        &[
                            only(When::Active, Self::Live, &[Act::Rtu, Act::Up]),
                            go(Self::Replied, &[Act::Rep, Act::Recall(E::Established)]),
                        ]
                    }
                }
                E::Failed => TO_ERROR,
                E::UnknownService | E::Retire | E::Close | E::Released | E::Expired => {
                    const { &[go(Self::Halting(Step::Send), &[Act::Down, Act::Disconnect])] }
                }
                E::Established | E::LastWqe | E::Drained => KEEP,
                E::Created | E::Refused | E::Replied | E::OutOfUse => STRAY,
            },
            Self::Replied => match input {
                E::Established => const { &[go(Self::Live, &[Act::Up])] },
                E::UnknownService | E::Retire | E::Close | E::Released | E::Expired => TO_ERROR,
                E::LastWqe | E::Drained => KEEP,
                E::Created | E::Refused | E::Done | E::Failed | E::Replied | E::OutOfUse => STRAY,
            },
            Self::Live => match input {
                E::Retire => const { &[only(When::Active, Self::Retiring, &[Act::Withdraw]), LIVE_TO_ERROR] },
                E::UnknownService | E::Close | E::Released => &[LIVE_TO_ERROR],
                E::Expired => const { &[stay(When::Carried, &[]), LIVE_TO_ERROR] },
                E::Established => NOTHING,
                E::LastWqe | E::Drained => KEEP,
                E::Created | E::Refused | E::Done | E::Failed | E::Replied | E::OutOfUse => STRAY,
            },
            Self::Retiring => match input {
                E::OutOfUse => const { &[go(Self::Lingering, &[Act::Linger])] },
                E::UnknownService | E::Close | E::Expired => RETIRED_TO_ERROR,
                E::Established | E::Retire | E::Released => NOTHING,
                E::LastWqe | E::Drained => KEEP,
                E::Created | E::Refused | E::Done | E::Failed | E::Replied => STRAY,
            },
            Self::Lingering => match input {
                E::UnknownService | E::Close | E::Expired => RETIRED_TO_ERROR,
                E::Established | E::Retire | E::Released => NOTHING,
                E::LastWqe | E::Drained => KEEP,
                E::Created | E::Refused | E::Done | E::Failed | E::Replied | E::OutOfUse => STRAY,
            },
            Self::Halting(step) => match input {
                E::Created | E::Refused => match step {
                    Step::Create => RELEASE,
                    Step::Initialise | Step::Insert | Step::Receive | Step::Send => STRAY,
                },
                E::Done => match step {
                    Step::Create => STRAY,
                    Step::Initialise => RELEASE,
                    Step::Insert => REMOVE,
                    Step::Receive | Step::Send => ERROR,
                },
                E::Failed => match step {
                    Step::Create => STRAY,
                    Step::Initialise | Step::Insert => RELEASE,
                    Step::Receive => REMOVE,
                    Step::Send => ERROR,
                },
                E::Replied | E::UnknownService | E::Established => NOTHING,
                E::Retire | E::Close | E::Released | E::Expired => NOTHING,
                E::LastWqe | E::Drained => KEEP,
                E::OutOfUse => STRAY,
            },
            Self::ToError => match input {
                // A queue pair that cannot go to ERR is broken already; the waits are bounded.
                E::Done | E::Failed => {
                    const { &[go(Self::AwaitLastWqe, &[Act::AwaitLastWqe, Act::Recall(E::LastWqe)])] }
                }
                E::LastWqe | E::Drained => KEEP,
                E::Replied | E::UnknownService | E::Established => NOTHING,
                E::Retire | E::Close | E::Released => NOTHING,
                E::Created | E::Refused | E::OutOfUse | E::Expired => STRAY,
            },
            Self::AwaitLastWqe => match input {
                E::LastWqe => {
                    const {
                        &[
                            only(When::Drained, Self::Removing, &[Act::Remove]),
                            go(Self::AwaitDrained, &[Act::Drain]),
                        ]
                    }
                }
                E::Expired => {
                    const {
                        &[
                            only(When::Drained, Self::Removing, &[Act::Overdue, Act::Remove]),
                            go(Self::AwaitDrained, &[Act::Overdue, Act::Drain]),
                        ]
                    }
                }
                E::Drained => KEEP,
                E::Replied | E::UnknownService | E::Established => NOTHING,
                E::Retire | E::Close | E::Released => NOTHING,
                E::Created | E::Refused | E::Done | E::Failed | E::OutOfUse => STRAY,
            },
            Self::AwaitDrained => match input {
                E::Drained => REMOVE,
                E::Failed => const { &[go(Self::DrainRetry, &[Act::DrainLater])] },
                E::Expired => &[REMOVE_OVERDUE],
                E::Done | E::LastWqe => NOTHING,
                E::Replied | E::UnknownService | E::Established => NOTHING,
                E::Retire | E::Close | E::Released => NOTHING,
                E::Created | E::Refused | E::OutOfUse => STRAY,
            },
            Self::DrainRetry => match input {
                E::Drained => REMOVE,
                E::Expired => {
                    const { &[only(When::TriesLeft, Self::AwaitDrained, &[Act::Drain]), REMOVE_OVERDUE] }
                }
                E::LastWqe | E::Replied | E::UnknownService | E::Established => NOTHING,
                E::Retire | E::Close | E::Released => NOTHING,
                E::Created | E::Refused | E::Done | E::Failed | E::OutOfUse => STRAY,
            },
            Self::Removing => match input {
                E::Done | E::Failed => RELEASE,
                E::LastWqe | E::Drained => NOTHING,
                E::Replied | E::UnknownService | E::Established => NOTHING,
                E::Retire | E::Close | E::Released => NOTHING,
                E::Created | E::Refused | E::OutOfUse | E::Expired => STRAY,
            },
            Self::AwaitRelease => match input {
                // If time is over the peer does not answer; it is not waited for.
                E::Released | E::Expired => DESTROY,
                E::LastWqe | E::Drained => NOTHING,
                E::Replied | E::UnknownService | E::Established | E::Retire | E::Close => NOTHING,
                E::Created | E::Refused | E::Done | E::Failed | E::OutOfUse => STRAY,
            },
            Self::Gone => STRAY,
        }
    }

    /// True from the moment that it is to end.
    pub(in crate::link) const fn is_closing(self) -> bool {
        match self {
            Self::Creating
            | Self::Initialising
            | Self::Inserting
            | Self::Dialling
            | Self::ToReceive
            | Self::ToSend
            | Self::Replied
            | Self::Live => false,
            Self::Retiring
            | Self::Lingering
            | Self::Halting(_)
            | Self::ToError
            | Self::AwaitLastWqe
            | Self::AwaitDrained
            | Self::DrainRetry
            | Self::Removing
            | Self::AwaitRelease
            | Self::Gone => true,
        }
    }

    /// Its name for people.
    pub(in crate::link) const fn name(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Initialising => "initialising",
            Self::Inserting => "inserting",
            Self::Dialling => "dialling",
            Self::ToReceive => "to_receive",
            Self::ToSend => "to_send",
            Self::Replied => "replied",
            Self::Live => "live",
            Self::Retiring => "retiring",
            Self::Lingering => "lingering",
            Self::Halting(Step::Create) => "halting_create",
            Self::Halting(Step::Initialise) => "halting_initialise",
            Self::Halting(Step::Insert) => "halting_insert",
            Self::Halting(Step::Receive) => "halting_receive",
            Self::Halting(Step::Send) => "halting_send",
            Self::ToError => "to_error",
            Self::AwaitLastWqe => "await_last_wqe",
            Self::AwaitDrained => "await_drained",
            Self::DrainRetry => "drain_retry",
            Self::Removing => "removing",
            Self::AwaitRelease => "await_release",
            Self::Gone => "gone",
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
