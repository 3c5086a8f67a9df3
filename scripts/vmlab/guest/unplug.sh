#!/bin/bash
# In the guest: the gateway's device is removed (rdma link delete) during traffic in both directions. The
# gateway exits with the reason and accounts for its buffers, the kernel logs no problem, and the gateway
# starts again on a new device. Its shared receive queue has the minimum size, so that it raises its alarm,
# too.
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
config=/tmp/small.toml
sed 's/^srq-depth.*/srq-depth = 16/; s/^srq-low.*/srq-low = 15/' gateway.toml >$config
start_gateway connected 1500
check 'the gateway starts' await 60 ctl links
start_ib0
kernel_mode connected
check 'connections in both directions' await 60 both_ways

# load FROM TO ADDRESS PORT: sends at full speed.
load() {
    "$2" nc -l -p "$4" >/dev/null &
    await 60 "$2" sh -c "ss -Hltn 'sport = :$4' | grep -q ."
    "$1" nc "$3" "$4" </dev/zero >/dev/null 2>&1 &
}
load eth ib $ib_ip 5001
load ib eth $eth_ip 5002
ib ping -q -i 0.002 -s 1400 $eth_ip >/dev/null 2>&1 &
sleep 2
check 'the gateway counts a shared receive queue that runs low' await 60 \
    sh -c './ipoib-fwd ctl stats --json --socket /run/gateway.sock | tr -d " \n" | grep "srq_low\":[1-9]"'
begin=$(date +%s%N)
rdma link delete ibx1 &
delete=$!
if await 30 sh -c "! kill -0 $gateway"; then
    wait $gateway
    code=$?
    note "the gateway took $((($(date +%s%N) - begin) / 1000000)) ms"
    check 'it exits with an error, not by a signal' test $code = 1
else
    check 'the gateway exits' false
    kill -9 $gateway
fi
check 'the error names the device' grep -q '^ipoib-fwd: ibx1 was taken away' $log
check 'no panic' sh -c "! grep -i panic $log"
check 'no buffer is lost' grep -q '"buffers_outstanding": 0' /tmp/report.json
check 'the device can be removed' await 30 sh -c "! kill -0 $delete"
check 'the device is gone' sh -c '! rdma link show ibx1/1'
warnings() { dmesg | grep -E 'WARNING|BUG:|Oops|refcount'; }
quiet() { ! warnings; }
check 'no kernel warning' quiet

# The kernel's ib_ipoib releases communication management, so that it is free for the gateway on the next
# device. Right after the loss of its peer, this may fail: soft-RoCE of Linux 6.1 may keep references to
# ib_ipoib's queues, and warn about it.
pkill nc
pkill ping
ib ip link set ib0 down
modprobe -r ib_ipoib ib_cm
warnings && note 'from unloading ib_ipoib, whose other end is gone'
dmesg -C
rdma link add ibx1 type rxe netdev v1
mv $log /tmp/before.log
start_gateway connected 1500
check 'the gateway starts again on a new device' await 60 ctl links
check 'it exits in order' stop_gateway

# The suite's checks keep opening and closing devices.
./conformance --verbs ibx0 ibx1 >/tmp/suite.log 2>&1 &
suite=$!
# The first check has passed; others follow.
await 60 grep -q '^ok' /tmp/suite.log
rdma link delete ibx1
check 'the suite exits' await 120 sh -c "! kill -0 $suite"
wait $suite
check 'with failed checks, not by a signal' test $? = 1
check 'their reason is the missing device' grep -q 'RDMA device ibx1' /tmp/suite.log
check 'no queue pair is left' sh -c '! rdma resource show qp | grep -q ipoib-fwd\|conformance'
check 'no kernel warning since' quiet
if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
    tail -n 40 /tmp/before.log $log /tmp/suite.log
    dmesg | tail -n 20
fi
note "$failures check(s) failed"
exit $((failures > 0))
