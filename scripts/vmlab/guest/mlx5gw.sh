#!/bin/bash
# In guest G: the gateway with two segments on mlx5_0, and an Ethernet host beside it in a namespace. Guest H is a stock host with ib_ipoib on
# two devices: ib0 with a child interface, and ib1, in a namespace, on a cable that loses packets. Each device is a software ConnectX; a host of
# the fabric is in each partition. OpenSM in G manages the subnet, whose prefix is not the default one; later one in H does. One line for
# each check. Arguments: the gateway's drivers, one after another (verbs mlx5). What befalls the hosts and cables is shown with the last of them.
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
# Datagrams may be lost where two machines are emulated on a busy one; not twice.
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

# start_opensm PRIORITY: here or in H.
start_opensm() {
    printf 'Default=0x7fff, ipoib : ALL=full;\nsecond=0x8001, ipoib : ALL=full;\n' >/tmp/partitions.conf
    printf '%s\n' "subnet_prefix 0x$prefix" 'sweep_interval 3' 'sminfo_polling_timeout 500' 'polling_retry_number 3' >/tmp/opensm.conf
    opensm -B -f "/tmp/opensm$1.log" -g "0x$(tr -d : </sys/class/infiniband/mlx5_0/ports/1/gids/0 | tail -c 17)" \
        -P /tmp/partitions.conf -F /tmp/opensm.conf -p "$1" >/dev/null
}
# manages LID: that port's OpenSM is the master, as the gateway's port knows it.
manages() { sminfo | grep "lid $1 .*SMINFO_MASTER"; }
lid() { "$1" cat /sys/class/infiniband/mlx5_0/ports/1/lid | xargs printf '%d'; }
# members COUNT: ports that subnet administration knows in the broadcast group.
members() { [ "$(saquery --smkey 1 -m "$(mlid 255.255.255.255)" | grep -c PortGid)" = "$1" ]; }

# What H does when it has booted.
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
# host_mode MODE: of all of H's interfaces.
host_mode() {
    local mtu=65520
    [ "$1" = connected ] || mtu=2044
    on h sh -c "for name in ib0 ib0.8001; do ip link set \$name type ipoib mode $1; ip link set \$name mtu $mtu; done
        ip netns exec lossy ip link set ib1 type ipoib mode $1; ip netns exec lossy ip link set ib1 mtu $mtu"
}
# state WHOM N WORD: the port of that device is so.
state() { "$1" grep -q "$3" "/sys/class/infiniband/mlx5_$2/ports/1/state"; }
here() { "$@"; }
is_up() { ctl links --json | tr -d ' \n' | grep -oE "\"link\":\"up\"[^{}]*\"segment\":\"$1\""; }
# One packet where nobody knows of anybody, and no second one.
cold() {
    eth ip neigh flush all
    ib ip neigh flush all
    "$1" ping -c 1 -W 60 "$2"
}
# Both ways again, however long it takes.
again() { await 90 eth ping -c 1 -W 2 "$1" && await 90 "$2" ping -c 1 -W 2 "$3"; }
# Of the gateway, as the kernel counts them.
no_connection() { ctl connections --json | tr -d ' \n' | grep '"connections":\[\]'; }
no_queue_pair() { ! rdma resource show qp | grep ipoib-fwd | grep "type $1"; }
unhurt() { ! "$@" dmesg | grep -iE 'WARNING|BUG:|Oops|call trace|hung task|blocked for more'; }
quiet() {
    ! "$@" dmesg | grep -iE 'WARNING|BUG:|Oops|call trace|mlx5.*(error|fail)'
}

# is_down SEGMENT: the gateway says so.
is_down() { ctl links >/dev/null && ! is_up "$1"; }

# Both modes, both segments; `brief`: one of them, and not all sizes.
traffic() {
    local driver=$1 extent=$2 way sizes=(1472 60000)
    [ "$extent" = full ] || sizes=(60000)
    for way in datagram connected; do
        ctl mode $way >/dev/null
        host_mode $way
        forget_routes
        # ib_ipoib has forgotten its paths, and keeps three packets while it asks for one.
        check "$driver, $way: an answer" await 60 eth ping -c 1 -W 2 $ib_ip
        if [ $way = connected ]; then
            for name in ib0 ib0.8001; do check "$driver: $name has MTU 65520" ib sh -c "ip link show $name | grep 'mtu 65520'"; done
            check "$driver: connections come up by themselves" await 60 both_ways
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
    check "$driver: nobody answers across partitions" ib sh -c "! ping -c 2 -W 1 -I ib0 $second_fabric"
}

