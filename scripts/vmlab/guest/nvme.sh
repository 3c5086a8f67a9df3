#!/bin/bash
# In guest a: NVMe over RDMA to guest b, whose memory is the disk. The kernel's nvme-rdma registers memory for
# each request, and its nvmet-rdma invalidates the registration with each reply. Prints a line for each check.
# Argument: how often the cable of b is unplugged under load; or, in any guest, `load MODULE...` or `serve
# ADDRESS`.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=storage.sh
. ./storage.sh

# Loads modules that the machine's root lacks, after their dependencies from the root.
load() {
    local module
    modprobe -a crc-t10dif crc64-rocksoft configfs rdma_cm ib_cm
    for module in "$@"; do insmod "nvme/$module.ko" || return; done
}
serve() {
    local subsystem=/sys/kernel/config/nvmet/subsystems/lab port=/sys/kernel/config/nvmet/ports/1
    load t10-pi nvmet nvmet-rdma && modprobe brd rd_nr=1 rd_size=65536 || return
    mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
    mkdir "$subsystem" && echo 1 >"$subsystem/attr_allow_any_host" && mkdir "$subsystem/namespaces/1" &&
        echo -n /dev/ram0 >"$subsystem/namespaces/1/device_path" && echo 1 >"$subsystem/namespaces/1/enable" &&
        mkdir "$port" && echo rdma >"$port/addr_trtype" && echo ipv4 >"$port/addr_adrfam" && echo "$1" >"$port/addr_traddr" &&
        echo 4420 >"$port/addr_trsvcid" && ln -s "$subsystem" "$port/subsystems/lab"
}
connect() {
    local how=transport=rdma,traddr=$b,trsvcid=4420,nqn=lab,hostnqn=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555
    echo "$how,hostid=11111111-2222-3333-4444-555555555555,nr_io_queues=1,queue_size=32,reconnect_delay=1,keep_alive_tmo=15" >/dev/nvme-fabrics &&
        await 60 test -b /dev/nvme0n1 && cat /sys/class/nvme/nvme0/state
}
# The disk has the written files, read from the disk again.
written() {
    mount /dev/nvme0n1 /disk && write_files && umount /disk && forget && mount /dev/nvme0n1 /disk && compare_files && umount /disk &&
        rm /tmp/content && echo '16 MB and 50 small files'
}
survived() { survive /dev/nvme0n1 && cat /sys/class/nvme/nvme0/state; }
disconnect() { echo 1 >/sys/class/nvme/nvme0/delete_controller && await 60 test ! -e /sys/class/nvme/nvme0; }

case ${1:-} in
    load | serve) "$@"; exit ;;
esac
begin
check 'b: a target' on b ./nvme.sh serve $b
check 'a: its host' load t10-pi nvme-core nvme-fabrics nvme-rdma
check 'a: connected' connect
check 'a: a file system made' mkfs.ext4 -q -E lazy_itable_init=0 /dev/nvme0n1
check 'a: files written and read back' written
cuts "${1:-0}" survived
check 'a: disconnected' disconnect
finish "${1:-0}"
