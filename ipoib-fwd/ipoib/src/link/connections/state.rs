//! States of a connection and every transition between them.
//!
//! The setup goes from the device's queue pair over the handshake (IBA 12.9) to use. The teardown is that of
//! ib_ipoib: error state, last-WQE event, drain, removal, destruction (IBA 10.3.1).
//!
//! [`State::rows`] is the transition table. An input without a row changes nothing and is counted. The table
//! is:
//!
#![doc = include_str!("states.md")]

/// An action of a connection's setup whose answer is pending.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::link) enum Step {
    /// The queue pair is created.
    Create,
    /// RESET → INIT.
    Initialise,
    /// The worker inserts it.
    Insert,
    /// INIT → RTR.
    Receive,
    /// RTR → RTS.
    Send,
}

/// The state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::link) enum State {
    /// The queue pair is requested from the device.
    Creating,
    /// RESET → INIT is under way.
    Initialising,
    /// The worker was requested to insert it.
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
    /// Active: unpublished, but workers may still use it until they have taken up the new tables.
    Retiring,
    /// Active: out of use; sent packets are still in flight.
    Lingering,
    /// It must close, but first the answer to an action of its setup must come.
    Halting(Step),
    /// → ERR is under way.
    ToError,
    /// In ERR; the last-WQE event must come (IBA 10.3.1).
    AwaitLastWqe,
    /// The worker was requested to post the drain request; its completion must come.
    AwaitDrained,
    /// The send queue was full; the drain request is posted again soon.
    DrainRetry,
    /// The worker was requested to give it back.
    Removing,
    /// Idle; the handshake must end before the number may be reused.
    AwaitRelease,
    /// Nothing is left of it.
    Gone,
}

/// An input of the state machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::link) enum Input {
    /// The device has made the queue pair.
    Created,
    /// There is no queue pair, no slot, or no further use for it.
    Refused,
    /// The outstanding action is done.
    Done,
    /// It has failed.
    Failed,
    /// Active: the peer has accepted.
    Replied,
    /// Active: the peer does not know the service ID in the form that was dialled first.
    UnknownService,
    /// Passive: the RTU came, or data instead of it.
    Established,
    /// Close without loss.
    Retire,
    /// Close.
    Close,
    /// No worker uses it any more.
    OutOfUse,
    /// The last-WQE event came.
    LastWqe,
    /// Nothing is outstanding on the send queue.
    Drained,
    /// The handshake has ended, TIMEWAIT included (IBA 12.9.8.4).
    Released,
    /// The awaited event has not come in time.
    Expired,
}

/// A condition of a transition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::link) enum When {
    /// None.
    Always,
    /// We opened it.
    Active,
    /// It has received a message.
    Carried,
    /// Nothing is outstanding on the send queue.
    Drained,
    /// The drain request may be posted again.
    TriesLeft,
}

/// The effects of a transition, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::link) enum Act {
    /// Requests RESET → INIT.
    Initialise,
    /// Requests the worker to insert it.
    Insert,
    /// Sends the REQ.
    Connect,
    /// Sends the REQ with the other form of service ID.
    ConnectOther,
    /// Requests INIT → RTR.
    Receive,
    /// Requests RTR → RTS.
    Send,
    /// Sends the RTU.
    Rtu,
    /// Sends the REP.
    Rep,
    /// Reports that it is up; an active one is published.
    Up,
    /// Unpublishes it and reports that it is down.
    Withdraw,
    /// Counts the close and reports that it is down.
    Down,
    /// Rebuilds the tables without it.
    Unlist,
    /// Ends the handshake in the way that fits its state.
    Disconnect,
    /// Waits for sent packets to arrive.
    Linger,
    /// Requests → ERR.
    Error,
    /// Waits for the last-WQE event.
    AwaitLastWqe,
    /// Requests the worker to post the drain request.
    Drain,
    /// Waits before the drain request is posted again.
    DrainLater,
    /// Counts a wait that timed out.
    Overdue,
    /// Requests the worker to give it back.
    Remove,
    /// Waits for the end of the handshake.
    AwaitRelease,
    /// Destroys the queue pair, frees the slot.
    Destroy,
    /// Keeps the input for a later state.
    Keep,
    /// Processes an input that came early, if it was kept.
    Recall(Input),
}

/// One transition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::link) struct Row {
    /// Its condition. The first row whose condition is met applies; the last row has no condition.
    pub(in crate::link) when: When,
    /// The next state; `None`: unchanged.
    pub(in crate::link) to: Option<State>,
    /// Its effects.
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

/// Does not belong to this state: counted.
const STRAY: &[Row] = &[];
/// Late or repeated: no effect.
const NOTHING: &[Row] = &[stay(When::Always, &[])];
const KEEP: &[Row] = &[stay(When::Always, &[Act::Keep])];

/// Failures of the setup, by the stage of the queue pair.
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
    /// The transitions of `input` in this state; an input without a row has no effect and is counted.
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
                // After the timeout the peer does not answer; its answer is not awaited.
                E::Released | E::Expired => DESTROY,
                E::LastWqe | E::Drained => NOTHING,
                E::Replied | E::UnknownService | E::Established | E::Retire | E::Close => NOTHING,
                E::Created | E::Refused | E::Done | E::Failed | E::OutOfUse => STRAY,
            },
            Self::Gone => STRAY,
        }
    }

    /// True once the connection is closing.
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

    /// Its name in output.
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
