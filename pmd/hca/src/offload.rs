//! What devices tell of the packets inside of what they receive.

/// What a device says of the checksum of an IPv4 header. That it is wrong is no fact: of a packet in a packet devices speak of the
/// inner one, so who hears that computes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Checksum {
    /// Nothing: whoever wants to know has to compute it.
    #[default]
    Unknown,
    /// It is right.
    Good,
    /// It is not there, though the header is as its sender made it: whoever sends the packet on has to fill it in.
    Missing,
}
