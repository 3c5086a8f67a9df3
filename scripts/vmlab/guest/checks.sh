# shellcheck shell=bash
# Sourced in the guest: checks, which print a line each and count failures.
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
# await SECONDS COMMAND...: waits until a command succeeds. The limit allows for an emulated machine on a busy
# host, and is no property of the product unless the check says so.
await() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.2
    done
}
# The kernel logs no InfiniBand problem. (If ib_ipoib's own queue rejects a packet that waited for its group,
# that is no device fault.)
kernel_is_quiet() {
    ! dmesg | grep -v 'failed to re-queue packet' | grep -iE 'mlx5|infiniband|ib_|ib0|call trace' | grep -iE 'warn|error|fail|bug|call trace|timeout|leak'
}
# No InfiniBand driver logs a warning.
no_warning() { ! dmesg -l emerg,alert,crit,err,warn | grep -E 'mlx5|infiniband|ib_|ib[0-9]'; }

# -- pings without loss

# first_answered COUNT: reads the output of `ping -w`; succeeds if each of the packets 1 to COUNT was
# answered. With -w, ping sends until it has -c replies. Without it, ping waits for the last reply for an
# interval or twice the longest time so far (-W only counts before the first reply), and then reports it as
# lost.
first_answered() {
    awk -F 'icmp_seq=' -v count="$1" '/bytes from/ && $2 + 0 <= count && !seen[$2 + 0]++ {n++} /^rtt/ {rtt = ", " $0} {last[NR % 4] = $0}
        END {
            print n + 0 " of " count " answered" rtt
            if (n == count) exit
            for (i = NR + 1; i <= NR + 4; i++) print last[i % 4]
            exit 1
        }'
}

# -- a train of pings without loss

# train_begins PING...: starts the command, which prints each reply.
train_begins() {
    "$@" >/tmp/train.log 2>&1 &
    train=$!
}
answered() { grep -c 'bytes from' /tmp/train.log; }
answered_more() { [ "$(answered)" -ge "$1" ]; }
# train_ends [COUNT]: succeeds if at least COUNT packets were answered, three of them just now, and each
# packet up to the last answered one exactly once. Packets in flight when ping is stopped do not count: ping
# does not wait for them, and reports them as lost.
train_ends() {
    local wanted
    wanted=$(($(answered) + 3))
    wanted=$((wanted > ${1:-0} ? wanted : ${1:-0}))
    await 30 answered_more "$wanted" || tail -n 3 /tmp/train.log
    # `check` runs this in another process, of which ping may not be a child.
    await 60 sh -c "! kill -INT $train" || return 1
    awk -F 'icmp_seq=' '/bytes from/ {n++; if ($2 + 0 > last) last = $2 + 0}
        END {print n + 0 " of " last + 0 " packets"; exit !(n == last && n >= least)}' "least=$wanted" /tmp/train.log
}
