#!/bin/bash
# In the guest: a gateway on mlx5_1 with two segments, of the default P_Key and, with a VLAN, of 0x8001. On
# mlx5_0, the kernel's ib_ipoib has an interface and a child interface. Both devices are software ConnectX as
# PCI devices. Each partition has a host of the fabric. Prints a line for each check. Argument: the driver of
# the gateway (mlx5).
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=hosts.sh
. ./hosts.sh
# shellcheck disable=SC2034  # hosts.sh uses it
ib_ip=10.77.0.3
second_eth=10.78.0.1 second_ib=10.78.0.3

finish() {
    if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
        echo '--- gateway'
        head -n 200 $log
        ctl links 2>&1
        ctl neighbours 2>&1
        echo '--- hosts'
        eth ip addr
        ib ip addr
        echo '--- kernel'
        dmesg | tail -n 30
    fi
    note "$failures check(s) failed"
    exit $((failures > 0))
}
active() { ! grep -vq ACTIVE /sys/class/infiniband/mlx5_*/ports/1/state; }
pkeys() { cat "/sys/class/infiniband/$1/ports/1/pkeys/"* | grep -v '^0x0000$' | sort | tr '\n' ' '; }
has_both() { [ "$(pkeys "$1")" = '0x8001 0xffff ' ]; }
# is_up SEGMENT: succeeds if `ctl links` reports the segment as up. Its keys are in alphabetical order.
is_up() { ctl links --json | tr -d ' \n' | grep -oE "\"link\":\"up\"[^{}]*\"segment\":\"$1\""; }
carrier() { ib sh -c "ip link show $1 | grep -q LOWER_UP"; }

dmesg -C
check 'the drivers load' modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs
check 'the ports are active' await 60 active
for device in mlx5_0 mlx5_1; do check "$device has both P_Keys" await 60 has_both $device; done
make_hosts
eth_mtu 1500
eth ip link add link e0 name e0.100 type vlan id 100
eth ip addr add $second_eth/24 dev e0.100
eth ip link set e0.100 up
{
    sed "s/\"ibx1\"/\"mlx5_1\"/; s/^driver = .*/driver = \"${1:-mlx5}\"/" gateway.toml
    printf '[[segment]]\nname = "first"\npkey = 0xffff\n[[segment]]\nname = "second"\nvlan = 100\npkey = 0x8001\n'
} >/tmp/two.toml
config=/tmp/two.toml start_gateway datagram 1500
check 'the gateway starts' await 90 ctl links
[ $failures = 0 ] || finish
for segment in first second; do check "$segment is up" await 60 is_up $segment; done
start_ib0
ib ip link add link ib0 name ib0.8001 type ipoib pkey 0x8001
ib ip addr add $second_ib/24 dev ib0.8001
ib ip link set ib0.8001 up
# ARP retries for the one packet that is sent from cold.
ib sysctl -qw net.ipv4.neigh.ib0.mcast_solicit=60 net.ipv4.neigh.ib0/8001.mcast_solicit=60
for name in ib0 ib0.8001; do check "$name has joined" await 60 carrier $name; done
for way in datagram connected; do
    ctl mode $way >/dev/null
    for name in ib0 ib0.8001; do
        # A child interface has no sysfs file for the mode.
        ib ip link set $name type ipoib mode $way
        [ $way = datagram ] || ib ip link set $name mtu 65520
    done
    [ $way = datagram ] || check 'ib0.8001 has become connected' ib sh -c 'ip -d link show ib0.8001 | grep -E "mode +connected"'
    for segment in first second; do
        case $segment in
            first) here=$eth_ip there=$ib_ip fabric=10.77.0.2 ;;
            second) here=$second_eth there=$second_ib fabric=10.78.0.2 ;;
        esac
        check "$way, $segment: first ping, from Ethernet" await 60 eth ping -c 1 -W 2 "$there"
        check "$way, $segment: first ping of the fabric's host" await 60 eth ping -c 1 -W 2 "$fabric"
        check "$way, $segment: ping of 60000 octets from Ethernet" pings eth "$there" 60000
        check "$way, $segment: ping of 60000 octets from InfiniBand" pings ib "$here" 60000
        # ib_ipoib queues three packets while it queries a path.
        check "$way, $segment: one packet of the kernel's from cold to the fabric's host" ib ping -c 1 -W 60 "$fabric"
        check "$way, $segment: the kernel reaches the fabric's host" pings ib "$fabric" 1000
        check "$way, $segment: TCP from Ethernet" transfer eth ib "$there" 500000 1
        check "$way, $segment: TCP from InfiniBand" transfer ib eth "$here" 500000 2
    done
done
# Query an address of one partition in the other.
check 'no answer across partitions' sh -c "! ip netns exec ib ping -c 2 -W 1 -I ib0 10.78.0.2"
ib ip link del ib0.8001
check 'without the child interface the first segment works' pings eth $ib_ip 1000
check 'the gateway exits' stop_gateway
check 'no buffer is lost' grep -q '"buffers_outstanding": 0' /tmp/report.json
check 'the kernel logs no problem' \
    sh -c "! dmesg | grep -iE 'WARNING|BUG:|Oops|call trace|mlx5.*(error|fail)'"
finish
