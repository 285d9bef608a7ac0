#!/bin/sh
# Download Debian 13's source package of CPython into /build of a root of Debian 11, and build it there (build_python.sh).
#
#   fetch_python.sh VERSION ARCH...      /build/SHA256SUMS has the sums of its files
set -eu
version=$1; shift
# The sources are checked against their sums, so the signature of their list does not matter.
sed -nE 's/^deb (\[[^]]*\] )?([^ ]+) .*/deb-src [trusted=yes] \2 trixie main/p' /etc/apt/sources.list |
    head -n 1 >/etc/apt/sources.list.d/trixie.list
apt-get update -qq
cd /build
apt-get source -qq --download-only "python3.13=$version"
sha256sum --check --quiet SHA256SUMS
apt-get clean
sh build_python.sh "$@"
