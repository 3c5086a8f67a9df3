#!/bin/bash
# In the guest: an Ethernet host in one namespace, the kernel's ib_ipoib on ibx0 in another, and the gateway
# between them, on ibx1 with the verbs backend. Checks both modes, all sizes, TCP with checksums, and an
# orderly exit. This is the short form of ipoib.sh: nothing depends on the speed of the machine. Prints a line
# for each check.
# shellcheck disable=SC2317,SC2120  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=ports.sh
. ./ports.sh
# shellcheck source-path=SCRIPTDIR source=hosts.sh
. ./hosts.sh

# Time limit of each check in seconds.
deadline=600

finish() {
    if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
        echo '--- gateway'
        tail -n 100 $log
        echo '--- drops'
        ctl stats 2>/dev/null | grep -A 40 -i drops | head -n 40
        echo '--- subnet administration'
        tail -n 20 /tmp/sa.log
        echo '--- kernel'
        dmesg | tail -n 20
    fi
    note "$failures check(s) failed"
    exit $((failures > 0))
}
# answered FROM ADDRESS SIZE [PMTU_DISCOVERY]: succeeds if a packet of this size is answered.
answered() { await "$deadline" "$1" ping -c 1 -W 10 -M "${4:-dont}" -s "$3" "$2"; }
# answers_too_big FROM ADDRESS SIZE MTU
answers_too_big() { await "$deadline" too_big "$@"; }

# sizes WHAT MTU: checks small and large packets in both directions, and the reply to one that does not fit.
sizes() {
    local what=$1 mtu=$2 from target name
    check "$what: ib0 has MTU $mtu" await "$deadline" ib sh -c "ip link show ib0 | grep -q 'mtu $mtu '"
    for from in eth ib; do
        target=$ib_ip name=Ethernet
        [ $from = eth ] || target=$eth_ip name=InfiniBand
        check "$what: small packet from $name" answered $from $target 56
        if [ "$mtu" -lt 9000 ]; then
            check "$what: $((mtu - 28)) bytes in one piece from $name" answered $from $target $((mtu - 28)) 'do'
        else
            check "$what: 8972 bytes in one piece from $name" answered $from $target 8972 'do'
        fi
        check "$what: 60,000 bytes from $name" answered $from $target 60000
    done
    if [ "$mtu" -lt 9000 ]; then
        check "$what: too big from Ethernet is answered" answers_too_big eth $ib_ip 8000 "$mtu"
    else
        check "$what: too big from InfiniBand is answered" answers_too_big ib $eth_ip 60000 9000
    fi
    forget_routes
}

base=$(rdma resource show qp | wc -l)
make_hosts
start_sa ibx0 4
start_gateway datagram 9000
check 'the gateway starts' await "$deadline" ctl links
[ $failures = 0 ] || finish
start_ib0
check 'the kernel joins' await "$deadline" ib sh -c 'ip link show ib0 | grep -q LOWER_UP'
sizes 'datagram' 2044
check 'no connection in datagram mode' test "$(connections)" = 0
check 'TCP from Ethernet, datagram' transfer eth ib $ib_ip 500000 1
check 'TCP from InfiniBand, datagram' transfer ib eth $eth_ip 500000 2
check 'the gateway changes to connected mode' ctl mode connected
kernel_mode connected
check 'connections open automatically' await "$deadline" both_ways
sizes 'connected' 65520
check 'TCP from Ethernet, connected' transfer eth ib $ib_ip 2000000 3
check 'TCP from InfiniBand, connected' transfer ib eth $eth_ip 2000000 4
kill -TERM "$gateway"
check 'the gateway exits' await "$deadline" sh -c "! kill -0 $gateway"
code=0
wait "$gateway" || code=$?
check 'its exit code is 0' test "$code" = 0
check 'no buffer is lost' grep -q '"buffers_outstanding": 0' /tmp/report.json
check 'no queue pair of the gateway is left' test "$(rdma resource show qp | grep -c ipoib-fwd)" = 0
ib ip link set ib0 down
as_at_first() { [ "$(rdma resource show qp | grep -vc ib_ipoib)" = "$base" ]; }
check 'no queue pair is left' await "$deadline" as_at_first
check 'no kernel warning' sh -c '! dmesg | grep -v "soft lockup" | grep -E "WARNING|BUG:|Oops|refcount" '
finish
