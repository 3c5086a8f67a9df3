# shellcheck shell=bash
# root.sh ROOT DEBS SCRIPT: runs a script in a copy of a bare root, with the packages at /mnt/debs; check-services.sh under systemd. In mount and
# process namespaces of the caller's making, with which all of it goes.
set -euo pipefail
root=$1 debs=$2 script=$PWD/$3 scripts=$PWD/scripts
# Beside the root, where nothing is left behind: what is mounted there is seen by nobody else.
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
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount --rbind /dev dev
inside=(chroot . /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/ LANG=C.UTF-8
    DEBIAN_FRONTEND=noninteractive)
if [ "${script##*/}" != check-services.sh ]; then
    "${inside[@]}" bash -s <"$script"
    exit
fi

# A small machine: systemd is its first process, and a unit of its own runs the script.
install -m 755 "$script" opt/check
"${inside[@]}" bash -c 'apt-get update -qq && apt-get install -qq --yes --no-install-recommends systemd dbus \
    ethtool iproute2 python3 /mnt/debs/previous/*.deb' >tmp/said 2>&1 || {
    tail -n 30 tmp/said
    exit 1
}
printf '[Service]\nType=oneshot\nExecStart=/opt/check\n' >etc/systemd/system/check.service
mkdir -p etc/systemd/system/multi-user.target.wants
ln -s ../check.service etc/systemd/system/multi-user.target.wants/check.service
umount -R dev sys proc
# shellcheck disable=SC2016 # expanded by the shell inside
timeout 600 unshare --pid --net --cgroup --uts --ipc --mount --fork --kill-child bash -euc '
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mount -t tmpfs tmpfs run
    mount -t tmpfs tmpfs dev
    for device in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "dev/${device%:*}" c 1 "${device#*:}"; done
    mkdir dev/shm dev/net dev/hugepages
    mknod -m 666 dev/net/tun c 10 200
    mount -t tmpfs tmpfs dev/shm
    exec chroot . /usr/bin/env -i container=check PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=multi-user.target
' </dev/null >console 2>&1 || true
if ! tail -n 1 result | grep -qx 'all is well'; then
    grep -h "^failed" result || true
    tail -n 60 result console
    exit 1
fi
sed -n 's/^figure: //p' result
