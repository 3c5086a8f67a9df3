# shellcheck shell=bash
# Runs in a bare root with the packages in /mnt/debs and an older version in /mnt/debs/previous. Installs the
# older version, upgrades, runs, downgrades, removes and purges.
set -Eeuo pipefail
programs=(ipoib-fwd ibfab softhca)
names=("${programs[@]}" ipoib-fwd-doc)
# Each part is reported when it has finished.
part='lists of packages' since=$SECONDS
begin() {
    printf 'package: ok      %s (%s s)\n' "$part" "$((SECONDS - since))"
    part=$1 since=$SECONDS
}
fail() {
    trap - ERR
    printf 'package: failed  %s: %s\n' "$part" "$*"
    exit 1
}
trap 'fail "line $LINENO"' ERR
quietly() {
    "$@" >/tmp/output 2>&1 || {
        tail -n 30 /tmp/output
        fail "$*"
    }
}
# files: prints all links with their targets and all files with their checksums, without the state of apt and
# dpkg and without backups of the lists of users and groups. Leaves out entries that packages leave in these
# lists: our user and group, rdma of libibverbs1, and four of udev.
files() {
    local lists=(/etc/passwd /etc/shadow /etc/group /etc/gshadow) list
    local but=(\( -path /tmp -o -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /mnt -o -path /var/cache -o -path /var/log
        -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path '/etc/*-') own=()
    for list in "${lists[@]}"; do
        but+=(-o -path "$list")
        own+=("$(grep -vE '^(ipoib-fwd|rdma|input|kvm|render|sgx):' "$list" | sed "s|^|line  $list |" | sort)")
    done
    {
        printf '%s\n' "${own[@]}"
        find / -xdev "${but[@]}" \) -prune -o -type f -exec sha256sum {} +
        find / -xdev "${but[@]}" \) -prune -o -type l -printf 'link  %p -> %l\n'
    } | sort --key 2
}
# installed PATH: fails unless exactly the packages of this directory are installed.
installed() {
    local deb
    for deb in "$1"/*.deb; do
        local name version
        name=$(dpkg-deb --field "$deb" Package) version=$(dpkg-deb --field "$deb" Version)
        [ "$(dpkg-query --show --showformat '${db:Status-Abbrev}${Version}' "$name")" = "ii $version" ] || fail "$name $version is not installed: $(cat /tmp/output)"
        # The previous version has an additional file.
        case $1 in
            */previous) [ -e "/usr/share/$name.previous" ] || fail "a file of $name $version is missing" ;;
            *) [ ! -e "/usr/share/$name.previous" ] || fail "a file of the previous $name still exists" ;;
        esac
    done
}

quietly apt-get update -qq
files >/tmp/before

