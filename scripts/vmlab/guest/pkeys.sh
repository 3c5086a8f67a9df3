#!/bin/bash
# In the guest: two segments; soft-RoCE has the P_Key of one. This segment forwards. The other one waits for
# its P_Key and reports that. The kernel's own child interface for that P_Key has no carrier either.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=ports.sh
. ./ports.sh
# shellcheck source-path=SCRIPTDIR source=hosts.sh
. ./hosts.sh

make_hosts
eth_mtu 1500
start_sa ibx0 5
cat gateway.toml - >/tmp/two.toml <<'END'
[[segment]]
name = "first"
pkey = 0xffff
[[segment]]
name = "second"
vlan = 100
pkey = 0x8001
END
pkeys() { cat "/sys/class/infiniband/$1/ports/1/pkeys/"* | grep -v '^0x0000$' | tr '\n' ' '; }
# row TEXT: succeeds if the segments in `ctl links`, without white space, contain TEXT. The keys are in
# alphabetical order.
row() { ctl links --json | tr -d ' \n' | grep -oE "$1"; }

for port in ibx0 ibx1; do check "$port has the default P_Key and no other" test "$(pkeys $port)" = '0xffff '; done
config=/tmp/two.toml start_gateway datagram 1500
check 'the gateway starts' await 60 ctl links
start_ib0
check 'the first segment is up' await 60 row '"link":"up"[^{}]*"segment":"first"'
check 'ping from Ethernet' await 60 eth ping -c 1 -W 2 $ib_ip
check 'ping from InfiniBand' await 60 ib ping -c 1 -W 2 $eth_ip
check 'the second segment waits, and reports for what' await 60 row '"segment":"second"[^{}]*"waits_for":"[^"]*P_Keytable'
check 'it is in the log' await 10 grep -E 'second: no InfiniBand link: .*P_Key' $log
ib ip link add link ib0 name ib0.8001 type ipoib pkey 0x8001
ib ip link set ib0.8001 up
sleep 3
check 'the kernel has an interface for the P_Key, without a carrier' sh -c "ip netns exec ib ip link show ib0.8001 && ! ip netns exec ib ip -br link show ib0.8001 | grep -w LOWER_UP"
check 'pings are still answered' pings eth $ib_ip 1000
ib ip link del ib0.8001
check 'the gateway exits' stop_gateway
check 'no buffer is lost' grep -q '"buffers_outstanding": 0' /tmp/report.json
check 'no kernel warning' sh -c '! dmesg | grep -E "WARNING|BUG:|Oops|refcount" '
if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
    echo '--- gateway'
    cat $log
fi
note "$failures check(s) failed"
exit $((failures > 0))
