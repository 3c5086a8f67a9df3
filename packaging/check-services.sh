#!/bin/bash
# Runs as a unit under systemd, in a root with the previous packages: services start, reload, are watched,
# continue after an upgrade and a downgrade under TCP, carry the demo's traffic, work with the drop-ins of the
# examples, and are purged. Writes a line with the duration of each part to /report; the last line reports
# success.
set -Eeuo pipefail
exec >/result 2>&1
part='' since=$SECONDS
report() { printf 'package: %s\n' "$*" | tee -a /report; }
begin() {
    [ -z "$part" ] || report "ok      $part ($((SECONDS - since)) s)"
    part=$1 since=$SECONDS
}
why() {
    systemctl status --no-pager --lines 20 "ip*.service" ibfab || true
    journalctl --no-pager --lines 40 --priority warning
    tail -n 3 /tmp/metrics /tmp/{tcp,udp}.{server,client} 2>/dev/null
}
trap 'report "failed  $part: line $LINENO"; why || true; systemctl exit 1' ERR

show() { systemctl show --property "$1" --value "$2"; }
# within SECONDS COMMAND…: waits until the command succeeds.
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

# under_traffic WHAT COMMAND…: runs the command during TCP and UDP traffic between the Ethernet host and the
# InfiniBand host. The connection must survive and deliver everything.
under_traffic() {
    local what=$1 client=() server=()
    shift
    # Output of the last run must not count.
    rm -f /tmp/{tcp,udp}.{server,client}
    for protocol in tcp udp; do
        ip netns exec gwdemo-ib python3 /mnt/scripts/testbed/echo.py $protocol-server >/tmp/$protocol.server 2>&1 &
        server+=($!)
        within 20 grep -qs listening /tmp/$protocol.server
        ip netns exec gwdemo-eth python3 /mnt/scripts/testbed/echo.py $protocol-client 10.77.0.2 25 >/tmp/$protocol.client 2>&1 &
        client+=($!)
    done
    within 20 grep -qs connected /tmp/tcp.client
    sleep 2
    "$@"
    for process in "${client[@]}"; do wait "$process"; done
    kill "${server[@]}" 2>/dev/null || true
    # The next run uses the same ports.
    for process in "${server[@]}"; do wait "$process" || true; done
    report "values  $what: TCP $(tail -n 1 /tmp/tcp.client), datagrams $(tail -n 1 /tmp/udp.client)"
}
# take DIRECTORY: installs its package of the gateway; both instances restart with the new program, and one of
# them forwards.
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

begin 'hosts and configuration'
# Hosts in network namespaces, one at the gateway's Ethernet port, one at the fabric. They have the names of
# the demo's hosts.
for host in gwdemo-eth gwdemo-ib; do ip netns add $host; done
ip link add gw0 type veth peer name eth0 netns gwdemo-eth
# Without offloads, as on a real wire.
finished=(rx off tx off tso off gso off gro off)
ethtool -K gw0 "${finished[@]}" >/dev/null
ip netns exec gwdemo-eth ethtool -K eth0 "${finished[@]}" >/dev/null
ip link set gw0 up
ip -n gwdemo-eth link set eth0 up
ip -n gwdemo-eth address add 10.77.0.1/24 dev eth0
printf '\n[[host]]\nname = "host1"\nnetns = "gwdemo-ib"\ntun = "ib0"\naddress = "10.77.0.2/24"\n' >>/etc/ibfab/fabric.toml

# gateway NAME CABLE PORT VDEV
gateway() {
    printf '[gateway]\naddress = "10.77.0.254/24"\n[ethernet]\nport = "%s"\n[infiniband.soft]\nports = [{ link = "shm:/run/%s.sock" }]\n' "$3" "$2" \
        >"/etc/ipoib-fwd/$1.toml"
    printf 'EAL=-l 0-1 --no-pci --no-huge -m 512 --file-prefix %s --vdev %s\nOPTIONS=\n' "$1" "$4" >"/etc/ipoib-fwd/$1.env"
}
gateway gateway ibfab net_af_packet0 net_af_packet0,iface=gw0
gateway two nobody net_null0 net_null0
# Buffers for packets that the kernel of the Ethernet side has reassembled.
printf '[buffers]\ndata-room = 8192\n' >>/etc/ipoib-fwd/gateway.toml
sed -i 's!^OPTIONS=.*!OPTIONS=--report /run/gateway.json!' /etc/ipoib-fwd/gateway.env

