#!/bin/bash
# In the guest: the kernel's own mlx5 drivers on a software ConnectX with two ports, each with its own cable;
# ib0 and ib1 on them, and a host of the fabric for each. Prints a line for each check. Arguments: "brief" for
# the half of the checks that takes seconds, or a command that replaces the checks.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=machines.sh
. ./machines.sh
hosts=('' 10.77.0.2 10.78.0.2)

drivers() { modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs ib_ipoib && await 60 test -e /sys/class/net/ib1; }
away() { modprobe -r ib_ipoib ib_umad mlx5_ib mlx5_core; }
state() { cat "/sys/class/infiniband/mlx5_0/ports/$1/state"; }
is() { state "$1" | grep -q "$2"; }
active() { is 1 ACTIVE && is 2 ACTIVE; }
# ib0 is the interface of port 1.
addresses() {
    ip link set ib0 up && ip addr replace 10.77.0.1/24 dev ib0 && ip link set ib1 up && ip addr replace 10.78.0.1/24 dev ib1 &&
        # ARP retries for the one packet that is sent from cold.
        sysctl -qw net.ipv4.neigh.ib0.mcast_solicit=60 net.ipv4.neigh.ib1.mcast_solicit=60
}
carrier() { ip link show "ib$(($1 - 1))" | grep -q LOWER_UP; }
ping_port() { ping -c "$2" -i 0.2 -w 30 "${hosts[$1]}" | first_answered "$2"; }
# Sends exactly one packet.
one_packet() { ping -c 1 -W 60 "${hosts[$1]}"; }
# Succeeds if a pingpong server listens.
listens() { netstat -ltn | grep -q ':18515 '; }
# Succeeds if the ports have different GUIDs and LIDs, and their interfaces name their ports.
distinct() {
    local ports=/sys/class/infiniband/mlx5_0/ports
    ! cmp -s "$ports"/{1,2}/lid && ! cmp -s "$ports"/{1,2}/gids/0 &&
        [ "$(cat /sys/class/net/ib0/dev_port /sys/class/net/ib1/dev_port)" = $'0\n1' ]
}
# game PROGRAM PORT [OPTION...]: runs a server at port 1 and a client at PORT.
game() {
    local program=$1 port=$2
    shift 2
    "$program" -d mlx5_0 -i 1 "$@" >/tmp/server.log 2>&1 &
    local server=$!
    await 60 listens
    timeout 60 "$program" -d mlx5_0 -i "$port" "$@" 127.0.0.1 >/tmp/client.log 2>&1 || {
        kill "$server" 2>/dev/null
        tail -n 3 /tmp/server.log /tmp/client.log
        return 1
    }
    wait "$server" && tail -n 1 /tmp/client.log
}
sent() { cat "/sys/class/infiniband/mlx5_0/ports/$1/counters/port_xmit_packets"; }
# counted PORT OTHER: succeeds if packets sent by PORT are counted there, and not at OTHER.
counted() {
    local port=$1 other=$2 before=() after=()
    before=("$(sent "$port")" "$(sent "$other")")
    ping_port "$port" 20 || return 1
    after=("$(sent "$port")" "$(sent "$other")")
    echo "port $port: $((after[0] - before[0])), port $other: $((after[1] - before[1]))"
    [ $((after[0] - before[0])) -ge 20 ] && [ $((after[1] - before[1])) -lt 20 ]
}
# heard EVENT PORT: prints the number of device events that a program received.
heard() { grep -c "$1.*port $2\$" /tmp/events.log; }
more() { [ "$(heard "$1" "$2")" -gt "$3" ]; }
# pull PORT OTHER NUMBER: unplugs and replugs the cable of a port.
pull() {
    local port=$1 other=$2 number=$3 errors actives
    errors=$(heard PORT_ERR "$port") actives=$(heard PORT_ACTIVE "$port")
    on host pull "$number" && await 60 is "$port" DOWN && await 30 more PORT_ERR "$port" "$errors" &&
        is "$other" ACTIVE && ! ping -q -c 1 -W 1 "${hosts[$port]}" >/dev/null &&
        on host plug "$number" && await 60 is "$port" ACTIVE && await 30 more PORT_ACTIVE "$port" "$actives" &&
        await 60 ping -c 1 -W 2 "${hosts[$port]}"
}
# cable PORT OTHER NUMBER: does so during pings of the other port's host, none of which may be lost.
cable() {
    local code=0
    train_begins ping -i 0.1 -W 5 "${hosts[$2]}"
    pull "$@" || code=$?
    train_ends 20 || code=1
    [ "$code" = 0 ] || {
        echo "port 1: $(state 1); port 2: $(state 2)"
        tail -n 5 /tmp/events.log
    }
    return "$code"
}
extent=full games=(1 2)
if [ "${1:-}" = brief ]; then
    extent=brief games=(2)
    shift
fi
dmesg -C
check 'the drivers load' drivers
if [ $# -gt 0 ]; then
    await 60 active
    addresses
    exec "$@"
fi
check 'one device of two ports' sh -c 'ibv_devinfo -d mlx5_0 | grep -w "phys_port_cnt:.*2"'
check 'ibstat shows both' sh -c "ibstat mlx5_0 | grep -c '^[[:space:]]*Port [12]:' | grep -x 2"
check 'the ports are active' await 60 active
check 'each has its GUID, its LID and its interface' distinct
check 'ib0 and ib1 come up' addresses
for port in 1 2; do
    check "port $port: its interface joins the broadcast group" await 60 carrier $port
    check "port $port: one packet from cold" one_packet $port
done
for port in "${games[@]}"; do
    check "ibv_rc_pingpong, port 1 and port $port" game ibv_rc_pingpong "$port" -n 100
    check "ibv_ud_pingpong, port 1 and port $port" game ibv_ud_pingpong "$port" -n 100 -s 1024
done
[ $extent = brief ] || check 'what port 2 sends is counted at port 2' counted 2 1
stdbuf -oL ibv_asyncwatch -d mlx5_0 >/tmp/events.log 2>&1 &
watch=$!
# Its first line means that it listens.
await 60 test -s /tmp/events.log
check 'port 1 works while the cable of port 2 is unplugged and replugged' cable 2 1 100
[ $extent = brief ] || check 'port 2 works while the cable of port 1 is unplugged and replugged' cable 1 2 0
kill $watch
if [ $extent = full ]; then
    check 'the drivers unload' away
    check 'the drivers load again' drivers
    check 'ib0 and ib1 come up' await 60 addresses
    for port in 1 2; do check "port $port: ping" await 60 ping -c 1 -W 2 "${hosts[$port]}"; done
fi
check 'the kernel logs no problem' kernel_is_quiet
if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
    echo '--- kernel'
    dmesg | tail -n 60
    echo '--- events'
    cat /tmp/events.log
fi
note "$failures check(s) failed"
exit $((failures > 0))
