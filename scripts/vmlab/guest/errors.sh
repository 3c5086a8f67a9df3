#!/bin/bash
# In the guest: error messages of the gateway when it cannot run. Each message names the problem and the
# remedy.
# shellcheck disable=SC2317  # `unlocked` is called through `expect`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=hosts.sh
. ./hosts.sh

# expect WHAT TEXT CONFIG [COMMAND...]: checks that the gateway, run by COMMAND, exits with an error that
# contains TEXT.
expect() {
    local what=$1 text=$2 config=$3 out code
    shift 3
    out=$("$@" timeout 60 ./ipoib-fwd -l 0-1 --no-huge --no-shconf --no-pci -m 128 \
        --vdev net_pcap0,rx_iface_in=gw0,tx_iface=gw0 -- --config "$config" 2>&1)
    code=$?
    if [ $code = 1 ] && grep -qF -- "$text" <<<"$out"; then
        note "ok      $what: $(grep -F -- "$text" <<<"$out" | cut -c 1-150)"
    else
        note "FAILED  $what (exit code $code)"
        printf '%s\n' "$out"
        failures=$((failures + 1))
    fi
}
unlocked() {
    (
        ulimit -l 64
        exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock "$@"
    )
}

# Runs a command as a user without privileges.
nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all "$@"; }

modprobe -a veth ib_core ib_uverbs
ip link add e0 type veth peer name gw0
ip link set gw0 up
ip link add v0 type veth peer name v1
for i in 0 1; do
    sysctl -qw "net.ipv6.conf.v$i.accept_dad=0" "net.ipv6.conf.v$i.addr_gen_mode=0"
    ip link set "v$i" address "02:00:00:00:00:0$((i + 1))"
    ip link set "v$i" mtu 5000 up
done
expect 'no device' 'there is no RDMA device' gateway.toml

modprobe rdma_rxe
rdma link add rxe1 type rxe netdev v1
sed s/ibx1/rxe1/ gateway.toml >/tmp/ethernet.toml
expect 'an Ethernet port' 'is an Ethernet port: IPoIB needs an InfiniBand link layer' /tmp/ethernet.toml
sed /device/d gateway.toml >/tmp/any.toml
expect 'no InfiniBand port' 'no RDMA device has an InfiniBand port 1; available: rxe1' /tmp/any.toml

rdma link delete rxe1
rmmod rdma_rxe
insmod ./ibll.ko
modprobe rdma_rxe
rdma link add ibx1 type rxe netdev v1
sed s/ibx1/ibx7/ gateway.toml >/tmp/name.toml
expect 'an unknown device name' '(there are: ibx1)' /tmp/name.toml
sed 's/"verbs"/"mlx5"/' gateway.toml >/tmp/rings.toml
expect 'rings of a device without rings' 'ibx1 is not driven by libmlx5: --hca-driver verbs' /tmp/rings.toml
rmmod ib_umad 2>/dev/null
expect 'no management interface' 'modprobe ib_umad' gateway.toml
modprobe -a ib_umad ib_ipoib
expect 'ib_cm owns the management class' 'is taken by the kernel module ib_cm' gateway.toml
expect 'ib_ipoib is named' 'modprobe -r ib_ipoib ib_cm' gateway.toml
modprobe -r ib_ipoib ib_cm
expect 'the limit of locked memory is too low' 'LimitMEMLOCK' gateway.toml unlocked
expect 'no access to management datagrams' 'give the user access to /dev/infiniband/umad*' gateway.toml nobody
chmod 600 /dev/infiniband/uverbs*
expect 'no access to the device' 'give the user access to /dev/infiniband/uverbs*' gateway.toml nobody

# The gateway waits for a port that is down, and for subnet administration, and reports what it waits for.
rdma link add ibx0 type rxe netdev v0
event ibx1 10
echo 99 >/sys/module/ibll/parameters/sm_lid
start_gateway connected 1500
waits() { ctl links | grep -F "$1"; }
check 'the gateway waits for a port that is down' await 60 waits 'the port is down'
event ibx1 9
check 'the gateway waits for subnet administration without an answer' await 60 waits 'does not answer'
check 'it is in the log' await 10 grep 'no InfiniBand link: subnet administration does not answer' $log
check 'the gateway counts requests without an answer' await 10 sh -c "./ipoib-fwd ctl links --socket $socket | grep -E 'sa timeouts +[1-9]'"
echo 1 >/sys/module/ibll/parameters/sm_lid
check 'the gateway waits for subnet administration that refuses' await 60 waits 'refuses'
start_sa ibx0 5
check 'the link comes up with subnet administration' await 60 sh -c "./ipoib-fwd ctl links --socket $socket | grep -E 'link +up'"
# Another gateway on the same port.
expect 'another program owns the management class' 'is taken by another program' gateway.toml
check 'the gateway exits' stop_gateway
[ $failures = 0 ] || cat $log
note "$failures check(s) failed"
exit $((failures > 0))
