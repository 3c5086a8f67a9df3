#!/bin/bash
# In guest G: ib_ipoib to ib_ipoib of guest H, each on a software ConnectX that is a PCI device, in datagram
# and connected mode. Prints a line for each check. Argument: number of packets to H in both modes together
# (1,000,000).
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=hosts.sh
. ./hosts.sh
# shellcheck source-path=SCRIPTDIR source=machines.sh
. ./machines.sh
packets=$((${1:-1000000} / 2))
g_ip=10.77.0.1 h_ip=10.77.0.3
g() { "$@"; }
h() { on h "$@"; }

# start ADDRESS: sets up ib0, with ARP retries for one packet that is sent from cold.
start() {
    modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs ib_ipoib || return 1
    for _ in {1..600}; do
        [ ! -e /sys/class/net/ib0 ] || break
        sleep 0.1
    done
    sysctl -qw net.ipv4.neigh.ib0.mcast_solicit=60
    ip addr add "$1/24" dev ib0 && ip link set ib0 up
}
# counter GUEST NAME
counter() { "$1" cat "/sys/class/net/ib0/statistics/$2"; }
# Prints the packets for which H's kernel had posted no receive, by the counter of its adapter.
without_buffer() { h cat /sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_buffer; }
# accounted SENT RECEIVED WITHOUT: succeeds if each datagram was received or had no buffer, except for a few
# of groups that only one is in.
accounted() {
    local sent=$(($(counter g tx_packets) - $1)) received=$(($(counter h rx_packets) - $2)) without=$(($(without_buffer) - $3)) others
    others=$((sent - received - without))
    [ "${others#-}" -le 20 ]
}
# flood COUNT MODE: sends COUNT small datagrams at full speed. The receiver drops packets without a buffer. A
# connection, which has no retries, then breaks and is opened again.
flood() {
    local sent received without sender missing=0
    sent=$(counter g tx_packets) received=$(counter h rx_packets) without=$(without_buffer)
    local before=("$sent" "$received" "$without")
    iperf3 -c "$h_ip" -u -b 0 -l 64 -t 900 -i 0 >/tmp/flood.log 2>&1 &
    sender=$!
    await 600 reached $((sent + $1))
    kill "$sender" || cat /tmp/flood.log
    wait "$sender"
    # Packets in flight arrive. A connection that breaks loses its packets.
    [ "$2" = connected ] || await 60 accounted "${before[@]}" || missing=1
    sent=$(($(counter g tx_packets) - sent)) received=$(($(counter h rx_packets) - received)) without=$(($(without_buffer) - without))
    echo "$sent packets sent, $received received, $without without a buffer of the receiver"
    [ "$missing" = 0 ] && [ "$sent" -ge "$1" ] && [ "$received" -gt $(($1 / 100)) ]
}
reached() { [ "$(</sys/class/net/ib0/statistics/tx_packets)" -ge "$1" ]; }
quiet() {
    ! "$@" dmesg | grep -iE 'WARNING|BUG:|Oops|call trace|hung task|mlx5.*(error|fail)'
}

for guest in g h; do
    [ $guest = g ] || check 'H serves' await 120 serves h
    ip=${guest}_ip
    check "$guest: ib0" $guest bash -c "$(declare -f start); start ${!ip}"
done
for guest in g h; do check "$guest has joined" await 60 $guest sh -c 'ip link show ib0 | grep -q LOWER_UP'; done
[ $failures = 0 ] || exit 1
h sh -c 'iperf3 -s -D >/dev/null'
for way in datagram connected; do
    for guest in g h; do
        $guest sh -c "echo $way >/sys/class/net/ib0/mode"
        [ $way = datagram ] || $guest ip link set ib0 mtu 65520
        $guest ip neigh flush all
    done
    check "$way: one packet from cold" ping -c 1 -W 60 $h_ip
    for size in 56 60000; do
        check "$way: ping of $size octets to H" pings g $h_ip $size 10
        check "$way: ping of $size octets from H" pings h $g_ip $size 10
    done
    [ $way = datagram ] || check 'in one piece' pings g $h_ip 65492 4 'do'
    check "$way: TCP to H" transfer g h $h_ip 4000000 1
    check "$way: TCP from H" transfer h g $g_ip 4000000 2
    check "$way: $packets packets" flood $packets $way
    # The last packets may have broken a connection; its sender uses it until it is notified.
    check "$way: then, an answer" await 60 ping -c 1 -W 2 $h_ip
    check "$way: then, ping to H" pings g $h_ip 60000 10
    check "$way: then, TCP from H" transfer h g $g_ip 1000000 3
done
for guest in g h; do check "$guest: the kernel logs no problem" quiet $guest; done
if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
    for guest in g h; do
        echo "--- $guest"
        LAB_PATIENCE=5 $guest sh -c 'ip -s link show ib0; dmesg | tail -n 40'
    done
fi
note "$failures check(s) failed"
exit $((failures > 0))
