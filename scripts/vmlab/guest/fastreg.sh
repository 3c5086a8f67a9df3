#!/bin/bash
# In the guest: fast registration beside registration by command, in one process: software ConnectX within it, and soft-RoCE devices. Arguments are
# those of scripts/bench (--runs 3 --seconds 30).
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=ports.sh
. ./ports.sh
[ $# -gt 0 ] || set -- --runs 3 --seconds 30
exec ./bench fastreg --json fastreg.json "$@"
