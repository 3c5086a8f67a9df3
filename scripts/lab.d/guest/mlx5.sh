#!/bin/bash
# In the guest: the kernel's own mlx5 drivers on two software ConnectX that are PCI devices; ib_ipoib on them, and a host of
# the fabric at the other end. One line for each check. Arguments: what to run instead of the checks.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
peer=10.77.0.2

drivers() { modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs rdma_ucm ib_ipoib; }
away() { modprobe -r ib_ipoib rdma_ucm ib_umad mlx5_ib mlx5_core; }
active() { ! grep -vq ACTIVE /sys/class/infiniband/mlx5_*/ports/1/state; }
address() { ip link set ib0 up && ip addr replace 10.77.0.1/24 dev ib0; }
joined() { ip link show ib0 | grep -q LOWER_UP; }
pings() { ping -q -c "$1" -i "$2" -s "$3" -W 5 "$peer" | awk '/packet loss/ {print; ok = / 0% packet loss/} /rtt/ {print} END {exit !ok}'; }
# A pair of programs: a server on mlx5_0, a client on DEVICE.
game() {
    local program=$1 device=$2
    shift 2
    "$program" -d mlx5_0 "$@" >/tmp/server.log 2>&1 &
    local server=$!
    sleep 1
    timeout 60 "$program" -d "$device" "$@" 127.0.0.1 >/tmp/client.log 2>&1 || {
        kill "$server" 2>/dev/null
        tail -n 3 /tmp/server.log /tmp/client.log
        return 1
    }
    wait "$server" && tail -n 1 /tmp/client.log
}
# What any kernel says about the processor that is emulated, and the like, is not ours.
dmesg -C
check 'the drivers load' drivers
if [ $# -gt 0 ]; then
    await 10 active
    # The suite owns communication management.
    if [ "$1" = ./conformance ]; then modprobe -r ib_ipoib rdma_ucm rdma_cm ib_cm; else address; fi
    exec "$@"
fi
check 'a device: mlx5_0' test -e /sys/class/infiniband/mlx5_0
check 'an interface: ib0' await 5 test -e /sys/class/net/ib0
check 'the ports are active' await 10 active
check 'ibv_devinfo' sh -c 'ibv_devinfo -v -d mlx5_0 | grep -m 1 hca_id'
check 'ib0 comes up' address
check 'it joins the broadcast group' await 10 joined
check 'first ping' await 10 ping -c 1 -W 2 $peer
check 'ping of 56 octets' pings 20 0.2 56
check 'ping of 2016 octets' pings 5 0.2 2016
check 'ping of 60000 octets, in pieces' pings 5 0.2 60000
check 'events of completions are moderated' ethtool -C ib0 rx-usecs 500 rx-frames 16
check 'ping of 56 octets, so' pings 20 0.2 56
check 'and no more' ethtool -C ib0 rx-usecs 0 rx-frames 0
for device in mlx5_0 mlx5_1; do
    check "ibv_rc_pingpong, mlx5_0 and $device" game ibv_rc_pingpong $device -n 200
    check "ibv_rc_pingpong with events, mlx5_0 and $device" game ibv_rc_pingpong $device -e -n 200
    check "ibv_ud_pingpong, mlx5_0 and $device" game ibv_ud_pingpong $device -n 200 -s 1024
    check "ibv_srq_pingpong, mlx5_0 and $device" game ibv_srq_pingpong $device -n 50
done
for round in 1 2 3; do
    check "round $round: the drivers go" away
    check "round $round: and come again" drivers
    check "round $round: ib0 comes up" await 5 address
    check "round $round: ping" await 10 ping -c 1 -W 2 $peer
done
check 'the kernel has nothing to say about it' kernel_is_quiet
if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
    echo '--- kernel'
    dmesg | tail -n 60
    grep mlx5 /proc/interrupts
fi
note "$failures check(s) failed"
exit $((failures > 0))
