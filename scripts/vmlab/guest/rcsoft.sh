#!/bin/bash
# In the guest: measures messages on a connection, with the kernel's soft-RoCE and perftest, and with two
# software devices within the benchmark. They alternate in forward and reverse order. Prints lines for
# figures.py.
#
#   rcsoft.sh ROUNDS
set -u
cd /mnt || exit 2
# shellcheck source-path=SCRIPTDIR source=ports.sh
. ./ports.sh
rounds=$1
# Sizes that perftest and the benchmark have in common.
sizes='64 4096 65524'
# As in the benchmark: messages in flight, receives, and sends per completion.
depths=(-t 64 -r 128 -Q 16 -m 4096)

listening() { ss -Hltn 'sport = :18515' | grep -q .; }
fail() {
    printf 'rcsoft: %s\n' "$1"
    cat /tmp/server.log /tmp/client.log
    exit 1
}
# busy: prints the busy time of the processors since boot in hundredths of a second.
busy() { awk '/^cpu / {print $2 + $3 + $4 + $7 + $8}' /proc/stat; }
# timed COMMAND...: sets `processors` to the average number of busy processors.
timed() {
    local before begin=$EPOCHREALTIME code=0
    before=$(busy)
    "$@" || code=$?
    processors=$(awk -v ticks=$(($(busy) - before)) -v begin="$begin" -v end="$EPOCHREALTIME" 'BEGIN {print ticks / 100 / (end - begin)}')
    return $code
}
# print_rates SIZE NAME RATE
print_rates() {
    [ -n "$3" ] || fail "$2, $1 bytes: no result"
    printf 'figure %s.messages %s %s messages/s\n' "$1" "$2" "$3"
    printf 'figure %s.throughput %s %s Gbit/s\n' "$1" "$2" "$(awk -v n="$1" -v r="$3" 'BEGIN {print n * r * 8 / 1e9}')"
    printf 'figure %s.busy %s %s processors\n' "$1" "$2" "$processors"
}
# rxe NAME CLIENT SIZE: sends for one second from device CLIENT to ibx0.
rxe() {
    local name=$1 client=$2 size=$3 server i
    local options=(-F -s "$size" -D 1 -f 0 "${depths[@]}")
    timeout 60 ib_send_bw -d ibx0 "${options[@]}" >/tmp/server.log 2>&1 &
    server=$!
    for ((i = 0; i < 100; i++)); do
        listening && break
        sleep 0.1
    done
    timed timeout 60 ib_send_bw -d "$client" "${options[@]}" 127.0.0.1 >/tmp/client.log 2>&1 || fail "$name, $size bytes: the client"
    wait $server || fail "$name, $size bytes: the server"
    # Columns: size, messages, peak, MiB/s, and millions of acknowledged messages per second.
    print_rates "$size" "$name" "$(awk -v size="$size" '$1 == size && NF == 5 {print $5 * 1e6}' /tmp/client.log)"
}
# soft SIZE: runs the benchmark once. Its two kinds of connections and memory copies alternate every 60 ms or
# so: 0.7 s for each kind.
soft() {
    local size=$1 name prefix
    timed timeout 120 ./bench rc-soft --once --seconds 4 --sizes "$size" >/tmp/client.log 2>/tmp/server.log || fail "rc-soft, $size bytes"
    for name in rc-soft-crc rc-soft; do
        prefix=''
        [ $name = rc-soft ] || prefix='crc\.'
        print_rates "$size" $name "$(sed -n "s/.*\"part\":\"$prefix$size\.messages\",\"unit\":\"[^\"]*\",\"value\":\([0-9.e+]*\).*/\1/p" /tmp/client.log)"
    done
}

for ((round = 1; round <= rounds; round++)); do
    for size in $sizes; do
        if ((round % 2)); then
            rxe soft-roce-loop ibx0 "$size"
            rxe soft-roce-wire ibx1 "$size"
            soft "$size"
        else
            soft "$size"
            rxe soft-roce-wire ibx1 "$size"
            rxe soft-roce-loop ibx0 "$size"
        fi
    done
    printf 'round %s of %s\n' "$round" "$rounds"
done
