#!/bin/bash
# In the guest: ibv_rc_pingpong, ibv_srq_pingpong and ibv_ud_pingpong on soft-RoCE against ibpingpong on a
# software ConnectX, over a pair of Ethernet interfaces, on a good wire and on one that loses packets. Each
# side is server and client, and compares every byte that returns. The kernel must log no problem, and no
# queue pair may be left.
#
#   rocev2.sh [ROUNDS]
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
iterations=${1:-1000}

modprobe -a veth ib_core ib_uverbs rdma_rxe
ip link add v0 type veth peer name v1
# Only the software device uses v1: the kernel has no address on it.
sysctl -qw net.ipv6.conf.v0.accept_dad=0 net.ipv6.conf.v0.addr_gen_mode=0 net.ipv6.conf.v1.disable_ipv6=1
ip link set v0 address 02:00:00:00:00:01
ip link set v1 address 02:00:00:00:00:02
ip link set v0 mtu 5000 up
ip link set v1 mtu 5000 up
ip addr add 10.0.0.1/24 dev v0
rdma link add rxe0 type rxe netdev v0
await 30 grep -qi 0a00:0001 /sys/class/infiniband/rxe0/ports/1/gids/1
base=$(rdma resource show qp | wc -l)

listening() { ss -Hltn 'sport = :18515' | grep -q .; }
lose() {
    local i
    for i in 0 1; do tc qdisc replace dev "v$i" root netem loss "$1"; done
}

# game KIND ROLE GID OPTIONS [LINK-OPTIONS]: ROLE is that of ibpingpong, GID the index at both ends, OPTIONS
# are for both programs.
game() {
    local kind=$1 role=$2 gid=$3 options=$4 link=roce:v1${5:-}
    local theirs=("ibv_${kind}_pingpong" -d rxe0 -g "$gid" -n "$iterations")
    local ours=(./ibpingpong "$kind" --link "$link" --address 10.0.0.2 -g "$gid" -n "$iterations")
    # shellcheck disable=SC2206  # several arguments
    theirs+=($options) ours+=(${options//-e/})
    local server client code=0 their_log=/tmp/theirs our_log=/tmp/ours
    if [ "$role" = client ]; then
        timeout 120 "${theirs[@]}" >"$their_log" 2>&1 &
    else
        timeout 120 "${ours[@]}" >"$our_log" 2>&1 &
    fi
    server=$!
    await 60 listening || echo 'no server listens'
    if [ "$role" = client ]; then
        timeout 120 "${ours[@]}" 127.0.0.1 >"$our_log" 2>&1
    else
        timeout 120 "${theirs[@]}" 127.0.0.1 >"$their_log" 2>&1
    fi
    client=$?
    if [ "$client" != 0 ]; then
        # The other program would wait forever.
        sleep 1
        kill "$server" 2>/dev/null
    fi
    wait "$server" || code=$?
    if [ "$client" != 0 ] || [ "$code" != 0 ]; then
        printf 'client %s, server %s\n' "$client" "$code"
        tail -n 8 "$their_log" "$our_log"
        return 1
    fi
    printf '%s; %s, there %s; %s\n' "$(sed -n 's/ messages compared.*/ compared/p' "$our_log")" \
        "$(sed -n 's/.*iterations, //p' "$our_log")" "$(sed -n 's/.*= \(.* usec.iter\)/\1/p' "$their_log")" \
        "$(sed -n 's/^device  //p' "$our_log")"
}

for role in client server; do
    check "rc  64 B, IPv6, $role" game rc "$role" 0 '-e -s 64'
    check "rc  64 B, IPv4, $role, polling" game rc "$role" 1 '-s 64'
    check "rc  1000 B, IPv4, $role" game rc "$role" 1 '-e -s 1000 -m 256'
    check "rc  4096 B, IPv6, $role" game rc "$role" 0 '-e -s 4096'
    check "rc  16 KiB, IPv4, $role" game rc "$role" 1 '-e -s 16384 -m 4096'
    check "rc  64 KiB, IPv6, $role" game rc "$role" 0 '-e -s 65536 -m 1024'
    check "rc  64 KiB, IPv4, $role" game rc "$role" 1 '-e -s 65536 -m 4096'
    check "srq 64 B, IPv4, $role" game srq "$role" 1 '-e -s 64'
    check "srq 4096 B, IPv6, $role" game srq "$role" 0 '-e -s 4096'
    check "srq 64 KiB, IPv4, $role" game srq "$role" 1 '-e -s 65536 -m 4096 -q 4'
    check "ud  64 B, IPv4, $role" game ud "$role" 1 '-e -s 64'
    check "ud  1024 B, IPv6, $role" game ud "$role" 0 '-e -s 1024'
    check "ud  4096 B, IPv4, $role" game ud "$role" 1 '-e -s 4096'
done
# Both sides retransmit lost packets: requests, responses and acknowledgements.
for role in client server; do
    lose 1%
    check "rc  4096 B, 1 % lost by the network, $role" game rc "$role" 1 '-e -s 4096'
    check "rc  64 KiB, 1 % lost by the network, $role" game rc "$role" 0 '-e -s 65536 -m 4096'
    check "srq 4096 B, 1 % lost by the network, $role" game srq "$role" 1 '-e -s 4096'
    lose 0%
    check "rc  64 KiB, 1 % lost, 1 % damaged, 1 % twice by the link, $role" \
        game rc "$role" 1 '-e -s 65536 -m 4096' '?loss=0.01&corrupt=0.01&duplicate=0.01&seed=7'
done
check 'no queue pair is left' test "$(rdma resource show qp | wc -l)" = "$base"
if dmesg | grep -E 'WARNING|BUG:|Oops|refcount'; then
    note 'FAILED  the kernel complains'
    failures=$((failures + 1))
fi
printf '%s check(s) failed\n' "$failures"
exit $((failures > 0))
