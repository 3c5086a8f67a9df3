# shellcheck shell=bash
# Sourced in the guest that runs the checks: sends commands to other guests, which run
# serve.sh, and to the host, which controls their power and cables (vmlab/host/mlx5 lists its commands).

# For a sleep without a process.
exec {machines_sleep}<> <(:)

# on TARGET COMMAND...: runs the command on a guest or on `host`; prints its output and returns its exit code,
# or 124 after LAB_PATIENCE seconds (240) without an answer.
on() {
    local target=$1 name code end=$((SECONDS + ${LAB_PATIENCE:-240}))
    shift
    name=/mnt/to-$target/$BASHPID-$SRANDOM
    printf '%q ' "$@" >"$name.new"
    mv "$name.new" "$name.command"
    until [ -e "$name.code" ]; do
        [ "$SECONDS" -lt "$end" ] || {
            echo "$target does not answer"
            rm -f "$name".*
            return 124
        }
        read -rt 0.05 -u "$machines_sleep"
    done
    code=$(<"$name.code")
    cat "$name.output"
    rm -f "$name".*
    return "$code"
}
# serves GUEST: succeeds if the guest has booted.
serves() { LAB_PATIENCE=2 on "$1" true; }
