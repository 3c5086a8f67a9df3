#!/bin/bash
# In the guest: compares GID tables with the kernel's own, on soft-RoCE devices over real interfaces.
#
#   gids.sh [FIRST-LAST [STEPS]]   scenarios and random sequences, by their seeds
#   gids.sh bench                  reads the whole table of a device in one call, and file by file from sysfs
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
modprobe -a veth dummy bonding 8021q bridge macvlan rdma_rxe ib_uverbs
ip link del bond0
if [ "${1:-}" = bench ]; then
    ip link add d0 type dummy
    ip link set d0 up
    rdma link add rxd type rxe netdev d0
    # The port's own GID is one of the entries.
    for entries in 16 256 1024; do
        for ((i = 1; i < entries; i++)); do echo "addr replace 10.0.$((i / 250)).$((i % 250 + 1))/16 dev d0"; done | ip -batch -
        await 20 sh -c "[ \$(cat /sys/class/infiniband/rxd/ports/1/gids/* | grep -vc '^[0:]*\$') = $entries ]"
        ./bench gid-query --runs 3 --seconds 2 --json "gid-query-$entries.json" || exit 1
    done
    exit
fi
# run PROGRAM TEST: runs a test as one check and prints its output.
run() {
    "./gids-$1" --exact "$2" --nocapture --test-threads 1 2>&1 | grep --line-buffered -v '^$\|^running\|^test result'
    check "$2" test "${PIPESTATUS[0]}" = 0
}
export GIDCACHE_LAB="seeds=${1:-1-5} steps=${2:-100}" GIDCACHE_ALL_KINDS=1 GIDCACHE_SEQUENCES=8
run kernel scenarios
run kernel sequences
run netns tables_follow_real_interfaces
run syscalls lookups_make_no_system_call
[ $failures = 0 ] || dmesg | tail -n 20
note "$failures check(s) failed"
exit $((failures > 0))
