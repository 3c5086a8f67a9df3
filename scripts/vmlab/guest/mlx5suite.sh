#!/bin/bash
# In the guest: runs the device conformance suite on the two software ConnectX that are PCI devices, under the
# kernel's own mlx5 drivers: with verbs, then with the rings of libmlx5. Arguments go to the suite; or `pull`
# and `plug` control the cable of mlx5_0. Nothing may be left, and the kernel must log no problem.
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
# A suite that skips these checks would not report it.
lacks_no_keys() { ! grep 'FastRegistration:' /tmp/suite.log; }
active() { ! grep -vq ACTIVE /sys/class/infiniband/mlx5_*/ports/1/state; }
dmesg -C
# The suite does communication management itself, without ib_ipoib and ib_cm.
check 'the drivers load' modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs
check 'the ports are active' await 60 active
for driver in verbs mlx5; do
    before=$(rdma resource show)
    note "by $driver:"
    ./conformance "--$driver" mlx5_0 mlx5_1 --cable ./mlx5suite.sh "$@" >/tmp/suite.log || failures=$((failures + 1))
    cat /tmp/suite.log
    check 'keys can be created' lacks_no_keys
    check 'no object is left' diff <(echo "$before") <(rdma resource show)
done
check 'the kernel logs no problem' kernel_is_quiet
if [ $failures -gt 0 ]; then dmesg | tail -n 30; fi
note "$failures check(s) failed"
exit $((failures > 0))
