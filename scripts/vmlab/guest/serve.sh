#!/bin/bash
# In a guest that others command: whatever appears in /mnt/DIRECTORY as NAME.command runs, beside what runs already, and leaves
# NAME.output and NAME.code. Does not end by itself.
#
#   serve.sh DIRECTORY
set -u
cd "/mnt/$1" || exit 2
# A nap without a process of its own.
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
