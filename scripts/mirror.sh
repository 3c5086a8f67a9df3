# shellcheck shell=bash
# Sourced: the mirror of Debian packages.

# debian_mirror: prints DEBIAN_MIRROR of the environment, or the mirror of this machine's apt.
debian_mirror() {
    local mirror=${DEBIAN_MIRROR:-}
    # shellcheck disable=SC2016 # apt's own
    [ -n "$mirror" ] || read -r mirror < <(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Label: Debian' 2>/dev/null) || true
    [ -n "$mirror" ] || {
        echo 'no Debian mirror is known: run apt-get update, or set DEBIAN_MIRROR=URL' >&2
        return 1
    }
    printf '%s\n' "$mirror"
}
