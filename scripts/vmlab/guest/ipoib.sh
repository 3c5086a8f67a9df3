#!/bin/bash
# In the guest: an Ethernet host in one namespace, the kernel's ib_ipoib on ibx0 in another, and the gateway
# between them, on ibx1 with the verbs backend. Checks all sizes, both modes and TCP with checksums, then
# disturbances of a port, then that nothing is left. Prints a line for each check.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=ports.sh
. ./ports.sh
# shellcheck source-path=SCRIPTDIR source=hosts.sh
. ./hosts.sh

# Prints logs after failures, and exits.
finish() {
    if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
        echo '--- gateway'
        head -n 200 $log
        echo '--- subnet administration'
        tail -n 20 /tmp/sa.log
        echo '--- kernel'
        dmesg | tail -n 20
    fi
    note "$failures check(s) failed"
    exit $((failures > 0))
}

base=$(rdma resource show qp | wc -l)
note "queue pairs at first: $base"
make_hosts
start_sa ibx0 4
start_gateway datagram 9000
check 'the gateway starts and owns communication management' await 60 ctl links
check 'a system call beyond its lists would kill it' await 60 confined
[ $failures = 0 ] || finish
start_ib0
check 'the kernel joins' await 60 ib sh -c 'ip link show ib0 | grep -q LOWER_UP'
check 'ARP and first ping, from Ethernet' await 60 eth ping -c 1 -W 2 $ib_ip

# -- all sizes, with an Ethernet MTU of 9000: a broadcast group with MTU 2048, then 4096; then connections

# sizes WHAT MTU: checks small and large packets in both directions, and the replies to those that do not fit.
sizes() {
    local what=$1 mtu=$2
    check "$what: ib0 has MTU $mtu" await 60 ib sh -c "ip link show ib0 | grep -q 'mtu $mtu '"
    check "$what: ping from Ethernet" pings eth $ib_ip 56
    check "$what: ping from InfiniBand" pings ib $eth_ip 56
    if [ "$mtu" -lt 9000 ]; then
        # The path MTU, in one piece.
        check "$what: ping $((mtu - 28)) in one piece from Ethernet" pings eth $ib_ip $((mtu - 28)) 2 'do'
        check "$what: ping $((mtu - 28)) in one piece from InfiniBand" pings ib $eth_ip $((mtu - 28)) 2 'do'
        check "$what: too big from Ethernet is answered" too_big eth $ib_ip 8000 "$mtu"
    else
        check "$what: ping 8972 in one piece from Ethernet" pings eth $ib_ip 8972 2 'do'
        check "$what: ping 8972 in one piece from InfiniBand" pings ib $eth_ip 8972 2 'do'
        check "$what: too big from InfiniBand is answered" too_big ib $eth_ip 60000 9000
    fi
    check "$what: ping 60,000 from Ethernet" pings eth $ib_ip 60000 2
    check "$what: ping 60,000 from InfiniBand" pings ib $eth_ip 60000 2
    # A route keeps a learned MTU for ten minutes.
    forget_routes
}
sizes 'datagram, 2 KiB' 2044
start_sa ibx0 5
for port in ibx0 ibx1; do event $port 17; done
sizes 'datagram, 4 KiB' 4092
check 'no connection in datagram mode' test "$(connections)" = 0
ctl mode connected >/dev/null
kernel_mode connected
check 'connections open automatically' await 30 both_ways
sizes 'connected' 65520
# The queue pairs are read one after another, and a host may send a query in between.
pairs() {
    for _ in 1 2 3; do
        python3 pairs.py 4 --show && return
        sleep 2
    done
    return 1
}
check 'each end of a connection sends the packet that the other expects' pairs
check 'the gateway exits' stop_gateway
check 'no queue pair of the gateway is left' test "$(rdma resource show qp | grep -c ipoib-fwd)" = 0

# -- an Ethernet MTU of 1500 from here on

eth_mtu 1500
start_gateway datagram 1500
kernel_mode datagram
check 'the gateway starts again' await 60 ctl links
# Its queue pair now has another number, and no host is notified.
check_back 'the gateway started again'
check 'TCP from Ethernet, datagram' transfer eth ib $ib_ip 1000000 1
check 'TCP from InfiniBand, datagram' transfer ib eth $eth_ip 1000000 2
# A send without a route puts a queue pair of soft-RoCE into ERR, a datagram queue pair, too. QP1 must not
# send meanwhile, as the kernel does not reopen it.
reopened() { ctl links | grep -E 'datagram reopens +[1-9]'; }
no_route() {
    eth ping -c 1 -W 0.3 "$ib_ip"
    reopened
}
ip -6 route del fe80::/64 dev v1
await 10 no_route
ip -6 route append fe80::/64 dev v1 proto kernel metric 256
check_back 'the datagram queue pair was in error'
check 'the gateway has reopened it' reopened
check 'no connection in datagram mode' test "$(connections)" = 0
ctl mode connected >/dev/null
kernel_mode connected
check_back 'both changed to connected mode'
check 'connections open automatically' await 30 both_ways
check 'too big is answered' too_big ib $eth_ip 60000 1500
check 'ping 60,000 from InfiniBand' pings ib $eth_ip 60000 2
check 'ping 60,000 from Ethernet' pings eth $ib_ip 60000 2
check 'TCP from Ethernet, connected' transfer eth ib $ib_ip 4000000 3
check 'TCP from InfiniBand, connected' transfer ib eth $eth_ip 4000000 4

