#!/bin/bash
# Under systemd, in a root with the previous packages installed, started by a unit of its own: services start, reload, are watched, go on after an
# upgrade and the way back, both under TCP, and go. The last line of /result says how that went, and those that begin with "figure" what it took.
set -Eeuo pipefail
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

# under_traffic WHAT COMMAND…: while TCP and datagrams go from the Ethernet host to the InfiniBand host and back. The connection must live, and
# bring all that was sent.
under_traffic() {
    local what=$1 client=() server=()
    shift
    for way in meanwhile drain; do
        ip netns exec ib python3 "/mnt/scripts/checks/$way.py" --server >"/tmp/$way.server" &
        server+=($!)
        within 20 grep -q listening "/tmp/$way.server"
        ip netns exec eth python3 "/mnt/scripts/checks/$way.py" --client 10.77.0.2 40 >"/tmp/$way.client" &
        client+=($!)
    done
    within 20 grep -q connected /tmp/meanwhile.client
    sleep 2
    "$@"
    for process in "${client[@]}"; do wait "$process"; done
    kill "${server[@]}" 2>/dev/null || true
    echo "figure: $what: TCP $(tail -n 1 /tmp/meanwhile.client), datagrams $(tail -n 1 /tmp/drain.client)"
}
# take DIRECTORY: its package of the gateway; both instances go on with the new program, and one of them forwards.
take() {
    local first second
    first=$(show MainPID ipoib-fwd) second=$(show MainPID ipoib-fwd@two)
    dpkg --force-confold -i "$1"/ipoib-fwd_*.deb
    not is MainPID ipoib-fwd "$first"
    not is MainPID ipoib-fwd@two "$second"
    is ActiveState ipoib-fwd active
    is ActiveState ipoib-fwd@two active
    within 30 status ipoib-fwd '1 forwarding'
}

# Hosts in network namespaces, one at the other end of the gateway's Ethernet port, one at the fabric.
for host in eth ib; do ip netns add $host; done
ip link add gw0 type veth peer name eth0 netns eth
ip netns exec eth ethtool -K eth0 tx off >/dev/null
ip link set gw0 up
ip -n eth link set eth0 up
ip -n eth address add 10.77.0.1/24 dev eth0
printf '\n[[host]]\nname = "host1"\nnetns = "ib"\ntun = "ib0"\naddress = "10.77.0.2/24"\n' >>/etc/ibfab/fabric.toml

# gateway NAME CABLE PORT VDEV
gateway() {
    printf '[gateway]\naddress = "10.77.0.254/24"\n[ethernet]\nport = "%s"\n[infiniband.soft]\nports = [{ link = "shm:/run/%s.sock" }]\n' "$3" "$2" \
        >"/etc/ipoib-fwd/$1.toml"
    printf 'EAL=-l 0-1 --no-pci --no-huge -m 256 --file-prefix %s --vdev %s\nOPTIONS=\n' "$1" "$4" >"/etc/ipoib-fwd/$1.env"
}
gateway gateway ibfab net_af_packet0 net_af_packet0,iface=gw0
gateway two nobody net_null0 net_null0

# Started, they are ready: one forwards, the other one says what it waits for.
systemctl start ibfab ipoib-fwd
status ipoib-fwd '1 forwarding'
# The GID service has an interface to speak for, as there is no RDMA device.
ip link add gids0 type veth peer name gids1
ip link set gids0 up
ip link set gids1 up
ip address add 10.79.0.1/24 dev gids0
echo 'OPTIONS=--roce gids0' >/etc/ipoib-fwd/gids.env
systemctl start ipoib-fwd@two ipoib-gids
status ipoib-fwd@two 'waiting (default: the port is down'
served() { ipoib-fwd gids --from /run/ipoib-gids >/tmp/gids && grep -q "$1" /tmp/gids; }
within 20 served 10.79.0.1
# What changes comes to readers.
ip address add 10.79.0.2/24 dev gids0
within 20 served 10.79.0.2
counted() { status ipoib-gids GIDs && not status ipoib-gids '0 GIDs'; }
within 20 counted

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

# Upgraded, and back, each goes on with the other program, and connections of hosts through it go on, too; one that is stopped leaves the other
# its socket.
under_traffic upgrade take /mnt/debs
[ ! -e /usr/share/ipoib-fwd.previous ]
under_traffic 'the way back' take /mnt/debs/previous
[ -e /usr/share/ipoib-fwd.previous ]
take /mnt/debs
systemctl stop ipoib-fwd
is Result ipoib-fwd success
ipoib-fwd ctl --socket /run/ipoib-fwd/two/control.sock stats >/dev/null

# Removed, none is left running.
rm /etc/ipoib-fwd/two.* /etc/ipoib-fwd/gids.env
dpkg --purge ipoib-fwd ibfab
not grep -lxE 'ipoib-fwd|ibfab' /proc/[0-9]*/comm
[ ! -e /etc/ipoib-fwd ]
trap - ERR
echo 'all is well'
systemctl exit