begin 'started, they are ready or report what they wait for'
systemctl start ibfab ipoib-fwd
within 30 status ipoib-fwd '1 forwarding'
begin 'the GID service has present and new addresses'
# There is no RDMA device, so the GID service gets an interface.
ip link add gids0 type veth peer name gids1
ip link set gids0 up
ip link set gids1 up
ip address add 10.79.0.1/24 dev gids0
echo 'OPTIONS=--roce gids0' >/etc/ipoib-fwd/gids.env
systemctl start ipoib-fwd@two ipoib-gids
status ipoib-fwd@two 'waiting (default: the port is down'
served() { ipoib-fwd gids --from /run/ipoib-gids >/tmp/gids && grep -q "$1" /tmp/gids; }
within 20 served 10.79.0.1
# Readers see changes.
ip address add 10.79.0.2/24 dev gids0
within 20 served 10.79.0.2
counted() { status ipoib-gids GIDs && not status ipoib-gids '0 GIDs'; }
within 20 counted

begin 'the exporter answers'
systemctl start ipoib-metrics
metrics() { python3 -c 'import urllib.request as http; print(http.urlopen("http://127.0.0.1:9847/metrics", timeout=5).read().decode())'; }
answers() { metrics >/tmp/metrics 2>&1 && grep -qE '^ipoib_fwd_segment_role\{.*role="forwarding".*\} 1(\.0)?$' /tmp/metrics; }
within 20 answers

begin 'a reload succeeds, or fails with a reason'
sed -i 's/10.77.0.254/10.77.0.253/' /etc/ipoib-fwd/gateway.toml
systemctl reload ipoib-fwd ipoib-fwd@two ibfab
echo 'nonsense = 1' >>/etc/ipoib-fwd/gateway.toml
not systemctl reload ipoib-fwd
sed -i '/nonsense/d' /etc/ipoib-fwd/gateway.toml
is ActiveState ipoib-fwd active

begin 'an error keeps it from starting and is in the journal; once fixed, it starts automatically'
systemctl stop ipoib-fwd@two
sed -i 's/address/adress/' /etc/ipoib-fwd/two.toml
not systemctl start ipoib-fwd@two
journalctl --sync
journalctl --unit ipoib-fwd@two --output cat >/tmp/journal
grep -q 'error.config-invalid.: unknown key .adress' /tmp/journal
sed -i 's/adress/address/' /etc/ipoib-fwd/two.toml
within 30 is ActiveState ipoib-fwd@two active

begin 'one that always fails stays down at its limit, OnFailure= is started, and it can be restarted'
# A lower limit than the unit's.
mkdir /etc/systemd/system/ipoib-fwd@two.service.d
printf '[Unit]\nStartLimitBurst=3\nOnFailure=failed.service\n[Service]\nRestartSec=100ms\n' >/etc/systemd/system/ipoib-fwd@two.service.d/limit.conf
printf '[Service]\nType=oneshot\nExecStart=/usr/bin/touch /run/has-failed\n' >/etc/systemd/system/failed.service
sed -i 's/address/adress/' /etc/ipoib-fwd/two.toml
systemctl daemon-reload
systemctl reset-failed ipoib-fwd@two
not systemctl restart ipoib-fwd@two
within 60 is ActiveState ipoib-fwd@two failed
within 30 [ -e /run/has-failed ]
sed -i 's/adress/address/' /etc/ipoib-fwd/two.toml
journalctl --sync
grep -q 'Start request repeated too quickly' <(journalctl --unit ipoib-fwd@two --output cat)
rm -r /etc/systemd/system/{ipoib-fwd@two.service.d,failed.service}
systemctl daemon-reload
systemctl reset-failed ipoib-fwd@two
systemctl start ipoib-fwd@two
begin 'one that stalls is restarted'
kill -STOP "$(show MainPID ipoib-fwd)"
within 90 restarted
within 30 status ipoib-fwd '1 forwarding'

