#!/bin/bash
# Under systemd, in a root with the packages installed, started by a unit of its own: services start, reload, are watched, go on after an
# upgrade, and go. The last line of /result says how that went.
set -euo pipefail
exec >/result 2>&1
trap 'echo "failed in line $LINENO"; systemctl status --no-pager --lines 20 "ip*.service" ibfab || true; systemctl exit 1' ERR

show() { systemctl show --property "$1" --value "$2"; }
# within SECONDS COMMAND…: until it succeeds.
within() {
    local left=$1
    shift
    until "$@"; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || return 1
        sleep 1
    done
}
is() { [ "$(show "$1" "$2")" = "$3" ]; }
status() { case $(show StatusText "$1") in *"$2"*) ;; *) return 1 ;; esac; }
not() { ! "$@"; }
restarted() { [ "$(show NRestarts ipoib-fwd)" -ge 1 ] && [ "$(show ActiveState ipoib-fwd)" = active ]; }

gateway() {
    printf '[gateway]\naddress = "10.77.0.254/24"\n[ethernet]\nport = "net_null0"\n[infiniband.soft]\nports = [{ link = "shm:/run/%s.sock" }]\n' "$2" \
        >"/etc/ipoib-fwd/$1.toml"
    printf 'EAL=-l 0-1 --no-pci --no-huge -m 256 --file-prefix %s --vdev net_null0\nOPTIONS=\n' "$1" >"/etc/ipoib-fwd/$1.env"
}
gateway gateway ibfab
gateway two nobody

# Started, they are ready: one forwards, the other one says what it waits for.
systemctl start ibfab ipoib-fwd
status ipoib-fwd '1 forwarding'
systemctl start ipoib-fwd@two ipoib-gids
status ipoib-fwd@two 'waiting (default: the port is down'
status ipoib-gids GIDs

# A reload is carried out, or refused with a reason; the gateway goes on.
sed -i 's/10.77.0.254/10.77.0.253/' /etc/ipoib-fwd/gateway.toml
systemctl reload ipoib-fwd ipoib-fwd@two ibfab
echo 'nonsense = 1' >>/etc/ipoib-fwd/gateway.toml
not systemctl reload ipoib-fwd
sed -i '/nonsense/d' /etc/ipoib-fwd/gateway.toml
is ActiveState ipoib-fwd active

# What is wrong keeps it from starting, and is in the journal; mended, it starts by itself.
systemctl stop ipoib-fwd@two
sed -i 's/address/adress/' /etc/ipoib-fwd/two.toml
not systemctl start ipoib-fwd@two
journalctl --sync
journalctl --unit ipoib-fwd@two --output cat >/tmp/journal
grep -q 'error.config-invalid.: unknown key .adress' /tmp/journal
sed -i 's/adress/address/' /etc/ipoib-fwd/two.toml
within 30 is ActiveState ipoib-fwd@two active

# One that stands still is noticed and started anew.
kill -STOP "$(show MainPID ipoib-fwd)"
within 90 restarted
within 30 status ipoib-fwd '1 forwarding'

# Crashed: the same.
before=$(show MainPID ipoib-fwd)
kill -ABRT "$before"
other() { restarted && ! is MainPID ipoib-fwd "$before"; }
within 60 other

# Upgraded, each goes on with the new program; one that is stopped leaves the other its socket.
before=$(show MainPID ipoib-fwd@two)
dpkg -i /mnt/debs/next/ipoib-fwd_*.deb
not is MainPID ipoib-fwd@two "$before"
is ActiveState ipoib-fwd active
systemctl stop ipoib-fwd
is Result ipoib-fwd success
ipoib-fwd ctl --socket /run/ipoib-fwd/two/control.sock stats >/dev/null

# Removed, none is left running.
rm /etc/ipoib-fwd/two.*
dpkg --purge ipoib-fwd ibfab
not grep -lxE 'ipoib-fwd|ibfab' /proc/[0-9]*/comm
[ ! -e /etc/ipoib-fwd ]
trap - ERR
echo 'all is well'
systemctl exit
