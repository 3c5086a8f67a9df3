#!/bin/bash
# In guest G: what befalls H, a machine with two software ConnectX: a cable that loses, doubles, overtakes and damages packets, one that is pulled,
# a kernel that dies with memory registered and requests in flight, devices that are taken away. All the while G and the host of the fabric, whom none of it
# concerns, lose nothing. What the devices count is as it happened. One line for each check.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=hosts.sh
. ./hosts.sh
# shellcheck source-path=SCRIPTDIR source=machines.sh
. ./machines.sh
g_ip=10.77.0.1 fabric_ip=10.77.0.2 h_ip=10.77.0.3 faulty_ip=10.77.0.4
g() { "$@"; }
h() { on h "$@"; }
faulty() { on h ip netns exec faulty "$@"; }

# -- the machines

drivers() {
    modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs ib_ipoib || return 1
    for _ in {1..600}; do
        [ ! -e "/sys/class/net/$1" ] || break
        sleep 0.1
    done
    # Patience of the one packet that is sent from cold.
    sysctl -qw net.ipv4.neigh.ib0.mcast_solicit=60
}
start_h() {
    dmesg -C
    drivers ib1 || return 1
    ip netns add faulty &&
        ip link set ib1 netns faulty &&
        ip netns exec faulty ip addr add 10.77.0.4/24 dev ib1 &&
        ip netns exec faulty ip link set ib1 up &&
        ip addr add 10.77.0.3/24 dev ib0 &&
        ip link set ib0 up
}
start_g() { drivers ib0 && ip addr add "$g_ip/24" dev ib0 && ip link set ib0 up; }
carrier() { "$1" sh -c "ip link show $2 | grep -q LOWER_UP"; }
boots() {
    check "$1: H serves" await 180 serves h
    check "$1: its drivers load" h bash -c "$(declare -f drivers start_h); start_h"
    check "$1: ib0 has joined" await 120 carrier h ib0
    check "$1: ib1 has joined" await 120 carrier faulty ib1
    ip neigh flush all
    for ip in $h_ip $faulty_ip; do check "$1: $ip answers" await 90 ping -c 1 -W 2 "$ip"; done
}
unhurt() {
    local said
    said=$("$@" dmesg) || { echo "$said"; return 1; }
    ! grep -iE 'WARNING|BUG:|Oops|call trace|hung task|blocked for more' <<<"$said"
}

# -- those whom it does not concern

others() {
    check "$1: the others lose nothing" train_ends
    train_begins ping -i 0.2 -W 10 "$fabric_ip"
}

# -- what the devices say

# counted N PATH...: the host's answer, numbers on one line.
counted() { on host counted "$@" | xargs; }
# shows N PATH: it is more than 0.
shows() {
    local n
    n=$(counted "$@")
    echo "$n"
    [ "$n" -gt 0 ]
}
# Every damaged packet that came was noticed; one that was doubled, too, twice.
damage_is_noticed() {
    local damaged malformed vcrc icrc noticed
    read -r damaged malformed vcrc icrc < <(counted 2 ports.0.received_faults.corrupted drops.malformed drops.vcrc drops.icrc)
    noticed=$((malformed + vcrc + icrc))
    echo "$damaged damaged, $noticed noticed"
    [ "$damaged" -gt 0 ] && [ "$noticed" -ge "$damaged" ] && [ "$noticed" -le $((2 * damaged)) ]
}
empty() { [ "$(counted "$1" objects memory.pieces memory.regions)" = '0 0 0' ]; }
# registered QUEUE_PAIRS KIB: those and four more, and memory that it has worked on.
registered() { [ "$(counted 1 objects.queue_pairs)" -ge $(($1 + 4)) ] && [ "$(on host resident 1)" -gt $(($2 + 2000)) ]; }
has_let_go() {
    local now
    now=$(on host resident 1)
    echo "$1 KiB, then $now KiB"
    [ "$now" -lt $(($1 - 2000)) ]
}

# -- a cable with faults

