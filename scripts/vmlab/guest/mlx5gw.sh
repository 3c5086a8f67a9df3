#!/bin/bash
# In guest G: the gateway with two segments on mlx5_0, and an Ethernet host in a namespace. Guest H is a stock
# host with ib_ipoib on two devices: ib0 with a child interface, and ib1, in a namespace, on a cable that
# loses packets. Each device is a software ConnectX, and each partition has a host of the fabric. OpenSM in G
# manages the subnet, which does not have the default prefix; later OpenSM in H does. Prints a line for each
# check. Arguments: drivers of the gateway, which run one after another (verbs mlx5). Disturbances of hosts
# and cables are checked with the last driver.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=hosts.sh
. ./hosts.sh
# shellcheck source-path=SCRIPTDIR source=machines.sh
. ./machines.sh
ib_ip=10.77.0.3 lossy_ip=10.77.0.4 fabric_ip=10.77.0.2
second_eth=10.78.0.1 second_ib=10.78.0.3 second_fabric=10.78.0.2
prefix=fec0000000000007
# On a busy host, two emulated machines may lose datagrams once, but not twice.
eval "once_$(declare -f pings)"
pings() { once_pings "$@" || once_pings "$@"; }
ib() { on h "$@"; }
lossy() { on h ip netns exec lossy "$@"; }

finish() {
    if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
        echo '--- gateway'
        head -n 200 $log
        for what in links neighbours connections; do ctl $what 2>&1; done
        echo '--- OpenSM'
        grep -ahE ' 0x0[12] -> |ENTERING|Entering' /tmp/opensm*.log | tail -n 40
        echo '--- kernel'
        dmesg | tail -n 30
        echo '--- H'
        LAB_PATIENCE=5 on h sh -c 'ip -d addr; ip netns exec lossy ip -d addr; dmesg | tail -n 60'
    fi
    note "$failures check(s) failed"
    exit $((failures > 0))
}

# start_opensm PRIORITY: starts OpenSM, here or in H.
start_opensm() {
    printf 'Default=0x7fff, ipoib : ALL=full;\nsecond=0x8001, ipoib : ALL=full;\n' >/tmp/partitions.conf
    printf '%s\n' "subnet_prefix 0x$prefix" 'sweep_interval 3' 'sminfo_polling_timeout 500' 'polling_retry_number 3' >/tmp/opensm.conf
    opensm -B -f "/tmp/opensm$1.log" -g "0x$(tr -d : </sys/class/infiniband/mlx5_0/ports/1/gids/0 | tail -c 17)" \
        -P /tmp/partitions.conf -F /tmp/opensm.conf -p "$1" >/dev/null
}
# manages LID: succeeds if the gateway's port knows the OpenSM of this port as the master.
manages() { sminfo | grep "lid $1 .*SMINFO_MASTER"; }
lid() { "$1" cat /sys/class/infiniband/mlx5_0/ports/1/lid | xargs printf '%d'; }
# members COUNT: succeeds if subnet administration has this number of ports in the broadcast group.
members() { [ "$(saquery --smkey 1 -m "$(mlid 255.255.255.255)" | grep -c PortGid)" = "$1" ]; }