begin 'the previous version is installed'
# The usual steps: apt installs the missing dependencies of dpkg.
dpkg -i /mnt/debs/previous/*.deb >/tmp/dpkg 2>&1 || true
quietly apt-get -qq --yes -f install --no-install-recommends
installed /mnt/debs/previous

begin 'the configuration has a new key, which only root and the group of the service can read'
configuration=/etc/ipoib-fwd/gateway.toml
key() { sed -n 's/^pair-key = "\([0-9a-f]\{32\}\)"$/\1/p' $configuration; }
if [ -e /usr/share/ipoib-fwd/gateway.toml ]; then
    first=$(key)
    [ ${#first} = 32 ] || fail "no key, or several: $(cat $configuration)"
    [ "$(stat --format '%U:%G %a' $configuration)" = 'root:ipoib-fwd 640' ] || fail "$(stat $configuration)"
    # As the first installation on another machine.
    mv $configuration /tmp/first.toml
    quietly /var/lib/dpkg/info/ipoib-fwd.postinst configure ''
    [ "$(key | wc -c)" = 33 ] || fail "no key, or several: $(cat $configuration)"
    [ "$(key)" != "$first" ] || fail 'two installations have the same key'
    diff <(grep -v '^pair-key' /tmp/first.toml) <(grep -v '^pair-key' $configuration) || fail 'the configurations differ in more than the key (above)'
    # An existing configuration is kept.
    mv /tmp/first.toml $configuration
    quietly /var/lib/dpkg/info/ipoib-fwd.postinst configure ''
    [ "$(key)" = "$first" ] || fail 'an existing configuration was replaced'
    # The group is not a warning of --check.
    ipoib-fwd --check --config $configuration >/tmp/checked 2>&1 || true
    ! grep -q pair-key-readable /tmp/checked || fail "$(cat /tmp/checked)"
else
    # An older version with a common configuration: an upgrade creates no key.
    [ -z "$(key)" ] || fail 'the package has a key'
fi

begin 'upgrade with changes of the operator'
# An upgrade never changes gateway.toml. It keeps changed files, replaces unchanged ones by new defaults, and
# prompts only if a file has changes and new defaults; --force-confold then keeps it.
echo '# mine' | tee -a /etc/ipoib-fwd/gateway.env >>$configuration
cp --preserve=all $configuration /tmp/mine.toml
# untouched WHAT: fails if content, owner or mode have changed.
untouched() {
    cmp $configuration /tmp/mine.toml || fail "$1 changed the configuration"
    [ "$(stat --format '%u:%g %a %Y' $configuration)" = "$(stat --format '%u:%g %a %Y' /tmp/mine.toml)" ] || fail "$1 changed $(stat $configuration)"
}
! dpkg -i /mnt/debs/ipoib-fwd_*.deb </dev/null >/tmp/output 2>&1 || fail 'dpkg did not prompt for the configuration'
grep -q 'gateway.env' /tmp/output || fail "dpkg prompted for something else: $(cat /tmp/output)"
quietly dpkg --force-confold -i /mnt/debs/*.deb
installed /mnt/debs
untouched 'the upgrade'
grep -qx '# mine' /etc/ipoib-fwd/gateway.env || fail 'the upgrade discarded a change of the operator'
! grep -q 'previous version' /etc/ibfab/fabric.toml || fail 'the upgrade left an old default'
! grep -q 'previous version' /etc/ipoib-fwd/gateway.env.dpkg-dist || fail 'the new default is not in a separate file'

begin 'programs, manual, manual pages, completions and documentation exist'
for program in "${programs[@]}"; do quietly "$program" --version; done
dpkg -L "${names[@]}" >/tmp/listed
for page in ipoib-fwd ipoib-fwd-ctl ipoib-fwd-gids ipoib-fwd-init ipoib-fwd-metrics ipoib-fwd-top ibfab softhca; do
    # A minimal root omits documentation, but the package lists it.
    grep -qx "/usr/share/man/man1/$page.1.gz" /tmp/listed || fail "no manual page of $page"
done
for page in docs/manual/README.md docs/operations.md gidcache/html/gidcache/index.html gidcache/examples/interface-gids.rs; do
    grep -qx "/usr/share/doc/ipoib-fwd-doc/$page" /tmp/listed || fail "no $page"
done
for program in "${programs[@]}"; do quietly bash -n "/usr/share/bash-completion/completions/$program"; done
begin 'the package creates its user and group'
[ "$(id --name --user ipoib-fwd) $(id --name --groups ipoib-fwd)" = 'ipoib-fwd ipoib-fwd' ] || fail "$(id ipoib-fwd)"
[ "$(id --user ipoib-fwd)" -lt 1000 ] || fail "$(id ipoib-fwd)"
begin 'an existing user or group of this name is kept, and the missing one is created'
# unknown: removes the user and the group.
unknown() {
    quietly userdel ipoib-fwd
    ! getent group ipoib-fwd >/dev/null || groupdel ipoib-fwd
}
again() { quietly dpkg --force-confold -i /mnt/debs/ipoib-fwd_*.deb; }
# owned WANTED: fails unless the user has this ID and this group, and the group exists.
owned() {
    installed /mnt/debs
    [ "$(id --user ipoib-fwd):$(id --name --groups ipoib-fwd)" = "$1" ] || fail "$1 has become $(id ipoib-fwd)"
    getent group ipoib-fwd >/dev/null || fail "no group with $1"
}
# An ordinary user, with its own group and with a common one.
unknown
useradd --uid 1077 --no-create-home --no-log-init --user-group ipoib-fwd
again
owned 1077:ipoib-fwd
unknown
useradd --uid 1077 --no-create-home --no-log-init --gid users ipoib-fwd
again
owned 1077:users
# A user of adduser --system without a group option.
unknown
useradd --uid 877 --no-create-home --no-log-init --system --gid nogroup ipoib-fwd
again
owned 877:nogroup
# Only a group, with a member.
unknown
groupadd ipoib-fwd
gpasswd --add backup ipoib-fwd >/dev/null
again
owned "$(id --user ipoib-fwd):ipoib-fwd"
[ "$(id --user ipoib-fwd)" -lt 1000 ] || fail "$(id ipoib-fwd)"
id --name --groups backup | grep -qw ipoib-fwd || fail 'the group has lost its member'
unknown
again
owned "$(id --user ipoib-fwd):ipoib-fwd"

begin 'fabric and gateway run and exit'
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
wait "$gateway" || fail 'the gateway did not exit in order'
kill "$fabric"
wait "$fabric" || fail 'the fabric did not exit in order'

begin 'downgrade to the previous version, and upgrade again'
quietly apt-get -qq --yes --allow-downgrades -o Dpkg::Options::=--force-confold install /mnt/debs/previous/*.deb
installed /mnt/debs/previous
untouched 'the downgrade'
grep -q 'previous version' /etc/ibfab/fabric.toml || fail 'the downgrade left a new default'
quietly apt-get -qq --yes -o Dpkg::Options::=--force-confold install /mnt/debs/*.deb
installed /mnt/debs
untouched 'the upgrade'

begin 'removed, with the configuration kept'
quietly dpkg --remove "${names[@]}"
[ ! -e /usr/bin/ipoib-fwd ] || fail 'the program still exists'
untouched 'the removal'
begin 'purged, with nothing left'
quietly dpkg --purge "${names[@]}"
quietly apt-get -qq --yes autoremove --purge
files >/tmp/after
diff /tmp/before /tmp/after || fail 'files are left over or missing (above)'
begin ''
