#!/bin/sh
# test_device_code.sh: what nvcc makes of lib/kernels/*.cu for the GPUs of a release, without a GPU: code for
# each of them and PTX for newer ones, no register spilled anywhere, registers enough for each kernel's block,
# and a size that can be shipped. The commands are the build's own, asked from scons; objects go elsewhere.
# What the build has made for one of the GPUs already, of the sources as they are, is looked at where it is.
# Prints one `ok - `, `not ok - ` or `skip: ` line a check and fails when one did. About half a minute a file.
# runner: 250 s
. "$(dirname "$0")/script.inc"
use_build
gpus="80 90 100"
usual=90 # what builds have code for
bytes_max=17825792

# was_made SOURCE: the build has code for the usual GPU from it, and what ptxas said, and nothing has changed.
was_made() {
  object="$build/obj/lib/kernels/$(basename "$1").o"
  grep -qs "for 'sm_$usual'" "${object%.o}.said" && [ -e "$object" ] &&
    [ -z "$(cd "$root" && find SConstruct lib/kernels lib/protocol lib/schedule lib/backends/cuda lib/base \
      -type f ! -name '*.c' ! -name '*.md' -newer "$object")" ]
}

# compile NUMBER COMMAND: runs the build's command with an output of our own; keeps PTX and what ptxas says.
compile() {
  mkdir -p "$work/$1"
  echo "$2" | sed "s#-o [^ ]* >.*#-o $work/$1.o --keep --keep-dir $work/$1#" >"$work/command"
  (cd "$here/.." && sh "$work/command") >"$work/$1.ptxas" 2>&1
  status=$?
  grep -v '^ptxas info\|bytes stack frame' "$work/$1.ptxas" >"$work/log"
  [ -z "$made" ] || cat "$object_made.said" >>"$work/$1.ptxas"
  return $status
}

# What a fat binary holds, a line each, with bytes: `sm_90 1234` or `compute_100 5678`. The section is a row
# of containers (magic, version, header's and contents' bytes), each a row of entries (kind 1 PTX, 2 machine
# code).
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
        name = {1: 'compute_', 2: 'sm_'}[kind]
        print('%s%d %d' % (name, struct.unpack_from('<I', data, at + 28)[0], entry_bytes + code_bytes))
        at += entry_bytes + code_bytes
PYTHON

# contents OBJECT
contents() {
  objcopy -O binary --only-section=.nv_fatbin --set-section-flags .nv_fatbin=alloc "$1" "$work/fat" &&
    python3 "$work/contents.py" "$work/fat"
}

# holds NUMBER: machine code for each GPU, and PTX of the newest.
holds() {
  contents "$work/$1.o" >"$work/$1.contents" 2>"$work/log" || return 1
  [ -z "$made" ] || contents "$object_made.o" 2>>"$work/log" | grep "^sm_$usual " >>"$work/$1.contents"
  cp "$work/$1.contents" "$work/log"
  for gpu in $gpus; do grep -q "^sm_$gpu " "$work/log" || return 1; done
  grep -q "^compute_${gpus##* } " "$work/log"
}

# keeps NUMBER: no function spills; those that do, most first.
keeps_registers() {
  awk '/Compiling entry function/ { gsub(/\x27/, ""); gpu = $NF }
    /Function properties for/ { name = $NF; seen++ }
    /bytes spill stores/ && $5 + $9 > 0 { print $5 + $9 " bytes of spills in " name " for " gpu }
    END { if (!seen) print "ptxas told of no function" }' "$work/$1.ptxas" | sort -u | sort -rn >"$work/names"
  if command -v c++filt >/dev/null; then c++filt <"$work/names"; else cat "$work/names"; fi >"$work/spills"
  head -n 12 "$work/spills" >"$work/log"
  [ "$(wc -l <"$work/spills")" -gt 12 ] && echo "... $(wc -l <"$work/spills") functions in all" >>"$work/log"
  [ ! -s "$work/spills" ]
}

# fits NUMBER: a block of as many threads as the kernel declares has registers enough; the log has them all.
fits() {
  awk '/^ *(\.visible |\.weak )?\.entry / { name = $0; sub(/.*\.entry */, "", name); sub(/[( ].*/, "", name) }
    /^ *\.maxntid/ && name != "" { gsub(/,/, " "); print "threads", name, $2 * ($3 ? $3 : 1) * ($4 ? $4 : 1)
      name = "" }' "$work/$1"/*.ptx | sort -u >"$work/threads"
  awk '$1 == "threads" { threads[$2] = $3; next }
    /Compiling entry function/ { gsub(/\x27/, ""); name = $(NF - 2); gpu = $NF }
    /Used [0-9]+ registers/ && name != "" {
      for (i = 1; i < NF; i++) if ($i == "Used") registers = $(i + 1)
      if (!(name in threads)) print "bad: " name " has no __launch_bounds__"
      else if (registers * threads[name] > 65536)
        print "bad: " name " for " gpu ": " registers " registers, " threads[name] " threads"
      else print name " for " gpu ": " registers " registers, " threads[name] " threads"
      name = "" }' "$work/threads" "$work/$1.ptxas" | sort >"$work/log"
  [ -s "$work/log" ] && ! grep -q '^bad: ' "$work/log"
}

if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ] && [ ! -x /opt/cuda/bin/nvcc ]; then
  echo "skip: the device code: nvcc is not installed"
  exit 0
fi
made=yes
for source in "$root"/lib/kernels/*.cu; do was_made "$source" || made=; done
# These commands differ from any build's, so that scons prints them all: either the usual GPU is not among
# them, or they are not in order. Newer GPUs than the last run its PTX.
if [ -n "$made" ]; then asked="80,100"; else asked="$usual,80,100"; fi
(cd "$root" && scons -Q -n GPUS="$asked" device) >"$work/dry" 2>"$work/log"
grep 'nvcc .* -c [^ ]*\.cu -o ' "$work/dry" >"$work/commands"
found=$(find "$here/../lib/kernels" -name '*.cu' | wc -l)
[ "$found" -gt 0 ] && [ "$(wc -l <"$work/commands")" -eq "$found" ]
check $? "scons knows how to compile each of lib/kernels/*.cu ($found)"

number=0
while read -r command; do
  number=$((number + 1))
  source=$(echo "$command" | sed 's/.* -c \([^ ]*\) -o .*/\1/')
  object_made="$build/obj/lib/kernels/$(basename "$source")"
  compile $number "$command"
  status=$?
  check $status "$source compiles for GPUs $gpus${made:+ ($usual: by the build)}"
  [ $status -eq 0 ] || continue
  holds $number
  check $? "$source: code for each, and PTX for newer ones"
  keeps_registers $number
  check $? "$source: no function spills registers"
  fits $number
  check $? "$source: registers enough for the blocks: $(awk '{ print $(NF - 3) * $(NF - 1) }' "$work/log" |
    sort -n | tail -n 1) of 65536"
done <"$work/commands"

bytes=$(cat "$work"/*.contents 2>/dev/null | awk '{ sum += $2 } END { print sum + 0 }')
echo "$bytes bytes" >"$work/log"
[ "$bytes" -gt 0 ] && [ "$bytes" -lt $bytes_max ]
check $? "all device code: $((bytes / 1048576)) MiB, less than $((bytes_max / 1048576))"

[ "$failures" -eq 0 ]