# Sets up H after its boot.
host() {
    modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs ib_ipoib || return 1
    for _ in {1..600}; do
        if [ -e /sys/class/net/ib0 ] && [ -e /sys/class/net/ib1 ]; then break; fi
        sleep 0.1
    done
    sysctl -qw net.ipv4.neigh.ib0.mcast_solicit=60 net.ipv4.icmp_echo_ignore_broadcasts=0
    ip netns add lossy &&
        ip link set ib1 netns lossy &&
        ip netns exec lossy ip addr add 10.77.0.4/24 dev ib1 &&
        ip netns exec lossy ip link set ib1 up &&
        ip addr add 10.77.0.3/24 dev ib0 &&
        ip link set ib0 up &&
        ip link add link ib0 name ib0.8001 type ipoib pkey 0x8001 &&
        ip addr add 10.78.0.3/24 dev ib0.8001 &&
        ip link set ib0.8001 up
}
start_host() {
    on h bash -c "$(declare -f host); host" || return 1
    for name in ib0 ib0.8001; do await 60 on h sh -c "ip link show $name | grep -q LOWER_UP" || return 1; done
    await 60 lossy sh -c 'ip link show ib1 | grep -q LOWER_UP'
}
# host_mode MODE: sets the mode of all interfaces of H.
host_mode() {
    local mtu=65520
    [ "$1" = connected ] || mtu=2044
    on h sh -c "for name in ib0 ib0.8001; do ip link set \$name type ipoib mode $1; ip link set \$name mtu $mtu; done
        ip netns exec lossy ip link set ib1 type ipoib mode $1; ip netns exec lossy ip link set ib1 mtu $mtu"
}
# state GUEST N STATE: succeeds if the port of device N has this state.
state() { "$1" grep -q "$3" "/sys/class/infiniband/mlx5_$2/ports/1/state"; }
here() { "$@"; }
is_up() { ctl links --json | tr -d ' \n' | grep -oE "\"link\":\"up\"[^{}]*\"segment\":\"$1\""; }
# cold FROM ADDRESS: sends exactly one packet, with empty neighbour tables.
cold() {
    eth ip neigh flush all
    ib ip neigh flush all
    "$1" ping -c 1 -W 60 "$2"
}
# again ADDRESS FROM ADDRESS: waits until packets pass in both directions.
again() { await 90 eth ping -c 1 -W 2 "$1" && await 90 "$2" ping -c 1 -W 2 "$3"; }
# Connections and queue pairs of the gateway.
no_connection() { ctl connections --json | tr -d ' \n' | grep '"connections":\[\]'; }
no_queue_pair() { ! rdma resource show qp | grep ipoib-fwd | grep "type $1"; }
unhurt() { ! "$@" dmesg | grep -iE 'WARNING|BUG:|Oops|call trace|hung task|blocked for more'; }
quiet() {
    ! "$@" dmesg | grep -iE 'WARNING|BUG:|Oops|call trace|mlx5.*(error|fail)'
}

# is_down SEGMENT: succeeds if the gateway reports it.
is_down() { ctl links >/dev/null && ! is_up "$1"; }

# traffic DRIVER full|brief: checks both modes and both segments; `brief`: one segment and not all sizes.
traffic() {
    local driver=$1 extent=$2 way sizes=(1472 60000)
    [ "$extent" = full ] || sizes=(60000)
    for way in datagram connected; do
        ctl mode $way >/dev/null
        host_mode $way
        forget_routes
        # ib_ipoib has flushed its paths, and queues three packets while it queries one.
        check "$driver, $way: an answer" await 60 eth ping -c 1 -W 2 $ib_ip
        if [ $way = connected ]; then
            for name in ib0 ib0.8001; do check "$driver: $name has MTU 65520" ib sh -c "ip link show $name | grep 'mtu 65520'"; done
            check "$driver: connections open automatically" await 60 both_ways
            check "$driver: too big is answered" too_big ib $eth_ip 60000 1500
            forget_routes
        fi
        for size in "${sizes[@]}"; do
            check "$driver, $way: ping of $size octets from Ethernet" pings eth $ib_ip "$size"
            check "$driver, $way: ping of $size octets from H" pings ib $eth_ip "$size"
        done
        check "$driver, $way: TCP from Ethernet" transfer eth ib $ib_ip 1000000 1
        check "$driver, $way: TCP from H" transfer ib eth $eth_ip 1000000 2
        [ "$extent" = full ] || continue
        check "$driver, $way, child interface: an answer" await 60 eth ping -c 1 -W 2 $second_ib
        check "$driver, $way, child interface: ping from Ethernet" pings eth $second_ib 60000
        check "$driver, $way, child interface: TCP from H" transfer ib eth $second_eth 500000 3
        check "$driver, $way: the fabric's host, from Ethernet" pings eth $fabric_ip 60000
        check "$driver, $way: the fabric's host, from H" pings ib $fabric_ip 1000
    done
    [ "$extent" = full ] || return 0
    check "$driver: no answer across partitions" ib sh -c "! ping -c 2 -W 1 -I ib0 $second_fabric"
}

