#!/bin/bash
# In the guest: OpenSM on mlx5_0 manages a fabric of ibfab without a subnet manager. The fabric has two
# software ConnectX that are PCI devices, with ib_ipoib on each, a host of ibfab, and guest H, another host
# with ib_ipoib and a standby OpenSM. Prints a line for each check. Arguments: a command that replaces the
# checks, once OpenSM runs.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=machines.sh
. ./machines.sh
near=10.77.0.1 far=10.77.0.3 host=10.77.0.2 other=10.77.0.4

port() { cat "/sys/class/infiniband/$1/ports/1/$2"; }
all_are() { ! grep -vq "$1" /sys/class/infiniband/mlx5_*/ports/1/state; }
# is_sm BIT: succeeds if IsSM, bit 1 of the capability mask, is BIT.
is_sm() { [ $(($(port mlx5_0 cap_mask) >> 1 & 1)) = "$1" ]; }
lid() { printf '%d' "$(port "$1" lid)"; }
guid() { port mlx5_0 gids/0 | tr -d : | tail -c 17; }
# Writes OpenSM's settings, here and in H. A standby must know the M_Key, too.
settings() {
    printf 'Default=0x7fff, ipoib : ALL=full;\nsecond=0x8001, ipoib : ALL=full;\n' >/tmp/partitions.conf
    printf '%s\n' 'm_key 0x7' 'm_key_protection_level 2' 'sminfo_polling_timeout 500' 'polling_retry_number 3' >/tmp/opensm.conf
}
# Starts OpenSM in the background.
start_opensm() { opensm -B -V -f "$log" -g "0x$(guid)" -P /tmp/partitions.conf "$@" >/dev/null; }
# h COMMAND...: runs a command in H, with the functions above.
h() { on h bash -c "$(declare -f port guid settings start_opensm join_h); log=/tmp/opensm.log; $*"; }
join_h() {
    modprobe -a mlx5_core mlx5_ib ib_umad ib_ipoib || return 1
    settings
    for _ in {1..600}; do
        [ ! -e /sys/class/net/ib0 ] || break
        sleep 0.1
    done
    ip addr add 10.77.0.4/24 dev ib0 && ip link set ib0 up
}
# manages LID: succeeds if this machine's port knows the OpenSM of that port as the master. stands_by LID:
# likewise as a standby.
manages() { says "lid $1 .*SMINFO_MASTER" sminfo -y 7; }
stands_by() { says SMINFO_STANDBY sminfo -y 7 "$1"; }
# knows LID MANAGER: succeeds if the port has the LID of this manager.
knows() { says "SMLid:\.+$2\$" smpquery -y 7 portinfo "$1" "${3:-1}"; }
# members COUNT: succeeds if this number of ports has joined the broadcast group at the present subnet
# administration.
members() { says "^$1\$" sh -c "saquery --smkey 1 -m 0xC000 | grep -c PortGid"; }
rejoins() { b ip link set ib1 down && b ip link set ib1 up && await 60 joined && await 60 ping -c 1 -W 2 "$far"; }
up() { grep -q 'SUBNET UP' "$log"; }
# traps NUMBER: prints the number of such traps in the present log. notified NUMBER COUNT: succeeds if there
# are at least COUNT.
traps() { grep -c "Received Generic Notice .* num:$1 " "$log"; }
notified() { [ "$(traps "$1")" -ge "$2" ]; }
b() { ip netns exec b "$@"; }
joined() { ip link show ib0 | grep -q LOWER_UP && b ip link show ib1 | grep -q LOWER_UP; }
pings() { ping -c 5 -i 0.2 -s "$2" -w 30 "$1" | first_answered 5; }
says() { # says PATTERN COMMAND...: succeeds if the output contains the pattern.
    local pattern=$1 out
    shift
    if out=$("$@" 2>&1) && grep -E "$pattern" <<<"$out"; then return 0; fi
    tail -n 5 <<<"$out"
    return 1
}
counter() { perfquery "$@" | awk -F '[.:]+' '/^PortXmitPkts/ {print $2}'; }
# The port counts the packets sent: those of ping, and few others.
counts() {
    local before after
    before=$(counter "$@")
    ping -q -c 200 -i 0.002 -W 5 "$far" >/dev/null
    # ping does not wait for late replies.
    for _ in {1..20}; do
        after=$(counter "$@")
        [ $((after - before)) -lt 200 ] || break
        sleep 0.5
    done
    echo "$((after - before)) packets"
    [ $((after - before)) -ge 200 ] && [ $((after - before)) -lt 300 ]
}
# carries_on MANAGER PORT...: checks the subnet after this manager has taken it over; all are LIDs.
carries_on() {
    local manager=$1 target name
    shift
    check 'LIDs are as they were' test "$(lid mlx5_0) $(lid mlx5_1)" = "$first $second"
    for target in "$@"; do check "port $target knows" await 60 knows "$target" "$manager"; done
    check 'the switch knows' await 60 knows "$switch" "$manager" 0
    # The ib_ipoib of the machines, and the host of ibfab.
    check "all ports have joined again: $#" await 60 members $#
    for name in far host; do
        check "traffic continues, $name" await 60 goes_on /tmp/$name.log $(($(answers /tmp/$name.log) + 10))
    done
}
fails() { ! "$@"; }
is_dead() { ! pgrep -x opensm; }
answers() { grep -c 'bytes from' "$1"; }
# goes_on LOG COUNT: succeeds if there are more than COUNT replies.
goes_on() { [ "$(answers "$1")" -gt "$2" ]; }
all_answer() {
    local out
    # The exit code reports errors, which are permitted here.
    out=$(ibqueryerrors 2>&1)
    ! grep -iE 'PMA query failures|failed' <<<"$out" && grep 'nodes checked' <<<"$out"
}
# Ignores messages without a subnet manager, of queries by OpenSM to its own port without the M_Key that it is
# just setting, and of a packet that ib_ipoib's own queue rejected once its path was known.
quiet() {
    ! dmesg | grep -iE 'mlx5|infiniband|ib_|ib0|call trace' |
        grep -vE 'ib_sa_path_rec_get failed: -11|MAD_IFC.*failed|failed to re-queue packet' |
        grep -iE 'warn|error|fail|bug|call trace|timeout|leak'
}

