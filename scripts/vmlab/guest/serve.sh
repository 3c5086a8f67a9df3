#!/bin/bash
# In a guest that executes commands of others: runs each /mnt/DIRECTORY/NAME.command, in parallel with earlier
# ones, and writes NAME.output and NAME.code. Never exits.
#
#   serve.sh DIRECTORY
set -u
cd "/mnt/$1" || exit 2
# For a sleep without a process.
exec {never}<> <(:)
run() {
    cd /mnt || exit 2
    bash "$1.running" >"$1.output" 2>&1 </dev/null
    echo $? >"$1.done"
    mv "$1.done" "$1.code"
}
while :; do
    for command in *.command; do
        [ -e "$command" ] || continue
        name=$PWD/${command%.command}
        mv "$command" "$name.running"
        run "$name" &
    done
    read -rt 0.05 -u "$never"
done
