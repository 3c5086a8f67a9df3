# Shared by nvme.sh and nfs.sh: guest a is the client of a server in b.
# shellcheck shell=bash disable=SC2034,SC2317  # for sourcing scripts; functions are called through `check`
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=machines.sh
. ./machines.sh
a=10.77.0.11 b=10.77.0.12

begin() {
    mkdir -p /disk
    check 'a: the drivers load, ib0 is up' ./rdma.sh up $a
    check 'b: the same' on b ./rdma.sh up $b
}
# Writes two files of 8 MB and small ones; /tmp/content gets their random content.
write_files() {
    head -c 8000000 /dev/urandom >/tmp/content && cp /tmp/content /disk/one && cp /tmp/content /disk/two &&
        for n in {1..50}; do head -c $((n * 97)) /tmp/content >"/disk/small$n" || return; done
}
compare_files() {
    cmp /tmp/content /disk/one && cmp /tmp/content /disk/two &&
        for n in {1..50}; do cmp -n $((n * 97)) /tmp/content "/disk/small$n" || return; done
}
forget() { echo 3 >/proc/sys/vm/drop_caches; }
# survive TARGET: unplugs and replugs the cable of b while TARGET is written from /tmp/content.
survive() {
    local writer
    head -c 48000000 /dev/urandom >/tmp/content
    dd if=/tmp/content of="$1" bs=64k oflag=direct status=none &
    writer=$!
    sleep 1
    on host pull 1 || return
    kill -0 "$writer" || { on host plug 1; echo 'the write finished before the cut'; return 1; }
    sleep 3
    on host plug 1 && wait "$writer" && forget && cmp -n 48000000 /tmp/content "$1"
}
# cuts COUNT FUNCTION
cuts() {
    for ((round = 1; round <= $1; round++)); do
        check "b: its cable unplugged and replugged under load, round $round" "$2"
    done
}
# finish CUTS
finish() {
    if [ "$1" = 0 ]; then
        check 'a: the kernel logs no problem' kernel_is_quiet
        check 'b: the kernel logs no problem' on b ./rdma.sh quiet
    fi
    if [ $failures -gt 0 ]; then
        dmesg | tail -n 30
        on b dmesg | tail -n 30
    fi
    note "$failures check(s) failed"
    exit $((failures > 0))
}
