#!/bin/bash
# In the guest: a gateway with two segments on the two ports of one software ConnectX, mlx5_0, each port on a cable of its own and in a partition of
# its own, in which there is a host of the fabric; and an Ethernet host, in both segments by a VLAN. By each of the gateway's drivers for the
# device. One line for each check. Arguments: drivers (verbs mlx5); "brief" is the latter and one cable of the two.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=hosts.sh
. ./hosts.sh
# shellcheck source-path=SCRIPTDIR source=machines.sh
. ./machines.sh
# By port.
segments=('' first second) nets=('' 10.77.0 10.78.0) devices=('' e0 e0.100) cables=('' 0 100)

finish() {
    if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
        echo '--- gateway'
        tail -n 200 $log
        for what in links neighbours; do ctl $what 2>&1; done
        echo '--- kernel'
        dmesg | tail -n 30
    fi
    note "$failures check(s) failed"
    exit $((failures > 0))
}
state() { cat "/sys/class/infiniband/mlx5_0/ports/$1/state"; }
is() { state "$1" | grep -q "$2"; }
active() { is 1 ACTIVE && is 2 ACTIVE; }
has_second() { grep -hix 0x8001 /sys/class/infiniband/mlx5_0/ports/2/pkeys/*; }
is_up() { ctl links --json | tr -d ' \n' | grep -oE "\"link\":\"up\"[^{}]*\"segment\":\"${segments[$1]}\""; }
is_down() { ctl links >/dev/null && ! is_up "$1"; }
# Each segment is on the port that it is to be on.
places() {
    local links
    links=$(ctl links)
    for port in 1 2; do
        grep -E "${segments[$port]}.*mlx5_0/$port|mlx5_0/$port.*${segments[$port]}" <<<"$links" || {
            echo "$links"
            return 1
        }
    done
}
starts() { await 60 ctl links && await 60 is_up 1 && await 60 is_up 2; }
# One packet, and no second one: to the fabric's host of a port from Ethernet, and from it to the address HERE.
from_ethernet() { eth ping -c 1 -W 60 "${nets[$1]}.2"; }
from_infiniband() { on host ping "${nets[$1]}.$here"; }
# One port's cable goes and comes again, and traffic by it.
pull() {
    local port=$1 other=$2
    on host pull "${cables[$port]}" && await 60 is "$port" DOWN && await 60 is_down "$port" && is_up "$other" &&
        ! eth ping -q -c 1 -W 1 "${nets[$port]}.2" >/dev/null &&
        on host plug "${cables[$port]}" && await 60 is_up "$port" && await 60 eth ping -c 1 -W 2 "${nets[$port]}.2" &&
        from_infiniband "$port"
}
# So, while the other port's host is pinged, which loses nothing.
cable() {
    local code=0
    train_begins ip netns exec eth ping -i 0.1 -W 5 "${nets[$2]}.2"
    pull "$@" || code=$?
    train_ends 20 || code=1
    [ "$code" = 0 ] || echo "port 1: $(state 1); port 2: $(state 2)"
    return "$code"
}

extent=full
if [ "${1:-}" = brief ]; then
    extent=brief
    set -- mlx5
fi
[ $# -gt 0 ] || set -- verbs mlx5
dmesg -C
check 'the drivers load' modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs
check 'the ports are active' await 60 active
check 'port 2 has the second P_Key' await 60 has_second
make_hosts
eth_mtu 1500
eth ip link add link e0 name e0.100 type vlan id 100
eth ip link set e0.100 up
for port in 1 2; do eth sysctl -qw "net.ipv4.neigh.${devices[$port]/./\/}.mcast_solicit=60"; done
{
    sed 's/"ibx1"/"mlx5_0"/' gateway.toml
    printf '[[segment]]\nname = "first"\npkey = 0xffff\n[[segment]]\nname = "second"\nvlan = 100\npkey = 0x8001\nport = 2\n'
} >/tmp/two.toml
config=/tmp/two.toml
[ $failures = 0 ] || finish
here=10
for driver; do
    # Addresses that the fabric's hosts have never heard of.
    here=$((here + 1))
    for port in 1 2; do
        eth ip addr flush dev "${devices[$port]}"
        eth ip addr add "${nets[$port]}.$here/24" dev "${devices[$port]}"
    done
    start_gateway datagram 1500 --hca-driver "$driver"
    check "$driver: the gateway starts" starts
    [ $failures = 0 ] || finish
    check "$driver: each segment is on its port" places
    for port in 1 2; do check "$driver, port $port: one packet from cold, from InfiniBand" from_infiniband $port; done
    check "$driver: the gateway ends" stop_gateway
    eth ip neigh flush all
    start_gateway datagram 1500 --hca-driver "$driver"
    check "$driver: another one starts" starts
    for port in 1 2; do check "$driver, port $port: one packet from cold, from Ethernet" from_ethernet $port; done
    for port in 1 2; do check "$driver, port $port: 60000 octets, in pieces" pings eth "${nets[$port]}.2" 60000; done
    check "$driver: the cable of port 2 is pulled and put back, port 1 goes on" cable 2 1
    [ $extent = brief ] || check "$driver: the cable of port 1 is pulled and put back, port 2 goes on" cable 1 2
    check "$driver: the gateway ends" stop_gateway
    check "$driver: no buffer is lost" grep -q '"buffers_outstanding": 0' /tmp/report.json
done
check 'the kernel has nothing to say about it' kernel_is_quiet
finish
