# shellcheck shell=bash
# Sourced by others: downloads packages from suites that the machine is not configured for.

# own_apt DIRECTORY MIRROR KEYRING SUITE...: creates an apt directory without installed packages, and sets
# apt_options, with which apt-get and apt-cache use it.
own_apt() {
    local directory=$1 mirror=$2 keyring=$3 suite
    shift 3
    rm -rf "$directory"
    mkdir -p "$directory"/{etc/preferences.d,etc/apt.conf.d,etc/trusted.gpg.d,state/lists/partial,cache/archives/partial}
    : >"$directory/state/status"
    for suite in "$@"; do
        printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$mirror" "$suite"
    done >"$directory/etc/sources.list"
    # shellcheck disable=SC2034  # for the sourcing script
    apt_options=(
        -qq -o "Dir=$directory" -o "Dir::Etc=$directory/etc" -o "Dir::State=$directory/state"
        -o "Dir::State::status=$directory/state/status" -o "Dir::Cache=$directory/cache" -o APT::Architecture=amd64
        -o APT::Architectures::=amd64 -o APT::Install-Recommends=false -o Acquire::Languages=none -o APT::Sandbox::User=root
        -o Debug::NoLocking=true
    )
}
