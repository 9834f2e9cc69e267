#!/bin/sh
# test_command.sh: what all verbs of the command share: help that fits the terminal, manual pages,
# completion in bash and zsh, suggestions for misspelt names, standard input instead of files, JSON, and
# examples in help that run as printed. Prints one `ok - ` or `not ok - ` line per check and fails if a
# check failed. Finds the command at ${BUILD:-build}/bin/tutti.
# runner: 100 s
. "$(dirname "$0")/script.inc"
use_build
verb=
. "$here/verb.inc"
unset COLUMNS
verbs=$("$tutti" help | sed -n 's/^  tutti \([a-z]*\) .*/\1/p' | sort -u)
[ "$(echo "$verbs" | wc -w)" -ge 12 ]
check $? "help lists the verbs"

# ---- help and manual pages

# fits WIDTH FILE: no line is wider, except for a single word.
fits() {
  awk -v width="$1" 'length > width && NF > 1 {print FILENAME ": " length ": " $0; bad = 1} END {exit bad}' \
    "$2" >"$work/log"
}
for each in $verbs; do
  good=0
  for width in 50 64 80 100; do
    COLUMNS=$width "$tutti" help "$each" >"$work/page" 2>"$work/log" && fits $width "$work/page" || good=1
  done
  [ $good -eq 0 ]
  check $? "help $each fits 50, 64, 80 and 100 columns"
  "$tutti" help "$each" >"$work/page" && fits 80 "$work/page" &&
    try 0 "$each" --help && cmp "$work/out" "$work/page" >"$work/log" &&
    try 0 "$each" -h && cmp "$work/out" "$work/page" >"$work/log"
  check $? "$each -h and $each --help print help $each, in 80 columns if there is no terminal"
  try 0 help --man "$each" && cmp "$work/out" "$build/share/man/man1/tutti-$each.1" >"$work/log"
  check $? "the manual page tutti-$each.1 is built and equals help --man $each"
done
COLUMNS=60 "$tutti" help >"$work/page" && fits 60 "$work/page" && try 0 --help && try 0 -h
check $? "help fits 60 columns"
try 0 help --man && cmp "$work/out" "$build/share/man/man1/tutti.1" >"$work/log"
check $? "the manual page tutti.1 is built"
if command -v groff >/dev/null; then
  good=0
  for page in "$build"/share/man/man1/tutti*.1; do
    groff -man -ww -Tutf8 "$page" 2>&1 >/dev/null | grep . && good=1
  done >"$work/log"
  [ $good -eq 0 ]
  check $? "groff formats all manual pages without a warning"
else
  echo "skip: manual pages in groff: groff is not installed"
fi
PYTHONPATH=$here python3 - "$tutti" >"$work/log" 2>&1 <<'PYTHON'
import sys, terminal
for columns in (56, 97):
    text = terminal.run([sys.argv[1], 'sim', '--help'], columns, stdout=None, stdin=None)
    widths = [len(line) for line in text.replace('\r', '').split('\n')]
    assert columns - 12 < max(widths) <= columns, (columns, max(widths))
PYTHON
check $? "help fits the width of the terminal"

# ---- completion

# completes LINE: bash's completions of the line, one word per line, in $work/out.
completes() {
  bash -c '. "$1"; shift
    COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _tutti; printf "%s\n" "${COMPREPLY[@]}"' bash "$build/share/bash-completion/completions/tutti" "$@" \
    >"$work/out" 2>"$work/log"
}
# offers WORD...: each word was offered.
offers() {
  for word; do
    grep -qxF -e "$word" "$work/out" || { echo "not offered: $word" >>"$work/log"; return 1; }
  done
}
for shell in bash zsh; do
  file=$build/share/bash-completion/completions/tutti
  [ $shell = bash ] || file=$build/share/zsh/site-functions/_tutti
  try 0 help --completion $shell && cmp "$work/out" "$file" >"$work/log"
  check $? "completion for $shell is built and equals help --completion $shell"
  if command -v $shell >/dev/null; then
    $shell -n "$file" >"$work/log" 2>&1
    check $? "$shell loads the completion"
  else
    echo "skip: completion is read by $shell: $shell is not installed"
  fi
