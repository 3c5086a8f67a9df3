# shellcheck shell=bash
# To be sourced: where packages of Debian come from.

# debian_mirror: that of the environment's DEBIAN_MIRROR, or which this machine's apt uses.
debian_mirror() {
    local mirror=${DEBIAN_MIRROR:-}
    # shellcheck disable=SC2016 # apt's own
    [ -n "$mirror" ] || read -r mirror < <(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Label: Debian' 2>/dev/null) || true
    [ -n "$mirror" ] || {
        echo 'no mirror of Debian is known: apt-get update, or DEBIAN_MIRROR=URL' >&2
        return 1
    }
    printf '%s\n' "$mirror"
}
