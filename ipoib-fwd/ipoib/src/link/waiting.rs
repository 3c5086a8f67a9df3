//! Reasons for which a link is not up, in words for the operator.

use ib_wire::mad::MadStatus;
use ib_wire::sa::status;
use serde::Serialize;

/// The condition that a link waits for before it can come up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Waiting {
    /// The port has no link.
    Cable,
    /// The port has a link; no subnet manager has configured it.
    SubnetManager,
    /// The port's P_Key table lacks the link's P_Key.
    PKey,
    /// The port's P_Key table has the link's P_Key as that of a limited member.
    FullMembership,
    /// Subnet administration does not answer requests to join the broadcast group.
    Answer,
    /// Subnet administration refuses to let us join the broadcast group, and reports that there is none.
    NoGroup {
        /// The status with which it refused to let us join ([`MadStatus`]).
        status: u16,
    },
    /// Subnet administration refuses to let us join the broadcast group, or grants an unusable membership.
    Admission {
        /// Its status ([`MadStatus`]).
        status: u16,
        /// The group's rate in Mb/s, if subnet administration reports that there is such a group.
        rate: Option<u32>,
    },
    /// The broadcast group's MTU is larger than the port's.
    GroupMtu {
        /// The group's, in bytes.
        group: u16,
        /// The port's, in bytes.
        port: u16,
    },
}

/// A refusal with its status, by number and name.
struct Refusal(u16);

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(status) = *self;
        let name = status::name(MadStatus(status));
        write!(
            f,
            "subnet administration refuses to let us join the broadcast group (status {status:#06x}, {name})"
        )
    }
}

/// The remedy for a refusal by a subnet manager that has the group, or does not report whether it has.
fn remedy(status: u16, rate: Option<u32>) -> String {
    match (MadStatus(status).class_code(), rate) {
        (status::NO_RESOURCES, _) => {
            "it has no multicast LID left; remove unneeded groups, or raise its limit".to_owned()
        }
        (status::INSUFFICIENT_COMPONENTS, None) => {
            "the group probably does not exist; configure the subnet manager to create the group of this P_Key and scope \
             (OpenSM: `ipoib` in the partition's line)"
                .to_owned()
        }
        (status::DENIED, _) => {
            "configure the subnet manager to allow this port to join groups of the partition".to_owned()
        }
        (_, Some(rate)) => format!(
            "the group has a rate of {}.{} Gb/s and an MTU that the port supports; in the subnet manager's configuration \
             compare the rate with that of the port and its links, and the group's P_Key with the segment's pkey",
            rate / 1000,
            rate % 1000 / 100
        ),
        (_, None) => {
            "the subnet manager's log shows the reason; in its configuration compare the group's P_Key, scope, rate and MTU \
             with the segment's pkey and the port"
                .to_owned()
        }
    }
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
                "the port is only a limited member of the partition of the segment's pkey: configure the subnet manager to make it a full one"
            }
            Self::Answer => "subnet administration does not answer: is the subnet manager running?",
            Self::NoGroup { status } => {
                return write!(
                    f,
                    "{}: there is no group of the segment's P_Key with link-local scope; configure the subnet manager to create \
                     it (OpenSM: `ipoib` in the partition's line)",
                    Refusal(*status)
                );
            }
            Self::Admission { status, rate } => {
                return write!(f, "{}: {}", Refusal(*status), remedy(*status, *rate));
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