done
for each in $verbs; do
  completes tutti "$each" -
  flags=$("$tutti" help "$each" |
    sed -n '/^flags:/,/^examples:/s/^  \(-.\)\{0,1\}[, ]*\(--[a-z0-9_-]*\).*/\1 \2/p')
  # shellcheck disable=SC2086
  offers $flags
  check $? "bash completes every flag that help $each lists"
  COLUMNS=110 "$tutti" help "$each" | sed -n '/^flags:/,/^examples:/s/^  .* --\([a-z0-9_-]*\).*/\1/p' |
    while read -r flag; do
      sed -n "/^    $each)/,/;;\$/p" "$build/share/zsh/site-functions/_tutti" | grep -qE -e "--$flag[}']" ||
        echo "no --$flag"
    done >"$work/log"
  [ ! -s "$work/log" ]
  check $? "zsh completes the same flags"
done
completes tutti '' && offers $verbs --version && completes tutti ch && [ "$(cat "$work/out")" = check ]
check $? "bash completes verbs"
completes tutti bench all_ && offers all_reduce all_gather && completes tutti sim --machine '' &&
  offers dgx-h100 pcie-box && completes tutti check --proto L && offers LL LL128 &&
  completes tutti trace export --to = p && offers perfetto prometheus && completes tutti trace '' &&
  offers dump diff && completes tutti explain plan '' && offers broadcast && completes tutti help t &&
  offers topo trace
check $? "bash completes collectives and flag values"
(cd "$work" && : >'a file.xml' && completes tutti topo --file 'a f' && offers 'a file.xml' &&
  completes tutti topo --nodes '' && ! offers 'a file.xml' && completes tutti launch -n 2 ech && offers echo)
check $? "bash completes file names and programs"

# ---- what is nearly right
misuse 2 'did you mean `status`?' statsu
misuse 2 'did you mean `--ranks`?' bench all_reduce --rnaks 2
misuse 2 'did you mean `--json`?' check all_reduce --jsno
misuse 2 'did you mean `export`?' trace exprot x
misuse 2 'did you mean `convert`?' goal covnert x
misuse 2 'did you mean `--help`?' topo --hepl
misuse 2 'did you mean `all_gather`?' check all_gathr
misuse 2 'did you mean `all_gather`?' sim all_gathr
misuse 2 'did you mean `all_gather`?' bench all_gathr
misuse 2 'did you mean `all_gather`?' explain plan all_gathr
misuse 2 'did you mean `all_gather`?' goal export all_gathr -o "$work/x"
misuse 2 'there are dgx-h100' topo --machine dgx-h10
misuse 2 '--json takes no value' topo --json=1
misuse 2 'must be bash or zsh' help --completion fish

# ---- standard input