# Another subnet prefix: everybody's GIDs and hardware addresses have it.
has_prefix() { "$@" | tr -d : | grep -o "$prefix.*"; }
addresses() {
    check "the port's GID has prefix $prefix" has_prefix cat /sys/class/infiniband/mlx5_0/ports/1/gids/0
    check 'the address that H has of the gateway, too' has_prefix ib ip neigh show $eth_ip
    check 'and that which the gateway has of H' has_prefix ctl neighbours
}

# mgid ADDRESS: the first segment's group of a link-local multicast address, or of the broadcast address.
mgid() {
    [ "$1" != 255.255.255.255 ] || {
        echo ff12:401b:ffff::ffff:ffff
        return
    }
    printf 'ff12:401b:ffff::%x\n' "${1##*.}"
}
# mlid ADDRESS: what subnet administration gave to that group.
mlid() {
    saquery --smkey 1 -g | sed 's/^[^.]*\.\.*//' | grep -ixA 1 "$(mgid "$1")" | awk 'NR == 2 {print tolower($0)}'
}
# ways MLID: how many ports of the switch it leads to.
ways() {
    local switch
    switch=$(smpquery -D portinfo 0,1 0 | awk -F '[.:]+' '/^Lid:/ {print $2}')
    ibroute -M "$switch" | awk -v mlid="$1" '$1 == mlid {print NF - 1}'
}
# leads_less MLID COUNT: to fewer ports; to a group with one member that leads nowhere.
leads_less() {
    local count
    count=$(ways "$1")
    [ "${count:-0}" -lt "$2" ]
}
# sent WAY SLID ADDRESS MLID FILE: packets to that group went so, and none with another MLID.
sent() {
    grep "^$1 $2 $(mgid "$3") " "$5"
    [ "$(awk -v way="$1" -v slid="$2" -v mgid="$(mgid "$3")" '$1 == way && $2 == slid && $3 == mgid {print $4}' "$5")" = "$4" ]
}
call() { eth ping -c "${2:-1}" -i 0.1 -W 1 -I e0 "$1"; }
# Three packets at least, and until three answers are there.
call_and_wait() { eth ping -c 3 -i 0.1 -w 30 -I e0 "$1" >/dev/null; }

# Multicast LIDs: each group has its own, and who is not in a group does not get its packets.
groups() {
    local ours wire address lids=() one=224.0.0.251 two=224.0.0.252 before
    ours=$(lid here)
    for address in $one $two; do
        check "H joins $address" ib ip addr add "$address"/32 dev ib0 autojoin
        check 'and answers' await 60 call "$address"
    done
    for wire in 0 1; do check "cable $wire is watched" on host listen $wire; done
    for address in $one $two; do call_and_wait "$address"; done
    eth ip neigh flush all
    check 'a broadcast asks for H' eth ping -c 1 -W 60 $ib_ip
    for wire in 0 1; do on host heard $wire >/tmp/wire$wire; done
    for address in $one $two 255.255.255.255; do lids+=("$(mlid "$address")"); done
    check "MLIDs: ${lids[*]}" test "$(printf '%s\n' "${lids[@]}" | grep '^0xc...$' | sort -u | wc -l)" = 3
    for address in $one $two 255.255.255.255; do
        check "the gateway sends so to $address" sent in "$ours" "$address" "${lids[0]}" /tmp/wire0
        [ "$address" = 255.255.255.255 ] || check 'H gets it so' sent out "$ours" "$address" "${lids[0]}" /tmp/wire1
        lids=("${lids[@]:1}")
    done
    before=$(ways "$(mlid $two)")
    check "ports that $two leads to: $before" test "$before" -gt 1
    check 'H leaves one of them' ib ip addr del $two/32 dev ib0
    check 'which no longer leads to H' await 60 leads_less "$(mlid $two)" "$before"
    check "H's cable is watched" on host listen 1
    call $two 3 >/dev/null
    call_and_wait $one
    on host heard 1 >/tmp/wire1
    check 'what goes to the other one still arrives' sent out "$ours" $one "$(mlid $one)" /tmp/wire1
    check 'what goes to the one that it left does not' sh -c "! grep ' $(mgid $two) ' /tmp/wire1"
    ib ip addr del $one/32 dev ib0
}

