#!/bin/bash
# In the guest: the kernel's own mlx5 drivers on two software ConnectX that are PCI devices; ib_ipoib on them, and a host of
# the fabric at the other end. One line for each check. Before them the machine is reset, twice, in the middle of
# it all. Arguments: `rounds N`, for so many times all drivers out and in (5); `brief`, for a choice of the checks; or what to run instead of them.
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
# Where the games and perftest wait for their other end.
listens() { netstat -ltn | grep -q ':18515 '; }
# A pair of programs: a server on mlx5_0, a client on DEVICE.
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
# shared_game DEVICE: a server on mlx5_0 and two clients on DEVICE, in one XRC domain: what the server has for one of them goes also by the
# connection of the other.
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
# interrupts N [CPU]: what completion vector N of each device has told, of one processor or all.
interrupts() {
    awk -v name="^mlx5_comp$1@" -v cpu="${2:-}" 'NR == 1 {cpus = NF}
        $NF ~ name {told = 0; for (i = 0; i < cpus; i++) if (cpu == "" || cpu == i) told += $(i + 2); printf "%d ", told}' /proc/interrupts
}
# vector N: work that waits for each event of completion vector N is told by that one, on processor N, at both devices, and by no other. The end that
# receives has one event for all that came while it stood still: of so many messages that is not all.
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
# no_more OBJECTS MEMORY: device 0 has as many objects as then, and no more memory of its own, but for 1 MiB.
objects() { on host counted 0 objects memory.regions | xargs; }
no_more() {
    local now memory
    now=$(objects) memory=$(on host heap 0)
    echo "objects and regions: $now, before: $1; memory: $memory KiB, before: $2"
    [ -n "$now" ] && [ "$now" = "$1" ] && [ "$memory" -le $(($2 + 1024)) ]
}
# reset N: the machine begins anew with traffic, memory registered and a queue pair that waits, and so does this script. By then the device has
# nothing left of that: as much as the first time.
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
# What any kernel says about the processor that is emulated, and the like, is not ours.
dmesg -C
check 'the drivers load' drivers
if [ $# -gt 0 ]; then
    await 60 active
    address
    exec "$@"
fi
check 'no reset but those' test $boots = $((resets + 1))
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
check "a device as new, after $resets resets" begins
had=${had:-$(objects)}
[ "$resets" -ge 2 ] || reset $((resets + 1))
check 'ping of 56 octets' pings 20 0.2 56
if [ -z "$brief" ]; then
    check 'ping of 2016 octets' pings 5 0.2 2016
    check 'ping of 60000 octets, in pieces' pings 5 0.2 60000
    check 'events of completions are moderated' ethtool -C ib0 rx-usecs 500 rx-frames 16
    check 'ping of 56 octets, so' pings 20 0.2 56
    check 'and no more' ethtool -C ib0 rx-usecs 0 rx-frames 0
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
check 'memory windows by libibverbs alone' ./memory_windows mlx5_0 mlx5_1
for ((round = 1; round <= rounds; round++)); do
    check "round $round: the drivers go" away
    check "round $round: and come again" drivers
    check "round $round: ib0 comes up" await 60 address
    check "round $round: ping" await 60 ping -c 1 -W 2 $peer
    # The first rounds may find out how much memory it takes.
    if [ $round = $((rounds > 5 ? 5 : 2)) ]; then had=$(objects) memory=$(on host heap 0); fi
done
check 'the device has grown by none of it' no_more "$had" "$memory"
check 'the kernel has nothing to say about it' kernel_is_quiet
check 'nor does a driver warn' no_warning
if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
    echo '--- kernel'
    dmesg | tail -n 60
    grep mlx5 /proc/interrupts
fi
note "$failures check(s) failed"
exit $((failures > 0))
