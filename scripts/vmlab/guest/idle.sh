#!/bin/bash
# In the guest: the gateway shares two virtual CPUs, then one, with other processes. Measures its idle
# processor time and the round-trip time of pings, by idle policy. Prints a line for each check.
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

# Prints the processor time of the gateway in hundredths of a second.
used() { awk '{print $14 + $15}' "/proc/$gateway/stat"; }
# Prints the median and the maximum round-trip time of the first 20 packets in milliseconds. ping sends
# further packets until the last of these is answered (checks.sh, first_answered).
times() { "$1" ping -c 20 -w 30 -i "$3" "$2" | sed -nE 's/.*icmp_seq=(1?[0-9]|20) .*time=([0-9.]*) ms/\2/p' | sort -n | awk '{t[NR] = $1}
    END {printf "%s/%s ms", t[int((NR + 1) / 2)], t[NR]; exit NR < 20}'; }

# Prints the processor time without traffic, in percent of a processor.
idle_for_a_while() {
    local before begin
    before=$(used)
    begin=$(uptime_ms)
    # The sleep takes longer if the host has less processor time.
    sleep 4
    echo $((($(used) - before) * 1000 / ($(uptime_ms) - begin)))
}
# measure POLICY: fails if packets are lost, or if `sleep` takes more than a third of an idle processor. (The
# processor is emulated, and several times slower than a real one.) Other load on the host only lengthens the
# times, so the shortest of several measurements counts.
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
    # Two polling threads on one processor would starve all others.
    if [ $cpus = 2 ]; then policies=(sleep pause poll); else
        echo 0 >/sys/devices/system/cpu/cpu1/online
        lcores='0@0,1@0'
    fi
    for policy in "${policies[@]}"; do
        start_gateway connected 1500 --idle "$policy"
        check "$cpus CPU(s), $policy: the gateway starts" await 60 ctl links
        [ -e /sys/module/ib_ipoib ] || { start_ib0 && kernel_mode connected; }
        check "$cpus CPU(s), $policy: connections in both directions" await 60 both_ways
        check "$cpus CPU(s), $policy" measure "$policy"
        if [ "$policy" = sleep ]; then
            check "$cpus CPU(s), $policy: TCP from Ethernet" transfer eth ib $ib_ip 1000000 1
            check "$cpus CPU(s), $policy: TCP from InfiniBand" transfer ib eth $eth_ip 1000000 2
        fi
        check "$cpus CPU(s), $policy: the gateway exits" stop_gateway
    done
done
check 'no kernel warning' sh -c '! dmesg | grep -E "WARNING|BUG:|Oops|refcount" '
[ $failures = 0 ] || tail -n 60 $log
note "$failures check(s) failed"
exit $((failures > 0))