# A cable that loses packets: some of the datagrams are lost, and nothing of a transfer.
losses() {
    local way bytes=300000
    for way in datagram connected; do
        ctl mode $way >/dev/null
        host_mode $way
        check "lossy cable, $way: an answer" await 60 eth ping -c 1 -W 2 $lossy_ip
        if [ $way = datagram ]; then
            # 600 packets of which one in fifty is lost: all of them come once in two hundred thousand times.
            check "lossy cable: it loses" sh -c "! ip netns exec eth ping -q -c 600 -i 0.01 -W 5 $lossy_ip | grep ' 0% packet loss'"
        fi
        # A connection ends by one packet that is lost, and that is noticed after seconds.
        [ $way = datagram ] || bytes=100000
        check "lossy cable, $way: TCP from Ethernet" transfer eth lossy $lossy_ip $bytes 4
        check "lossy cable, $way: TCP from H" transfer lossy eth $eth_ip $bytes 5
    done
}

cables() {
    # H's.
    check "H's cable is pulled" on host pull 1
    check 'H notices' await 60 state ib 0 DOWN
    check 'others go on: ib1' await 60 eth ping -c 1 -W 2 $lossy_ip
    check 'others go on: the host of the fabric' pings eth $fabric_ip 1000
    check "H's cable is put back" on host plug 1
    check 'H has its port again' await 60 state ib 0 ACTIVE
    check 'both ways again' again $ib_ip ib $eth_ip
    # The gateway's, and with it the subnet manager, whom nobody has to ask for what they know.
    check 'H and the host of the fabric know each other' pings ib $fabric_ip 1000
    check "the gateway's cable is pulled" on host pull 0
    check 'the gateway notices' await 60 is_down first
    check 'others go on: H and the host of the fabric' pings ib $fabric_ip 1000
    check "the gateway's cable is put back" on host plug 0
    for segment in first second; do check "$segment is up" await 60 is_up $segment; done
    check 'both ways again' again $ib_ip ib $eth_ip
    check 'both ways again, child interface' again $second_ib ib $second_eth
}

# A worker that takes nothing, while a host that it is connected with sends more than its shared receive queue holds: the host's
# connection ends, since ib_ipoib does not try again. It makes a new one, which begins with what it has kept of the burst.
dry() {
    local driver=$1 before
    ctl mode connected >/dev/null
    host_mode connected
    check "$driver: connections both ways" await 60 both_ways
    before=$(alarms)
    kill -STOP "$gateway"
    ib ping -q -c 300 -i 0.002 -s 1000 -W 1 $eth_ip >/tmp/burst
    kill -CONT "$gateway"
    check "$driver: a burst that nobody takes is lost" grep -E '[1-9][0-9]*% packet loss' /tmp/burst
    check "$driver: both ways again" again $ib_ip ib $eth_ip
    check "$driver: the alarm of the shared receive queue has sounded" await 60 more_alarms "$before"
    check "$driver: TCP from H" transfer ib eth $eth_ip 300000 9
}
# A request that the gateway allows nobody puts its queue pair into error, and it is told by an event of the queue pair. With whom it was
# connected has a new connection for the next packet.
errors() {
    local driver=$1 qpn remote before ended=0
    check "$driver: connections both ways" await 60 both_ways
    # A connection that nobody has used for a minute ends by itself, perhaps just now.
    eth ping -c 1 -W 2 $second_ib >/dev/null
    ib ping -c 1 -W 2 $second_eth >/dev/null
    while read -r qpn remote _; do
        # Not one that H has left already. (The other device may have a queue pair of that number.)
        ib rdma resource show qp | grep -qE "link mlx5_0/\S+ lqpn $remote " || continue
        before=$(faults)
        check "$driver: a request that nobody may make ends the connection, $qpn" await 60 injected "$qpn" "$before"
        # Linux's ib_ipoib goes on sending by a connection that the other end has ended until its time-wait is over, two seconds later.
        check "$driver: H has let go of it, too" await 60 ib sh -c "! rdma resource show qp | grep -E 'link mlx5_0/\S+ lqpn $remote '"
        ended=$((ended + 1))
    done < <(connected)
    check "$driver: connections that ended so: $ended" test $ended -gt 0
    check "$driver: the next packet from H" ib ping -c 1 -W 60 $eth_ip
    check "$driver: the next packet from Ethernet" eth ping -c 1 -W 60 $ib_ip
    check "$driver: connections both ways again" await 60 both_ways
}
# The gateway's connected queue pairs: number, that of the other end, packet that is expected.
connected() {
    rdma resource show qp | awk '/type RC state RTS/ && /ipoib-fwd/ {
        for (n = 1; n < NF; n++) word[$n] = $(n + 1)
        print word["lqpn"], word["rqpn"], word["rq-psn"]
    }'
}
faults() { grep -c 'connection .* down: Fault' "$log"; }
# Anew if another packet was faster.
injected() {
    local psn
    psn=$(connected | awk -v qpn="$1" '$1 == qpn {print $3}')
    [ -z "$psn" ] || on host inject 0 "$(lid here)" "$(lid ib)" "$1" "$psn"
    [ "$(faults)" -gt "$2" ]
}
alarms() { ctl stats --json | tr -d ' \n' | grep -oE '"srq_low":[0-9]+' | cut -d: -f2; }
more_alarms() { [ "$(alarms)" -gt "$1" ]; }

