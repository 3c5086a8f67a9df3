#!/bin/bash
# In the guest: GID tables beside the kernel's own, of soft-RoCE devices over real interfaces. Arguments: the seeds (FIRST-LAST)
# and the steps of the random sequences.
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
modprobe -a veth dummy bonding 8021q bridge macvlan rdma_rxe
ip link del bond0
# run PROGRAM TEST: what the test prints; one check.
run() {
    "./gids-$1" --exact "$2" --nocapture --test-threads 1 2>&1 | grep -v '^$\|^running\|^test result'
    check "$2" test "${PIPESTATUS[0]}" = 0
}
export GIDCACHE_LAB="seeds=${1:-1-6} steps=${2:-100}" GIDCACHE_ALL_KINDS=1 GIDCACHE_SEQUENCES=12
run kernel scenarios
run kernel sequences
run netns tables_follow_real_interfaces
[ $failures = 0 ] || dmesg | tail -n 20
note "$failures check(s) failed"
exit $((failures > 0))
