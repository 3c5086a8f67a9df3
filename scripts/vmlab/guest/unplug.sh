#!/bin/bash
# In the guest: the gateway's device is taken away (rdma link delete) while traffic runs both ways. The gateway ends by itself and
# says why, with its buffers accounted for; the kernel does not complain, and on a new device the gateway starts again. Its shared
# receive queue is as small as can be, so that its alarm sounds, too.
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
check 'connections both ways' await 60 both_ways

# load FROM TO ADDRESS PORT: as much as goes.
load() {
    "$2" nc -l -p "$4" >/dev/null &
    await 60 "$2" sh -c "ss -Hltn 'sport = :$4' | grep -q ."
    "$1" nc "$3" "$4" </dev/zero >/dev/null 2>&1 &
}
load eth ib $ib_ip 5001
load ib eth $eth_ip 5002
ib ping -q -i 0.002 -s 1400 $eth_ip >/dev/null 2>&1 &
sleep 2
check 'a shared receive queue that runs low is counted' await 60 \
    sh -c './ipoib-fwd ctl stats --json --socket /run/gateway.sock | tr -d " \n" | grep "srq_low\":[1-9]"'
begin=$(date +%s%N)
rdma link delete ibx1 &
delete=$!
if await 30 sh -c "! kill -0 $gateway"; then
    wait $gateway
    code=$?
    note "the gateway took $((($(date +%s%N) - begin) / 1000000)) ms"
    check 'it ends with an error, not by a signal' test $code = 1
else
    check 'the gateway ends by itself' false
    kill -9 $gateway
fi
check 'the error names the device' grep -q '^ipoib-fwd: ibx1 was taken away' $log
check 'no panic' sh -c "! grep -i panic $log"
check 'no buffer is lost' grep -q '"buffers_outstanding": 0' /tmp/report.json
check 'the device can go' await 30 sh -c "! kill -0 $delete"
check 'it is gone' sh -c '! rdma link show ibx1/1'
warnings() { dmesg | grep -E 'WARNING|BUG:|Oops|refcount'; }
quiet() { ! warnings; }
check 'no kernel warning' quiet

# The kernel's own lets go, so that the gateway finds communication management free on the next device. It is not always good at
# that so soon after its peer is gone: soft-RoCE of Linux 6.1 may keep references to ib_ipoib's queues, and warn of it.
pkill nc
pkill ping
ib ip link set ib0 down
modprobe -r ib_ipoib ib_cm
warnings && note 'from unloading ib_ipoib, whose other end is gone'
dmesg -C
rdma link add ibx1 type rxe netdev v1
mv $log /tmp/before.log
start_gateway connected 1500
check 'on a new device it starts again' await 60 ctl links
check 'and ends well' stop_gateway

# The suite, whose checks open and close devices all the time.
./conformance --verbs ibx0 ibx1 >/tmp/suite.log 2>&1 &
suite=$!
# Its first check is done, others follow.
await 60 grep -q '^ok' /tmp/suite.log
rdma link delete ibx1
check 'the suite ends' await 120 sh -c "! kill -0 $suite"
wait $suite
check 'with failed checks, not by a signal' test $? = 1
check 'whose reason is that the device is not there' grep -q 'RDMA device ibx1' /tmp/suite.log
check 'no queue pair is left' sh -c '! rdma resource show qp | grep -q ipoib-fwd\|conformance'
check 'no kernel warning since' quiet
if [ $failures -gt 0 ] || [ -n "${LAB_VERBOSE:-}" ]; then
    tail -n 40 /tmp/before.log $log /tmp/suite.log
    dmesg | tail -n 20
fi
note "$failures check(s) failed"
exit $((failures > 0))
