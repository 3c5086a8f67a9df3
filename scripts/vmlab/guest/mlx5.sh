#!/bin/bash
# In the guest: the kernel's own mlx5 drivers on two software ConnectX that are PCI devices, ib_ipoib on them,
# and a host of the fabric at the other end. Prints a line for each check. The machine resets twice during its
# setup, before the checks. Arguments: `rounds N` to unload and load all drivers N times (5); `brief` for some
# of the checks; or a command that replaces them.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=machines.sh
. ./machines.sh
peer=10.77.0.2
rounds=5 brief=''
case ${1:-} in
    rounds)
        rounds=$2
        shift 2
        ;;
    brief)
        brief=1 rounds=2
        shift
        ;;
esac

drivers() { modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs rdma_ucm ib_ipoib; }
away() { modprobe -r ib_ipoib rdma_ucm ib_umad mlx5_ib mlx5_core; }
active() { ! grep -vq ACTIVE /sys/class/infiniband/mlx5_*/ports/1/state; }
address() { ip link set ib0 up && ip addr replace 10.77.0.1/24 dev ib0; }
joined() { ip link show ib0 | grep -q LOWER_UP; }
pings() { ping -c "$1" -i "$2" -s "$3" -w 30 "$peer" | first_answered "$1"; }
# Succeeds if a pingpong or perftest server listens.
listens() { netstat -ltn | grep -q ':18515 '; }
# game PROGRAM DEVICE [OPTION...]: runs a server on mlx5_0 and a client on DEVICE.
game() {
    local program=$1 device=$2
    shift 2
    "$program" -d mlx5_0 "$@" >/tmp/server.log 2>&1 &
    local server=$!
    await 60 listens
    timeout 60 "$program" -d "$device" "$@" 127.0.0.1 >/tmp/client.log 2>&1 || {
        kill "$server" 2>/dev/null
        tail -n 3 /tmp/server.log /tmp/client.log
        return 1
    }
    wait "$server" && tail -n 1 /tmp/client.log
}
# shared_game DEVICE: runs a server on mlx5_0 and two clients on DEVICE in one XRC domain. The server also
# uses the connection of the other client for messages to a client.
shared_game() {
    local device=$1 n failed=''
    local clients=()
    ibv_xsrq_pingpong -n 50 -d mlx5_0 -c 2 >/tmp/server.log 2>&1 &
    local server=$!
    await 60 listens
    for n in 1 2; do
        timeout 60 ibv_xsrq_pingpong -n 50 -d "$device" 127.0.0.1 >"/tmp/client$n.log" 2>&1 &
        clients+=($!)
    done
    for n in "${clients[@]}"; do wait "$n" || failed=1; done
    if [ -n "$failed" ]; then
        kill "$server" 2>/dev/null
        tail -n 3 /tmp/server.log /tmp/client?.log
        return 1
    fi
    wait "$server" && tail -n 1 /tmp/server.log
}
# interrupts N [CPU]: prints the interrupts of completion vector N of each device, on one processor or on all.
interrupts() {
    awk -v name="^mlx5_comp$1@" -v cpu="${2:-}" 'NR == 1 {cpus = NF}
        $NF ~ name {sum = 0; for (i = 0; i < cpus; i++) if (cpu == "" || cpu == i) sum += $(i + 2); printf "%d ", sum}' /proc/interrupts
}
# vector N: checks that a program that waits for each event of completion vector N gets interrupts of this
# vector, on processor N, at both devices, and of no other. The receiving end gets one event for all messages
# that arrived while it did not run, so fewer than messages.
vector() {
    local own other i
    local -a before after
    read -ra before < <(interrupts "$1" "$1"; interrupts $((1 - $1)))
    game ib_send_bw mlx5_1 -F -e -X "$1" -t 1 -Q 1 -s 2 -n 2000 >/dev/null || return 1
    read -ra after < <(interrupts "$1" "$1"; interrupts $((1 - $1)))
    for i in 0 1; do
        own=$((after[i] - before[i])) other=$((after[i + 2] - before[i + 2]))
        echo "mlx5_$i: $own interrupts on processor $1, $other of the other vector"
        [ "$own" -ge 50 ] && [ "$other" -lt 50 ] || return 1
    done
}
# no_more OBJECTS MEMORY: succeeds if device 0 has the same objects as before, and at most 1 MiB more
# anonymous memory.
objects() { on host counted 0 objects memory.regions | xargs; }
no_more() {
    local now memory
    now=$(objects) memory=$(on host heap 0)
    echo "objects and regions: $now, before: $1; memory: $memory KiB, before: $2"
    [ -n "$now" ] && [ "$now" = "$1" ] && [ "$memory" -le $(($2 + 1024)) ]
}
# reset N: resets the machine, and with it this script, during traffic, with registered memory and a waiting
# queue pair. After the reset, the device must have the same objects as the first time.
read -r resets had < <(cat resets 2>/dev/null || echo 0)
boots=$(($(cat boots 2>/dev/null || echo 0) + 1))
echo $boots >boots
begins() {
    local now
    now=$(objects)
    echo "objects and regions: $now${had:+, the first time: $had}"
    [ -n "$now" ] && [ "$now" = "${had:-$now}" ]
}
reset() {
    ibv_rc_pingpong -d mlx5_0 >/dev/null 2>&1 &
    await 60 listens
    ping -q -i 0.01 $peer >/dev/null &
    echo "$1 $had" >resets
    note "        reset, $1"
    echo b >/proc/sysrq-trigger
    sleep 60
}
# Messages of the kernel about the emulated processor are irrelevant.
dmesg -C
check 'the drivers load' drivers
if [ $# -gt 0 ]; then
    await 60 active
    address
    exec "$@"
fi
check 'no unexpected reset' test $boots = $((resets + 1))
check 'a device: mlx5_0' test -e /sys/class/infiniband/mlx5_0
check 'an interface: ib0' await 60 test -e /sys/class/net/ib0
check 'the ports are active' await 60 active
check 'ibv_devinfo' sh -c 'ibv_devinfo -v -d mlx5_0 | grep -m 1 hca_id'
check 'ibv_devinfo -v: a clock' sh -c 'ibv_devinfo -v -d mlx5_0 | grep -E "hca_core_clock:.*1000000"'
check 'ibv_devices' sh -c 'ibv_devices | grep -c mlx5_ | grep -x 2'
check 'ibstat' sh -c 'ibstat mlx5_0 1 | grep -x "State: Active"'
check 'ib0 comes up' address
check 'it joins the broadcast group' await 60 joined
check 'first ping' await 60 ping -c 1 -W 2 $peer
check "the device is as new after $resets resets" begins
had=${had:-$(objects)}
[ "$resets" -ge 2 ] || reset $((resets + 1))
check 'ping of 56 octets' pings 20 0.2 56
if [ -z "$brief" ]; then
    check 'ping of 2016 octets' pings 5 0.2 2016
    check 'ping of 60000 octets, in pieces' pings 5 0.2 60000
    check 'events of completions are moderated' ethtool -C ib0 rx-usecs 500 rx-frames 16
    check 'ping of 56 octets with moderation' pings 20 0.2 56
    check 'moderation is off again' ethtool -C ib0 rx-usecs 0 rx-frames 0
    for n in 0 1; do check "completion vector $n on its processor" vector $n; done
fi
for device in mlx5_0 mlx5_1; do
    check "ibv_rc_pingpong, mlx5_0 and $device" game ibv_rc_pingpong $device -c -n 200
    check "ibv_rc_pingpong with events, mlx5_0 and $device" game ibv_rc_pingpong $device -e -c -n 200
    check "ibv_rc_pingpong with the time of each completion, mlx5_0 and $device" game ibv_rc_pingpong $device -t -c -n 200
    check "ibv_uc_pingpong, mlx5_0 and $device" game ibv_uc_pingpong $device -c -n 200
    check "ibv_ud_pingpong, mlx5_0 and $device" game ibv_ud_pingpong $device -c -n 200 -s 1024
    check "ibv_srq_pingpong, mlx5_0 and $device" game ibv_srq_pingpong $device -c -n 50
    check "ibv_xsrq_pingpong, mlx5_0 and $device" game ibv_xsrq_pingpong $device -n 50
    check "ibv_xsrq_pingpong with events, mlx5_0 and $device" game ibv_xsrq_pingpong $device -e -n 50
    check "ibv_xsrq_pingpong, a server and two clients, mlx5_0 and $device" shared_game $device
done
check 'memory windows with libibverbs only' ./memory_windows mlx5_0 mlx5_1
for ((round = 1; round <= rounds; round++)); do
    check "round $round: the drivers unload" away
    check "round $round: the drivers load again" drivers
    check "round $round: ib0 comes up" await 60 address
    check "round $round: ping" await 60 ping -c 1 -W 2 $peer
    # The first rounds may still grow the memory.
    if [ $round = $((rounds > 5 ? 5 : 2)) ]; then had=$(objects) memory=$(on host heap 0); fi
done
check 'the device has not grown' no_more "$had" "$memory"
check 'the kernel logs no problem' kernel_is_quiet
check 'no driver warns' no_warning
if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
    echo '--- kernel'
    dmesg | tail -n 60
    grep mlx5 /proc/interrupts
fi
note "$failures check(s) failed"
exit $((failures > 0))