begin 'one with a single stalled worker is restarted'
before=$(show MainPID ipoib-fwd) times=$(show NRestarts ipoib-fwd)
other() { restarted && ! is MainPID ipoib-fwd "$before"; }
python3 /mnt/scripts/testbed/stuck.py "$before" >/tmp/stuck 2>&1 || { cat /tmp/stuck; false; }
report "values  the worker: $(tail -n 1 /tmp/stuck)"
within 60 other
[ "$(show NRestarts ipoib-fwd)" = $((times + 1)) ]
journalctl --sync
journalctl --unit ipoib-fwd --output cat >/tmp/journal
grep -q 'Watchdog timeout' /tmp/journal
within 30 status ipoib-fwd '1 forwarding'

begin 'one that crashed is restarted'
before=$(show MainPID ipoib-fwd)
kill -ABRT "$before"
within 60 other

begin 'upgrade and downgrade under traffic'
# Each instance continues with the other program, and so do connections of hosts through it.
under_traffic upgrade take /mnt/debs
[ ! -e /usr/share/ipoib-fwd.previous ]
under_traffic downgrade take /mnt/debs/previous
[ -e /usr/share/ipoib-fwd.previous ]
take /mnt/debs
begin "the hardened unit's gateway carries the demo's traffic"
# It is confined: it has none of the unit's three capabilities and cannot gain any, and both systemd and the
# gateway have set filters.
awk '{ is[$1] = $2 }
    END { exit !(is["CapPrm:"] ~ /^0+$/ && is["CapBnd:"] ~ /^0+7000$/ && is["NoNewPrivs:"] == 1 && is["Seccomp:"] == 2 && is["Seccomp_filters:"] > 1) }
' "/proc/$(show MainPID ipoib-fwd)/status"
python3 /mnt/scripts/testbed/installed.py >/tmp/traffic || { cat /tmp/traffic; false; }
report "values  the demo's traffic: $(tail -n 1 /tmp/traffic)"
# credentials UNIT: prints user, groups and capabilities of its process.
credentials() { awk -F '\t' '/^(Uid|Groups|CapEff|CapBnd):/ { printf "%s%s ", $1, $2 }' "/proc/$(show MainPID "$1")/status"; }
begin 'access to the control socket'
within 30 answers
socket=$(stat --format '%U:%G %a' /run/ipoib-fwd.sock)
group=$(getent group ipoib-fwd | cut -d : -f 3)
none='CapBnd:0000000000000000'
report "values  exporter: $(credentials ipoib-metrics), GID service: $(credentials ipoib-gids), the gateway's socket: $socket"
case $(credentials ipoib-metrics) in Uid:0\ * | *Groups:0*) false ;; Uid:*"Groups:"*"$group"*"$none"*) ;; *) false ;; esac
case $(credentials ipoib-gids) in *"$none"*) ;; *) false ;; esac
# The exporter cannot access the configurations, although their key is readable for its group.
sees() { nsenter --mount="/proc/$(show MainPID ipoib-metrics)/ns/mnt" test -e "$1"; }
sees /etc/passwd
not sees /etc/ipoib-fwd/gateway.toml
[ "$socket" = 'root:ipoib-fwd 660' ]
[ "$(stat --format '%U:%G %a' /run/ipoib-fwd/two/control.sock)" = 'root:ipoib-fwd 660' ]
as() { setpriv --reuid nobody --regid "$1" --clear-groups ipoib-fwd ctl stats; }
as ipoib-fwd >/dev/null
not as nogroup
begin "DPDK's own script reaches the gateways, and EAL below them"
# telemetry PREFIX REQUEST ANSWER [COMMAND…]: succeeds if the answer that dpdk-telemetry.py prints contains
# ANSWER. The environment of this service must not help it to find the socket.
telemetry() {
    printf '%s\n' "$2" quit | env -u RUNTIME_DIRECTORY -u XDG_RUNTIME_DIR "${@:4}" dpdk-telemetry.py -f "$1" >/tmp/answer && grep -qF "$3" /tmp/answer
}
if ! command -v dpdk-telemetry.py >/dev/null; then
    report 'values  dpdk-telemetry.py: left out, this machine has none (package dpdk-dev)'
    telemetry() { :; }
else
    dpdk-telemetry.py -l >/tmp/answer
    grep -qx ipoib-fwd /tmp/answer
    grep -qx ipoib-fwd-two /tmp/answer
