# shellcheck shell=bash
# In a bare root with the packages in /mnt/debs, the next revision in /mnt/debs/next: they are installed, run, upgraded, removed and purged.
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
version() { dpkg-query --show --showformat '${db:Status-Abbrev}${Version}\n' "$1"; }

quietly apt-get update -qq
files >/tmp/before

# As people do it: dpkg leaves what is missing to apt.
dpkg -i /mnt/debs/*.deb >/tmp/dpkg 2>&1 || true
quietly apt-get -qq --yes -f install --no-install-recommends
for name in "${names[@]}"; do
    case $(version "$name") in 'ii '*-1) ;; *) cat /tmp/dpkg /tmp/said >&2 && fail "$name is not installed: $(version "$name")" ;; esac
done

# All programs have what they need, the gateway its drivers, too.
for program in ipoib-fwd ibfab softhca; do quietly "$program" --version; done
for page in ipoib-fwd ipoib-fwd-ctl ipoib-fwd-gids ipoib-fwd-init ipoib-fwd-metrics ipoib-fwd-top ibfab softhca; do
    # A minimal root leaves documentation out; the package has it all the same.
    dpkg -L ipoib-fwd ibfab softhca | grep -qx "/usr/share/man/man1/$page.1.gz" || fail "no manual page of $page"
done
for program in "${names[@]}"; do quietly bash -n "/usr/share/bash-completion/completions/$program"; done
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
    ! ipoib-fwd ctl links --json 2>/dev/null | grep -q '"role": *"forwarding"' || break
    kill -0 "$gateway" || break
    sleep 0.2
done
ipoib-fwd ctl links --json | grep -q '"role": *"forwarding"' || fail "the gateway does not forward: $(tail -n 20 /tmp/gateway.log)"
kill "$gateway"
wait "$gateway" || fail 'the gateway did not end in order'
kill "$fabric"
wait "$fabric" || fail 'the fabric did not end in order'

# An upgrade keeps what the operator wrote, without a question.
echo '# mine' >>/etc/ipoib-fwd/gateway.toml
quietly dpkg -i /mnt/debs/next/*.deb
for name in "${names[@]}"; do
    case $(version "$name") in 'ii '*-2) ;; *) fail "$name is not upgraded: $(version "$name")" ;; esac
done
grep -qx '# mine' /etc/ipoib-fwd/gateway.toml || fail 'the upgrade took the configuration'
# And back.
quietly dpkg -i /mnt/debs/*.deb
grep -qx '# mine' /etc/ipoib-fwd/gateway.toml || fail 'the downgrade took the configuration'

quietly dpkg --remove "${names[@]}"
[ ! -e /usr/bin/ipoib-fwd ] || fail 'the program is still there'
grep -qx '# mine' /etc/ipoib-fwd/gateway.toml || fail 'removing took the configuration'
quietly dpkg --purge "${names[@]}"
quietly apt-get -qq --yes autoremove --purge
files >/tmp/after
diff /tmp/before /tmp/after || fail 'something is left, or gone (above)'
