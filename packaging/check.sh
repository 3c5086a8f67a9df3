# shellcheck shell=bash
# In a bare root with the packages in /mnt/debs, an older version of them in /mnt/debs/previous: that is installed, they are, run, taken back, removed
# and purged.
set -euo pipefail
names=(ipoib-fwd ibfab softhca)
fail() {
    printf 'package: %s\n' "$*" >&2
    exit 1
}
quietly() {
    "$@" >/tmp/said 2>&1 || {
        tail -n 30 /tmp/said >&2
        fail "$*"
    }
}
# What there is, but for what apt and dpkg note and keep of everybody, and copies of the lists of groups that libraries' packages have made.
files() {
    find / -xdev \( -path /tmp -o -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /mnt -o -path /var/cache -o -path /var/log \
        -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path '/etc/*-' \) -prune -o -type f -print -o -type l -print | sort
}
# installed PATH: fails unless it is the packages in that directory that are.
installed() {
    local deb
    for deb in "$1"/*.deb; do
        local name version
        name=$(dpkg-deb --field "$deb" Package) version=$(dpkg-deb --field "$deb" Version)
        [ "$(dpkg-query --show --showformat '${db:Status-Abbrev}${Version}' "$name")" = "ii $version" ] || fail "$name $version is not installed: $(cat /tmp/said)"
        # Each has a file that the other one has not.
        case $1 in
            */previous) [ -e "/usr/share/$name.previous" ] || fail "a file of $name $version is missing" ;;
            *) [ ! -e "/usr/share/$name.previous" ] || fail "a file of the previous $name is still there" ;;
        esac
    done
}

quietly apt-get update -qq
files >/tmp/before

# As people do it: dpkg leaves what is missing to apt.
dpkg -i /mnt/debs/previous/*.deb >/tmp/dpkg 2>&1 || true
quietly apt-get -qq --yes -f install --no-install-recommends
installed /mnt/debs/previous

# An upgrade keeps what the operator wrote, takes new defaults where nothing was, and asks only where both is so: then one is kept by order.
echo '# mine' >>/etc/ipoib-fwd/gateway.toml
! dpkg -i /mnt/debs/ipoib-fwd_*.deb </dev/null >/tmp/said 2>&1 || fail 'nobody was asked which configuration it shall be'
grep -q 'gateway.toml' /tmp/said || fail "dpkg has asked something else: $(cat /tmp/said)"
quietly dpkg --force-confold -i /mnt/debs/*.deb
installed /mnt/debs
grep -qx '# mine' /etc/ipoib-fwd/gateway.toml || fail 'the upgrade took the configuration'
! grep -q 'previous version' /etc/ipoib-fwd/gateway.env || fail 'the upgrade left an old default'
! grep -q 'previous version' /etc/ipoib-fwd/gateway.toml.dpkg-dist || fail 'the new default is not beside the configuration'

# All programs have what they need, the gateway its drivers, too.
for program in ipoib-fwd ibfab softhca; do quietly "$program" --version; done
dpkg -L "${names[@]}" >/tmp/listed
for page in ipoib-fwd ipoib-fwd-ctl ipoib-fwd-gids ipoib-fwd-init ipoib-fwd-metrics ipoib-fwd-top ibfab softhca; do
    # A minimal root leaves documentation out; the package has it all the same.
    grep -qx "/usr/share/man/man1/$page.1.gz" /tmp/listed || fail "no manual page of $page"
done
for program in "${names[@]}"; do quietly bash -n "/usr/share/bash-completion/completions/$program"; done
forwards() { ipoib-fwd ctl links --json >/tmp/links 2>&1 && grep -q '"role": *"forwarding"' /tmp/links; }
ibfab --config /etc/ibfab/fabric.toml >/tmp/ibfab.log 2>&1 &
fabric=$!
cat >/tmp/gateway.toml <<'END'
[gateway]
address = "10.77.0.254/24"
[ethernet]
port = "net_null0"
[infiniband.soft]
ports = [{ link = "shm:/run/ibfab.sock" }]
END
ipoib-fwd -l 0-1 --no-pci --no-huge -m 256 --vdev net_null0 -- --config /tmp/gateway.toml >/tmp/gateway.log 2>&1 &
gateway=$!
for _ in $(seq 300); do
    ! forwards || break
    kill -0 "$gateway" || break
    sleep 0.2
done
forwards || fail "the gateway does not forward: $(tail -n 20 /tmp/gateway.log)"
kill "$gateway"
wait "$gateway" || fail 'the gateway did not end in order'
kill "$fabric"
wait "$fabric" || fail 'the fabric did not end in order'

# Back, and there again.
quietly apt-get -qq --yes --allow-downgrades -o Dpkg::Options::=--force-confold install /mnt/debs/previous/*.deb
installed /mnt/debs/previous
grep -qx '# mine' /etc/ipoib-fwd/gateway.toml || fail 'the way back took the configuration'
grep -q 'previous version' /etc/ipoib-fwd/gateway.env || fail 'the way back left a new default'
quietly apt-get -qq --yes -o Dpkg::Options::=--force-confold install /mnt/debs/*.deb
installed /mnt/debs
grep -qx '# mine' /etc/ipoib-fwd/gateway.toml || fail 'the upgrade took the configuration'

quietly dpkg --remove "${names[@]}"
[ ! -e /usr/bin/ipoib-fwd ] || fail 'the program is still there'
grep -qx '# mine' /etc/ipoib-fwd/gateway.toml || fail 'removing took the configuration'
quietly dpkg --purge "${names[@]}"
quietly apt-get -qq --yes autoremove --purge
files >/tmp/after
diff /tmp/before /tmp/after || fail 'something is left, or gone (above)'
