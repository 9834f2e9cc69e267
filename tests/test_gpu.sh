#!/bin/sh
# test_gpu.sh: runs the programs of tests/gpu, which are written for GPUs, on the emulator in both modes.
# This checks the programs themselves, and that the emulator's order of launches, aborts and mismatches is
# what they expect of a GPU. On a GPU machine run `for program in build/gpu/*; do $program; done`. Prints
# one `ok - ` or `not ok - ` line per check and fails if a check failed. Finds the library at
# ${BUILD:-build}.
. "$(dirname "$0")/script.inc"
use_build

# good COMMAND...: exits with 0 within a minute, and the last line ends with `ok`.
good() {
  timeout 60 "$@" >"$work/log" 2>&1 </dev/null && tail -n 1 "$work/log" | grep -q ': ok$'
}

for source in "$here"/gpu/*.c; do
  name=$(basename "$source" .c)
  program="$work/$name"
  # The emulated runtime has no driver API: its names are those of tests/simt.
  driver=
  case $name in vmm | puts) driver="-I$here/simt/include" ;; esac
  # Word splitting is wanted: each is a list of flags.
  # shellcheck disable=SC2046
  cc -Wall -Wextra -Werror -o "$program" "$source" $driver $(pkg-config --cflags --libs tutti-emu) \
    -I"$root/lib" -lpthread >"$work/log" 2>&1
  check $? "gpu/$name builds for the emulator"
  [ -x "$program" ] || continue
  TUTTI_EMU=devices=4 good "$program"
  check $? "gpu/$name runs in guarded mode"
  TUTTI_EMU=devices=3,mode=threads good "$program"
  check $? "gpu/$name runs in threads mode"
done
TUTTI_EMU=devices=4,mode=threads,ends=2 good "$work/processes"
check $? 'gpu/processes asks for both ends of a connection, as on GPUs'
for seed in 1 2 3 4 5; do
  TUTTI_SEED=$seed TUTTI_EMU=devices=3,slots=2,chunk=64,channels=3,depth=2,lag=50 \
    good "$work/graphs" 4 "$seed"
  check $? "gpu/graphs runs with small buffers, script $seed"
done

[ "$failures" -eq 0 ]