# The subnet manager moves, by hand-over, to H.
moves() {
    local there
    there=$(lid ib)
    check 'OpenSM in H, of greater priority' ib bash -c "$(declare -f start_opensm); prefix=$prefix; start_opensm 15"
    check 'it is handed the subnet' await 120 manages "$there"
    check 'one packet from cold, from Ethernet' cold eth $ib_ip
    check 'one packet from cold, from H' cold ib $eth_ip
    check 'everybody has joined there' await 60 members 4
}

# H dies at once with memory registered, by its kernel and by a program, with connections and in the middle of a transfer.
deaths() {
    # What a dead peer has opened is idle, and ends as such.
    sed -i 's/^\(connection\|neighbour\)-idle-seconds = .*/\1-idle-seconds = 8/' /tmp/gateway.toml
    check 'idle connections end soon' ctl reload
    check 'connections with H' await 60 both_ways
    on h sh -c 'ibv_rc_pingpong -d mlx5_0 >/dev/null 2>&1 & sleep 1'
    transfer eth ib $ib_ip 3000000 6 60 >/dev/null 2>&1 &
    local doomed=$!
    check 'a transfer is on its way' await 90 eth sh -c "ss -Htn state established | grep -w 5006"
    # What the gateway knows it need not ask for while there is no subnet manager.
    check 'the gateway knows the hosts of the fabric' sh -c "ip netns exec eth ping -c 1 -W 60 $fabric_ip && ip netns exec eth ping -c 1 -W 60 $second_fabric"
    check 'H is killed, which manages the subnet' on host kill h
    check 'others go on: the host of the fabric' pings eth $fabric_ip 1000
    check 'others go on: the host of the other partition' pings eth $second_fabric 1000
    kill $doomed 2>/dev/null
    wait $doomed 2>/dev/null
    check 'the OpenSM that stood by takes over' await 120 manages "$(lid here)"
    check 'everybody has joined there' await 60 members 2
    eth ip neigh flush all
    check 'one packet from cold to the host of the fabric' eth ping -c 1 -W 60 $fabric_ip
    check 'no connection is left' await 180 no_connection
    check 'nor its queue pair' await 60 no_queue_pair RC
    check 'H boots again' on host boot h
    check 'H serves' await 120 serves h
    check 'H has joined' start_host
    check 'both ways again' again $ib_ip ib $eth_ip
    host_mode connected
    check 'connections again' await 60 both_ways
    check 'TCP from Ethernet' transfer eth ib $ib_ip 1000000 7
    check 'TCP from H' transfer ib eth $eth_ip 1000000 8
    check 'H has nothing to say about it' quiet on h
    # A device is taken away, as far as H's kernel can tell.
    check 'the second device of H ends' on host end 2
    check 'H notices' await 90 on h sh -c 'dmesg | grep -iE "mlx5_core.*(error|compromised|removed)"'
    check 'the first device goes on' pings ib $fabric_ip 1000
    check 'both ways still' again $ib_ip ib $eth_ip
    check 'H has taken no harm' unhurt on h
    check 'the first device of H is killed' on host kill 1
    check 'others go on: the host of the fabric' pings eth $fabric_ip 1000
    check 'H has taken no harm from that either' unhurt on h
}

dmesg -C
# The gateway comes before communication management of the kernel, which then leaves its port out.
check 'the drivers load' modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs
check 'OpenSM starts' start_opensm 8
check 'the port is active' await 60 state here 0 ACTIVE
make_hosts
eth_mtu 1500
eth ip link add link e0 name e0.100 type vlan id 100
eth ip addr add $second_eth/24 dev e0.100
eth ip link set e0.100 up
# Patience of the one packet that is sent from cold.
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
    check "$driver: a system call beyond its lists would end it" await 60 confined
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
    check "$driver: the gateway ends" stop_gateway
    check "$driver: no queue pair of it is left" test "$(rdma resource show qp | grep -c ipoib-fwd)" = 0
    check "$driver: no buffer is lost" grep -q '"buffers_outstanding": 0' /tmp/report.json
done
check 'the kernel has nothing to say about it' quiet here
finish
