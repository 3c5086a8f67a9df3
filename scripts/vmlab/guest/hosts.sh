# shellcheck shell=bash
# Sourced in the guest after checks.sh and ports.sh: an Ethernet host, the kernel's
# ib_ipoib on ibx0 as another host, the gateway between them on ibx1, and functions that test them.
eth_ip=10.77.0.1 ib_ip=10.77.0.2
log=/tmp/gateway.log
socket=/run/gateway.sock

eth() { ip netns exec eth "$@"; }
ib() { ip netns exec ib "$@"; }
ctl() { ./ipoib-fwd ctl "$@" --socket $socket; }

# make_hosts: creates the namespaces and the wire between the Ethernet host and the gateway.
make_hosts() {
    ip netns add eth
    ip netns add ib
    ip link add e0 type veth peer name gw0
    ip link set e0 netns eth
    eth ip link set lo up
    ib ip link set lo up
    eth_mtu 9000
    ip link set gw0 up
    eth ip link set e0 up
    ethtool -K gw0 rx off tx off tso off gso off gro off >/dev/null
    eth ethtool -K e0 rx off tx off tso off gso off gro off >/dev/null
    eth ip addr add $eth_ip/24 dev e0
    sysctl -qw net.ipv6.conf.gw0.disable_ipv6=1
}
eth_mtu() {
    ip link set gw0 mtu "$1"
    eth ip link set e0 mtu "$1"
}

# start_sa DEVICE MTU_CODE: starts subnet administration on the device and stops the previous one.
start_sa() {
    if [ -n "${sa:-}" ]; then
        kill "$sa"
        wait "$sa" 2>/dev/null
    fi
    SA_MTU=$2 ./sa "$1" >>/tmp/sa.log &
    sa=$!
}

# start_gateway MODE ETHERNET_MTU [OPTION...]: uses the processors in `lcores` (0 and 1) and the configuration
# in `config` (gateway.toml).
start_gateway() {
    # The driver of the Ethernet port uses one buffer per frame.
    sed "s/^mtu = .*/mtu = $2/; s/^data-room = .*/data-room = $(($2 < 4000 ? 4096 : $2 + 216))/" "${config:-gateway.toml}" >/tmp/gateway.toml
    IPOIB_FWD_LOG=${LAB_LOG:-info} ./ipoib-fwd --lcores "${lcores:-0-1}" --no-huge --no-shconf --no-pci -m 256 \
        --vdev net_pcap0,rx_iface_in=gw0,tx_iface=gw0 -- \
        --config /tmp/gateway.toml --mode "$1" --report /tmp/report.json "${@:3}" >>$log 2>&1 &
    gateway=$!
}
# confined: succeeds if a system call that is not on a thread's list would kill the gateway.
confined() { grep -q 'is not on a thread.s list ends the gateway' "$log" && grep '^Seccomp:.*2' "/proc/$gateway/status"; }
stop_gateway() {
    kill -TERM "$gateway"
    await 60 sh -c "! kill -0 $gateway" || return 1
    # `check` runs this in another process, of which the gateway is not a child.
    grep -q '"traffic"' /tmp/report.json
}

# Starts the kernel's ib_ipoib; it leaves ibx1 to the gateway, which already uses it.
start_ib0() {
    modprobe ib_ipoib 2>/dev/null
    ip link set ib0 netns ib
    ib sh -c 'echo datagram >/sys/class/net/ib0/mode'
    ib ip addr add $ib_ip/24 dev ib0
    ib ip link set ib0 up
}
kernel_mode() {
    ib sh -c "echo $1 >/sys/class/net/ib0/mode"
    [ "$1" = datagram ] || ib ip link set ib0 mtu 65520
}
event() { echo "$1 $2" >/sys/module/ibll/parameters/event; }
forget_routes() {
    eth ip route flush cache
    ib ip route flush cache
}

# pings FROM ADDRESS SIZE [COUNT [PMTU_DISCOVERY]]
pings() {
    "$1" ping -c "${4:-4}" -i 0.2 -w 30 -M "${5:-dont}" -s "$3" "$2" | first_answered "${4:-4}"
}
# too_big FROM ADDRESS SIZE MTU: succeeds if the reply to a packet of this size has this MTU.
too_big() { "$1" ping -c 1 -W 20 -M 'do' -s "$3" "$2" 2>&1 | grep -iE "frag needed.*mtu = $4\)"; }
# transfer FROM TO ADDRESS BYTES SEED [SECONDS]
transfer() {
    local received sent port=$((5000 + $5))
    "$2" python3 transfer.py receive $port >/tmp/received.$port &
    local receiver=$!
    # The first interpreter takes seconds to load, and longer on a busy host.
    await 60 "$2" sh -c "ss -Hltn 'sport = :$port' | grep -q ." || {
        kill $receiver
        echo 'the receiver does not listen'
        return 1
    }
    sent=$("$1" python3 transfer.py send "$3" $port "$4" "$5" "${6:-0}") || return 1
    wait "$receiver" || return 1
    received=$(cat /tmp/received.$port)
    [ "$sent" = "$received" ] || {
        echo "sent $sent, received $received"
        return 1
    }
    echo "$4 bytes, SHA-256 ${sent:0:16}"
}
# neighbour FROM ADDRESS LINK_LAYER_ADDRESS: succeeds if a packet is answered and FROM has this link-layer
# address for it.
neighbour() { "$1" ping -c 1 -W 3 "$2" >/dev/null && "$1" ip neigh show "$2" | grep -E "lladdr $3 "; }
connections() { rdma resource show qp | grep -c 'type RC'; }
# both_ways: succeeds if packets pass in both directions by connections in both directions.
both_ways() {
    eth ping -c 1 -W 1 $ib_ip && ib ping -c 1 -W 1 $eth_ip && ctl connections | grep -E 'established both ways +true'
}

# back: waits for traffic to recover; prints the seconds until the first packet in each direction.
back() {
    local begin end
    begin=$(uptime_ms)
    await 10 eth ping -c 1 -W 0.5 $ib_ip || return 1
    end=$(uptime_ms)
    await 10 ib ping -c 1 -W 0.5 $eth_ip || return 1
    printf '%d.%02d s from Ethernet, %d.%02d s from InfiniBand\n' $(((end - begin) / 1000)) $(((end - begin) % 1000 / 10)) \
        $((($(uptime_ms) - begin) / 1000)) $((($(uptime_ms) - begin) % 1000 / 10))
    [ $(($(uptime_ms) - begin)) -le 10000 ]
}
uptime_ms() { awk '{printf "%d\n", $1 * 1000}' /proc/uptime; }
check_back() { check "back after: $1" back; }