# ARP: each side has the gateway's link-layer address for the host of the other side, and learns it again by a
# query.
eth ip neigh flush all
ib ip neigh flush all
check 'ARP from Ethernet' neighbour eth $ib_ip "$(ctl links | sed -n 's/.*\bmac *\([0-9a-f:]\{17\}\).*/\1/p' | head -n 1)"
eth ip neigh flush all
ib ip neigh flush all
check 'ARP from InfiniBand' neighbour ib $eth_ip "80:.*:$(cut -d: -f 5- /sys/class/infiniband/ibx1/ports/1/gids/0 |
    sed 's/\([0-9a-f][0-9a-f]\)\([0-9a-f][0-9a-f]\)/\1:\2/g')"

# -- disturbances of a port: traffic recovers within ten seconds in both directions

ib ip link set ib0 down
sleep 1
ib ip link set ib0 up
check_back 'ib0 was down'
# Numbers of enum ib_event_type; the event occurs at the gateway's port, then at the kernel's.
for port in ibx1 ibx0; do
    for kind in '13 SM change' '17 client reregister' '12 P_Key change'; do
        event $port "${kind%% *}"
        check_back "event at $port: ${kind#* }"
    done
    event $port 10
    sleep 2
    event $port 9
    check_back "the cable of $port was pulled"
done
# The port moves: the old LID becomes unreachable.
echo 'ibx1 77' >/sys/module/ibll/parameters/lid
check 'the gateway has another LID' await 10 sh -c "./ipoib-fwd ctl links --json --socket $socket | tr -d ' \\n' | grep -w '\"lid\":77'"
check_back 'the gateway got another LID'
echo 78 >/sys/module/ibll/parameters/sm_lid
echo 'ibx0 78' >/sys/module/ibll/parameters/lid
event ibx1 13
check_back 'the kernel, and with it the subnet manager, got another LID'
# A subnet manager at another port, which does not know the groups.
start_sa ibx1 5
echo 77 >/sys/module/ibll/parameters/sm_lid
for port in ibx0 ibx1; do event $port 13; done
check_back 'another subnet manager took over'
tc qdisc add dev v0 root netem loss 100%
sleep 3
tc qdisc del dev v0 root
check_back 'three seconds of loss'
for way in datagram connected; do
    ctl mode "$way" >/dev/null
    check_back "the gateway changed to $way mode"
    kernel_mode "$way"
    check_back "the kernel changed to $way mode"
done
check 'connections open automatically' await 30 both_ways

# -- transfers during disturbances

# during SECONDS BYTES WHAT COMMAND...: transfers data in both directions while COMMAND runs.
during() {
    local seconds=$1 bytes=$2 what=$3
    shift 3
    transfer eth ib $ib_ip "$bytes" 5 "$seconds" >/tmp/there 2>&1 &
    local there=$!
    transfer ib eth $eth_ip "$bytes" 6 "$seconds" >/tmp/back 2>&1 &
    local back=$!
    await 10 on_their_way
    "$@"
    check "$what: TCP from Ethernet" outcome $there /tmp/there
    check "$what: TCP from InfiniBand" outcome $back /tmp/back
}
on_their_way() { [ "$(eth ss -Htn state established | grep -cw '500[56]')" = 2 ]; }
outcome() { await 120 sh -c "! kill -0 $1" && cat "$2" && grep -q SHA-256 "$2"; }
switch_modes() {
    local way
    for way in datagram connected; do
        kernel_mode "$way"
        sleep 1.5
    done
    for way in datagram connected; do
        ctl mode "$way" >/dev/null
        sleep 1.5
    done
}
during 8 4000000 'modes switched meanwhile' switch_modes
lose() {
    tc qdisc add dev v0 root netem loss 1% seed 1 2>/dev/null || tc qdisc add dev v0 root netem loss 1%
    tc qdisc add dev v1 root netem loss 1%
    sleep 5
    tc qdisc del dev v0 root
    tc qdisc del dev v1 root
}
during 5 1000000 '1 % of the packets lost' lose

# -- shutdown

ib ip link set ib0 down
check 'connections close with ib0' await 30 sh -c "! rdma resource show qp | grep -q 'type RC'"
check 'the gateway exits' stop_gateway
as_at_first() { [ "$(rdma resource show qp | grep -vc ib_ipoib)" = "$base" ]; }
check 'no queue pair is left' await 30 as_at_first
check 'no buffer is lost' grep -q '"buffers_outstanding": 0' /tmp/report.json
check 'no kernel warning' sh -c '! dmesg | grep -E "WARNING|BUG:|Oops|refcount" '
finish