# Another subnet prefix is in all GIDs and hardware addresses.
has_prefix() { "$@" | tr -d : | grep -o "$prefix.*"; }
addresses() {
    check "the port's GID has prefix $prefix" has_prefix cat /sys/class/infiniband/mlx5_0/ports/1/gids/0
    check 'the address of the gateway that H knows has it' has_prefix ib ip neigh show $eth_ip
    check 'the address of H that the gateway knows has it' has_prefix ctl neighbours
}

# mgid ADDRESS: prints the first segment's group of a link-local multicast address or of the broadcast
# address.
mgid() {
    [ "$1" != 255.255.255.255 ] || {
        echo ff12:401b:ffff::ffff:ffff
        return
    }
    printf 'ff12:401b:ffff::%x\n' "${1##*.}"
}
# mlid ADDRESS: prints the multicast LID that subnet administration assigned to this group.
mlid() {
    saquery --smkey 1 -g | sed 's/^[^.]*\.\.*//' | grep -ixA 1 "$(mgid "$1")" | awk 'NR == 2 {print tolower($0)}'
}
# ports_of MLID: prints the number of switch ports in its multicast route.
ports_of() {
    local switch
    switch=$(smpquery -D portinfo 0,1 0 | awk -F '[.:]+' '/^Lid:/ {print $2}')
    ibroute -M "$switch" | awk -v mlid="$1" '$1 == mlid {print NF - 1}'
}
# leads_less MLID COUNT: succeeds if the route has fewer ports. That of a group with one member has none.
leads_less() {
    local count
    count=$(ports_of "$1")
    [ "${count:-0}" -lt "$2" ]
}
# sent in|out SLID ADDRESS MLID FILE: succeeds if packets to this group have this MLID, and none has another
# one.
sent() {
    grep "^$1 $2 $(mgid "$3") " "$5"
    [ "$(awk -v direction="$1" -v slid="$2" -v mgid="$(mgid "$3")" '$1 == direction && $2 == slid && $3 == mgid {print $4}' "$5")" = "$4" ]
}
call() { eth ping -c "${2:-1}" -i 0.1 -W 1 -I e0 "$1"; }
# Sends at least three packets, until three are answered.
call_and_wait() { eth ping -c 3 -i 0.1 -w 30 -I e0 "$1" >/dev/null; }

# Multicast LIDs: each group has its own, and a host outside a group does not receive its packets.
groups() {
    local ours wire address lids=() one=224.0.0.251 two=224.0.0.252 before
    ours=$(lid here)
    for address in $one $two; do
        check "H joins $address" ib ip addr add "$address"/32 dev ib0 autojoin
        check 'H answers' await 60 call "$address"
    done
    for wire in 0 1; do check "cable $wire is watched" on host listen $wire; done
    for address in $one $two; do call_and_wait "$address"; done
    eth ip neigh flush all
    check 'a broadcast resolves H' eth ping -c 1 -W 60 $ib_ip
    for wire in 0 1; do on host heard $wire >/tmp/wire$wire; done
    for address in $one $two 255.255.255.255; do lids+=("$(mlid "$address")"); done
    check "MLIDs: ${lids[*]}" test "$(printf '%s\n' "${lids[@]}" | grep '^0xc...$' | sort -u | wc -l)" = 3
    for address in $one $two 255.255.255.255; do
        check "the gateway sends with it to $address" sent in "$ours" "$address" "${lids[0]}" /tmp/wire0
        [ "$address" = 255.255.255.255 ] || check 'H receives it so' sent out "$ours" "$address" "${lids[0]}" /tmp/wire1
        lids=("${lids[@]:1}")
    done
    before=$(ports_of "$(mlid $two)")
    check "switch ports of $two: $before" test "$before" -gt 1
    check 'H leaves one group' ib ip addr del $two/32 dev ib0
    check 'its route no longer leads to H' await 60 leads_less "$(mlid $two)" "$before"
    check "H's cable is watched" on host listen 1
    call $two 3 >/dev/null
    call_and_wait $one
    on host heard 1 >/tmp/wire1
    check 'packets of the other group still arrive' sent out "$ours" $one "$(mlid $one)" /tmp/wire1
    check 'packets of the group that H left do not arrive' sh -c "! grep ' $(mgid $two) ' /tmp/wire1"
    ib ip addr del $one/32 dev ib0
}

