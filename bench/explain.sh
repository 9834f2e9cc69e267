#!/usr/bin/env bash
# explain.sh: the time of `tutti explain` for 1,024 ranks that made 10,000 calls each, for the slowest kinds
# of faults: with rings of 4,096 records, the recorder's size, and of 32,768, which hold all of the calls.
# Appends commands and raw output to bench/results/explain-<date>.txt. Needs a finished build in
# ${BUILD:-build}, and 1.2 GB in $TMPDIR.
. "$(dirname "$0")/bench.inc"
ranks=${RANKS:-1024}

compile explain
for ring in 4096 32768; do
  for kind in well absent pending waits slow; do
    mkdir "$work/files"
    "$work/explain" "$work/files" "$ranks" 10000 "$ring" "$kind"
    for _ in 1 2 3; do
      $quiet /usr/bin/time -o "$work/took" -f '%e s, %U s user, %S s system, %M KiB' "$build/bin/tutti" explain "$work"/files/*.trace \
        >"$work/said" || true # 1: something is wrong, as it should
      took=$(tail -n 1 "$work/took")
      say "$ranks ranks, ring of $ring, $kind: $took: $(head -n 1 "$work/said" | cut -c 1-150)"
    done
    rm -r "$work/files"
  done
done
