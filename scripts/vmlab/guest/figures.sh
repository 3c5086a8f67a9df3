#!/bin/bash
# In guest a: measures the software ConnectX (mlx5_0, ib0) and soft-RoCE with an InfiniBand link layer (ibx0,
# ib1) between guests a and b, alternately. Prints lines `figure NAME DEVICE VALUE UNIT`. Argument: number of
# rounds (3); or, in any guest, `up NUMBER` to set it up.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=machines.sh
. ./machines.sh

# carrier INTERFACE ADDRESS
carrier() {
    await 30 test -e "/sys/class/net/$1" && ip addr add "$2/24" dev "$1" && ip link set "$1" up &&
        await 60 sh -c "ip link show $1 | grep -q LOWER_UP"
}
# up NUMBER: sets up this machine, 1 or 2. The first one runs subnet administration for the soft-RoCE ports.
up() {
    modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs ib_ipoib virtio_net && carrier ib0 "10.77.0.1$1" || return 1
    insmod ./ibll.ko && modprobe rdma_rxe || return 1
    # The GID is the interface's link-local address, which must exist immediately.
    sysctl -qw net.ipv6.conf.eth0.accept_dad=0 net.ipv6.conf.eth0.addr_gen_mode=0
    ip link set eth0 mtu 5000 up && await 20 sh -c 'ip -6 addr show dev eth0 | grep -q fe80' && rdma link add ibx0 type rxe netdev eth0 || return 1
    if [ "$1" = 1 ]; then SA_ELSEWHERE=1 SA_MTU=5 ./sa ibx0 >/tmp/sa.log 2>&1 & fi
    carrier ib1 "10.78.0.1$1"
}
case ${1:-} in
    up)
        up "$2"
        exit
        ;;
esac
rounds=${1:-3}
# figure NAME VALUE UNIT: prints a measurement of `kind`.
figure() { if [ -n "$2" ]; then echo "figure $1 $kind $2 $3"; else echo "no measurement: $1 $kind"; fi; }

mode() {
    local mtu=65520
    [ "$1" = connected ] || mtu=4092
    for guest in here b; do
        $guest sh -c "for name in ib0 ib1; do ip link set \$name type ipoib mode $1; ip link set \$name mtu $mtu; ip neigh flush all; done"
    done
}
here() { "$@"; }
b() { on b "$@"; }
warm() { await 30 ping -q -c 3 -i 0.2 "$address"; }
round_trips() {
    ping -c 100 -i 0.02 -W 5 "$address" | awk -F 'time=' '/time=/ {print $2 + 0}' | sort -n >/tmp/times
    figure "ping-median,$way" "$(awk '{t[NR] = $1} END {if (NR) print t[int((NR + 1) / 2)]}' /tmp/times)" ms
    figure "ping-p99,$way" "$(awk '{t[NR] = $1} END {if (NR) print t[int(NR * 0.99 + 0.5)]}' /tmp/times)" ms
}
tcp() { figure "iperf3-tcp,$way" "$(iperf3 -c "$address" -t 4 -f m | awk '/receiver/ {for (i = 2; i <= NF; i++) if ($i == "Mbits/sec") print $(i - 1)}')" Mbit/s; }
listening() { ss -Hltn 'sport = :18515' | grep -q .; }
# game FIELD PROGRAM [OPTION...]: runs both ends; prints a field of the client's last line.
game() {
    local field=$1 server
    shift
    timeout 120 "$@" -d "$device" -F >/dev/null 2>&1 &
    server=$!
    await 20 listening
    b timeout 120 "$@" -d "$device" -F 10.77.0.11 | grep -E '^ *[0-9]+ +[0-9]+ ' | tail -n 1 | awk -v field="$field" '{print $field}'
    kill "$server" 2>/dev/null
    wait "$server" 2>/dev/null
}
perftest() {
    for verb in send write read; do figure "ib_${verb}_bw-64KiB" "$(game 4 "ib_${verb}_bw" -s 65536 -n 300)" MB/s; done
    figure ib_send_lat-2B-median "$(game 5 ib_send_lat -s 2 -n 300)" us
    figure ib_write_lat-2B-median "$(game 5 ib_write_lat -s 2 -n 300)" us
}
# The device's commands and processor time are totals of all calls.
calls() {
    local commands work now name rate before
    read -r commands work now < <({ on host counted 0 device.commands && on host wear 0; } | xargs)
    before=("$commands" "$work" "$now")
    while read -r name rate; do figure "$name" "$rate" pairs/s; done < <(./verbs_bench "$device" 2)
    [ "$kind" = softhca ] || return 0
    read -r commands work now < <({ on host counted 0 device.commands && on host wear 0; } | xargs)
    figure firmware-commands "$(((commands - before[0]) * 1000 / (now - before[2])))" commands/s
    figure firmware-command-work "$(((work - before[1]) * 1000 / (commands - before[0] + 1)))" us
}
# Measures the device while its guest is idle.
idle() {
    local work now before
    sleep 3
    read -ra before < <(on host wear 0 | xargs)
    sleep 20
    read -r work now < <(on host wear 0 | xargs)
    kind=softhca figure idle-processor "$(awk -v work=$((work - before[0])) -v time=$((now - before[1])) 'BEGIN {printf "%.2f", 100 * work / time}')" %
}
each() {
    kind=softhca device=mlx5_0 address=10.77.0.12
    "$@"
    kind=soft-roce device=ibx0 address=10.78.0.12
    "$@"
}

check 'a: both devices' up 1
if [ $failures -gt 0 ]; then
    tail -n 5 /tmp/sa.log
    ip addr
    rdma link
    dmesg | tail -n 20
    exit 1
fi
check 'b serves' await 120 serves b
check 'b: both devices' on b ./figures.sh up 2
for address in 10.77.0.12 10.78.0.12; do check "$address answers" await 60 ping -c 1 -W 2 $address; done
if [ $failures -gt 0 ]; then
    tail -n 5 /tmp/sa.log
    exit 1
fi
b sh -c 'iperf3 -s -D >/dev/null'
for round in $(seq "$rounds"); do
    note "round $round"
    for way in datagram connected; do
        mode $way
        each warm
        each round_trips
        each tcp
    done
    mode datagram
    each perftest
    each calls
    idle
done
