#!/bin/bash
# In the guest: a gateway with two segments on the two ports of one software ConnectX, mlx5_0. Each port has
# its own cable and partition with a host of the fabric. An Ethernet host is in both segments by a VLAN.
# Prints a line for each check. Arguments: drivers of the gateway (verbs mlx5); "brief" is mlx5 with one of
# the two cables.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=hosts.sh
. ./hosts.sh
# shellcheck source-path=SCRIPTDIR source=machines.sh
. ./machines.sh
# Indexed by port.
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
# Succeeds if each segment is on its port.
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
# Sends exactly one packet: from Ethernet to the fabric's host of a port, or from that host to the Ethernet
# host.
from_ethernet() { eth ping -c 1 -W 60 "${nets[$1]}.2"; }
from_infiniband() { on host ping "${nets[$1]}.$here"; }
# pull PORT OTHER: unplugs and replugs the cable of a port, and checks its traffic.
pull() {
    local port=$1 other=$2
    on host pull "${cables[$port]}" && await 60 is "$port" DOWN && await 60 is_down "$port" && is_up "$other" &&
        ! eth ping -q -c 1 -W 1 "${nets[$port]}.2" >/dev/null &&
        on host plug "${cables[$port]}" && await 60 is_up "$port" && await 60 eth ping -c 1 -W 2 "${nets[$port]}.2" &&
        from_infiniband "$port"
}
# cable PORT OTHER: does so during pings of the other port's host, none of which may be lost.
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
    # Addresses that the fabric's hosts do not know.
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
    check "$driver: the gateway exits" stop_gateway
    eth ip neigh flush all
    start_gateway datagram 1500 --hca-driver "$driver"
    check "$driver: the gateway starts again" starts
    for port in 1 2; do check "$driver, port $port: one packet from cold, from Ethernet" from_ethernet $port; done
    for port in 1 2; do check "$driver, port $port: 60000 octets, fragmented" pings eth "${nets[$port]}.2" 60000; done
    check "$driver: port 1 works while the cable of port 2 is unplugged and replugged" cable 2 1
    [ $extent = brief ] || check "$driver: port 2 works while the cable of port 1 is unplugged and replugged" cable 1 2
    check "$driver: the gateway exits" stop_gateway
    check "$driver: no buffer is lost" grep -q '"buffers_outstanding": 0' /tmp/report.json
done
check 'the kernel logs no problem' kernel_is_quiet
finish
