#!/bin/bash
# In guest a: RDMA to guest b with programs of perftest and rdma_cm's rping. Each guest has a software
# ConnectX under its kernel's own mlx5 drivers. Prints a line for each check. Arguments: number of iterations
# for all sizes of each verb; or command lines that replace the checks, for a and, once that one listens, for
# b; or, in any guest, `up ADDRESS` to set it up, and `quiet`.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=machines.sh
. ./machines.sh
a=10.77.0.11 b=10.77.0.12

active() { grep -q ACTIVE /sys/class/infiniband/mlx5_0/ports/1/state; }
joined() { ip link show ib0 | grep -q LOWER_UP; }
up() {
    dmesg -C
    modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs rdma_ucm ib_ipoib && await 60 active && await 60 ip link set ib0 up &&
        # ARP retries for the one packet that is sent from cold.
        sysctl -qw net.ipv4.neigh.ib0.mcast_solicit=60 && ip addr replace "$1/24" dev ib0 && await 60 joined
}
listening() { [ "$(netstat -ltn | wc -l)" -gt "$before" ]; }
# game PROGRAM [OPTION...]: runs its server here and its client in b, which connects to ib0's address. Prints
# the client's last result.
game() {
    local out server before
    before=$(netstat -ltn | wc -l)
    timeout "${patience:-100}" "$@" >/tmp/server.log 2>&1 &
    server=$!
    await 60 listening
    if ! out=$(on b timeout "${patience:-100}" "$@" "$a") || ! wait "$server"; then
        kill "$server" 2>/dev/null
        printf '%s\n' "$out" "--- server" "$(tail -n 5 /tmp/server.log)"
        return 1
    fi
    grep -E '^ *[0-9]+ +[0-9]+ ' <<<"$out" | tail -n 1 | tr -s ' '
}
# upto SIZE PROGRAM [OPTION...]: runs each power of two from 2 octets to SIZE; prints the result of SIZE.
upto() { patience=200 game "${@:2}" -F -a | grep "^ $1 "; }
waits() { rdma resource show cm_id | grep -q LISTEN; }
# reads OPTION...: runs rping's server here and its client in b. rping reads data by RDMA READ, returns it by
# RDMA WRITE, and compares.
reads() {
    local out server
    timeout 100 rping -s -a "$a" -V "$@" >/tmp/server.log 2>&1 &
    server=$!
    await 60 waits
    if ! out=$(on b timeout 100 rping -c -a "$a" -V "$@") || ! wait "$server"; then
        kill "$server" 2>/dev/null
        printf '%s\n' "$out" "--- server" "$(tail -n 5 /tmp/server.log)"
        return 1
    fi
}
pings() { ping -c 20 -i 0.2 -s "$1" -w 30 "$b" | first_answered 20; }

case ${1:-} in
    up)
        up "$2"
        exit
        ;;
    quiet)
        kernel_is_quiet
        exit
        ;;
esac
if [ $# = 1 ] && ! [ "$1" -ge 5 ] || [ $# -gt 2 ]; then
    echo 'usage: rdma [ROUNDS | SERVER CLIENT]: at least 5 rounds, or command lines for a (10.77.0.11) and b (10.77.0.12)'
    exit 2
elif [ $# = 2 ]; then
    up $a && on b ./rdma.sh up $b || exit
    before=$(netstat -ltn | wc -l)
    bash -c "$1" >/tmp/server.log 2>&1 &
    server=$!
    await 60 listening
    printf '%s\n' "--- b: $2"
    on b bash -c "$2"
    code=$?
    printf '%s\n' "--- a: $1"
    wait $server || code=$?
    cat /tmp/server.log
    exit $code
fi
check 'a: the drivers load, ib0 is up' up $a
check 'b: the drivers load, ib0 is up' on b ./rdma.sh up $b
check 'first ping' ping -c 1 -W 60 $b
check 'ping of 2016 octets' pings 2016
check 'ibv_devinfo: atomic operations' sh -c "ibv_devinfo -v -d mlx5_0 | grep 'atomic_cap:.*ATOMIC_HCA '"
for kind in FETCH_AND_ADD CMP_AND_SWAP; do
    for what in bw lat; do check "ib_atomic_$what, $kind" game "ib_atomic_$what" -F -A $kind -n 200; done
done
check 'rping, 200 times' reads -C 200
check 'rping, 60000 octets, 20 times' reads -C 20 -S 60000
for verb in send write read; do
    check "ib_${verb}_bw, RC, 1 MiB" game "ib_${verb}_bw" -F -s 1048576 -n 20
    check "ib_${verb}_lat, RC, 2 octets" game "ib_${verb}_lat" -F -s 2 -n 200
done
check 'ib_send_bw, UC, 64 KiB' game ib_send_bw -F -c UC -s 65536 -n 200
check 'ib_write_bw, UC, 1 MiB' game ib_write_bw -F -c UC -s 1048576 -n 20
# Sizes around the MTU and others; or all sizes, and latencies, too.
sizes='8 4095 4097 65536' kinds=bw
if [ $# = 1 ]; then sizes=$(for ((n = 1; n <= 20; n++)); do echo $((1 << n)); done) kinds='bw lat'; fi
for size in $sizes; do
    for verb in send write read; do
        for what in $kinds; do check "ib_${verb}_$what, RC, $size octets" game "ib_${verb}_$what" -F -s "$size" -n "${1:-5}"; done
    done
done
if [ $# = 1 ]; then
    for what in bw lat; do
        for verb in send write; do check "ib_${verb}_$what, UC, all sizes to 8 MiB" upto 8388608 "ib_${verb}_$what" -c UC -n "$1"; done
        check "ib_send_$what, UD, all sizes to 4 KiB" upto 4096 "ib_send_$what" -c UD -n "$1"
    done
fi
check 'ib_send_bw, UD, 2 KiB' game ib_send_bw -F -c UD -s 2048 -n 200
check 'ib_send_lat, UD, 2 octets' game ib_send_lat -F -c UD -s 2 -n 200
check 'a: the kernel logs no problem' kernel_is_quiet
check 'a: no driver warns' no_warning
check 'b: the kernel logs no problem' on b ./rdma.sh quiet
if [ $failures -gt 0 ]; then dmesg | tail -n 30; fi
note "$failures check(s) failed"
exit $((failures > 0))
