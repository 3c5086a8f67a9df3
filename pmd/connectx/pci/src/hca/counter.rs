//! Commands on sets of queue pair counters, which drivers show as `hw_counters` of a port.

use connectx::QueueCount;

use super::Hca;
use super::command::{Fault, Input, Output};
use prm::command::q_counter;

/// Offsets of the counters in the output of a query.
const PLACES: [(QueueCount, usize); 10] = [
    (QueueCount::WriteRequests, 0x10),
    (QueueCount::ReadRequests, 0x18),
    (QueueCount::AtomicRequests, 0x20),
    (QueueCount::OutOfBuffer, 0x30),
    (QueueCount::OutOfSequence, 0x38),
    (QueueCount::DuplicateRequests, 0x40),
    (QueueCount::ReceiverNotReady, 0x48),
    (QueueCount::SequenceErrors, 0x50),
    (QueueCount::ImpliedSequenceErrors, 0x58),
    (QueueCount::AcknowledgeTimeouts, 0x60),
];

impl Hca {
    pub(super) fn alloc_counters(&mut self, _: &Input, output: &mut Output) -> Result<(), Fault> {
        let number = self.objects.counter_sets.take();
        let number = number.ok_or_else(|| Fault::exhausted("sets of counters"))?;
        self.engine.clear_queue_counters(number as u8);
        output.set_number(number)
    }

    pub(super) fn dealloc_counters(&mut self, input: &Input, _: &mut Output) -> Result<(), Fault> {
        let number = input.number();
        let known = self.objects.counter_sets.give_back(number);
        known.then_some(()).ok_or_else(|| Fault::resource("set of counters", number))
    }

    pub(super) fn query_counters(&mut self, input: &Input, output: &mut Output) -> Result<(), Fault> {
        let number: u8 = input.view(q_counter::SET)?;
        if !self.objects.counter_sets.has(number.into()) {
            return Err(Fault::resource("set of counters", number.into()));
        }
        for (what, at) in PLACES {
            // They wrap at 2^32, as the driver expects.
            output.put(at, &(self.engine.queue_counter(number, what) as u32).to_be_bytes())?;
        }
        let clears: u8 = input.view(q_counter::CLEAR)?;
        if clears & q_counter::CLEARS != 0 {
            self.engine.clear_queue_counters(number);
        }
        Ok(())
    }
}
