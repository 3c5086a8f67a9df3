# shellcheck shell=bash
# In a bare root with the packages in /mnt/debs, an older version of them in /mnt/debs/previous: that is installed, they are, run, taken back, removed
# and purged.
set -Eeuo pipefail
programs=(ipoib-fwd ibfab softhca)
names=("${programs[@]}" ipoib-fwd-doc)
# Each part is told when it is over.
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
    "$@" >/tmp/said 2>&1 || {
        tail -n 30 /tmp/said
        fail "$*"
    }
}
# What there is: links with their targets, files with their checksums, but for what apt and dpkg note and keep of everybody, and for earlier lists of
# users and groups. Of those lists not whom packages leave in them: ours its user and group, libibverbs1 the group rdma, udev four.
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

begin 'the previous version is installed'
# As people do it: dpkg leaves what is missing to apt.
dpkg -i /mnt/debs/previous/*.deb >/tmp/dpkg 2>&1 || true
quietly apt-get -qq --yes -f install --no-install-recommends
installed /mnt/debs/previous

begin 'the configuration has a key of its own, which only root and the group of the service read'
configuration=/etc/ipoib-fwd/gateway.toml
key() { sed -n 's/^pair-key = "\([0-9a-f]\{32\}\)"$/\1/p' $configuration; }
if [ -e /usr/share/ipoib-fwd/gateway.toml ]; then
    first=$(key)
    [ ${#first} = 32 ] || fail "no key, or several: $(cat $configuration)"
    [ "$(stat --format '%U:%G %a' $configuration)" = 'root:ipoib-fwd 640' ] || fail "$(stat $configuration)"
    # What another machine's first installation would do.
    mv $configuration /tmp/first.toml
    quietly /var/lib/dpkg/info/ipoib-fwd.postinst configure ''
    [ "$(key | wc -c)" = 33 ] || fail "no key, or several: $(cat $configuration)"
    [ "$(key)" != "$first" ] || fail 'two installations have the same key'
    diff <(grep -v '^pair-key' /tmp/first.toml) <(grep -v '^pair-key' $configuration) || fail 'they differ in more (above)'
    # A configuration that is already there stays.
    mv /tmp/first.toml $configuration
    quietly /var/lib/dpkg/info/ipoib-fwd.postinst configure ''
    [ "$(key)" = "$first" ] || fail 'a configuration that is there is replaced'
    # The group does not count as others.
    ipoib-fwd --check --config $configuration >/tmp/checked 2>&1 || true
    ! grep -q pair-key-readable /tmp/checked || fail "$(cat /tmp/checked)"
else
    # Of a version that had one configuration for all: an upgrade makes no key.
    [ -z "$(key)" ] || fail 'the package has a key'
fi

begin 'upgraded, with what the operator wrote'
# An upgrade never touches gateway.toml. Of other files it keeps what the operator wrote, takes new defaults where nothing was, and asks only
# where both is so: then one is kept by order.
echo '# mine' | tee -a /etc/ipoib-fwd/gateway.env >>$configuration
cp --preserve=all $configuration /tmp/mine.toml
# untouched WHAT: content, owner and mode are those before.
untouched() {
    cmp $configuration /tmp/mine.toml || fail "$1 took the configuration"
    [ "$(stat --format '%u:%g %a %Y' $configuration)" = "$(stat --format '%u:%g %a %Y' /tmp/mine.toml)" ] || fail "$1 changed $(stat $configuration)"
}
! dpkg -i /mnt/debs/ipoib-fwd_*.deb </dev/null >/tmp/said 2>&1 || fail 'nobody was asked which configuration it shall be'
grep -q 'gateway.env' /tmp/said || fail "dpkg has asked something else: $(cat /tmp/said)"
quietly dpkg --force-confold -i /mnt/debs/*.deb
installed /mnt/debs
untouched 'the upgrade'
grep -qx '# mine' /etc/ipoib-fwd/gateway.env || fail 'the upgrade took what the operator wrote'
! grep -q 'previous version' /etc/ibfab/fabric.toml || fail 'the upgrade left an old default'
! grep -q 'previous version' /etc/ipoib-fwd/gateway.env.dpkg-dist || fail 'the new default is not in a file of its own'

begin 'programs, manual, its pages, completions and documentation are there'
for program in "${programs[@]}"; do quietly "$program" --version; done
dpkg -L "${names[@]}" >/tmp/listed
for page in ipoib-fwd ipoib-fwd-ctl ipoib-fwd-gids ipoib-fwd-init ipoib-fwd-metrics ipoib-fwd-top ibfab softhca; do
    # A minimal root leaves documentation out; the package has it all the same.
    grep -qx "/usr/share/man/man1/$page.1.gz" /tmp/listed || fail "no manual page of $page"
done
for page in docs/manual/README.md docs/operations.md gidcache/html/gidcache/index.html gidcache/examples/interface-gids.rs; do
    grep -qx "/usr/share/doc/ipoib-fwd-doc/$page" /tmp/listed || fail "no $page"
done
for program in "${programs[@]}"; do quietly bash -n "/usr/share/bash-completion/completions/$program"; done
begin 'the user and group that it makes, once'
[ "$(id --name --user ipoib-fwd) $(id --name --groups ipoib-fwd)" = 'ipoib-fwd ipoib-fwd' ] || fail "$(id ipoib-fwd)"
[ "$(id --user ipoib-fwd)" -lt 1000 ] || fail "$(id ipoib-fwd)"
begin 'a user and group of that name that there are already stay, and what is missing is made'
# unknown: no user and group of that name is there any more.
unknown() {
    quietly userdel ipoib-fwd
    ! getent group ipoib-fwd >/dev/null || groupdel ipoib-fwd
}
again() { quietly dpkg --force-confold -i /mnt/debs/ipoib-fwd_*.deb; }
# whose WANTED: as it is to be then, and there is a group.
whose() {
    installed /mnt/debs
    [ "$(id --user ipoib-fwd):$(id --name --groups ipoib-fwd)" = "$1" ] || fail "$1 has become $(id ipoib-fwd)"
    getent group ipoib-fwd >/dev/null || fail "no group beside $1"
}
# Somebody of flesh and blood, in a group of his own and in one of many.
unknown
useradd --uid 1077 --no-create-home --no-log-init --user-group ipoib-fwd
again
whose 1077:ipoib-fwd
unknown
useradd --uid 1077 --no-create-home --no-log-init --gid users ipoib-fwd
again
whose 1077:users
# As adduser --system makes one that is not told of a group.
unknown
useradd --uid 877 --no-create-home --no-log-init --system --gid nogroup ipoib-fwd
again
whose 877:nogroup
# A group alone, with a member.
unknown
groupadd ipoib-fwd
gpasswd --add backup ipoib-fwd >/dev/null
again
whose "$(id --user ipoib-fwd):ipoib-fwd"
[ "$(id --user ipoib-fwd)" -lt 1000 ] || fail "$(id ipoib-fwd)"
id --name --groups backup | grep -qw ipoib-fwd || fail 'the group has lost its member'
unknown
again
whose "$(id --user ipoib-fwd):ipoib-fwd"

begin 'fabric and gateway run and end'
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

begin 'back to the previous version, and there again'
quietly apt-get -qq --yes --allow-downgrades -o Dpkg::Options::=--force-confold install /mnt/debs/previous/*.deb
installed /mnt/debs/previous
untouched 'the way back'
grep -q 'previous version' /etc/ibfab/fabric.toml || fail 'the way back left a new default'
quietly apt-get -qq --yes -o Dpkg::Options::=--force-confold install /mnt/debs/*.deb
installed /mnt/debs
untouched 'the upgrade'

begin 'removed, with the configuration kept'
quietly dpkg --remove "${names[@]}"
[ ! -e /usr/bin/ipoib-fwd ] || fail 'the program is still there'
untouched 'removing'
begin 'purged, with nothing left'
quietly dpkg --purge "${names[@]}"
quietly apt-get -qq --yes autoremove --purge
files >/tmp/after
diff /tmp/before /tmp/after || fail 'something is left, or gone (above)'
begin ''
