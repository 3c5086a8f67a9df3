#!/bin/bash
# In the guest: compares fast registration with registration by command of the kernel's mlx5 drivers, on a
# software ConnectX that is a PCI device. Takes the arguments of scripts/bench (--runs 3 --seconds 30).
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
active() { ! grep -vq ACTIVE /sys/class/infiniband/mlx5_*/ports/1/state; }
check 'the drivers load' modprobe -a mlx5_core mlx5_ib ib_umad ib_uverbs
check 'the ports are active' await 20 active
[ $failures = 0 ] || exit 1
[ $# -gt 0 ] || set -- --runs 3 --seconds 30
exec ./bench fastreg --json mlx5fastreg.json "$@"