dmesg -C
settings
check 'the drivers load' modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs ib_ipoib
check 'without a subnet manager the ports wait' await 60 all_are INIT
log=/tmp/opensm.log
check 'OpenSM starts' start_opensm
if [ $# -gt 0 ]; then
    await 60 all_are ACTIVE
    exec "$@"
fi
check 'the subnet is up' await 60 up
check 'the ports are active' await 60 all_are ACTIVE
check 'H serves' await 120 serves h
check 'H has a port, too' h join_h
check 'and joins' await 60 on h sh -c 'ip link show ib0 | grep -q LOWER_UP'
check 'its port reports it' is_sm 1
check 'it is the master' says 'SMINFO_MASTER' sminfo
first=$(lid mlx5_0) second=$(lid mlx5_1)
read -r switch fabric < <(saquery 2>/dev/null | awk '/^[\t ]*lid\./ {sub(/.*\./, ""); lid = $0} /NodeDescription/ {sub(/.*\./, ""); n[$0] = lid}
    END {print n["ibfab"], n["host"]}')
check "LIDs: $first, $second, the switch's $switch, the host's $fabric" test "$((first * second * switch * fabric))" -gt 0
check 'ibnetdiscover: a switch and four adapters' says '^4$' sh -c "ibnetdiscover | grep -c '^Ca'"
check 'ibroute: a route to each port' says '^5 valid' ibroute "$switch"
for attribute in nodeinfo nodedesc portinfo guidinfo sl2vl vlarb; do
    for target in "$first" "$fabric"; do
        check "smpquery $attribute $target" says . smpquery $attribute "$target" 1
    done
done
for attribute in nodeinfo nodedesc switchinfo portinfo sl2vl vlarb; do
    check "smpquery $attribute of the switch" says . smpquery $attribute "$switch" 1
done
check 'smpquery by directed route' says 'NodeType:\.+Switch' smpquery -D nodeinfo 0,1
check 'P_Keys: both partitions at an adapter' says '0xffff 0x8001' smpquery pkeys "$second"
check 'P_Keys: both partitions at the switch' says '0xffff 0x8001' smpquery pkeys "$switch" 2
ip netns add b
ip link set ib1 netns b
ip addr add $near/24 dev ib0
ip link set ib0 up
b ip addr add $far/24 dev ib1
b ip link set ib1 up
check 'ib0 and ib1 join' await 60 joined
check 'first ping, by ib_ipoib' await 60 ping -c 1 -W 2 $far
check "first ping of the host of ibfab" await 60 ping -c 1 -W 2 $host
check 'ping of 2016 octets' pings $far 2016
check 'ping of 60000 octets, in pieces' pings $host 60000
check 'saquery: the broadcast groups of two partitions' says '^2$' sh -c "saquery -g | grep -c 'ff12:401b:.*::ffff:ffff'"
check 'ibroute -M: the broadcast group has four ports' await 60 says '0xc000 .*x x x x' ibroute -M "$switch"
check 'perfquery: the port that OpenSM runs on' counts
check 'perfquery -x: the switch' says 'PortXmitPkts' perfquery -x "$switch" 2
check "perfquery: the switch's port counts as the adapter does" counts "$switch" 2
check 'perfquery: the host of ibfab' says 'PortXmitPkts' perfquery "$fabric" 1
check 'ibqueryerrors: every port answers' all_answer
before=$(traps 144)
printf renamed >/sys/class/infiniband/mlx5_1/node_desc
check 'trap 144 reports a new node description' await 60 notified 144 $((before + 1))
check 'subnet administration has it' await 60 says 'renamed' saquery
ping -i 0.1 $far >/tmp/far.log &
ping -i 0.1 $host >/tmp/host.log &
check 'OpenSM is killed' pkill -KILL -x opensm
check 'it is gone' await 60 is_dead
check 'its port no longer reports it' await 10 is_sm 0
check 'no packet between the adapters is lost without it' pings $far 56
check 'no packet to the host of ibfab is lost' pings $host 56
log=/tmp/again.log
check 'OpenSM starts again, with an M_Key' start_opensm -F /tmp/opensm.conf -p 8
check 'the subnet is up again' await 60 up
check 'LIDs are as they were' test "$(lid mlx5_0) $(lid mlx5_1)" = "$first $second"
for name in far host; do
    check "traffic continues, $name" await 60 goes_on /tmp/$name.log $(($(answers /tmp/$name.log) + 10))
done
for target in "$second" "$switch"; do
    check "a query with the M_Key succeeds ($target)" says NodeType smpquery -y 7 nodeinfo "$target"
    check "a query without it fails" fails smpquery -t 200 nodeinfo "$target"
done
check 'the adapter reports that by trap 256' await 60 notified 256 1
check 'the switch reports it, too' await 60 grep -E 'num:256 .*Producer:2' "$log"
# A second OpenSM.
third=$(h port mlx5_0 lid | xargs printf '%d')
ping -i 0.1 $other >/tmp/other.log &
check 'an OpenSM in H, with lower priority' h start_opensm -F /tmp/opensm.conf -p 5
check 'it stands by' await 60 stands_by "$third"
check 'the first one is killed' pkill -KILL -x opensm
check 'H takes over' await 120 manages "$third"
carries_on "$third" "$first" "$second" "$third" "$fabric"
check 'traffic continues, other' await 60 goes_on /tmp/other.log $(($(answers /tmp/other.log) + 10))
check 'a port can leave and join' rejoins
before=$(h "$(declare -f traps); traps 144")
printf 'renamed again' >/sys/class/infiniband/mlx5_1/node_desc
check 'traps go to the new one' await 60 h "$(declare -f traps notified); notified 144 $((before + 1))"
log=/tmp/third.log
check 'the first one comes back' start_opensm -F /tmp/opensm.conf -p 8
check 'it takes over the subnet' await 120 manages "$first"
check 'H stands by again' await 60 stands_by "$third"
carries_on "$first" "$first" "$second" "$third" "$fabric"
check "H's OpenSM with higher priority" h 'pkill -KILL -x opensm; while pgrep -x opensm >/dev/null; do sleep 0.1; done; start_opensm -F /tmp/opensm.conf -p 15'
check 'it takes over the subnet again' await 120 manages "$third"
check 'the first one stands by' await 60 stands_by "$first"
check 'the machine H is killed' on host kill h
check 'the first one takes over' await 120 manages "$first"
carries_on "$first" "$first" "$second" "$fabric"
kill %1 %2 %3
ip neigh flush dev ib0
check 'ARP is answered by both' pings $far 56
before=$(traps 128)
nodes=$(saquery | grep -c 'NodeRecord dump')
check 'a cable is unplugged' on host pull 1
check 'the switch reports it by trap 128' await 60 notified 128 $((before + 1))
check 'OpenSM knows one node less' await 60 says "^$((nodes - 1))\$" sh -c "saquery | grep -c 'NodeRecord dump'"
check 'it is plugged in again' on host plug 1
check 'the port is active again' await 60 all_are ACTIVE
check 'pings are answered again' await 60 ping -c 1 -W 2 $far
check 'the kernel logs no problem' quiet
if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
    echo '--- OpenSM'
    grep -hE ' 0x0[12] -> ' /tmp/opensm.log /tmp/again.log /tmp/third.log | tail -n 30
    echo '--- kernel'
    dmesg | tail -n 30
fi
note "$failures check(s) failed"
exit $((failures > 0))
