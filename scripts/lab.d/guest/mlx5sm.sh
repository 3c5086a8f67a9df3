#!/bin/bash
# In the guest: OpenSM on mlx5_0 manages a fabric of ibfab that has no subnet manager: two software ConnectX that are PCI devices, with
# ib_ipoib on each, and a host of ibfab. One line for each check. Arguments: what to run instead of the checks, once OpenSM runs.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=machines.sh
. ./machines.sh
near=10.77.0.1 far=10.77.0.3 host=10.77.0.2

port() { cat "/sys/class/infiniband/$1/ports/1/$2"; }
all_are() { ! grep -vq "$1" /sys/class/infiniband/mlx5_*/ports/1/state; }
# IsSM, bit 1 of the capability mask, is BIT.
is_sm() { [ $(($(port mlx5_0 cap_mask) >> 1 & 1)) = "$1" ]; }
lid() { printf '%d' "$(port "$1" lid)"; }
guid() { port mlx5_0 gids/0 | tr -d : | tail -c 17; }
# Goes to the background.
start_opensm() { opensm -B -V -f "$log" -g "0x$(guid)" -P /tmp/partitions.conf "$@" >/dev/null; }
up() { grep -q 'SUBNET UP' "$log"; }
# traps NUMBER: how many have come to the log of now. told NUMBER COUNT: at least so many.
traps() { grep -c "Received Generic Notice .* num:$1 " "$log"; }
told() { [ "$(traps "$1")" -ge "$2" ]; }
b() { ip netns exec b "$@"; }
joined() { ip link show ib0 | grep -q LOWER_UP && b ip link show ib1 | grep -q LOWER_UP; }
pings() { ping -q -c 5 -i 0.2 -s "$2" -W 5 "$1" | awk '/packet loss/ {print; ok = / 0% packet loss/} END {exit !ok}'; }
says() { # says PATTERN COMMAND...: what it prints has the pattern in it.
    local pattern=$1 out
    shift
    if out=$("$@" 2>&1) && grep -E "$pattern" <<<"$out"; then return 0; fi
    tail -n 5 <<<"$out"
    return 1
}
counter() { perfquery "$@" | awk -F '[.:]+' '/^PortXmitPkts/ {print $2}'; }
# What the port counts is what was sent: COUNT packets of ping, and less than as many of others.
counts() {
    local before after
    before=$(counter "$@")
    ping -q -c 200 -i 0.002 -W 5 "$far" >/dev/null
    after=$(counter "$@")
    echo "$((after - before)) packets"
    [ $((after - before)) -ge 200 ] && [ $((after - before)) -lt 300 ]
}
fails() { ! "$@"; }
is_dead() { ! pgrep -x opensm; }
answers() { grep -c 'bytes from' "$1"; }
# goes_on LOG COUNT: more than so many answers have come.
goes_on() { [ "$(answers "$1")" -gt "$2" ]; }
all_answer() {
    local out
    # Its exit code says whether there are errors, which there may be.
    out=$(ibqueryerrors 2>&1)
    ! grep -iE 'PMA query failures|failed' <<<"$out" && grep 'nodes checked' <<<"$out"
}
# But for what the kernel says while there is no subnet manager, and of what OpenSM asks its own port without the M_Key that it is
# just giving to it.
quiet() {
    ! dmesg | grep -iE 'mlx5|infiniband|ib_|ib0|call trace' |
        grep -vE 'vendor specific ID|ib_sa_path_rec_get failed: -11|MAD_IFC.*failed' |
        grep -iE 'warn|error|fail|bug|call trace|timeout|leak'
}

dmesg -C
printf 'Default=0x7fff, ipoib : ALL=full;\nsecond=0x8001, ipoib : ALL=full;\n' >/tmp/partitions.conf
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
check 'it says so in its port' is_sm 1
check 'it is the master' says 'SMINFO_MASTER' sminfo
first=$(lid mlx5_0) second=$(lid mlx5_1)
read -r switch fabric < <(saquery 2>/dev/null | awk '/^[\t ]*lid\./ {sub(/.*\./, ""); lid = $0} /NodeDescription/ {sub(/.*\./, ""); n[$0] = lid}
    END {print n["ibfab"], n["host"]}')
check "LIDs: $first, $second, the switch's $switch, the host's $fabric" test "$((first * second * switch * fabric))" -gt 0
check 'ibnetdiscover: a switch and three adapters' says '^3$' sh -c "ibnetdiscover | grep -c '^Ca'"
check 'ibroute: everybody has a way' says '^4 valid' ibroute "$switch"
for attribute in nodeinfo nodedesc portinfo guidinfo sl2vl vlarb; do
    for target in "$first" "$second" "$fabric"; do
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
check 'ibroute -M: the broadcast group has three ports' says '0xc000 .*x x x' ibroute -M "$switch"
check 'perfquery: the port that OpenSM runs on' counts
check 'perfquery -x: the switch' says 'PortXmitPkts' perfquery -x "$switch" 2
check "perfquery: the switch's port counts as the adapter does" counts "$switch" 2
check 'perfquery: the host of ibfab' says 'PortXmitPkts' perfquery "$fabric" 1
check 'ibqueryerrors: every port answers' all_answer
before=$(traps 144)
printf renamed >/sys/class/infiniband/mlx5_1/node_desc
check 'a new node description is told by trap 144' await 60 told 144 $((before + 1))
check 'and known to subnet administration' await 60 says 'renamed' saquery
ping -i 0.1 $far >/tmp/far.log &
ping -i 0.1 $host >/tmp/host.log &
check 'OpenSM is killed' pkill -KILL -x opensm
check 'it is gone' await 60 is_dead
check 'the port no longer says that it is there' is_sm 0
check 'without it no packet between the adapters is lost' pings $far 56
check 'nor any to the host of ibfab' pings $host 56
log=/tmp/again.log
printf 'm_key 0x7\nm_key_protection_level 2\n' >/tmp/opensm.conf
check 'OpenSM starts again, with an M_Key' start_opensm -F /tmp/opensm.conf
check 'the subnet is up again' await 60 up
check 'LIDs are as they were' test "$(lid mlx5_0) $(lid mlx5_1)" = "$first $second"
for name in far host; do
    check "traffic goes on, $name" await 60 goes_on /tmp/$name.log $(($(answers /tmp/$name.log) + 10))
done
kill %1 %2
for target in "$second" "$switch"; do
    check "who knows the M_Key reads ($target)" says NodeType smpquery -y 7 nodeinfo "$target"
    check "who does not, does not" fails smpquery -t 200 nodeinfo "$target"
done
ip neigh flush dev ib0
check 'after it ARP is answered, by both' pings $far 56
before=$(traps 128)
check 'a cable is pulled' on host pull 1
check 'the switch tells of it by trap 128' await 60 told 128 $((before + 1))
check 'OpenSM knows three nodes' await 60 says '^3$' sh -c "saquery | grep -c 'NodeRecord dump'"
check 'it is plugged in again' on host plug 1
check 'the port comes back' await 60 all_are ACTIVE
check 'and so do the pings' await 60 ping -c 1 -W 2 $far
check 'the kernel has nothing to say about it' quiet
if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
    echo '--- OpenSM'
    grep -hE ' 0x0[12] -> ' /tmp/opensm.log /tmp/again.log | tail -n 30
    echo '--- kernel'
    dmesg | tail -n 30
fi
note "$failures check(s) failed"
exit $((failures > 0))
