# shellcheck shell=bash
# To be sourced in the guest: checks that print a line each, and count what failed.
failures=0

note() { printf '%6.2f  %s\n' "$(cut -d' ' -f1 /proc/uptime)" "$*"; }
check() {
    local what=$1
    shift
    local out
    if out=$("$@" 2>&1); then
        note "ok      $what${out:+: $(tail -n 1 <<<"$out")}"
    else
        note "FAILED  $what"
        printf '          %s\n' "${out//$'\n'/$'\n'          }"
        failures=$((failures + 1))
    fi
}
# Waits until a command succeeds, SECONDS at most: patience with a machine that is emulated on a busy one, and no promise of the product unless the check
# says so.
await() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.2
    done
}
# The kernel has nothing to say of InfiniBand. (That ib_ipoib's own queue did not take a packet again that had waited for its group is
# no fault of a device's.)
kernel_is_quiet() {
    ! dmesg | grep -v 'failed to re-queue packet' | grep -iE 'mlx5|infiniband|ib_|ib0|call trace' | grep -iE 'warn|error|fail|bug|call trace|timeout|leak'
}
# Nor does any driver of InfiniBand warn of anything.
no_warning() { ! dmesg -l emerg,alert,crit,err,warn | grep -E 'mlx5|infiniband|ib_|ib[0-9]'; }

# -- pings, of which none is lost

# first_answered COUNT: of what `ping -w` prints, packets 1 to COUNT were answered, each. With -w it asks on until as many answers have come as -c says.
# Without, it waits for the last one no longer than an interval or twice the longest time so far (-W is for whom nothing has answered yet), and
# calls it lost.
first_answered() {
    awk -F 'icmp_seq=' -v count="$1" '/bytes from/ && $2 + 0 <= count && !seen[$2 + 0]++ {n++} /^rtt/ {rtt = ", " $0} {last[NR % 4] = $0}
        END {
            print n + 0 " of " count " answered" rtt
            if (n == count) exit
            for (i = NR + 1; i <= NR + 4; i++) print last[i % 4]
            exit 1
        }'
}

# -- a train of pings, of which none is lost

# train_begins PING...: which tells each answer.
train_begins() {
    "$@" >/tmp/train.log 2>&1 &
    train=$!
}
answered() { grep -c 'bytes from' /tmp/train.log; }
answered_more() { [ "$(answered)" -ge "$1" ]; }
# train_ends [COUNT]: COUNT were answered, and more of late; and each up to the last that was answered, once. What was on its way when ping was
# told to end does not count: ping does not wait for it, and calls it lost.
train_ends() {
    local wanted
    wanted=$(($(answered) + 3))
    wanted=$((wanted > ${1:-0} ? wanted : ${1:-0}))
    await 30 answered_more "$wanted" || tail -n 3 /tmp/train.log
    # `check` runs this in a process of its own, whose child that may not be.
    await 60 sh -c "! kill -INT $train" || return 1
    awk -F 'icmp_seq=' '/bytes from/ {n++; if ($2 + 0 > last) last = $2 + 0}
        END {print n + 0 " of " last + 0 " packets"; exit !(n == last && n >= least)}' "least=$wanted" /tmp/train.log
}
