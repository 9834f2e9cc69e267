#!/bin/sh
# test_traces.sh: the answers of `tutti explain` on the traces in traces/, on new hangs, and on damaged
# files. Prints one `ok - ` or `not ok - ` line per check and fails if a check failed.
# runner: 40 s, waits
. "$(dirname "$0")/script.inc"
use_build
tutti=$build/bin/tutti

# The answer without the parts that differ from run to run.
plain() {
  sed 's/process [0-9]*/process P/g; s/to [0-9]* of the last [0-9]* coll/to N of the last N coll/
    s/[0-9.]* of [0-9.]* ms/T ms/; s/link from rank [0-3] to rank [0-3]/link/
    s/; rank [0-9]* called #[0-9]* at .*//; s/, for [0-9]* s when the files were taken//
    s/device [01] of rank [0-3]/device D of rank R/; s/takes [0-9.]* ms/takes T ms/'
}

for trace in "$root"/traces/*/ "$root"/traces/gpu/*/; do
  [ -e "$trace/expected" ] || continue
  name=${trace#"$root"/traces/} name=${name%/}
  "$tutti" explain "$trace"*.txt >"$work/log" 2>&1
  status=$?
  want=1
  case $name in fine) want=0 ;; esac
  diff "$trace/expected" "$work/log" >"$work/differences"
  same=$?
  cp "$work/differences" "$work/log"
  noted $((status != want)) "exit status $want, which was $status" && [ $same -eq 0 ]
  check $? "$name: $(head -n 1 "$trace/expected" | cut -c 1-100)"
  case $name in gpu/*) ;; *)
    sh "$here/../traces/make.sh" "$work/new" "$name" >"$work/log" 2>&1 &&
      head -n 1 "$work/new/$name/expected" | tee -a "$work/log" | plain >"$work/today" &&
      [ "$(cat "$work/today")" = "$(head -n 1 "$trace/expected" | plain)" ]
    check $? "$name: a new run gives the same answer"
    ;;
  esac
  for text in "$trace"*.txt; do
    "$tutti" trace pack "$text" "$work/packed" && "$tutti" trace dump "$work/packed" >"$work/again" &&
      cmp -s "$text" "$work/again" || echo "$text" >>"$work/differs"
  done
done
[ ! -e "$work/differs" ]
check $? 'packing and unpacking keeps the text of each trace'

# Records of a device that does not report which kernels have ended.
mkdir "$work/untold"
for name in absent count open_group fine; do
  sed 's/ counts=1//; s/ launched=[0-9]* started=[0-9]* ended=[0-9]*//; /^l[ai]n[ek] /d' \
    "$root/traces/$name/0.txt" >"$work/untold/$name"
  "$tutti" explain "$work/untold/$name" >"$work/untold/$name.said" 2>&1
done
grep -q '^rank 2 .* has not called operation #2 .*: its last call was #1$' "$work/untold/absent.said" &&
  grep -q '^rank 3 .* called AllReduce of 1000 float32, .* #2, where 3 others .*: another count$' \
    "$work/untold/count.said" &&
  grep -q '^rank 3 .* has called operation #2 and not launched it' "$work/untold/open_group.said" &&
  grep -q 'does not tell what of it has ended' "$work/untold/fine.said"
check $? 'call records alone show which rank did not call, called otherwise, or did not launch'

# The link is as slow, but the emulator has detected a deadlock: the hang is the verdict.
mkdir "$work/both"
for file in "$root"/traces/slow_link/*.txt; do
  sed '/^comm /s/ name="1"/& reason="deadlock: nothing can move any more" error=6/' "$file" \
    >"$work/both/${file##*/}"
done
"$tutti" explain "$work/both"/*.txt >"$work/log" 2>&1
grep -q 'failed: deadlock: nothing can move' "$work/log" && ! grep -q 'slow, not hung' "$work/log"
check $? 'a slow link is not the verdict where a deadlock was detected'

# Damage is reported, and the rest is used.
absent=$root/traces/absent/0.txt
"$tutti" trace pack "$absent" "$work/whole"
bytes=$(wc -c <"$work/whole")
"$tutti" explain "$work/whole" >"$work/log" 2>&1
[ $? -eq 1 ] && grep -q 'rank 2 .* has not called operation #2' "$work/log"
check $? 'a binary file is read'
head -c $((bytes - 100000)) "$work/whole" >"$work/cut"
"$tutti" explain "$work/cut" >"$work/log" 2>&1
[ $? -eq 1 ] && grep -q "cut: byte $((bytes - 100000)): the file ends here" "$work/log" &&
  grep -q '^rank 2 .* has not called operation #2' "$work/log"
check $? 'a truncated file is reported with the place, and the rest is used'
head -c 300 "$work/whole" >"$work/short"
echo 'no trace at all' >"$work/foreign"
"$tutti" explain "$work/short" "$work/foreign" "$work/nothing" >"$work/log" 2>&1
[ $? -eq 4 ] && grep -q 'foreign: the first 8 bytes are not "TUTTIREC"' "$work/log" &&
  grep -q 'nothing: cannot be read' "$work/log"
check $? 'files that cannot be read exit with status 4'
"$tutti" explain "$work/foreign" "$work/whole" >"$work/log" 2>&1
[ $? -eq 1 ] && grep -q '1 more files could not be read' "$work/log"
check $? 'readable files beside unreadable ones are used'
{ head -n 3 "$absent" && echo 'call @1 colour=red'; } >"$work/bad.txt"
"$tutti" trace pack "$work/bad.txt" "$work/never" >"$work/log" 2>&1
[ $? -eq 4 ] && grep -q 'bad.txt:4: "colour=red": a field of `call`' "$work/log" && [ ! -e "$work/never" ]
check $? 'malformed text is reported with its line'
[ "$failures" -eq 0 ]