# piped FILE ARGUMENTS...: standard input gives the same result as the file, which the arguments name as @.
piped() {
  file=$1
  shift
  from_file=$(printf '%s\n' "$@" | sed "s|^@\$|$file|")
  # shellcheck disable=SC2086
  (cd "$root" && "$tutti" $from_file) >"$work/named" 2>&1
  # shellcheck disable=SC2046
  (cd "$root" && cat "$file" | "$tutti" $(printf '%s\n' "$@" | sed 's|^@$|-|')) >"$work/log" 2>&1
  status=$?
  [ -s "$work/log" ] && [ $status -le 1 ] &&
    sed "s#$file#INPUT#g; s#$(basename "$file")#INPUT#g" "$work/named" >"$work/expected" &&
    sed 's#/dev/stdin#INPUT#g; s#\<stdin\>#INPUT#; s# -:# INPUT:#' "$work/log" |
    diff "$work/expected" - >"$work/diff"
  status=$?
  cat "$work/diff" >>"$work/log"
  check $status "reads standard input for -: tutti $*"
}
"$tutti" topo --dump "$work/node.xml" >/dev/null
"$tutti" goal export all_reduce -g 4 -o "$work/a.bin" >"$work/log"
"$tutti" goal export all_reduce -g 4 -o "$work/a.goal" >"$work/log"
"$tutti" trace pack "$root/traces/absent/0.txt" "$work/a.trace" >"$work/log"
"$tutti" bench all_reduce --ranks 2 -b 1K -e 1K --trace "$work/run.tr" >"$work/log"
printf 'all_reduce 8 64M nodes=1 ranks=8 algo=Tree proto=LL\n' >"$work/a.tune"
printf 'gpus 4\nnodes 2\n' >"$work/cluster"
piped examples/schedules/ring4.txt check --plan @
piped examples/schedules/ring4.txt sim --plan @ -b 1M -e 1M
piped examples/workloads/step.txt sim --workload @ --nodes 2
piped "$work/cluster" sim all_reduce -b 1M -e 1M --cluster @
piped "$work/node.xml" sim all_reduce -b 1M -e 1M --file @
piped "$work/node.xml" topo --json --file @
piped "$work/a.tune" explain plan all_reduce --tune-file @
piped "$work/a.bin" goal sim @
piped "$work/a.goal" goal sim @
piped traces/fine/0.txt explain @
piped "$work/a.trace" explain @
piped "$work/a.trace" trace dump @
piped "$work/run.tr" trace dump @
piped "$work/a.trace" trace diff traces/count/0.txt @
piped "$work/a.trace" trace export --to perfetto @
piped traces/absent/0.txt replay @
misuse 2 'has no name' trace archive -
"$tutti" goal export all_reduce -g 4 -o - 2>"$work/log" | cmp -s - "$work/a.goal" &&
  grep -q '^-: 4 ranks' "$work/log"
check $? "goal export writes to standard output for -o -"
misuse 2 'are a file a rank' goal export all_reduce -g 4 --to chakra -o -

# ---- progress

