#!/bin/bash
# In guest a: NFS over RDMA from guest b. The kernel's client registers memory for each request; its server
# reads and writes this memory, and invalidates the registration with each reply. Prints a line for each
# check. Argument: how often the cable of b is unplugged under load; or, in any guest, `load MODULE...`,
# `serve CLIENT`, or `sums` (checksums of the served files).
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=storage.sh
. ./storage.sh

# Loads modules that the machine's root lacks, after their dependencies from the root.
load() {
    local module
    modprobe -a rdma_cm sunrpc auth_rpcgss fscache dns_resolver && modprobe rpcrdma || return
    for module in "$@"; do insmod "nfs/$module.ko" || return; done
}
# Starts a server of version 4 only. Writes into the kernel's tables what user space would otherwise provide:
# the client, and the handle and flags of the directory (fsid 0, no subtree check, insecure ports, not
# squashed).
serve() {
    local rpc=/proc/net/rpc end=2147483647
    load grace lockd nfs_acl nfsd && ip link set lo up && mkdir -p /export && mount -t tmpfs -o size=100m none /export || return
    mount -t nfsd none /proc/fs/nfsd
    echo '-2 -3 +4' >/proc/fs/nfsd/versions
    echo 10 >/proc/fs/nfsd/nfsv4gracetime
    echo 10 >/proc/fs/nfsd/nfsv4leasetime
    echo "nfsd $1 $end lab" >"$rpc/auth.unix.ip/channel" &&
        echo "lab /export $end $((0x2412)) 65534 65534 0" >"$rpc/nfsd.export/channel" &&
        printf '%s\n' "lab 1 \\x00000000 $end /export" >"$rpc/nfsd.fh/channel" && echo 'rdma 20049' >/proc/fs/nfsd/portlist &&
        echo 4 >/proc/fs/nfsd/threads && cat /proc/fs/nfsd/portlist
}
mounted() {
    timeout 100 mount -i -t nfs4 -o "vers=4.1,proto=rdma,port=20049,addr=$b,clientaddr=$a,hard,timeo=50" "$b:/" /disk && grep -o 'proto=rdma' /proc/mounts
}
sums() { (cd "${1:-/export}" && sha256sum ./* | sha256sum); }
# The server has the written files, and the client reads the same content again.
written() {
    local here
    write_files && sync && forget && compare_files && here=$(sums /disk) && [ "$here" = "$(on b ./nfs.sh sums)" ] && echo '16 MB and 50 small files'
}
# The client's transport counts the memory that it registered for the server.
registered() { awk '/xprt:.*rdma/ {print "memory to read " $13 ", to write " $14 ", for answers " $15; found = $13 + $14 > 0} END {exit !found}' /proc/self/mountstats; }
survived() { survive /disk/long && [ "$(sums /disk)" = "$(on b ./nfs.sh sums)" ]; }

case ${1:-} in
    load | serve | sums) "$@"; exit ;;
esac
begin
check 'b: a server' on b ./nfs.sh serve $a
check 'a: its client' load grace lockd nfs nfsv4
check 'a: mounted' mounted
check 'a: files written and read back' written
check 'a: with registered memory' registered
cuts "${1:-0}" survived
check 'a: unmounted' umount /disk
finish "${1:-0}"
