# shellcheck shell=bash
# To be sourced in the guest that has the checks: other guests, which run serve.sh, and the host, which sees to their power and
# cables (vmlab/host/mlx5 says what it does when asked).

# A nap without a process of its own.
exec {machines_nap}<> <(:)

# on WHOM COMMAND...: what it prints, and its exit code; 124 where nobody answers for LAB_PATIENCE seconds (240). WHOM: a guest's
# name, or `host`.
on() {
    local whom=$1 name code end=$((SECONDS + ${LAB_PATIENCE:-240}))
    shift
    name=/mnt/to-$whom/$BASHPID-$SRANDOM
    printf '%q ' "$@" >"$name.new"
    mv "$name.new" "$name.command"
    until [ -e "$name.code" ]; do
        [ "$SECONDS" -lt "$end" ] || {
            echo "$whom does not answer"
            rm -f "$name".*
            return 124
        }
        read -rt 0.05 -u "$machines_nap"
    done
    code=$(<"$name.code")
    cat "$name.output"
    rm -f "$name".*
    return "$code"
}
# serves GUEST: it has booted.
serves() { LAB_PATIENCE=2 on "$1" true; }
