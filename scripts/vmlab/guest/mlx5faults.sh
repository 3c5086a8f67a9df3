#!/bin/bash
# In guest G: disturbs H, a machine with two software ConnectX. One cable loses, duplicates, reorders and
# corrupts packets, the other one is unplugged. The kernel of H dies with registered memory and requests in
# flight, and its devices are removed. Meanwhile, G and the host of the fabric lose nothing. The counters of
# the devices match the events. Prints a line for each check.
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
    # ARP retries for the one packet that is sent from cold.
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

# -- uninvolved hosts

others() {
    check "$1: uninvolved hosts lose nothing" train_ends
    train_begins ping -i 0.2 -W 10 "$fabric_ip"
}

# -- reports of the devices

# counted N PATH...: prints values of the device's report on one line.
counted() { on host counted "$@" | xargs; }
# shows N PATH: succeeds if the value is greater than 0.
shows() {
    local n
    n=$(counted "$@")
    echo "$n"
    [ "$n" -gt 0 ]
}
# Each corrupted packet was detected; one that was also duplicated, twice.
damage_is_noticed() {
    local damaged malformed vcrc icrc noticed
    read -r damaged malformed vcrc icrc < <(counted 2 ports.0.received_faults.corrupted drops.malformed drops.vcrc drops.icrc)
    noticed=$((malformed + vcrc + icrc))
    echo "$damaged corrupted, $noticed detected"
    [ "$damaged" -gt 0 ] && [ "$noticed" -ge "$damaged" ] && [ "$noticed" -le $((2 * damaged)) ]
}
empty() { [ "$(counted "$1" objects memory.pieces memory.regions)" = '0 0 0' ]; }
# registered QUEUE_PAIRS KIB: succeeds if the device has four more queue pairs, and uses more memory.
registered() { [ "$(counted 1 objects.queue_pairs)" -ge $(($1 + 4)) ] && [ "$(on host resident 1)" -gt $(($2 + 2000)) ]; }
has_let_go() {
    local now
    now=$(on host resident 1)
    echo "$1 KiB, then $now KiB"
    [ "$now" -lt $(($1 - 2000)) ]
}

# -- a cable with faults

# Succeeds if a perftest or pingpong server listens.
listens() { ss -Hltn 'sport = :18515' | grep -q .; }
# Runs both ends of a connection with retries, and compares contents. The end that finishes first exits and
# destroys its queue pair. If the cable lost its last acknowledgement, the other end retries without an
# answer. So one end must report 200 iterations (it received all messages, and its own were acknowledged), and
# the other one either the same or exactly this error.
pingpong() {
    ibv_rc_pingpong -d mlx5_0 -c -n 200 >/tmp/server.log 2>&1 &
    local server=$!
    await 120 listens && h timeout 200 ibv_rc_pingpong -d mlx5_1 -c -n 200 "$g_ip" >/tmp/client.log 2>&1
    await 30 sh -c "! kill -0 $server" 2>/dev/null || kill "$server"
    cat /tmp/client.log /tmp/server.log
    done_first /tmp/server.log /tmp/client.log || done_first /tmp/client.log /tmp/server.log
}
# done_first DONE OTHER: succeeds if DONE has 200 iterations, and OTHER lacks at most the acknowledgement of
# its last message.
done_first() {
    grep -q '^200 iters' "$1" && ! grep -q invalid "$1" || return 1
    grep -q '^200 iters' "$2" || [ "$(grep -E '[Ff]ailed|invalid' "$2")" = "$(printf '%s\n' 'Failed status transport retry counter exceeded (12) for wr_id 2' 'parse WC failed 2')" ]
}
faults() {
    local mode
    for mode in datagram connected; do
        for port in g:ib0 faulty:ib1; do
            ${port%:*} sh -c "ip link set ${port#*:} type ipoib mode $mode; ip link set ${port#*:} mtu $([ $mode = datagram ] && echo 2044 || echo 65520)"
        done
        check "faulty cable, $mode: an answer" await 90 ping -c 1 -W 2 $faulty_ip
        check "faulty cable, $mode: TCP to H" transfer g faulty $faulty_ip 200000 1
        check "faulty cable, $mode: TCP from H" transfer faulty g $g_ip 200000 2
    done
    check 'faulty cable: ibv_rc_pingpong, contents compared' pingpong
    for what in lost duplicated reordered corrupted; do
        check "faulty cable: packets $what, sent" shows 2 ports.0.sent_faults.$what
        check "faulty cable: packets $what, received" shows 2 ports.0.received_faults.$what
    done
    check 'faulty cable: corruption is detected' damage_is_noticed
    check 'faulty cable: lost packets were retransmitted' shows 2 activity.retransmitted
    others 'faulty cable'
}

