//! RX offload metadata of the packets inside received messages.

/// RX checksum metadata of an IPv4 header. There is no value for a wrong checksum: for an encapsulated packet
/// devices report on the inner header, so the receiver must compute the checksum in this case.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Checksum {
    /// Not checked: the receiver must compute it.
    #[default]
    Unknown,
    /// Correct.
    Good,
    /// Not filled in by the sender, although the header is otherwise complete: the forwarder must fill it in.
    Missing,
}
