#!/bin/bash
# In the guest: an Ethernet host in one namespace, the kernel's ib_ipoib on ibx0 in another, the gateway between, on ibx1 with
# the verbs backend. Traffic both ways, datagram and connected; then nothing may be left. One line for each check.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=ports.sh
. ./ports.sh
eth_ip=10.77.0.1 ib_ip=10.77.0.2
log=/tmp/gateway.log

eth() { ip netns exec eth "$@"; }
ib() { ip netns exec ib "$@"; }
pings() { "$1" ping -q -c "${4:-4}" -i 0.2 -W 3 -s "$3" "$2" | awk '/received/ {print; ok = $1 == $4} END {exit !ok}'; }
# transfer FROM TO ADDRESS BYTES SEED
transfer() {
    local received sent
    "$2" python3 transfer.py receive 5001 >/tmp/received &
    local receiver=$!
    await 10 "$2" sh -c "ss -Hltn 'sport = :5001' | grep -q ." || return 1
    sent=$("$1" python3 transfer.py send "$3" 5001 "$4" "$5") || return 1
    wait "$receiver" || return 1
    received=$(cat /tmp/received)
    [ "$sent" = "$received" ] || {
        echo "sent $sent, received $received"
        return 1
    }
    echo "$4 bytes, SHA-256 ${sent:0:16}"
}
mode() { echo "$1" >/tmp/mode && ib sh -c "echo $1 >/sys/class/net/ib0/mode"; }
ctl() { ./ipoib-fwd ctl "$@" --socket /run/gateway.sock; }

# Logs if anything failed, and the end.
finish() {
    if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
        echo '--- gateway'
        head -n 120 $log
        echo '--- subnet administration'
        tail -n 20 /tmp/sa.log
        echo '--- kernel'
        dmesg | tail -n 20
    fi
    note "$failures check(s) failed"
    exit $((failures > 0))
}

ip netns add eth
ip netns add ib
ip link add e0 type veth peer name gw0
ip link set e0 netns eth
eth ip link set lo up
for command in "ip link set gw0 mtu 1500 up" "ip netns exec eth ip link set e0 mtu 1500 up"; do $command; done
ethtool -K gw0 rx off tx off tso off gso off gro off >/dev/null
eth ethtool -K e0 rx off tx off tso off gso off gro off >/dev/null
eth ip addr add $eth_ip/24 dev e0
sysctl -qw net.ipv6.conf.gw0.disable_ipv6=1

./sa ibx0 >/tmp/sa.log &
base=$(rdma resource show qp | wc -l)
note "queue pairs at first: $base"
start_gateway() {
    IPOIB_FWD_LOG=${LAB_LOG:-info} ./ipoib-fwd -l 0-1 --no-huge --no-shconf --no-pci -m 256 --vdev net_pcap0,rx_iface_in=gw0,tx_iface=gw0 -- \
        --config gateway.toml --mode "$1" --report /tmp/report.json >$log 2>&1 &
    gateway=$!
}
start_gateway datagram
check 'the gateway starts and owns communication management' await 20 ctl links
[ $failures = 0 ] || finish
# Now the kernel's own: it leaves ibx1 to the gateway, which has it already.
modprobe ib_ipoib 2>/dev/null
ip link set ib0 netns ib
ib ip link set lo up
ib sh -c 'echo datagram >/sys/class/net/ib0/mode'
ib ip addr add $ib_ip/24 dev ib0
ib ip link set ib0 up
check 'the kernel joins' await 15 ib sh -c 'ip link show ib0 | grep -q LOWER_UP'

check 'ARP and first ping, from Ethernet' await 15 eth ping -c 1 -W 2 $ib_ip
check 'ping from InfiniBand' pings ib $eth_ip 56
check 'ping 1400, from Ethernet' pings eth $ib_ip 1400
check 'ping 20,000 in fragments, from InfiniBand' pings ib $eth_ip 20000 2
check 'TCP from Ethernet, datagram' transfer eth ib $ib_ip 1000000 1
check 'TCP from InfiniBand, datagram' transfer ib eth $eth_ip 1000000 2

check 'no connection in datagram mode' sh -c "! rdma resource show qp | grep -q 'type RC'"

ctl mode connected >/dev/null
ib sh -c 'echo connected >/sys/class/net/ib0/mode'
ib ip link set ib0 mtu 65520
# Whether a neighbour takes connections is in its link-layer address, which the kernel keeps for a while.
eth ip neigh flush all
ib ip neigh flush all
check 'connected: ping from Ethernet' await 15 eth ping -c 1 -W 2 $ib_ip
check 'connected: ping from InfiniBand' pings ib $eth_ip 56
sleep 1
check 'connected: connections' ctl connections
check 'connected: ping 1400' pings eth $ib_ip 1400
# The Ethernet side takes 1500: the host is told so, and cuts its packets from then on.
check 'connected: too big is answered' sh -c "ip netns exec ib ping -c 1 -W 2 -s 60000 $eth_ip | grep 'Frag needed.*1500'"
check 'connected: ping 60,000 from InfiniBand' pings ib $eth_ip 60000 2
check 'connected: ping 60,000 from Ethernet' pings eth $ib_ip 60000 2
check 'connected: TCP from Ethernet' transfer eth ib $ib_ip 4000000 3
check 'connected: TCP from InfiniBand' transfer ib eth $eth_ip 4000000 4
check 'connected: queue pairs' sh -c 'rdma resource show qp | grep -c "type RC"'

# Traffic has to come back by itself within ten seconds, each time and both ways.
back() {
    await 10 eth ping -c 1 -W 1 "$ib_ip" && await 10 ib ping -c 1 -W 1 "$eth_ip"
}
ib ip link set ib0 down
sleep 1
ib ip link set ib0 up
check 'back after the interface was down' back
event() { echo "$1 $2" >/sys/module/ibll/parameters/event; }
# Numbers of enum ib_event_type, raised at the gateway's port, then at the kernel's.
for port in ibx1 ibx0; do
    for kind in '13 SM change' '17 client reregister' '11 LID change' '12 P_Key change'; do
        event $port "${kind%% *}"
        check "back after ${kind#* } at $port" back
    done
    event $port 10
    sleep 2
    event $port 9
    check "back after the cable of $port was pulled" back
done
tc qdisc add dev v0 root netem loss 100%
sleep 3
tc qdisc del dev v0 root
check 'back after three seconds of loss' back
for way in datagram connected; do
    ctl mode $way >/dev/null
    check "back after the gateway went to $way mode" back
    ib sh -c "echo $way >/sys/class/net/ib0/mode"
    check "back after the kernel went to $way mode" back
done

kill -TERM $gateway
check 'the gateway ends' await 15 sh -c "! kill -0 $gateway"
wait "$gateway"
check 'the gateway ends well' test $? = 0
ib ip link set ib0 down
sleep 1
check 'no queue pair is left' test "$(rdma resource show qp | grep -vc ib_ipoib)" = "$base"
check 'no buffer is lost' grep -q '"buffers_outstanding": 0' /tmp/report.json
check 'no kernel warning' sh -c '! dmesg | grep -E "WARNING|BUG:|Oops|refcount" '
finish
