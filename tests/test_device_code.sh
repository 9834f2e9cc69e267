#!/bin/sh
# test_device_code.sh: checks nvcc's output for lib/kernels/*.cu without a GPU: machine code for each GPU of
# the default build and PTX for newer ones in libtutti-cuda.so, no spilled registers, enough registers for
# each kernel's block, and the total size of the libraries. Reads what the build left; a build for other
# GPUs (GPUS=) is checked for those, and each GPU left out gets a skip line. Prints one `ok - `, `not ok - `
# or `skip: ` line per check and fails if a check failed.
# runner: 60 s
. "$(dirname "$0")/script.inc"
use_build
wanted="80 90 100 120"
wanted_ptx="80 90 100"
bytes_max=24000000
said=$build/obj/lib/kernels
cuda=$build/lib/libtutti-cuda.so

# skip WHY: skips the remaining checks.
skip() {
  echo "skip: the device code: $1"
  exit "$([ "$failures" -eq 0 ]; echo $?)"
}

# Lists the contents of a library's fat binaries, one line per image: `sm_90` or `compute_100`. The section
# is a sequence of containers (magic, version, size of header and contents), each a sequence of images (kind
# 1 PTX, 2 machine code).
cat >"$work/contents.py" <<'PYTHON'
import struct
import sys
data = open(sys.argv[1], 'rb').read()
at = 0
while at + 16 <= len(data):
    magic, _, header_bytes, contents_bytes = struct.unpack_from('<IHHQ', data, at)
    if magic != 0xba55ed50:
        at += 8
        continue
    at += header_bytes
    end = at + contents_bytes
    while at + 32 <= end:
        kind, _, entry_bytes, code_bytes = struct.unpack_from('<HHIQ', data, at)
        print({1: 'compute_', 2: 'sm_'}[kind] + str(struct.unpack_from('<I', data, at + 28)[0]))
        at += entry_bytes + code_bytes
PYTHON

contents() {
  objcopy -O binary --only-section=.nv_fatbin --set-section-flags .nv_fatbin=alloc "$1" "$work/fat" &&
    python3 "$work/contents.py" "$work/fat"
}

# holds NAME: each source has an image of that name.
holds() {
  [ "$(grep -cx "$1" "$work/contents")" -eq "$sources" ]
}

# keeps_registers GPU: no function spills; on failure the log lists those that do, most spills first. The
# kernel for sums of two ranks may spill some in its issue warp: it was measured with more, and is faster so
# than with fewer vectors in flight.
keeps_registers() {
  cat "$said"/*.cu.said | awk -v gpu="sm_$1" '
    /Compiling entry function/ { gsub(/\x27/, ""); mine = $NF == gpu }
    mine && /Function properties for/ { name = $NF; seen++; most = name ~ /_direct_pair$/ ? 450 : 0 }
    mine && /bytes spill stores/ && $5 + $9 > most { print $5 + $9 " bytes of spills in " name }
    END { if (!seen) print "ptxas told of no function" }' | sort -rn >"$work/log"
  [ ! -s "$work/log" ]
}

# The number of threads of each kernel's block, `threads NAME NUMBER`, from the preprocessor's output.
cat >"$work/threads.py" <<'PYTHON'
import re
import sys
text = re.sub(r'^#.*', '', sys.stdin.read(), flags=re.MULTILINE)
PATTERN = r'launch_bounds\w*\(((?:[0-9*\s]|\([0-9*\s]*\))+)(?:,\s*1)?\)[)\s]*(\w+)\('
for product, name in re.findall(PATTERN, text):
    print('threads', name, eval(product.replace('\n', ' ')))
PYTHON

threads() {
  for source in "$root"/lib/kernels/*.cu; do
    "$nvcc" -E -x cu -I"$root/lib" -I"$root/lib/kernels" "$source" || return 1
  done | python3 "$work/threads.py"
}

# fits: the registers are enough for every block; the log lists all of them.
fits() {
  cat "$work/threads" "$said"/*.cu.said | awk '
    $1 == "threads" { threads[$2] = $3; next }
    /Compiling entry function/ { gsub(/\x27/, ""); name = $(NF - 2); gpu = $NF }
    /Used [0-9]+ registers/ && name != "" {
      for (i = 1; i < NF; i++) if ($i == "Used") registers = $(i + 1)
      if (!(name in threads)) print "bad: " name " has no __launch_bounds__"
      else print (registers * threads[name] > 65536 ? "bad: " : "") name " for " gpu ": " registers \
        " registers, " threads[name] " threads"
      name = "" }' | sort >"$work/log"
  [ -s "$work/log" ] && ! grep -q '^bad: ' "$work/log"
}

# ---- the size of all libraries
bytes=0
for library in "$build"/lib/*.so; do
  strip -o "$work/stripped" "$library" && bytes=$((bytes + $(wc -c <"$work/stripped")))
done 2>"$work/log"
[ "$bytes" -gt 0 ] && [ "$bytes" -lt $bytes_max ] && [ ! -s "$work/log" ]
check $? "all libraries, stripped, take $bytes bytes, less than $bytes_max"

# ---- the device code
nvcc=$(PATH=$PATH:/usr/local/cuda/bin:/opt/cuda/bin command -v nvcc) || skip "nvcc is not installed"
[ -e "$cuda" ] || skip "this build has none; \`scons device\` makes it"
# Another build without nvcc may have replaced it since.
newer=$(cd "$root" && find lib/kernels lib/protocol lib/schedule lib/backends/cuda lib/base -name '*.[chu]*' \
  ! -name '*.c' -newer "$cuda" | head -n 1)
[ -z "$newer" ] || skip "$newer is newer than libtutti-cuda.so; \`scons device\` makes it anew"
sources=$(find "$root/lib/kernels" -name '*.cu' | wc -l)
contents "$cuda" >"$work/contents" 2>"$work/log"
check $? "libtutti-cuda.so can be read: $(sort "$work/contents" | uniq -c | tr -s ' \n' ' ')"
for gpu in $wanted; do
  if ! grep -qx "sm_$gpu" "$work/contents"; then
    echo "skip: sm_$gpu: this build has no code for it (GPUS=); \`scons device\` makes it"
    continue
  fi
  holds "sm_$gpu"
  check $? "sm_$gpu: machine code from all $sources sources"
  keeps_registers "$gpu"
  check $? "sm_$gpu: no function spills registers"
done
for gpu in $wanted_ptx; do
  grep -qx "sm_$gpu" "$work/contents" || continue
  holds "compute_$gpu"
  check $? "compute_$gpu: PTX from all $sources sources"
done
threads >"$work/threads" 2>"$work/log" && fits
check $? "registers enough for the blocks: $(awk '{ print $(NF - 3) * $(NF - 1) }' "$work/log" |
  sort -n | tail -n 1) of 65536"

[ "$failures" -eq 0 ]
