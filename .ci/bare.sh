#!/usr/bin/env bash
# README's two commands on a machine that has nothing: a new Debian bookworm with python3, make and git only, made by
# debootstrap in a folder, gets a clone of the last commit and runs `make demo` and `make test` there. Needs root.
# usage: .ci/bare.sh FOLDER [make arguments]      FOLDER is kept; a second run begins with the same system.
set -euo pipefail
top="$(cd "$(dirname "$0")/.." && pwd)"
root="$(realpath -m "$1")"
shift
[ -e "$root/usr/bin/git" ] || debootstrap --variant=minbase --include=python3,make,git,ca-certificates bookworm "$root"

# The network of this machine: names, certificates, the settings of pip and apt.
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
for file in /etc/pip.conf /etc/apt/apt.conf.d/*; do
    [ ! -e "$file" ] || case "$file" in *docker* | *packagekit* | *appstream* | *autoremove*) ;; *) cp "$file" "$root$file" ;; esac
done
rm -rf "$root/root/mqfast"
git clone --quiet "$top" "$root/root/mqfast"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
trap 'umount -l "$root/dev" "$root/proc"' EXIT
inside() { env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM="${TERM:-dumb}" LANG=C.UTF-8 $(env | grep '^PIP_CERT=' || true) \
    chroot "$root" /bin/bash -c "cd /root/mqfast && $*"; }
inside "time make demo ${*@Q}"
inside "time make test ${*@Q}"
