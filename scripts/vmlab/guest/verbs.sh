#!/bin/bash
# In the guest: runs the device conformance suite on soft-RoCE, first with InfiniBand ports, then with
# Ethernet ports, and tests memory windows with libibverbs only. Arguments go to the suite. Nothing may be
# left, and the kernel must log no problem.
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=ports.sh
. ./ports.sh
failures=0

# suite ONE OTHER [ARGUMENT...]
suite() {
    local base left
    base=$(rdma resource show qp | wc -l)
    ./conformance --verbs "$@" || failures=$((failures + 1))
    left=$(rdma resource show qp | wc -l)
    if [ "$left" = "$base" ]; then
        echo "ok      $1+$2  no queue pair is left"
    else
        echo "FAILED  $1+$2  $left queue pairs, $base before"
        failures=$((failures + 1))
    fi
}

suite ibx0 ibx1 "$@"
./memory_windows ibx0 ibx1 rxe || failures=$((failures + 1))
for i in 0 1; do
    rdma link delete "ibx$i"
    rdma link add "rxe$i" type rxe netdev "v$i"
done
suite rxe0 rxe1 "$@"
./memory_windows rxe0 rxe1 rxe || failures=$((failures + 1))
if dmesg | grep -E 'WARNING|BUG:|Oops|refcount'; then
    echo 'FAILED  the kernel complains'
    failures=$((failures + 1))
fi
exit $((failures > 0))
