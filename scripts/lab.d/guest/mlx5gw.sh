#!/bin/bash
# In the guest: an Ethernet host in one namespace, the gateway on mlx5_1, and on mlx5_0, in another namespace, the kernel's
# ib_ipoib, both on software ConnectX that are PCI devices; a host of the fabric beside. One line for each check. Arguments: the
# gateway's drivers, one after another (verbs mlx5).
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=hosts.sh
. ./hosts.sh
# shellcheck disable=SC2034  # hosts.sh uses it
ib_ip=10.77.0.3
fabric_ip=10.77.0.2

finish() {
    if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
        echo '--- gateway'
        head -n 200 $log
        ctl links 2>&1
        echo '--- kernel'
        dmesg | tail -n 30
    fi
    note "$failures check(s) failed"
    exit $((failures > 0))
}
active() { ! grep -vq ACTIVE /sys/class/infiniband/mlx5_*/ports/1/state; }

# gateway_by DRIVER: everything, from the gateway's start to its end.
gateway_by() {
    local driver=$1
    sed "s/\"ibx1\"/\"mlx5_1\"/; s/^driver = .*/driver = \"$driver\"/" gateway.toml >/tmp/driver.toml
    config=/tmp/driver.toml start_gateway datagram 1500
    check "$driver: the gateway starts and owns communication management" await 90 ctl links
    [ $failures = 0 ] || finish
    [ -e /sys/module/ib_ipoib ] || start_ib0
    kernel_mode datagram
    check "$driver: the kernel has joined" await 15 ib sh -c 'ip link show ib0 | grep -q LOWER_UP'
    check "$driver: ARP and first ping, from Ethernet" await 15 eth ping -c 1 -W 2 $ib_ip
    check "$driver: first ping of the host of the fabric" await 15 eth ping -c 1 -W 2 $fabric_ip
    for size in 56 1472 60000; do
        check "$driver: ping of $size octets from Ethernet" pings eth $ib_ip $size
        check "$driver: ping of $size octets from InfiniBand" pings ib $eth_ip $size
        check "$driver: ping of $size octets to the host of the fabric" pings eth $fabric_ip $size
    done
    check "$driver: TCP from Ethernet, datagram" transfer eth ib $ib_ip 1000000 1
    check "$driver: TCP from InfiniBand, datagram" transfer ib eth $eth_ip 1000000 2
    ctl mode connected >/dev/null
    kernel_mode connected
    check "$driver: connections come up by themselves" await 20 both_ways
    check "$driver: ping of 60000 octets from InfiniBand, connected" pings ib $eth_ip 60000
    check "$driver: too big is answered" too_big ib $eth_ip 60000 1500
    forget_routes
    check "$driver: TCP from Ethernet, connected" transfer eth ib $ib_ip 4000000 3
    check "$driver: TCP from InfiniBand, connected" transfer ib eth $eth_ip 4000000 4
    ib ip link set ib0 down
    sleep 1
    ib ip link set ib0 up
    check_back "$driver: ib0 was down"
    check "$driver: the gateway ends" stop_gateway
    check "$driver: no queue pair of it is left" test "$(rdma resource show qp | grep -c ipoib-fwd)" = 0
    check "$driver: no buffer is lost" grep -q '"buffers_outstanding": 0' /tmp/report.json
}

dmesg -C
# The gateway comes before communication management of the kernel, which then leaves its port out.
check 'the drivers load' modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs
check 'the ports are active' await 10 active
make_hosts
eth_mtu 1500
[ $# -gt 0 ] || set -- verbs mlx5
for driver; do gateway_by "$driver"; done
check 'the kernel has nothing to say about it' \
    sh -c "! dmesg | grep -v 'vendor specific ID' | grep -iE 'WARNING|BUG:|Oops|call trace|mlx5.*(error|fail)'"
finish
