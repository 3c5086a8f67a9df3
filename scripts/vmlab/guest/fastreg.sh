#!/bin/bash
# In the guest: compares fast registration with registration by command in one process, on software ConnectX
# within it and on soft-RoCE devices. Takes the arguments of scripts/bench (--runs 3 --seconds 30).
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=ports.sh
. ./ports.sh
[ $# -gt 0 ] || set -- --runs 3 --seconds 30
exec ./bench fastreg --json fastreg.json "$@"