# progresses PATTERN NUMBERS ARGUMENTS...: the command shows its progress on standard error if that is a
# terminal, and removes it at the end. It runs with each of the numbers in place of NUMBER, each of which
# makes it take longer, until it shows something, which it does after a second. Where standard error is no
# terminal, it prints nothing.
progresses() {
  pattern=$1
  numbers=$2
  shift 2
  PYTHONPATH=$here python3 - "$pattern" "$numbers" "$tutti" "$@" >"$work/log" 2>&1 <<'PYTHON'
import re, subprocess, sys, terminal
pattern, numbers, command = sys.argv[1], sys.argv[2].split(), sys.argv[3:]
for number in numbers:
    arguments = [number if word == 'NUMBER' else word for word in command]
    text = terminal.run(arguments, stdout=subprocess.DEVNULL, stderr=None)
    print(text.replace('\r\033[K', '\n'))
    if re.search(pattern, text):
        break
assert re.search(pattern, text) and text.endswith('\r\033[K'), repr(text)
quiet = subprocess.run(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
assert quiet.returncode == 0 and quiet.stderr == b'', quiet
PYTHON
}
progresses 'tutti check: all plans of 2 to [0-9]+ ranks: [0-9.]+ %, [0-9]+ s to go' \
  '2-13 2-15 2-17 2-19 2-22' check --all --ranks NUMBER
check $? "check --all shows its progress on a terminal"
progresses 'tutti bench: all_reduce: [0-9.]+ %, [0-9]+ s to go' '1 3 9 27 81' \
  bench all_reduce --ranks 8 -b 8M -e 8M -c NUMBER
check $? "a long bench shows its progress on a terminal"

# ---- JSON

# holds EXPRESSION ARGUMENTS...: the output is JSON, and the Python expression holds for it.
holds() {
  expression=$1
  shift
  (cd "$root" && "$tutti" "$@") 2>"$work/log" >"$work/out"
  python3 -c "import json, sys; j = json.load(sys.stdin); assert $expression, j" <"$work/out" 2>>"$work/log"
  check $? "--json prints the expected JSON: tutti $*"
}
holds 'j["proved"] and j["plans"] > 1000 and "failure" not in j' check --all --ranks 2-4 --json
holds 'j["missed"] == 0 and len(j["mutants"]) > 50 and j["mutants"][0]["algorithms"]' check --mutants --json
holds 'j["proved"] and j["channels"] > 0' check all_reduce --ranks 4 --json
holds 'j["min_slots"] == 2' check --plan examples/schedules/ring4.txt --min-slots --json
holds 'any(p["name"] == "NCCL_BUFFSIZE" and p["default"] > 0 for p in j)' help params --json
holds 'j[0]["file"].endswith("0.txt") and sum(r["kind"] == "call" for r in j[0]["rows"]) > 2' \
  trace dump --json traces/absent/0.txt
holds 'len(j) == 2 and j[0]["rows"][0]["turn"] == 1' trace dump --json "$work/run.tr" traces/fine/0.txt
holds 'not j["same"] and "record" in j["what"] and j["a"]["line"]' \
  trace diff --json traces/count/0.txt traces/absent/0.txt
holds 'j == {"same": True}' trace diff --json traces/fine/0.txt traces/fine/0.txt
holds 'j["kind"] == "not arrived"' explain --json traces/absent/0.txt
holds 'len(j["paths"]) > 0' topo --json
holds 'j' sim all_reduce -b 1M -e 1M --json
holds 'j' bench all_reduce --ranks 2 -b 1K -e 1K --json
holds 'j' doctor --json
holds 'j' replay --json traces/absent/0.txt
holds 'j' explain plan all_reduce --json

# ---- examples

# examples_of VERB WIDTH: the example lines, with lines that end in a backslash joined.
examples_of() {
  COLUMNS=$2 "$tutti" help "$1" | sed -n '/^examples:/,/^exit codes:/s/^  //p' | sed '/^[0-4]  /d' |
    sed -e ':more' -e '/\\$/{N;s/ *\\\n */ /;b more' -e '}'
}
# Runs the examples of each verb in order, in a writable copy of the source tree. A comment above an example
# says what it needs that a test does not have.
for each in $verbs; do
  place=$work/$each
  mkdir "$place" && ln -s "$root/examples" "$root/traces" "$place" && ln -s "$build" "$place/build"
  examples_of "$each" 80 >"$work/$each.all" &&
    examples_of "$each" 110 | cmp - "$work/$each.all" >"$work/log" &&
    [ "$(grep -vc '^#' "$work/$each.all")" -ge 3 ]
  check $? "help $each has examples, the same at any width"
  awk '/^# needs/ {skip = 1; next} skip {print "echo skip >&3"; skip = 0; next}
    {print; print "echo $? >&3"}' "$work/$each.all" >"$work/$each.sh"
  (cd "$place" && PATH=$build/bin:$PATH timeout 500 sh "$work/$each.sh" >"$work/$each.out" 2>&1 \
    3>"$work/$each.statuses" </dev/null)
  grep -v '^#' "$work/$each.all" >"$work/$each.commands"
  while read -r line <&4; do
    read -r status <&5 || status=none
    cp "$work/$each.out" "$work/log"
    case $status in
      skip) echo "skip: example, as it needs more than a test has: $line" ;;
      *) case $status in 0 | 1) status=0 ;; *) status=1 ;; esac
        check $status "the example runs: $line" ;;
    esac
  done 4<"$work/$each.commands" 5<"$work/$each.statuses"
done

# ---- limits of work, for files of strangers
printf 'ranks 4096\nrepeat 4000\nall_reduce 1G\nend\n' >"$work/large"
try 3 sim -w "$work/large" --nodes 512 --gpus 8 --limit 1s && says 'stopped after 1 s of processor time'
check $? "--limit 1s ends a simulation that needs more"
try 3 check --all --ranks 2-64 --limit 1s,2G && says 'the input needs more work than --limit allows'
check $? "--limit 1s,2G ends a proof that needs more"
try 3 sim -w "$work/large" --nodes 512 --gpus 8 --limit 100M &&
  says 'it may take 0.1 GiB of memory, by --limit'
check $? "--limit 100M ends a simulation that needs more, and says so"
for limit in 0s 1 1x 1s, 1s,,2G s -1s 99999999999s; do
  try 2 check all_reduce --limit $limit && says 'must be processor time, as 60s' || break
done
check $? "--limit that is neither a time nor a size prints the usage"
try 0 check all_reduce --ranks 2 --count 4 --limit 60s,2G
check $? "a limit that suffices changes nothing"
[ "$failures" -eq 0 ]
