#!/bin/bash
# In the guest: the device conformance suite on the two software ConnectX that are PCI devices, under the kernel's own mlx5
# drivers: by verbs, then by the rings that libmlx5 makes. Arguments go to the suite; or `pull` and `plug`, for the cable of mlx5_0.
# Nothing may be left, and the kernel may not have complained.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=machines.sh
. ./machines.sh

case ${1:-} in
    pull | plug)
        on host "$1" 0
        exit
        ;;
esac
# A suite that skips what it cannot do would not tell.
lacks_no_keys() { ! grep 'FastRegistration:' /tmp/suite.log; }
active() { ! grep -vq ACTIVE /sys/class/infiniband/mlx5_*/ports/1/state; }
dmesg -C
# Communication management is the suite's own: neither ib_ipoib nor ib_cm.
check 'the drivers load' modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs
check 'the ports are active' await 60 active
for driver in verbs mlx5; do
    before=$(rdma resource show)
    note "by $driver:"
    ./conformance "--$driver" mlx5_0 mlx5_1 --cable ./mlx5suite.sh "$@" >/tmp/suite.log || failures=$((failures + 1))
    cat /tmp/suite.log
    check 'keys can be made' lacks_no_keys
    check 'no object is left' diff <(echo "$before") <(rdma resource show)
done
check 'the kernel has nothing to say about it' kernel_is_quiet
if [ $failures -gt 0 ]; then dmesg | tail -n 30; fi
note "$failures check(s) failed"
exit $((failures > 0))