# A cable that loses packets: some datagrams are lost, but transfers are complete.
losses() {
    local way bytes=300000
    for way in datagram connected; do
        ctl mode $way >/dev/null
        host_mode $way
        check "lossy cable, $way: an answer" await 60 eth ping -c 1 -W 2 $lossy_ip
        if [ $way = datagram ]; then
            # With 2 % loss, all of 600 packets arrive once in 200,000 runs.
            check "lossy cable: it loses packets" sh -c "! ip netns exec eth ping -q -c 600 -i 0.01 -W 5 $lossy_ip | grep ' 0% packet loss'"
        fi
        # A lost packet breaks a connection, which is detected after seconds.
        [ $way = datagram ] || bytes=100000
        check "lossy cable, $way: TCP from Ethernet" transfer eth lossy $lossy_ip $bytes 4
        check "lossy cable, $way: TCP from H" transfer lossy eth $eth_ip $bytes 5
    done
}

cables() {
    # The cable of H.
    check "H's cable is unplugged" on host pull 1
    check 'H detects it' await 60 state ib 0 DOWN
    check 'others work: ib1' await 60 eth ping -c 1 -W 2 $lossy_ip
    check 'others go on: the host of the fabric' pings eth $fabric_ip 1000
    check "H's cable is plugged in again" on host plug 1
    check 'H has its port again' await 60 state ib 0 ACTIVE
    check 'traffic in both directions again' again $ib_ip ib $eth_ip
    # The cable of the gateway and of the subnet manager, which no host needs for known paths.
    check 'H and the host of the fabric know each other' pings ib $fabric_ip 1000
    check "the gateway's cable is unplugged" on host pull 0
    check 'the gateway detects it' await 60 is_down first
    check 'others work: H and the host of the fabric' pings ib $fabric_ip 1000
    check "the gateway's cable is plugged in again" on host plug 0
    for segment in first second; do check "$segment is up" await 60 is_up $segment; done
    check 'traffic in both directions again' again $ib_ip ib $eth_ip
    check 'traffic in both directions again, child interface' again $second_ib ib $second_eth
}

