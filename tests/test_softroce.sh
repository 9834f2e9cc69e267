#!/bin/sh
# test_softroce.sh: real verbs without hardware: Debian's kernel in qemu with Soft-RoCE (softroce/), where
# several processes run over one device, over two devices joined by a wire, and in two guests: lost packets,
# a process that dies, links that go down, resources after operations. Prints one `ok - `, `not ok - ` or
# `skip: ` line per check and fails if a check failed. A single guest's clock counts its instructions, so
# that a busy machine misses no deadline; two guests use the machine's clock, because they need the same
# time. On one day two single guests run, on the next the pair (part.inc).
# runner: 110 s, waits
. "$(dirname "$0")/script.inc"
. "$here/part.inc"
use_build

export PATH="$PATH:/usr/sbin:/sbin"

leave() {
  echo "skip: Soft-RoCE: $*"
  exit 0
}

for tool in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static modprobe:kmod cpio:cpio xz:xz-utils \
  readelf:binutils rdma:iproute2; do
  command -v "${tool%%:*}" >/dev/null || leave "${tool##*:} is not installed"
done
ls /usr/lib/*/libibverbs/librxe-*.so >/dev/null 2>&1 || leave 'ibverbs-providers is not installed'
"$root/tests/softroce/guest.sh" "$build/softroce" >"$work/log" 2>&1 ||
  leave "no guest can be made: $(tail -n 1 "$work/log")"

# guest WIRES: the guest's check lines are in $work/WIRES.
guest() {
  (cd "$root" && tests/softroce/run.sh "$build/softroce" "$1" 900 tests/softroce/job.sh "$build" "$1") \
    >"$work/$1" 2>&1
}

tell() {
  grep -q '^ok - ' "$work/$1" || check 1 "$1: the guest runs"
  cat "$work/$1"
  failures=$((failures + $(grep -c '^not ok' "$work/$1")))
}

part_of 2
if in_part 0; then
  # Each of these guests' clocks counts its own instructions, so that they do not slow each other down.
  CLOCK=instructions guest one &
  CLOCK=instructions guest two
  wait $!
  tell one
  tell two
fi
if in_part 1; then
  mkdir "$work/wires"
  export WIRES=$work/wires
  guest far1 &
  guest far2
  wait $!
  tell far1
  tell far2
fi
[ "$failures" -eq 0 ]
