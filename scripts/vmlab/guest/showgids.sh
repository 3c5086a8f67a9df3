#!/bin/bash
# In the guest: compares `ipoib-fwd gids` on real devices (soft-RoCE with all kinds of addresses, and a port
# with an InfiniBand link layer) with sysfs, entry for entry, and its reported changes with the actual ones.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh

# Prints DEV PORT INDEX GID TYPE NETDEV of every entry, read from the files of sysfs.
in_sysfs() {
    local file gid dir index netdev
    grep -rv "^0000:0000:0000:0000:0000:0000:0000:0000$" /sys/class/infiniband/*/ports/*/gids/ | while IFS=: read -r file gid; do
        dir=${file%/gids/*} index=${file##*/}
        netdev=$(cat "$dir/gid_attrs/ndevs/$index" 2>/dev/null)
        if grep -q InfiniBand "$dir/link_layer"; then
            set -- IB ''
        else
            set -- "$(sed 's,^IB/,,' "$dir/gid_attrs/types/$index")" "$netdev"
        fi
        echo "$(cut -d/ -f5,7 <<<"$dir" | tr / ' ') $index $gid $1 $2"
    done | sed 's/ *$//' | sort
}
listed() { ./ipoib-fwd gids "$@" | tail -n +2 | sed -E 's/ +([0-9]+\.){3}[0-9]+ / /; s/ +/ /g' | sort; }
same() {
    diff <(in_sysfs) <(listed) && listed | wc -l
}
same_served() { diff <(in_sysfs) <(listed --from /run/gids) && ./ipoib-fwd gids --from /run/gids >/dev/null; }
same_as_json() { diff <(./ipoib-fwd gids --json) <(./ipoib-fwd gids --json --from /run/gids); }
# reported LINE: succeeds if this is the last line of the watch.
reported() { tail -n 1 /tmp/watch | sed -E 's/0000:0000:0000:0000:0000:ffff/v4/; s/ +/ /g' | grep -qxF -- "$1"; }
says() {
    local text=$1 out
    shift
    out=$("$@" 2>&1)
    if [ $? != 1 ] || ! grep -qF -- "$text" <<<"$out"; then
        printf '%s\n' "$out"
        return 1
    fi
}

modprobe -a veth 8021q ib_core ib_uverbs
# A device appears during a watch. (It stays that long: soft-RoCE does not disconnect users.)
modprobe rdma_rxe
ip link add v8 type veth peer name v9
ip link set v8 up
ip addr add 10.9.8.8/24 dev v8
rdma link add rxe8 type rxe netdev v8
./ipoib-fwd gids --watch >/tmp/watch 2>/tmp/watch.err &
watch=$!
await 30 grep -q rxe8 /tmp/watch
ip link add v7 type veth peer name v6
ip link set v7 up
rdma link add rxe7 type rxe netdev v7
check 'a new device is reported' await 30 grep -q '^+ rxe7 ' /tmp/watch
kill $watch
wait $watch
rdma link delete rxe7
rdma link delete rxe8
rmmod rdma_rxe
ip link delete v8
ip link delete v7

check 'no device' says 'this host has no RDMA device' ./ipoib-fwd gids
modprobe rdma_rxe
ip link add v0 type veth peer name v1
for i in 0 1; do
    sysctl -qw "net.ipv6.conf.v$i.accept_dad=0" "net.ipv6.conf.v$i.addr_gen_mode=0"
    ip link set "v$i" address "02:00:00:00:00:0$((i + 1))" mtu 5000 up
done
rdma link add rxe0 type rxe netdev v0
rdma link add rxe1 type rxe netdev v1
ip addr add 10.9.0.1/24 dev v0
ip addr add 2001:db8::1/64 dev v0 nodad
ip link add link v0 name v0.100 type vlan id 100
ip link set v0.100 up
ip addr add 10.9.100.1/24 dev v0.100
ip addr add 10.9.0.2/24 dev v1
await 30 same
check 'two devices, IPv4, IPv6 and a VLAN' same
check 'the VLAN has its number' sh -c './ipoib-fwd gids --json | grep -q "\"vlan\": 100"'
check 'one device' sh -c "./ipoib-fwd gids --device rxe1 | tail -n +2 | cut -d' ' -f1 | sort -u | grep -qx rxe1"
check 'an unknown device' says 'no device rxe7: there are rxe0, rxe1' ./ipoib-fwd gids --device rxe7

./ipoib-fwd gids --watch --device rxe1 >/tmp/watch 2>/tmp/watch.err &
watch=$!
await 30 grep -q rxe1 /tmp/watch
ip addr add 10.9.7.7/24 dev v1
check 'a new address is reported' await 30 reported '+ rxe1 1 2 v4:0a09:0707 10.9.7.7 RoCE v2 v1'
ip addr del 10.9.0.2/24 dev v1
check 'a removed address is reported' await 30 reported '- rxe1 1 1 v4:0a09:0002 10.9.0.2 RoCE v2 v1'
ip link set v1 down
ip addr del 10.9.7.7/24 dev v1
check 'also while the interface is down' await 30 reported '- rxe1 1 2 v4:0a09:0707 10.9.7.7 RoCE v2 v1'
# The kernel updates its own table in a work queue.
await 30 same
check 'sysfs has the same entries' same
check 'nothing else was reported' test "$(grep -c '^[+-]' /tmp/watch)" = 3
kill $watch
wait $watch
check 'a signal stops the watch' test $? = 143
check 'without a message' test ! -s /tmp/watch.err

serve() {
    ./ipoib-fwd gids --serve --dir /run/gids >/tmp/serve 2>&1 &
    serve=$!
    await 30 same_served
}
serve
check 'the service has the tables of both devices' same_served
check 'with their VLANs' same_as_json
./ipoib-fwd gids --from /run/gids --watch >/tmp/from 2>&1 &
reader=$!
await 30 grep -q rxe1 /tmp/from
ip addr add 10.9.5.5/24 dev v1
check 'a reader sees a new address' await 30 grep -q '^+ rxe1 .*10\.9\.5\.5 ' /tmp/from
kill -9 $serve
wait $serve
check 'a reader reports that the service was killed' await 30 grep -q '^! .*stale' /tmp/from
ip addr add 10.9.6.6/24 dev v1
ip addr del 10.9.5.5/24 dev v1
serve
check 'the next service has the tables' same_served
check 'the reader continues' await 30 grep -q '^- rxe1 .*10\.9\.5\.5 ' /tmp/from
kill $reader
wait $reader
kill $serve
wait $serve
check 'a signal stops the service in order' test $? = 0

rdma link delete rxe1
rdma link delete rxe0
rmmod rdma_rxe
insmod ./ibll.ko
modprobe rdma_rxe
rdma link add ibx0 type rxe netdev v0
await 30 same
check 'a port with an InfiniBand link layer' same
check 'whose GID is of type IB' sh -c "./ipoib-fwd gids | grep -q 'ibx0 .* IB'"
check 'no kernel warning' sh -c '! dmesg | grep -E "WARNING|BUG:|Oops|refcount" '
printf '%s check(s) failed\n' "$failures"
exit $((failures > 0))
