//! The table of all events of a gateway, for clients that follow them, the journal's entries and the manual.

use super::Kind;
use crate::segment::pair::Role;

/// Defines the enum, its list and the description of each event from one table. A row has the kind, the word,
/// the journal's word, the description, and the remedy for the operator (empty if none).
macro_rules! events {
    ($($name:ident = $kind:ident, $word:literal, $journal:literal, $text:literal, $remedy:literal;)*) => {
        /// An event.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum What {
            $(#[doc = $text] $name,)*
        }

        impl What {
            /// All events.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The kind of the event.
            #[must_use]
            pub const fn kind(self) -> Kind {
                match self {
                    $(Self::$name => Kind::$kind,)*
                }
            }

            /// The name of the event: `what` in its object.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// The name in the journal (`IPOIB_FWD_EVENT`), which has no kinds.
            #[must_use]
            pub const fn journal(self) -> &'static str {
                match self {
                    $(Self::$name => $journal,)*
                }
            }

            /// The description.
            #[must_use]
            pub const fn describe(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// The remedy for the operator; empty if none.
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
        "Check the cable, the switch and the subnet manager: `ipoib-fwd ctl links` shows what the segment waits for.";
    Waiting = Link, "waiting", "waiting", "A segment has no InfiniBand link; the text says what it waits for.",
        "Provide what the text names: a cable, a subnet manager, a P_Key, the broadcast group. The segment then recovers \
         automatically.";
    Readdressed = Link, "readdressed", "readdressed", "The port's GID has changed; hosts are notified of the new address.", "";

    Forwarding = Role, "forwarding", "role", "The gateway now forwards in a segment.", "";
    Standby = Role, "standby", "role", "The gateway is standby, since another gateway forwards or a side is down.", "";
    Listening = Role, "listening", "role", "The gateway listens for other gateways before it forwards.", "";
    Blocked = Role, "blocked", "role",
        "The gateway does not forward, since its own packets came back or an untrusted gateway forwards.",
        "`stranger` in `ipoib-fwd ctl links` shows why such a gateway is untrusted, for instance another `gateway.pair-key`. \
         Otherwise see the alarm `loop`.";
    OutOfService = Role, "drained", "role", "The gateway does not forward in a segment, since it is drained.",
        "Run `ipoib-fwd ctl drain --undo` when the maintenance is over.";
    Peer = Role, "peer", "peer", "Another gateway of the segment has appeared.", "";
    PeerGone = Role, "peer-gone", "peer-gone", "Another gateway of the segment is gone.",
        "Unless it was stopped, check it and the networks between the gateways.";
    HandedOver = Role, "handed-over", "handed-over",
        "The gateway has stopped forwarding. Packets that hosts still send to it are now dropped. `to` is the gateway that \
         forwards now; `null` if none is heard to forward.", "";

    ConnectionUp = Connection, "up", "connection-up", "A connection to a host was opened, or one from a host accepted.", "";
    ConnectionDown = Connection, "down", "connection-down",
        "A connection was closed or could not be established; `peer` is the host, `reason` the cause.",
        "Ordinary when hosts are idle or restart. `Rejected`, `Timeout`, `Fault` and `Full`: see the link's counters of these.";

    Learnt = Address, "learnt", "learnt", "A host's address is known.", "";
    Moved = Address, "moved", "moved", "A host has another hardware address, or has moved to the other side.",
        "Ordinary if it happens once. If it repeats, two hosts have the address.";
    Gone = Address, "gone", "gone", "A host does not answer any more.", "";
    KnownHosts = Address, "known-hosts", "known-hosts",
        "The gateway has started to forward in a segment and has queried the hosts that were known before: `queried` is their \
         number, `answered` the number of those that answered.",
        "Nothing, if most have answered. Otherwise hosts are gone, or a side does not reach them: check both links and the networks \
         behind them.";
    Disputed = Address, "disputed", "disputed",
        "Another host claims an address whose owner answers for it; the event has both hardware addresses.",
        "Change the address of one of the two hosts.";
    OwnAddressClaimed = Address, "own-address-claimed", "own-address-claimed",
        "A host or another gateway claims the gateway's own address from `hardware_address`.",
        "Give that host or gateway another address.";
    HeldDown = Address, "held-down", "held-down",
        "An address moves between the sides too often, and is held on one side for now.",
        "Change the address of one of the two hosts. The address is released after `gateway.address-hold-seconds`.";

    WorkerStuck = Alarm, "worker-stuck", "worker-stuck",
        "A worker is stalled. If it does not continue, the service manager's watchdog kills the gateway.",
        "Something occupies its processor, or a driver hangs: check the kernel's log. Isolate the processor (`isolcpus`), and put \
         no other lcore on it.";
    ControlSlow = Alarm, "control-slow", "control-slow",
        "Events of queue pairs were lost, since the control lcore was late.",
        "Give the control lcore a dedicated processor.";
    ControlStalled = Alarm, "control-stalled", "control-stalled",
        "The control lcore did not run for so long that its lease may have expired. Another gateway may have taken over: the \
         workers then drop packets (`lease-over`), and this gateway is standby.",
        "Something occupies its processor, or the host was suspended: check the kernel's log. Give the control lcore a dedicated \
         processor, or increase `gateway.hello-ms`.";
    DeviceGone = Alarm, "device-gone", "device-gone", "An InfiniBand device is gone, and its segments are down.",
        "The kernel's log has the reason. Restart the gateway when the device is back.";
    InterfaceGone = Alarm, "interface-gone", "interface-gone",
        "The kernel's interface below an Ethernet port was deleted, or moved to another network namespace. The port's segments are \
         down.",
        "Restart the gateway when the interface exists again.";
    SrqLow = Alarm, "srq-low", "srq-low",
        "Shared receive queues reached their limit: hosts send faster than workers receive.",
        "Use more workers, or increase `infiniband.srq-depth`.";
    ChecksumOffload = Alarm, "checksum-offload", "checksum-offload",
        "Packets of an Ethernet host have incomplete TCP or UDP checksums, and InfiniBand hosts drop them: ping works, TCP does \
         not.",
        "Run `ethtool -K INTERFACE tx off` in the host or container with the address in `address`.";
    Storm = Alarm, "storm", "storm", "The storm guard has dropped packets to groups or broadcast addresses.",
        "A host broadcasts too much, or there is a loop: a capture of broadcasts shows the sender.";
    Loop = Alarm, "loop", "loop",
        "Something else joins both networks: packets of this gateway come back from the other side, or another segment of it or an \
         untrusted gateway forwards there. The segment is blocked.",
        "Remove what else joins both networks, or give both gateways the same `gateway.pair-key`, P_Key and version. The segment \
         then recovers automatically.";
    Sibling = Alarm, "sibling", "sibling", "Two segments of this gateway are on the same network on one side.",
        "Separate these networks, or merge the two segments.";
    Stranger = Alarm, "stranger", "stranger",
        "Another gateway on these networks is untrusted. If it joins both, one of the two forwards and the other is blocked.",
        "Use the same `gateway.pair-key`, version and P_Key on both: `why` shows the difference.";
    StrangerGone = Alarm, "stranger-gone", "stranger-gone", "The untrusted gateway is gone, or is trusted now.", "";
    BadHello = Alarm, "bad-hello", "bad-hello",
        "A message between gateways is not valid or not trusted.",
        "Use the same `gateway.pair-key` and version on all gateways. If they are the same, another host sends such messages: a \
         capture shows which.";
    Multiplied = Alarm, "multiplied", "multiplied",
        "A packet that the gateway sends on a side comes back there several times: that network has a loop.",
        "Enable spanning tree in that network.";
    GroupMtu = Alarm, "group-mtu", "group-mtu",
        "A segment has no InfiniBand link, since the broadcast group's MTU is larger than the port's.",
        "In the subnet manager's configuration, give the partition's group an MTU that every port has, or use ports and links with \
         the group's MTU. The segment then recovers automatically.";
    CaptureStalls = Alarm, "capture-stalls", "capture-stalls", "The disk of a capture does not accept data.",
        "Check the disk, or stop the capture. Forwarding is not affected.";
    CaptureFailed = Alarm, "capture-failed", "capture-failed", "A capture stopped with the error in the text.",
        "Fix the error in the text, for instance missing space on the disk or the owner of the directory.";

    Reloaded = Reload, "done", "reload", "The configuration was reloaded and applied.", "";
    ReloadRefused = Reload, "refused", "reload-refused",
        "The configuration was reloaded and refused: the previous one stays in effect.",
        "Fix the error in the text; `ipoib-fwd --check` reports all errors in the file.";
    Removed = Reload, "removed", "removed", "The removal of a segment after a reload is complete.", "";
    Set = Reload, "set", "set", "A value was set (`ipoib-fwd ctl set`, `mode`).", "";

    Stopping = Gateway, "stopping", "stopping", "The gateway is stopping.", "";
    Drained = Gateway, "drained", "drained", "The gateway is drained: another gateway should forward.", "";
    Undrained = Gateway, "undrained", "undrained", "The gateway is in service again.", "";
    Lost = Gateway, "lost", "lost", "Events were lost, since the client reads them too slowly.",
        "Read them faster, or follow fewer kinds.";
    LeftOut = Gateway, "left-out", "left-out", "Events of a kind were too frequent and were left out; the text has their number.", "";
}

impl What {
    /// The event of a gateway's role in a segment.
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
    fn words_are_unique_and_each_alarm_but_one_has_a_remedy() {
        let all: BTreeSet<_> = What::ALL.iter().map(|what| (what.kind(), what.word())).collect();
        assert_eq!(all.len(), What::ALL.len());
        // The journal has the roles in the text.
        let others = What::ALL.iter().filter(|what| what.journal() != "role");
        let journal: Vec<_> = others.map(|what| what.journal()).collect();
        assert_eq!(BTreeSet::from_iter(&journal).len(), journal.len());
        for what in What::ALL {
            assert!(what.describe().ends_with('.'), "{what:?}");
            let is_sentence = what.remedy().is_empty() || what.remedy().ends_with('.');
            assert!(
                is_sentence
                    && (what.kind() != Kind::Alarm
                        || !what.remedy().is_empty()
                        || *what == What::StrangerGone)
            );
        }
        assert!(Kind::ALL.iter().all(|kind| What::ALL.iter().any(|what| what.kind() == *kind)));
    }

    #[test]
    fn the_event_of_a_role_has_its_name() {
        for role in [Role::Forwarding, Role::Standby, Role::Listening, Role::Blocked, Role::Drained] {
            let what = What::of_role(role);
            assert_eq!((what.kind(), what.word()), (Kind::Role, role.name()));
        }
    }
}
