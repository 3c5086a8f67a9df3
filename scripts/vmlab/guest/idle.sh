#!/bin/bash
# In the guest: the gateway beside other processes on two virtual CPUs, then on one: what it takes when idle, and how long a ping
# takes, by idle policy. One line for each check.
# shellcheck disable=SC2317  # functions are called through `check`
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=checks.sh
. ./checks.sh
# shellcheck source-path=SCRIPTDIR source=ports.sh
. ./ports.sh
# shellcheck source-path=SCRIPTDIR source=hosts.sh
. ./hosts.sh
make_hosts
eth_mtu 1500
start_sa ibx0 5

# Processor time of the gateway so far, in hundredths of a second.
used() { awk '{print $14 + $15}' "/proc/$gateway/stat"; }
# What the first twenty of a ping's packets say of their times, in milliseconds: median and the longest. The next ones are sent while the last of them
# has no answer yet (checks.sh, first_answered).
times() { "$1" ping -c 20 -w 30 -i "$3" "$2" | sed -nE 's/.*icmp_seq=(1?[0-9]|20) .*time=([0-9.]*) ms/\2/p' | sort -n | awk '{t[NR] = $1}
    END {printf "%s/%s ms", t[int((NR + 1) / 2)], t[NR]; exit NR < 20}'; }

# In per cent of a processor, while nobody sends anything.
idle_for_a_while() {
    local before begin
    before=$(used)
    begin=$(uptime_ms)
    # Longer than that where the processors are lent to others.
    sleep 4
    echo $((($(used) - before) * 1000 / ($(uptime_ms) - begin)))
}
# measure POLICY: fails if packets are lost, or if `sleep` takes more than a third of a processor for nothing. (It is emulated, and
# so several times slower than a real one.) What else runs on the machine that emulates this one makes the same work longer and never shorter, so
# that the shortest of some times is the gateway's.
measure() {
    local percent slow fast failed=0
    percent=$(idle_for_a_while)
    for _ in 1 2 3 4; do
        if [ "$1" != sleep ] || [ "$percent" -le 33 ]; then break; fi
        percent=$(idle_for_a_while)
    done
    slow=$(times eth "$ib_ip" 0.2) || failed=1
    fast=$(times ib "$eth_ip" 0.02) || failed=1
    echo "idle $percent % of a processor; ping median/longest $slow every 200 ms, $fast every 20 ms"
    [ "$failed" = 0 ] && { [ "$1" != sleep ] || [ "$percent" -le 33 ]; }
}

for cpus in 2 1; do
    policies=(sleep)
    lcores=0-1
    # Two that spin on one processor leave nothing to anybody.
    if [ $cpus = 2 ]; then policies=(sleep pause poll); else
        echo 0 >/sys/devices/system/cpu/cpu1/online
        lcores='0@0,1@0'
    fi
    for policy in "${policies[@]}"; do
        start_gateway connected 1500 --idle "$policy"
        check "$cpus CPU(s), $policy: the gateway starts" await 60 ctl links
        [ -e /sys/module/ib_ipoib ] || { start_ib0 && kernel_mode connected; }
        check "$cpus CPU(s), $policy: connections both ways" await 60 both_ways
        check "$cpus CPU(s), $policy" measure "$policy"
        if [ "$policy" = sleep ]; then
            check "$cpus CPU(s), $policy: TCP from Ethernet" transfer eth ib $ib_ip 1000000 1
            check "$cpus CPU(s), $policy: TCP from InfiniBand" transfer ib eth $eth_ip 1000000 2
        fi
        check "$cpus CPU(s), $policy: the gateway ends" stop_gateway
    done
done
check 'no kernel warning' sh -c '! dmesg | grep -E "WARNING|BUG:|Oops|refcount" '
[ $failures = 0 ] || tail -n 60 $log
note "$failures check(s) failed"
exit $((failures > 0))
