//! Why a link is not up, for people.

use serde::Serialize;

/// What a link waits for before it can come up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Waiting {
    /// The port has no link.
    Cable,
    /// The port has a link; no subnet manager has configured it.
    SubnetManager,
    /// The port's P_Key table lacks the link's.
    PKey,
    /// The port's P_Key table has the link's as that of a limited member.
    FullMembership,
    /// Subnet administration does not answer requests to join the broadcast group.
    Answer,
    /// Subnet administration refuses to let us join the broadcast group.
    Admission,
    /// The broadcast group's MTU is larger than the port's.
    GroupMtu {
        /// The group's, in bytes.
        group: u16,
        /// The port's, in bytes.
        port: u16,
    },
}

impl std::fmt::Display for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self {
            Self::Cable => "the port is down: no cable, or nothing at its other end",
            Self::SubnetManager => "the port is not active: no subnet manager has configured it",
            Self::PKey => {
                "the port's P_Key table does not have the segment's pkey: the subnet manager gives it"
            }
            Self::FullMembership => {
                "the port is only a limited member of the partition that pkey says: the subnet manager is to make it a full one"
            }
            Self::Answer => "subnet administration does not answer: is the subnet manager running?",
            Self::Admission => {
                "subnet administration refuses to let us join the broadcast group: the subnet manager is to make it \
                 (P_Key, scope)"
            }
            Self::GroupMtu { group, port } => {
                return write!(
                    f,
                    "the broadcast group's MTU is {group} bytes and the port's only {port}: give the group an MTU of \
                     at most {port} in the subnet manager's configuration, or use a port and links with an MTU of {group}"
                );
            }
        };
        f.write_str(text)
    }
}