# Where perftest and ibv_rc_pingpong wait for their other end.
listens() { ss -Hltn 'sport = :18515' | grep -q .; }
# Both ends of a connection that tries again, contents compared. Whoever is done first goes, and with it goes its queue pair: the last
# acknowledgement that it sent may be the one that the cable lost, and then the other end asks again without an answer. So one end
# must have its 200 (all of the other's messages came, and its own were acknowledged), and the other that or this one complaint.
pingpong() {
    ibv_rc_pingpong -d mlx5_0 -c -n 200 >/tmp/server.log 2>&1 &
    local server=$!
    await 120 listens && h timeout 200 ibv_rc_pingpong -d mlx5_1 -c -n 200 "$g_ip" >/tmp/client.log 2>&1
    await 30 sh -c "! kill -0 $server" 2>/dev/null || kill "$server"
    cat /tmp/client.log /tmp/server.log
    done_first /tmp/server.log /tmp/client.log || done_first /tmp/client.log /tmp/server.log
}
# done_first DONE OTHER: it has its 200, and all that the other lacks is the answer to its last message.
done_first() {
    grep -q '^200 iters' "$1" && ! grep -q invalid "$1" || return 1
    grep -q '^200 iters' "$2" || [ "$(grep -E '[Ff]ailed|invalid' "$2")" = "$(printf '%s\n' 'Failed status transport retry counter exceeded (12) for wr_id 2' 'parse WC failed 2')" ]
}
faults() {
    local way
    for way in datagram connected; do
        for whom in g:ib0 faulty:ib1; do
            ${whom%:*} sh -c "ip link set ${whom#*:} type ipoib mode $way; ip link set ${whom#*:} mtu $([ $way = datagram ] && echo 2044 || echo 65520)"
        done
        check "faulty cable, $way: an answer" await 90 ping -c 1 -W 2 $faulty_ip
        check "faulty cable, $way: TCP to H" transfer g faulty $faulty_ip 200000 1
        check "faulty cable, $way: TCP from H" transfer faulty g $g_ip 200000 2
    done
    check 'faulty cable: ibv_rc_pingpong, contents compared' pingpong
    for what in lost duplicated reordered corrupted; do
        check "faulty cable: packets $what, sent" shows 2 ports.0.sent_faults.$what
        check "faulty cable: packets $what, received" shows 2 ports.0.received_faults.$what
    done
    check 'faulty cable: damage is noticed' damage_is_noticed
    check 'faulty cable: what was missing was sent again' shows 2 activity.retransmitted
    others 'faulty cable'
}

# -- a cable that is pulled

state() { h grep -q "$1" /sys/class/infiniband/mlx5_0/ports/1/state; }
link_downed() { h perfquery -C mlx5_0 -P 1 | tr -d . | awk -F : '/^LinkDowned/ {print $2}'; }
# The kernel's events, the port's counter and the device's are of one mind. A busy machine may have taken the cable for dead once more; an event tells of a port that
# was active.
downs_are_told() {
    local downs downed errors
    downs=$(($(counted 1 ports.0.cable.downs) - $1)) downed=$(($(link_downed) - $2))
    errors=$(h grep -c EVENT_PORT_ERR /tmp/events)
    echo "cable $downs times down, LinkDowned $downed, events $errors"
    [ "$downs" -ge 2 ] && [ "$downed" = "$downs" ] && [ "$errors" -ge 2 ] && [ "$errors" -le "$downs" ] && [ "$(h grep -c EVENT_PORT_ACTIVE /tmp/events)" -ge 2 ]
}
cable() {
    local round downs downed
    h sh -c 'stdbuf -oL ibv_asyncwatch -d mlx5_0 >/tmp/events 2>&1 &'
    # That it listens is its first line.
    await 60 h test -s /tmp/events
    downs=$(counted 1 ports.0.cable.downs) downed=$(link_downed)
    for round in 1 2; do
        check "cable pulled, $round" on host pull 1
        check "cable pulled, $round: H notices" await 90 state DOWN
        check "cable pulled, $round: its other port goes on" await 60 ping -c 1 -W 2 $faulty_ip
        check "cable put back, $round" on host plug 1
        check "cable put back, $round: H has its port again" await 90 state ACTIVE
        check "cable put back, $round: to H" await 90 ping -c 1 -W 2 $h_ip
        check "cable put back, $round: from H" await 90 h ping -c 1 -W 2 $g_ip
    done
    # They are read one after another.
    await 20 downs_are_told "$downs" "$downed"
    check 'cable: counted by device, port and kernel' downs_are_told "$downs" "$downed"
    others 'cable pulled'
}

