# shellcheck shell=bash
# root.sh ROOT DEBS SCRIPT: runs a script in a copy of a bare root, with the packages at /mnt/debs; runs
# check-services.sh under systemd. The caller has created mount and process namespaces, with which everything
# disappears.
set -euo pipefail
root=$1 debs=$2 script=$PWD/$3 scripts=$PWD/scripts
# Next to the root, where nothing is left behind: other processes do not see these mounts.
work=$root.work
mkdir -p "$work"
mount -t tmpfs tmpfs "$work"
mkdir "$work"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=$root,upperdir=$work/upper,workdir=$work/work" "$work/root"
cd "$work/root"
cp /etc/resolv.conf etc/resolv.conf
mkdir mnt/debs mnt/scripts
mount --bind "$debs" mnt/debs
mount --bind "$scripts" mnt/scripts
# Lock of the number of hugepages, for the whole machine.
mkdir -p /run/lock
touch /run/lock/ipoib-fwd-hugepages.lock mnt/hugepages.lock
mount --bind /run/lock/ipoib-fwd-hugepages.lock mnt/hugepages.lock
# Downloaded packages are shared by all roots.
mkdir -p "${root%/*}/archives"
mount --bind "${root%/*}/archives" var/cache/apt/archives
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount --rbind /dev dev
inside=(chroot . /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/ LANG=C.UTF-8
    DEBIAN_FRONTEND=noninteractive)
if [ "${script##*/}" != check-services.sh ]; then
    "${inside[@]}" bash -s <"$script"
    exit
fi

# Control groups outlive namespaces: systemd creates its groups in a separate one, which is removed with all
# of them.
mkdir "$work/groups"
mount -t cgroup2 cgroup2 "$work/groups"
ours=$work/groups$(sed -n 's/^0:://p' /proc/self/cgroup)
# Remove empty groups of an earlier check that was killed.
for group in "$ours"/package-check-*; do
    if [ -d "$group" ] && grep -qx 'populated 0' "$group/cgroup.events"; then
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
    fi
done
group=$ours/package-check-$(tr -d - </proc/sys/kernel/random/uuid)
leave() {
    echo 0 >"$ours/cgroup.procs"
    for _ in $(seq 50); do
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
        [ -e "$group" ] || return 0
        sleep 0.1
    done
    echo "package: failed  processes of the services are left in $group"
    exit 1
}
trap leave EXIT

# systemd is the first process, and a unit runs the script.
install -m 755 "$script" opt/check
"${inside[@]}" bash -c 'apt-get update -qq && apt-get install -qq --yes --no-install-recommends systemd dbus \
    ethtool iperf3 iproute2 iputils-ping python3 /mnt/debs/previous/*.deb' >tmp/output 2>&1 || {
    tail -n 30 tmp/output
    echo 'package: failed  installation of systemd and the previous version (above)'
    exit 1
}
echo "package: ok      installation of systemd and the previous version ($SECONDS s)"
# Only this Python script: its package depends on all of DPDK's development libraries.
! telemetry=$(command -v dpdk-telemetry.py) || install -m 755 "$telemetry" usr/bin/
printf '[Service]\nType=oneshot\nExecStart=/opt/check\n' >etc/systemd/system/check.service
mkdir -p etc/systemd/system/multi-user.target.wants
ln -s ../check.service etc/systemd/system/multi-user.target.wants/check.service
umount -R dev sys proc
# Enter it immediately, as another check removes empty groups.
mkdir "$group"
echo 0 >"$group/cgroup.procs"
# unshare and systemd as first process ignore SIGTERM. If unshare is killed, the kernel kills systemd and its
# whole namespace.
# shellcheck disable=SC2016 # expanded by the shell inside
timeout --kill-after=10 1200 unshare --pid --net --cgroup --uts --ipc --mount --fork --kill-child bash -euc '
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mount -t tmpfs tmpfs run
    mount -t tmpfs tmpfs dev
    for device in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "dev/${device%:*}" c 1 "${device#*:}"; done
    mkdir dev/shm dev/net dev/hugepages dev/pts
    # Units with PrivateDevices= get copies of these.
    mount -t devpts devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    mknod -m 666 dev/net/tun c 10 200
    mount -t tmpfs tmpfs dev/shm
    exec chroot . /usr/bin/env -i container=check PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=multi-user.target
' </dev/null >console 2>&1 || true
# Print the other output only after a failure.
grep -v '^all is well$' report || true
if ! tail -n 1 report | grep -qx 'all is well'; then
    grep -q 'failed' report || echo 'package: failed  the check did not finish within 20 minutes, or not in order'
    tail -n 80 result console
    exit 1
fi