# A stopped worker, while a connected host sends more than the shared receive queue holds: the host's
# connection breaks, since ib_ipoib does not retry. It opens a new one, on which it first sends the rest of
# the burst that it has kept.
dry() {
    local driver=$1 before
    ctl mode connected >/dev/null
    host_mode connected
    check "$driver: connections in both directions" await 60 both_ways
    before=$(alarms)
    kill -STOP "$gateway"
    ib ping -q -c 300 -i 0.002 -s 1000 -W 1 $eth_ip >/tmp/burst
    kill -CONT "$gateway"
    check "$driver: a burst without receives is lost" grep -E '[1-9][0-9]*% packet loss' /tmp/burst
    check "$driver: traffic in both directions again" again $ib_ip ib $eth_ip
    check "$driver: the shared receive queue has raised its alarm" await 60 more_alarms "$before"
    check "$driver: TCP from H" transfer ib eth $eth_ip 300000 9
}
# A forbidden request puts the gateway's queue pair into error, which an event of the queue pair reports. Its
# peer opens a new connection for the next packet.
errors() {
    local driver=$1 qpn remote before ended=0
    check "$driver: connections in both directions" await 60 both_ways
    # A connection that was idle for a minute may just be closing.
    eth ping -c 1 -W 2 $second_ib >/dev/null
    ib ping -c 1 -W 2 $second_eth >/dev/null
    while read -r qpn remote _; do
        # Skip a connection that H has already closed. (The other device may have a queue pair of this
        # number.)
        ib rdma resource show qp | grep -qE "link mlx5_0/\S+ lqpn $remote " || continue
        before=$(faults)
        check "$driver: a forbidden request breaks the connection, $qpn" await 60 injected "$qpn" "$before"
        # Linux's ib_ipoib uses a connection that the other end has closed until its time-wait is over, two
        # seconds later.
        check "$driver: H has released it, too" await 60 ib sh -c "! rdma resource show qp | grep -E 'link mlx5_0/\S+ lqpn $remote '"
        ended=$((ended + 1))
    done < <(connected)
    check "$driver: broken connections: $ended" test $ended -gt 0
    check "$driver: the next packet from H" ib ping -c 1 -W 60 $eth_ip
    check "$driver: the next packet from Ethernet" eth ping -c 1 -W 60 $ib_ip
    check "$driver: connections in both directions again" await 60 both_ways
}
# Prints the gateway's connected queue pairs: number, number of the other end, expected packet sequence
# number.
connected() {
    rdma resource show qp | awk '/type RC state RTS/ && /ipoib-fwd/ {
        for (n = 1; n < NF; n++) field[$n] = $(n + 1)
        print field["lqpn"], field["rqpn"], field["rq-psn"]
    }'
}
faults() { grep -c 'connection .* down: Fault' "$log"; }
# The caller repeats this if another packet came first.
injected() {
    local psn
    psn=$(connected | awk -v qpn="$1" '$1 == qpn {print $3}')
    [ -z "$psn" ] || on host inject 0 "$(lid here)" "$(lid ib)" "$1" "$psn"
    [ "$(faults)" -gt "$2" ]
}
alarms() { ctl stats --json | tr -d ' \n' | grep -oE '"srq_low":[0-9]+' | cut -d: -f2; }
more_alarms() { [ "$(alarms)" -gt "$1" ]; }

# The subnet manager moves to H by handover.
moves() {
    local there
    there=$(lid ib)
    check 'OpenSM in H, with higher priority' ib bash -c "$(declare -f start_opensm); prefix=$prefix; start_opensm 15"
    check 'it takes over the subnet' await 120 manages "$there"
    check 'one packet from cold, from Ethernet' cold eth $ib_ip
    check 'one packet from cold, from H' cold ib $eth_ip
    check 'everybody has joined there' await 60 members 4
}