# -- a machine that dies

death() {
    local before size
    before=$(counted 1 objects.queue_pairs) size=$(on host resident 1)
    ib_write_bw -d mlx5_0 -F -s 1048576 -q 4 -D 600 >/tmp/server.log 2>&1 &
    local server=$!
    await 120 listens
    h sh -c "ib_write_bw -d mlx5_0 -F -s 1048576 -q 4 -D 600 $g_ip >/tmp/client.log 2>&1 &"
    check 'H has memory registered and writes' await 300 registered "$before" "$size"
    size=$(on host resident 1)
    check 'H is killed' on host kill h
    for n in 1 2; do check "device $n has nothing left" await 60 empty "$n"; done
    await 30 has_let_go "$size"
    check 'memory of device 1 is given back' has_let_go "$size"
    kill $server 2>/dev/null
    wait $server 2>/dev/null
    others 'H killed'
    # Linux 6.1 hangs when ib_ipoib is to go and has a connection that somebody made to it on a device that is gone ("RX drain timing
    # out", then nothing, without a look at the device): from here on nobody makes any.
    g sh -c 'ip link set ib0 type ipoib mode datagram; ip link set ib0 mtu 2044'
    check 'H boots again' on host boot h
    boots 'the next guest'
    others 'H boots'
}

# -- devices that are taken away, one in good order, one not

notices() { h sh -c "dmesg | grep -iE 'mlx5_core.*(error|compromised|removed)' | grep -c $1"; }
drivers_go() { LAB_PATIENCE=150 h sh -c 'modprobe -r ib_ipoib ib_umad && rmmod mlx5_ib && rmmod mlx5_core && ! ls /sys/class/infiniband/mlx5_* 2>/dev/null'; }
devices_come() { on host start 1 && on host start 2; }
ends() {
    local slots
    slots=$(h sh -c "basename -a /sys/bus/pci/drivers/mlx5_core/0*" | xargs)
    check 'device 1 ends by SIGTERM' on host end 1
    check 'H notices' await 120 notices "${slots% *}"
    check 'its other device goes on' await 60 ping -c 1 -W 2 $faulty_ip
    check 'device 2 is killed' on host kill 2
    check 'H notices that, too' await 120 notices "${slots#* }"
    check 'H has taken no harm' unhurt h
    check 'the drivers go' drivers_go
    # Nobody who does not answer is asked again and again.
    LAB_PATIENCE=20 check 'H has taken no harm from that either' unhurt h
    others 'devices taken away'
    on host kill h
    check 'devices come again' devices_come
    check 'H boots with them' on host boot h
    boots 'other devices'
}

dmesg -C
check 'G: ib0' start_g
check 'G has joined' await 60 carrier g ib0
check 'the host of the fabric answers' await 60 ping -c 1 -W 2 $fabric_ip
[ $failures = 0 ] || exit 1
train_begins ping -i 0.2 -W 10 "$fabric_ip"
boots 'H'
if [ $failures = 0 ]; then
    for what in "${@:-all}"; do
        case $what in
            all) faults && cable && death && ends ;;
            *) "$what" ;;
        esac
    done
fi
check 'to the end: the others lose nothing' train_ends
check 'G: the kernel has nothing to say about it' kernel_is_quiet
check 'H has taken no harm' unhurt h
if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
    echo '--- G'
    dmesg | tail -n 20
    echo '--- H'
    LAB_PATIENCE=5 h sh -c 'ip addr; dmesg | tail -n 60'
fi
note "$failures check(s) failed"
exit $((failures > 0))
