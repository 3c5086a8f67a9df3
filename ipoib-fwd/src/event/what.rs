//! Everything that happens in a gateway and is told, in one table: for those who follow it, the journal's entries and the manual.

use super::Kind;
use crate::segment::pair::Role;

/// Defines the enum, its list and what is known of each event from one table: kind, word, the journal's word, what it tells, what an operator
/// does about it (nothing, where it is empty).
macro_rules! events {
    ($($name:ident = $kind:ident, $word:literal, $journal:literal, $text:literal, $remedy:literal;)*) => {
        /// What happens.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum What {
            $(#[doc = $text] $name,)*
        }

        impl What {
            /// Everything that is told.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its kind.
            #[must_use]
            pub const fn kind(self) -> Kind {
                match self {
                    $(Self::$name => Kind::$kind,)*
                }
            }

            /// What it is called: `what` of an event.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// What the journal calls it (`IPOIB_FWD_EVENT`), which has no kinds.
            #[must_use]
            pub const fn journal(self) -> &'static str {
                match self {
                    $(Self::$name => $journal,)*
                }
            }

            /// What it tells.
            #[must_use]
            pub const fn describe(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// What an operator does about it; empty if nothing.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self {
                    $(Self::$name => $remedy,)*
                }
            }
        }
    };
}

events! {
    Up = Link, "up", "up", "A segment's InfiniBand link, or an Ethernet port, is up.", "";
    Down = Link, "down", "down", "A segment's InfiniBand link, or an Ethernet port, is down.",
        "Cable, switch and subnet manager: `ipoib-fwd ctl links` says what the segment waits for.";
    Waiting = Link, "waiting", "waiting", "A segment has no InfiniBand link; the text says what it waits for.",
        "What the text names: a cable, a subnet manager, a P_Key, the broadcast group. It goes on by itself.";
    Readdressed = Link, "readdressed", "readdressed", "The port's GID is another one; hosts are told of the new address.", "";

    Forwarding = Role, "forwarding", "role", "The gateway forwards in a segment from now on.", "";
    Standby = Role, "standby", "role", "Another gateway forwards, or a side is down: it stands by.", "";
    Listening = Role, "listening", "role", "The gateway hears whether there are others before it forwards.", "";
    Blocked = Role, "blocked", "role", "The gateway does not forward: its own packets came back, or another gateway that it does not believe forwards.", "`stranger` in `ipoib-fwd ctl links` names such a gateway's fault, another `gateway.pair-key` for instance. Otherwise as for the alarm `loop`.";
    OutOfService = Role, "drained", "role", "The gateway does not forward in a segment, since it is drained.",
        "`ipoib-fwd ctl drain --undo`, when that is over.";
    Peer = Role, "peer", "peer", "Another gateway of the segment is there.", "";
    PeerGone = Role, "peer-gone", "peer-gone", "Another gateway of the segment is gone.",
        "Unless it was stopped, look at it and at the networks between.";
    HandedOver = Role, "handed-over", "handed-over", "The gateway has stopped forwarding, and what hosts still send here is dropped. `to` is the gateway that forwards now; `null` if none is heard to.", "";

    ConnectionUp = Connection, "up", "connection-up", "A connection was opened to a host, or accepted from one.", "";
    ConnectionDown = Connection, "down", "connection-down", "A connection has ended, or did not come into being; `peer` is the host, `reason` says why.",
        "Ordinary when hosts are idle or restart. `Rejected`, `Timeout`, `Fault` and `Full`: as for the link's counters of these.";

    Learnt = Address, "learnt", "learnt", "A host's address is known.", "";
    Moved = Address, "moved", "moved", "A host has another hardware address, or is on the other side.",
        "Nothing, once. Again and again: two hosts have the address.";
    Gone = Address, "gone", "gone", "A host does not answer any more.", "";
    KnownHosts = Address, "known-hosts", "known-hosts", "The gateway has started to forward in a segment and has queried the hosts that were known before: `queried` is their number, `answered` that of the answers.",
        "Nothing, if most have answered. Otherwise hosts are gone, or a side does not reach them: check both links and the networks behind them.";
    Disputed = Address, "disputed", "disputed", "Another host claims an address whose owner answers for it; both are told, by their hardware addresses.", "Change the address of one of the two hosts.";
    OwnAddressClaimed = Address, "own-address-claimed", "own-address-claimed", "A host or another gateway claims the gateway's own address from `hardware_address`.",
        "Give that host or gateway another address.";
    HeldDown = Address, "held-down", "held-down", "An address moves from side to side too often, and stays on one for now.",
        "Change the address of one of the two hosts; it is free again after `gateway.address-hold-seconds`.";

    WorkerStuck = Alarm, "worker-stuck", "worker-stuck", "A worker does not turn; if it goes on so, the service manager's watchdog ends the gateway.",
        "Something holds its processor, or a driver hangs: the kernel's log; `isolcpus`, and no other lcore on that processor.";
    ControlSlow = Alarm, "control-slow", "control-slow", "Events of queue pairs were lost, since the control lcore was late.",
        "Give the control lcore a processor of its own.";
    ControlStalled = Alarm, "control-stalled", "control-stalled", "The control lcore did not run for so long that its lease may have ended. Another gateway may have taken over: then the workers drop packets (`lease-over`), and this gateway stands by.",
        "Something holds its processor, or the machine was suspended: the kernel's log; give the control lcore a processor of its own, or enlarge `gateway.hello-ms`.";
    DeviceGone = Alarm, "device-gone", "device-gone", "An InfiniBand device is gone, and its segments are down.",
        "The kernel's log says why; restart the gateway once the device is back.";
    InterfaceGone = Alarm, "interface-gone", "interface-gone", "The kernel's interface below an Ethernet port was deleted, or moved to another network namespace: the port's segments are down.",
        "Restart the gateway once the interface exists again.";
    SrqLow = Alarm, "srq-low", "srq-low", "Shared receive queues came down to their limit: hosts send faster than workers receive.",
        "More workers, or a greater `infiniband.srq-depth`.";
    ChecksumOffload = Alarm, "checksum-offload", "checksum-offload", "Packets of an Ethernet host have no complete TCP or UDP checksums, and InfiniBand hosts drop them: ping works, TCP does not.",
        "`ethtool -K INTERFACE tx off` in the host or container that `address` names.";
    Storm = Alarm, "storm", "storm", "The storm guard has dropped packets to groups or to all.",
        "A host broadcasts too much, or there is a loop: a capture of broadcasts tells the sender.";
    Loop = Alarm, "loop", "loop", "Something else joins both networks: packets of the gateway's own come back from the other side, another segment of it or a gateway that is not believed forwards there. The segment is blocked.",
        "Take away what else joins both networks, or give both gateways the same `gateway.pair-key`, P_Key and version; the segment goes on by itself.";
    Sibling = Alarm, "sibling", "sibling", "Two segments of this gateway are on the same network on one side.",
        "Keep these networks apart, or make one segment of the two.";
    Stranger = Alarm, "stranger", "stranger", "Another gateway on these networks is not believed. If it joins both, one of them forwards and the other one is blocked.",
        "The same `gateway.pair-key`, version and P_Key on both: `why` says which differ.";
    StrangerGone = Alarm, "stranger-gone", "stranger-gone", "The gateway that was not believed is gone, or is believed.", "";
    BadHello = Alarm, "bad-hello", "bad-hello", "A message between gateways cannot be understood or is not believed.",
        "The same `gateway.pair-key` and version on all gateways; if they have these, somebody else sends such messages: a capture tells who.";
    Multiplied = Alarm, "multiplied", "multiplied", "What the gateway sends on a side comes back there several times: that network has a loop of its own.",
        "Switch spanning tree on in that network.";
    GroupMtu = Alarm, "group-mtu", "group-mtu", "A segment has no InfiniBand link, since the broadcast group's MTU is larger than the port's.",
        "In the subnet manager's configuration give the partition's group an MTU that every port has, or use ports and links with the group's MTU; the segment goes on by itself.";
    CaptureStalls = Alarm, "capture-stalls", "capture-stalls", "The disk that captures are written to takes nothing.",
        "Look at the disk, or stop the capture; forwarding does not wait for it.";
    CaptureFailed = Alarm, "capture-failed", "capture-failed", "A capture ended by an error, which the text has.",
        "What the text says: room on the disk, whose the directory is.";

    Reloaded = Reload, "done", "reload", "The configuration was read again, and is followed.", "";
    ReloadRefused = Reload, "refused", "reload-refused", "The configuration was read again, and cannot be followed: it stays as it was.",
        "What the text says; `ipoib-fwd --check` tells all that is wrong with the file.";
    Removed = Reload, "removed", "removed", "Nothing is left of a segment that a reload has taken out.", "";
    Set = Reload, "set", "set", "Something was set (`ipoib-fwd ctl set`, `mode`).", "";

    Stopping = Gateway, "stopping", "stopping", "The gateway stops.", "";
    Drained = Gateway, "drained", "drained", "The gateway is drained: another one is to forward.", "";
    Undrained = Gateway, "undrained", "undrained", "The gateway is in service again.", "";
    Lost = Gateway, "lost", "lost", "Events came faster than who follows them has read.", "Read them faster, or follow fewer kinds.";
    LeftOut = Gateway, "left-out", "left-out", "Events of a kind were too many, and so many were not told.", "";
}

