#!/bin/bash
# guest.sh FOLDER: builds a guest with real verbs and no hardware: Debian's kernel, downloaded and unpacked,
# not installed, and a small initramfs with the modules of Soft-RoCE. The guest's root is this machine's file
# system, read-only, so nothing else needs copying. Built once, and again if these scripts are newer.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"
if [ -f ready ] && [ ! "$here/init.sh" -nt ready ] && [ ! "$here/guest.sh" -nt ready ]; then exit 0; fi
if ! ls kernel/boot/vmlinuz-* >/dev/null 2>&1; then
  # The cloud kernel has no rdma_rxe.
  package=$(apt-cache depends linux-image-amd64 | awk '/Depends:/{print $2; exit}')
  [ -n "$package" ] || { echo "apt knows no kernel: apt-get update" >&2; exit 1; }
  mkdir -p package
  (cd package && apt-get download -qq "$package" >/dev/null 2>&1)
  dpkg -x package/"$package"_*.deb kernel
  rm -rf package
fi
version=$(find kernel/lib/modules -mindepth 1 -maxdepth 1 -printf '%f\n' | head -n 1)
[ -f "kernel/lib/modules/$version/modules.dep.bin" ] || depmod -b kernel "$version"
# A kernel that is already unpacked starts three seconds faster.
packed=kernel/boot/vmlinuz-$version
at=$(LC_ALL=C grep -abom1 -P "\xFD7zXZ\x00" "$packed" | head -n 1 | cut -d: -f1)
tail -c +$((at + 1)) "$packed" | xz -dc --single-stream >vmlinux 2>/dev/null || true
readelf -h vmlinux >/dev/null
rm -rf tree
mkdir -p tree/bin tree/lib/modules tree/proc tree/sys tree/dev tree/host
cp "$(command -v busybox)" tree/bin/busybox
for applet in sh mount mkdir insmod cat cut chroot poweroff sync echo; do ln -s busybox tree/bin/$applet; done
# rxe requests crc32 by name: without crc32_generic no link can be added.
for module in crc32_generic crc32c_generic libcrc32c rdma_rxe rdma_ucm virtio_pci virtio_net 9p 9pnet_virtio \
  veth dummy sch_netem; do
  modprobe -d kernel -S "$version" --show-depends "$module" | awk '/^insmod/{print $2}' |
  while read -r file; do
    name=$(basename "$file")
    grep -qx "$name" tree/lib/modules/order 2>/dev/null && continue
    cp "$file" tree/lib/modules/
    echo "$name" >>tree/lib/modules/order
  done
done
install -m 755 "$here/init.sh" tree/init
(cd tree && find . -print0 | cpio --null -o -H newc --quiet) >initrd.cpio
touch ready
