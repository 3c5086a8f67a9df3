//! The subnet management agent.
use ib_wire::packet::Packet;
use super::counters::DropReason;
use super::device::Device;
use super::engine::EngineConfig;
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handled { Answered, NotForAgent }
pub(crate) fn handle(_: &mut Device, _: &EngineConfig, _: u8, _: &Packet<'_>) -> Result<Handled, DropReason> { Ok(Handled::NotForAgent) }