impl What {
    /// That a gateway has a role in a segment.
    #[must_use]
    pub const fn of_role(role: Role) -> Self {
        match role {
            Role::Forwarding => Self::Forwarding,
            Role::Standby => Self::Standby,
            Role::Listening => Self::Listening,
            Role::Blocked => Self::Blocked,
            Role::Drained => Self::OutOfService,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn words_tell_events_apart_and_each_alarm_but_one_has_a_remedy() {
        let all: BTreeSet<_> = What::ALL.iter().map(|what| (what.kind(), what.word())).collect();
        assert_eq!(all.len(), What::ALL.len());
        // The journal has the roles in the text.
        let others = What::ALL.iter().filter(|what| what.journal() != "role");
        let journal: Vec<_> = others.map(|what| what.journal()).collect();
        assert_eq!(BTreeSet::from_iter(&journal).len(), journal.len());
        for what in What::ALL {
            assert!(what.describe().ends_with('.'), "{what:?}");
            let is_told = what.remedy().is_empty() || what.remedy().ends_with('.');
            assert!(
                is_told
                    && (what.kind() != Kind::Alarm
                        || !what.remedy().is_empty()
                        || *what == What::StrangerGone)
            );
        }
        assert!(Kind::ALL.iter().all(|kind| What::ALL.iter().any(|what| what.kind() == *kind)));
    }

    #[test]
    fn a_role_is_called_what_it_is() {
        for role in [Role::Forwarding, Role::Standby, Role::Listening, Role::Blocked, Role::Drained] {
            let what = What::of_role(role);
            assert_eq!((what.kind(), what.word()), (Kind::Role, role.name()));
        }
    }
}