fi
telemetry ipoib-fwd /stats '"traffic"'
telemetry ipoib-fwd/dpdk/gateway /ethdev/list '{"/ethdev/list": [0]}'
telemetry ipoib-fwd-two /links '"net_null0"'
telemetry ipoib-fwd-two/dpdk/two /ethdev/list '{"/ethdev/list": [0]}'
# A member of the group, without access to root's directory and to EAL's socket.
telemetry /run/ipoib-fwd/gateway /stats '"traffic"' setpriv --reuid nobody --regid ipoib-fwd --clear-groups
not telemetry /run/ipoib-fwd/gateway/dpdk/gateway /ethdev/list '[0]' setpriv --reuid nobody --regid ipoib-fwd --clear-groups
# Files of a gateway that was started by hand do no harm.
systemctl stop ipoib-fwd@two
[ ! -e /run/dpdk/ipoib-fwd-two ]
mkdir -m 0700 /run/dpdk/ipoib-fwd-two
systemctl start ipoib-fwd@two
telemetry ipoib-fwd-two /links '"net_null0"'
begin 'without the group the socket is root only'
groupmod --new-name elsewhere ipoib-fwd
systemctl restart ipoib-fwd@two
[ "$(stat --format '%U:%G %a' /run/ipoib-fwd/two/control.sock)" = 'root:root 600' ]
groupmod --new-name ipoib-fwd elsewhere
begin 'with a drop-in of the manual the exporter uses a socket of another group, or of root only'
# override UNIT [LINE…]: writes or removes its drop-in.
override() {
    local folder=/etc/systemd/system/$1.service.d
    rm -rf "$folder"
    if [ $# -gt 1 ]; then
        mkdir "$folder"
        printf '%s\n' '[Service]' "${@:2}" >"$folder/override.conf"
    fi
    systemctl daemon-reload
    systemctl restart "$1"
}
not_allowed() { ! answers && grep -q 503 /tmp/metrics; }
give() { chown "$1" /run/ipoib-fwd.sock && chmod "$2" /run/ipoib-fwd.sock; }
give root:backup 660
override ipoib-metrics
within 20 not_allowed
override ipoib-metrics SupplementaryGroups=backup
within 20 answers
give root:root 600
not_allowed
override ipoib-metrics DynamicUser=no User=root
within 20 answers
case $(credentials ipoib-metrics) in Uid:0\ *"$none"*) ;; *) false ;; esac
override ipoib-metrics
# example NAME: prints an example of the package, as a minimal root omits documentation.
example() { dpkg-deb --fsys-tarfile /mnt/debs/ipoib-fwd_*.deb | tar -xO "./usr/share/doc/ipoib-fwd/examples/$1"; }
drop_ins=/etc/systemd/system/ipoib-fwd.service.d
mkdir $drop_ins
# restart_gateway: restarts it with its drop-ins, and waits until packets pass.
restart_gateway() {
    systemctl daemon-reload
    systemctl restart ipoib-fwd
    within 30 status ipoib-fwd '1 forwarding'
    within 20 ip netns exec gwdemo-eth ping -q -c 1 -W 1 10.77.0.2
}
# environment KEY VALUE: replaces a variable of the gateway.
environment() { sed -i "s!^$1=.*!$1=$2!" /etc/ipoib-fwd/gateway.env; }
# bounded COUNT FILE…: succeeds if there are COUNT captures of at most 64 KiB, which only the owner reads,
# with packets in the last one.
bounded() {
    local files=("${@:2}")
    [ ${#files[@]} = "$1" ]
    not grep -qvxE "$owner 600" <(stat --format '%U:%G %a' "${files[@]}")
    for file in "${files[@]}"; do [ "$(stat --format %s "$file")" -le 65536 ]; done
    [ "$(stat --format %s "${files[-1]}")" -gt 24 ]
}
# pings COUNT: sends large pings; succeeds if all are answered. With -w ping may send more than COUNT.
pings() {
    ip netns exec gwdemo-eth ping -c "$1" -i 0.005 -w 20 -s 1400 10.77.0.2 |
        awk -F 'icmp_seq=' -v count="$1" '/bytes from/ && $2 + 0 <= count && !seen[$2 + 0]++ { n++ } END { exit n != count }'
}
folder=/var/lib/ipoib-fwd

begin 'lcores.conf and hugepages.conf: threads have the configured processors and priority, packets are in hugepages'
# The last processor instead of the example's.
processor=$(awk '/^Cpus_allowed_list:/ { n = split($2, range, /[-,]/); print range[n] }' /proc/self/status)
example lcores.conf | sed "s/^CPUAffinity=.*/CPUAffinity=$processor/" >$drop_ins/lcores.conf
# Hugepages in addition to those of other programs of this machine; the caller releases them in any case.
number=/proc/sys/vm/nr_hugepages
more=$(example hugepages.conf | sed -n 's/^vm.nr_hugepages = //p')
(
    flock 9
    before=$(cat $number)
    example hugepages.conf | sed "s/^vm.nr_hugepages = .*/vm.nr_hugepages = $((before + more))/" >/etc/sysctl.d/hugepages.conf
    /lib/systemd/systemd-sysctl /etc/sysctl.d/hugepages.conf
    # All of them, or none.
    [ $(($(cat $number) - before)) = "$more" ] || echo "$before" >$number
    echo $(($(cat $number) - before)) >/mnt/debs/previous/hugepages
) 9>/mnt/hugepages.lock
memory=--in-memory
if [ "$(cat /mnt/debs/previous/hugepages)" != "$more" ]; then
    report "values  hugepages: left out, this machine has no room for $more more"
    memory='--no-huge -m 512 --file-prefix gateway'
fi
environment EAL "--lcores (0-1)@$processor --no-pci $memory --vdev net_af_packet0,iface=gw0"
# Also for the next part.
example capture.conf >$drop_ins/capture.conf
sed -i "/^\[gateway\]$/a captures = \"$folder\"" /etc/ipoib-fwd/gateway.toml
restart_gateway
[ "$(show Nice ipoib-fwd)" = -10 ]
process=/proc/$(show MainPID ipoib-fwd)
for thread in "$process"/task/*; do
    grep -qxP "Cpus_allowed_list:\t$processor" "$thread/status"
    [ "$(sed 's/.*) //' "$thread/stat" | cut -d ' ' -f 17)" = -10 ]
done
[ "$memory" != --in-memory ] || [ "$(awk '/^HugetlbPages:/ { print $2 }' "$process/status")" -gt 0 ]

begin 'capture.conf: captures on demand and from the start, in its directory'
owner=root:root
[ "$(stat --format '%U:%G %a' $folder)" = 'root:root 700' ]
ipoib-fwd ctl capture start ordered files=2 size=65536 >/dev/null
pings 200
ipoib-fwd ctl capture stop >/dev/null
bounded 2 $folder/ordered.*
environment OPTIONS "--report /run/gateway.json --capture $folder/gateway.pcap --capture-files 2 --capture-size 65536"
restart_gateway
pings 200
bounded 4 $folder/gateway.*
# The stopped gateway has saved its known hosts.
[ "$(stat --format '%U:%G %a' $folder/gateway/hosts)" = 'root:root 600' ]
grep -q '^10\.77\.0\.2 ' $folder/gateway/hosts

begin 'user.conf, the exporter with it, and user@.conf'
sed -i '/^\[gateway\]$/a user = "ipoib-fwd"\ngroup = "ipoib-fwd"' /etc/ipoib-fwd/gateway.toml
echo 'OPTIONS=--socket /run/ipoib-fwd-user/control.sock' >/etc/ipoib-fwd/metrics.env
example user.conf >$drop_ins/user.conf
# With the other drop-ins, the capture directory as described in capture.conf, and access to the fabric's
# socket.
sed -i '/^StateDirectory/d; s/^#ReadWritePaths/ReadWritePaths/' $drop_ins/capture.conf
rm -r $folder
install -d -o ipoib-fwd -g ipoib-fwd -m 0700 $folder
chgrp ipoib-fwd /run/ibfab.sock
since_then=$(date '+%F %T')
restart_gateway
systemctl restart ipoib-metrics
[ "$(stat --format '%U:%G %a' /run/ipoib-fwd-user/control.sock)" = 'ipoib-fwd:ipoib-fwd 660' ]
pings 200
# Captures that exist before the change of user are root's.
owner='(ipoib-fwd:ipoib-fwd|root:root)'
find $folder/*.eth.pcap* -user ipoib-fwd | grep -q .
kept() { grep -qs '^10\.77\.0\.2 ' /run/ipoib-fwd-user/hosts; }
within 30 kept
[ "$(stat --format '%U:%G %a' /run/ipoib-fwd-user/hosts)" = 'ipoib-fwd:ipoib-fwd 600' ]
bounded 4 $folder/gateway.*
exports() { metrics >/tmp/metrics 2>&1 && grep -q '^ipoib_fwd_segment_role{' /tmp/metrics; }
within 30 exports
journalctl --sync
not grep -q find: <(journalctl --unit ipoib-fwd --since "$since_then" --output cat)
report "values  with user.conf: gateway: $(credentials ipoib-fwd), exporter: $(credentials ipoib-metrics)"
case $(credentials ipoib-fwd) in Uid:0\ *) false ;; esac
telemetry ipoib-fwd /stats '"traffic"'
prefix=rte
[ "$memory" = --in-memory ] || prefix=gateway
telemetry "ipoib-fwd/dpdk/$prefix" /ethdev/list '{"/ethdev/list": [0]}'
sed -i '/^\[gateway\]$/a user = "ipoib-fwd"\ngroup = "ipoib-fwd"' /etc/ipoib-fwd/two.toml
mkdir "${drop_ins/.service/@.service}"
example user@.conf >"${drop_ins/.service/@.service}/user@.conf"
systemctl daemon-reload
systemctl restart ipoib-fwd@two
[ "$(stat --format '%U:%G %a' /run/ipoib-fwd-user-two/control.sock)" = 'ipoib-fwd:ipoib-fwd 660' ]
case $(credentials ipoib-fwd@two) in Uid:0\ *) false ;; esac
systemctl reload ipoib-fwd@two
telemetry ipoib-fwd-two /links '"net_null0"'
telemetry ipoib-fwd-two/dpdk/two /ethdev/list '{"/ethdev/list": [0]}'
sed -i '/^user = /d; /^group = /d' /etc/ipoib-fwd/two.toml
rm -r "${drop_ins/.service/@.service}"
systemctl daemon-reload
systemctl restart ipoib-fwd@two
rm -r /etc/ipoib-fwd/metrics.env $drop_ins $folder
sed -i '/^user = /d; /^group = /d; /^captures = /d' /etc/ipoib-fwd/gateway.toml
environment OPTIONS '--report /run/gateway.json'
environment EAL '-l 0-1 --no-pci --no-huge -m 512 --file-prefix gateway --vdev net_af_packet0,iface=gw0'
systemctl daemon-reload
systemctl restart ipoib-fwd ipoib-metrics
within 30 answers
begin 'a stopped one does not disturb the other one, and no buffer is lost'
systemctl stop ipoib-fwd
is Result ipoib-fwd success
grep -q '"buffers_outstanding": 0' /run/gateway.json
ipoib-fwd ctl --socket /run/ipoib-fwd/two/control.sock stats >/dev/null
[ "$(find /run/dpdk -maxdepth 1 -name 'ipoib-fwd*')" = /run/dpdk/ipoib-fwd-two ]

begin 'purge: no process and no unit link is left'
rm /etc/ipoib-fwd/two.* /etc/ipoib-fwd/gids.env
systemctl enable ipoib-fwd ipoib-fwd@two ipoib-gids ipoib-metrics ibfab
links() { find /etc/systemd /var/lib/systemd \( -name 'ipoib-*' -o -name 'ibfab*' \); }
[ "$(links | grep -c '^/etc/systemd/system/multi-user.target.wants/')" = 5 ]
dpkg --purge ipoib-fwd ibfab softhca ipoib-fwd-doc
links >/tmp/links
[ ! -s /tmp/links ]
getent passwd ipoib-fwd >/dev/null
[ ! -e /run/systemd/dynamic-uid/ipoib-metrics ]
not grep -lxE 'ipoib-fwd|ibfab' /proc/[0-9]*/comm
[ ! -e /etc/ipoib-fwd ]
[ -z "$(find /var/lib/ipoib-fwd -name 'hosts*' 2>/dev/null || true)" ]
[ -z "$(find /run/dpdk -name 'ipoib-fwd*')" ]
begin ''
trap - ERR
echo 'all is well' >>/report
systemctl exit
