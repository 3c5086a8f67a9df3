//! The context of a request, and the parts of an answer.

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Instant;

use ib_wire::mad::{Mad, MadStatus};
use ib_wire::sa::{DATA_LEN, Record, SaMad, status};

use crate::subnet::{Counters, EndPort, SmConfig, Subnet};

/// A refusal: the status of the answer.
pub(crate) type Refusal = MadStatus;

/// A refusal by a class-specific code.
pub(crate) const fn refuse(code: u8) -> Refusal {
    MadStatus::class_specific(code)
}

/// The refusal of a request that found nothing.
pub(crate) const NO_RECORDS: Refusal = refuse(status::NO_RECORDS);
/// The refusal of a request that contradicts itself or the subnet's state.
pub(crate) const INVALID: Refusal = refuse(status::REQUEST_INVALID);

/// The context of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    pub subnet: &'a Subnet,
    pub config: &'a SmConfig,
    /// The requesting port.
    pub requester: EndPort<'a>,
    /// Number of multicast LIDs that the switches can hold.
    pub multicast_limit: u16,
    /// Number of pairs of ports, groups, members and ports that were examined.
    pub examined: &'a Cell<usize>,
}

impl Context<'_> {
    /// Counts examined items.
    pub(crate) fn count(&self, examined: usize) {
        self.examined.set(self.examined.get().saturating_add(examined));
    }

    /// True if the request has the SM_Key (IBA 15.4.1).
    pub(crate) const fn is_trusted(&self, request: &SaMad) -> bool {
        self.config.sm_key != 0 && request.sm_key == self.config.sm_key
    }
}

/// Destination of answers and reports, with the counters.
#[derive(Debug)]
pub(crate) struct Output<'a> {
    pub now: Instant,
    pub config: &'a SmConfig,
    pub counters: &'a mut Counters,
    pub out: &'a mut VecDeque<Mad>,
}

/// Most records that are collected; a longer table is refused anyway.
pub(crate) const MAX_RECORDS: usize = 16;

/// Records found for a request, each as its bytes.
pub(crate) type Records = Vec<[u8; DATA_LEN]>;

/// Returns the bytes of a record.
pub(crate) fn bytes_of<R: Record>(record: &R) -> [u8; DATA_LEN] {
    let mut data = [0; DATA_LEN];
    record.to_data(&mut data);
    data
}
