#!/bin/sh
# Build CPython in a root of Debian 11, whose glibc is 2.31: what is built needs nothing newer where it runs. Run there by
# interpreter.py, as root, with the sources in /build; leaves /build/python-ARCH.tar, whose one folder is python/.
#
#   build_python.sh x86_64 [aarch64]      aarch64 is cross compiled, by the interpreter built before it
set -eu
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
here=/build

build() {
    arch=$1
    src=$here/src-$arch
    mkdir "$src"
    tar xf $here/python3.13_*.orig.tar.xz --strip-components=1 -C "$src"
    tar xf $here/python3.13_*.debian.tar.xz -C "$src"
    cd "$src"
    # Debian's patches that correct CPython; the others are about where Debian puts things.
    grep -E '^(dict-use-after-free|traverse-managed-dicts|ssl-|CVE-)' debian/patches/series | while read -r name _; do
        patch --quiet -p1 <"debian/patches/$name"
    done
    strip=strip
    set --
    if [ "$arch" = aarch64 ]; then
        strip=aarch64-linux-gnu-strip
        # What configure cannot try out when it builds for another machine; both hold on Linux.
        set -- --host=aarch64-linux-gnu --build=x86_64-linux-gnu \
            --with-build-python=$here/python-x86_64/python/bin/python3.13 \
            ac_cv_file__dev_ptmx=yes ac_cv_file__dev_ptc=no ac_cv_buggy_getaddrinfo=no
    fi
    # All modules, libffi and zlib are linked into the one executable. What egmctl never imports is not built: no
    # databases, terminals and windows, and no OpenSSL (hashes are CPython's own). The last is not tried out:
    # to a build at the lowest priority nice() seems broken.
    ./configure --quiet --prefix=/python --disable-shared --without-ensurepip --disable-test-modules \
        --without-readline --with-openssl=/none "$@" MODULE_BUILDTYPE=static \
        CFLAGS="-g0 -O2 -ffile-prefix-map=$src=." \
        LIBFFI_CFLAGS=" " LIBFFI_LIBS="/usr/lib/$arch-linux-gnu/libffi.a" \
        ZLIB_CFLAGS=" " ZLIB_LIBS="/usr/lib/$arch-linux-gnu/libz.a" \
        py_cv_module__bz2=n/a py_cv_module__lzma=n/a py_cv_module__sqlite3=n/a py_cv_module__curses=n/a \
        py_cv_module__curses_panel=n/a py_cv_module__tkinter=n/a py_cv_module__gdbm=n/a py_cv_module__dbm=n/a \
        py_cv_module__uuid=n/a py_cv_module_nis=n/a py_cv_module_readline=n/a \
        ac_cv_broken_nice=no
    make -s -j"$(nproc)"
    make -s install DESTDIR="$here/python-$arch"
    cd "$here/python-$arch/python"
    "$strip" --strip-all bin/python3.13
    mkdir licenses
    cp "$src/LICENSE" licenses/CPython
    cp "/usr/share/doc/libffi-dev/copyright" licenses/libffi
    cp "/usr/share/doc/zlib1g-dev/copyright" licenses/zlib
    dpkg-query -W -f '${source:Package} ${source:Version}\n' libffi-dev zlib1g-dev | sort -u >licenses/versions
    rm -r include lib/pkgconfig lib/libpython*.a lib/python3.13/config-* lib/python3.13/idlelib lib/python3.13/tkinter \
        lib/python3.13/turtledemo lib/python3.13/turtle.py lib/python3.13/ensurepip lib/python3.13/pydoc_data \
        lib/python3.13/sqlite3 lib/python3.13/curses lib/python3.13/dbm share
    find bin ! -name python3.13 ! -type d -delete
    find . -name __pycache__ -prune -exec rm -r {} +
    cd "$here/python-$arch"
    tar cf "$here/python-$arch.tar" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" python
    rm -rf "$src"
}

for arch; do
    build "$arch" >"$here/$arch.log" 2>&1 || {
        echo "CPython for $arch did not build; the end of its log:" >&2
        tail -n 30 "$here/$arch.log" >&2
        exit 1
    }
done