# -- an unplugged cable

state() { h grep -q "$1" /sys/class/infiniband/mlx5_0/ports/1/state; }
link_downed() { h perfquery -C mlx5_0 -P 1 | tr -d . | awk -F : '/^LinkDowned/ {print $2}'; }
# The kernel's events, the port's counter and the device's counter agree. On a busy host, the device may have
# taken the cable for dead once more; events only report ports that were active.
downs_agree() {
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
        check "cable unplugged, $round" on host pull 1
        check "cable unplugged, $round: H detects it" await 90 state DOWN
        check "cable unplugged, $round: its other port works" await 60 ping -c 1 -W 2 $faulty_ip
        check "cable plugged in, $round" on host plug 1
        check "cable plugged in, $round: the port of H is active" await 90 state ACTIVE
        check "cable plugged in, $round: to H" await 90 ping -c 1 -W 2 $h_ip
        check "cable plugged in, $round: from H" await 90 h ping -c 1 -W 2 $g_ip
    done
    # The counters are read one after another.
    await 20 downs_agree "$downs" "$downed"
    check 'cable: counted by device, port and kernel' downs_agree "$downs" "$downed"
    others 'cable unplugged'
}

# -- a machine that is killed

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
    # Linux 6.1 hangs when ib_ipoib is unloaded with an accepted connection on a removed device ("RX drain
    # timing out", then nothing, without a check of the device). Datagram mode prevents further connections.
    g sh -c 'ip link set ib0 type ipoib mode datagram; ip link set ib0 mtu 2044'
    check 'H boots again' on host boot h
    boots 'the next guest'
    others 'H boots'
}

# -- removed devices, one by SIGTERM, one killed

notices() { h sh -c "dmesg | grep -iE 'mlx5_core.*(error|compromised|removed)' | grep -c $1"; }
drivers_go() { LAB_PATIENCE=150 h sh -c 'modprobe -r ib_ipoib ib_umad && rmmod mlx5_ib && rmmod mlx5_core && ! ls /sys/class/infiniband/mlx5_* 2>/dev/null'; }
devices_come() { on host start 1 && on host start 2; }
ends() {
    local slots
    slots=$(h sh -c "basename -a /sys/bus/pci/drivers/mlx5_core/0*" | xargs)
    check 'device 1 exits by SIGTERM' on host end 1
    check 'H detects it' await 120 notices "${slots% *}"
    check 'its other device works' await 60 ping -c 1 -W 2 $faulty_ip
    check 'device 2 is killed' on host kill 2
    check 'H detects that, too' await 120 notices "${slots#* }"
    check 'H is unharmed' unhurt h
    check 'the drivers unload' drivers_go
    # A shorter timeout, as H may hang.
    LAB_PATIENCE=20 check 'H is still unharmed' unhurt h
    others 'devices removed'
    on host kill h
    check 'new devices start' devices_come
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
check 'until the end: uninvolved hosts lose nothing' train_ends
check 'G: the kernel logs no problem' kernel_is_quiet
check 'H is unharmed' unhurt h
if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
    echo '--- G'
    dmesg | tail -n 20
    echo '--- H'
    LAB_PATIENCE=5 h sh -c 'ip addr; dmesg | tail -n 60'
fi
note "$failures check(s) failed"
exit $((failures > 0))