# H is killed with memory registered by its kernel and by a program, with connections, during a transfer.
deaths() {
    # Connections of a dead peer are idle, and time out.
    sed -i 's/^\(connection\|neighbour\)-idle-seconds = .*/\1-idle-seconds = 8/' /tmp/gateway.toml
    check 'idle connections time out soon' ctl reload
    check 'connections with H' await 60 both_ways
    on h sh -c 'ibv_rc_pingpong -d mlx5_0 >/dev/null 2>&1 & sleep 1'
    transfer eth ib $ib_ip 3000000 6 60 >/dev/null 2>&1 &
    local doomed=$!
    check 'a transfer is running' await 90 eth sh -c "ss -Htn state established | grep -w 5006"
    # Without a subnet manager, the gateway can only use known paths.
    check 'the gateway knows the hosts of the fabric' sh -c "ip netns exec eth ping -c 1 -W 60 $fabric_ip && ip netns exec eth ping -c 1 -W 60 $second_fabric"
    check 'H, with the subnet manager, is killed' on host kill h
    check 'others go on: the host of the fabric' pings eth $fabric_ip 1000
    check 'others work: the host of the other partition' pings eth $second_fabric 1000
    kill $doomed 2>/dev/null
    wait $doomed 2>/dev/null
    check 'the standby OpenSM takes over' await 120 manages "$(lid here)"
    check 'everybody has joined there' await 60 members 2
    eth ip neigh flush all
    check 'one packet from cold to the host of the fabric' eth ping -c 1 -W 60 $fabric_ip
    check 'no connection is left' await 180 no_connection
    check 'no queue pair is left' await 60 no_queue_pair RC
    check 'H boots again' on host boot h
    check 'H serves' await 120 serves h
    check 'H has joined' start_host
    check 'traffic in both directions again' again $ib_ip ib $eth_ip
    host_mode connected
    check 'connections again' await 60 both_ways
    check 'TCP from Ethernet' transfer eth ib $ib_ip 1000000 7
    check 'TCP from H' transfer ib eth $eth_ip 1000000 8
    check 'H logs no problem' quiet on h
    # For H's kernel, a device is removed.
    check 'the second device of H exits' on host end 2
    check 'H notices' await 90 on h sh -c 'dmesg | grep -iE "mlx5_core.*(error|compromised|removed)"'
    check 'the first device works' pings ib $fabric_ip 1000
    check 'traffic in both directions still' again $ib_ip ib $eth_ip
    check 'H is unharmed' unhurt on h
    check 'the first device of H is killed' on host kill 1
    check 'others go on: the host of the fabric' pings eth $fabric_ip 1000
    check 'H is still unharmed' unhurt on h
}

dmesg -C
# The gateway starts before the kernel's communication management, which then leaves out its port.
check 'the drivers load' modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs
check 'OpenSM starts' start_opensm 8
check 'the port is active' await 60 state here 0 ACTIVE
make_hosts
eth_mtu 1500
eth ip link add link e0 name e0.100 type vlan id 100
eth ip addr add $second_eth/24 dev e0.100
eth ip link set e0.100 up
# ARP retries for the one packet that is sent from cold.
eth sysctl -qw net.ipv4.neigh.e0.mcast_solicit=60
check 'H serves' await 120 serves h
check 'H has joined' start_host
[ $failures = 0 ] || finish
[ $# -gt 0 ] || set -- verbs mlx5
for driver; do
    {
        sed "s/\"ibx1\"/\"mlx5_0\"/; s/^driver = .*/driver = \"$driver\"/" gateway.toml
        printf \
            'connection-idle-seconds = 60\nneighbour-idle-seconds = 60\n[[segment]]\nname = "first"\npkey = 0xffff\n[[segment]]\nname = "second"\nvlan = 100\npkey = 0x8001\n'
    } >/tmp/two.toml
    host_mode datagram
    config=/tmp/two.toml start_gateway datagram 1500
    check "$driver: the gateway starts" await 90 ctl links
    check "$driver: a system call beyond its lists would kill it" await 60 confined
    for segment in first second; do check "$driver: $segment is up" await 60 is_up $segment; done
    [ $failures = 0 ] || finish
    check "$driver: one packet from cold, from Ethernet" cold eth $ib_ip
    check "$driver: one packet from cold, from H" cold ib $eth_ip
    extent=brief
    [ "$driver" != "${*: -1}" ] || extent=full
    traffic "$driver" $extent
    dry "$driver"
    errors "$driver"
    if [ $extent = full ]; then
        addresses
        groups
        losses
        cables
        moves
        deaths
    fi
    check "$driver: the gateway exits" stop_gateway
    check "$driver: no queue pair of the gateway is left" test "$(rdma resource show qp | grep -c ipoib-fwd)" = 0
    check "$driver: no buffer is lost" grep -q '"buffers_outstanding": 0' /tmp/report.json
done
check 'the kernel logs no problem' quiet here
finish
