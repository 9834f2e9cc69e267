#!/bin/sh
# test_goal.sh: `tutti goal`: end times of small schedules under known costs, both kinds of files, the
# library's own schedules, deadlocks, and errors of bad files. Prints one `ok - ` or `not ok - ` line per
# check and fails if a check failed.
. "$(dirname "$0")/script.inc"
use_build
tutti="$build/bin/tutti"

# says STATUS TEXT ARGUMENTS...: `tutti goal` with these arguments exits with STATUS and prints TEXT.
says() {
  status=$1 text=$2
  shift 2
  timeout 60 "$tutti" goal "$@" >"$work/log" 2>&1
  [ $? -eq "$status" ] && grep -qF -- "$text" "$work/log"
}

# A ring all-reduce of N ranks in steps of 1,024 bytes, each step with its own tag.
ring() {
  awk -v n="$1" 'BEGIN {
    print "num_ranks " n
    for (r = 0; r < n; r++) {
      print "rank " r " {"
      for (k = 0; k < 2 * (n - 1); k++) {
        printf "s%d: send 1024b to %d tag %d\n", k, (r + 1) % n, k
        printf "r%d: recv 1024b from %d tag %d\n", k, (r + n - 1) % n, k
        if (k > 0) printf "s%d requires r%d\n", k, k - 1
      }
      print "}"
    }
  }'
}

# ---- end times
cat >"$work/two.goal" <<'END'
num_ranks 2 // two ranks

rank 0 {
  s1: send 100b to 1 tag 1
  send 200b to 1 tag 2 /* waits for
  the NIC */
  c1: calc 500
}
rank 1 {
  recv 100b from 0 tag 1
  recv 200b from -1 tag -1 }
END
says 0 "rank 0: 3500 ns" sim "$work/two.goal" && grep -qF "rank 1: 8788 ns" "$work/log"
check $? "two messages end at the times computed by hand: CPU, NIC, gap"
says 0 "rank 1: 4888 ns" sim --loggops L=100,o=1000,g=200,O=3,G=6 "$work/two.goal"
check $? "other costs change the end times"
cat >"$work/late.goal" <<'END'
num_ranks 2
rank 0 {
s: send 1000b to 1
c: calc 700
c requires s
}
rank 1 {
c0: calc 20000
r: recv 1000b from 0
r requires c0
}
END
says 0 "rank 0: 20700 ns" sim --loggops S=999 "$work/late.goal" &&
  says 0 "rank 0: 2200 ns" sim "$work/late.goal"
check $? "above S a send ends when its receive is posted"
ring 16 >"$work/ring.goal"
says 0 "finished after 349140 ns" sim "$work/ring.goal"
check $? "a ring of 16 ranks takes 30 steps of 11,638 ns"
if command -v python3 >/dev/null; then
  "$tutti" goal sim --json "$work/ring.goal" | python3 -c '
import json, sys
ends = json.load(sys.stdin)
assert ends["rank_ns"] == [349140] * 16 and ends["events"] == 3 * 16 * 30 and ends["messages"] == 480
' >"$work/log" 2>&1
  check $? "--json prints the end times"
else
  echo "skip: JSON: python3 is not installed"
fi

# ---- files
"$tutti" goal convert "$work/ring.goal" -o "$work/ring.bin" &&
  "$tutti" goal convert "$work/ring.bin" -o "$work/again.goal" &&
  "$tutti" goal convert "$work/again.goal" -o "$work/again.bin" >"$work/log" 2>&1 &&
  cmp "$work/ring.bin" "$work/again.bin" &&
  says 0 "finished after 349140 ns" sim "$work/ring.bin"
check $? "text to binary to text to binary gives the same bytes"
"$tutti" goal convert "$work/two.goal" -o "$work/two.bin" &&
  [ "$(od -An -v -tx1 -N 46 "$work/two.bin" | tr -d ' \n')" = \
    7f100000000000000200000000002600000000000000af00000000000000af000000000000000d01000000000000 ]
check $? "the header of a binary file is right"
head -c 200 "$work/two.bin" >"$work/two.cut"
says 4 "two.cut: byte 30: rank 1 lies from 175 to 269 behind the magic number; the file has 192 bytes" \
  sim "$work/two.cut"
check $? "a truncated binary file is refused"
says 2 "must be text, binary or chakra" convert --to words "$work/two.goal" -o "$work/x"
check $? "an unknown format is refused"
says 3 "No such file" convert "$work/two.goal" -o /no/such/folder/x
check $? "an output path that does not exist is refused"

# ---- the library's own schedules
says 0 "4 ranks, 48 operations, 24 messages, 6144 bytes" export all_reduce --algo ring --proto LL -b 1K -g 4 \
  -o "$work/own.goal" && says 0 "finished after" sim "$work/own.goal"
check $? "a ring of 4 ranks has 3 + 3 steps of a quarter of the data"
for option in "all_reduce --algo tree" "all_reduce --algo nvlstree" "all_gather --algo pat" \
  "reduce_scatter --algo pat" \
  "all_reduce --algo collnetchain" alltoall "gather --root 3" "broadcast --root 5"; do
  # shellcheck disable=SC2086
  says 0 "16 ranks" export $option --nodes 2 --channels 3 -b 300K --reduce-ns 20 --copy-ns 10 \
    -o "$work/own.bin" &&
    says 0 "finished after" sim "$work/own.bin"
  check $? "$option on two nodes: every message is received, and the schedule ends"
done
says 2 "no collective" export all_reduced -o "$work/x" && says 2 "-o FILE" export all_reduce &&
  says 2 "at most 65536 ranks" export all_reduce --nodes 4096 -g 4096 -o "$work/x" &&
  says 2 "Tree is for all-reduce alone" export all_gather --algo tree -o "$work/x"
check $? "contradictory exports are refused"

# ---- Chakra traces
says 0 "8 ranks" export all_reduce --algo ring --proto LL -b 8K -g 8 --reduce-ns 1000 -o "$work/eight.goal" &&
  "$tutti" goal convert "$work/eight.goal" --to chakra -o "$work/eight" >"$work/log" 2>&1 &&
  says 0 "finished after" sim "$work/eight.goal" &&
  end=$(tail -n 1 "$work/log") && says 0 "$end" sim "$work"/eight.*.et
check $? "a schedule exported as Chakra traces and read back ends at the same times"
# A rank's messages to itself: two of one tag match in order, the third waits for a message of rank 1.
cat >"$work/self.goal" <<'END'
num_ranks 2
rank 0 {
l1: calc 5000
l2: send 64b to 0 tag 7
l3: recv 64b from 0 tag 7
l4: send 64b to 0 tag 7
l5: recv 64b from 0 tag 7
l6: recv 8b from 1 tag 1
l7: send 64b to 0 tag 9
l8: recv 64b from 0 tag 9
l9: calc 3000
l2 requires l1
l7 requires l6
l9 requires l8
l9 requires l3
}
rank 1 {
l1: calc 9000
l2: send 8b to 0 tag 1
l2 requires l1
}
END
"$tutti" goal convert "$work/self.goal" --to chakra -o "$work/self" >"$work/log" 2>&1 &&
  says 0 "finished after 12507 ns" sim --loggops L=500,o=0,g=0,O=0,G=1,S=0 "$work"/self.?.et &&
  grep -q "11 operations, 1 messages, 8 bytes" "$work/log"
check $? "messages of a rank to itself become dependencies"
if command -v python3 >/dev/null; then
  python3 - "$work/eight.3.et" >"$work/log" 2>&1 <<'END'
import sys
data = open(sys.argv[1], 'rb').read()

def number(at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at

def fields(at, end):
    while at < end:
        key, at = number(at)
        value, at = number(at)
        if key & 7 == 2:
            value, at = data[at:at + value], at + value
        yield key >> 3, value

at, messages = 0, []
while at < len(data):
    size, at = number(at)
    messages.append(list(fields(at, at + size)))
    at += size
assert messages.pop(0) == [(1, b'0.0.4')]
kinds = [dict(node)[3] for node in messages]
deps = sum(field == 5 for node in messages for field, _ in node)
assert kinds.count(5) == kinds.count(6) == 14 and kinds.count(4) == 7 and deps == 20, (kinds, deps)
END
  check $? "another protobuf reader reads the traces"
else
  echo "skip: its protobuf: python3 is not installed"
fi
head -c 50 "$work/eight.0.et" >"$work/cut.0.et"
says 4 "cut.0.et: the message at byte 8 is cut off" sim "$work/cut.0.et" &&
  says 4 "1 files are expected to end in .0.et" sim "$work/eight.3.et" &&
  says 4 "names a rank of which there is no file" sim "$work"/eight.0.et
check $? "traces that are truncated or lack a rank are refused"
says 2 "only Chakra traces" sim "$work/ring.goal" "$work/two.goal" &&
  says 3 "have no word for" convert "$work/two.goal" --to chakra -o "$work/two"
check $? "several GOAL files with receives from any rank end"

# collective FILE TYPE BYTES: a trace of one node, a collective, encoded as protobuf.
collective() {
  python3 - "$@" <<'END'
import sys
path, kind, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def number(value):
    return bytes([value & 127 | 128]) + number(value >> 7) if value > 127 else bytes([value])

def inner(field, content):
    return number(field << 3 | 2) + number(len(content)) + content

def attribute(name, value):
    return inner(10, inner(1, name) + number(9 << 3) + number(value))

attributes = attribute(b'comm_type', kind) + attribute(b'comm_size', size)
node = b'\x08\x05' + inner(2, b'coll') + b'\x18\x07' + attributes
messages = [inner(1, b'0.0.4'), node, b'\x08\x06\x18\x04\x38\x07' + inner(5, b'\x05')] # and 7 us behind it
open(path, 'wb').write(b''.join(number(len(message)) + message for message in messages))
END
}
if command -v python3 >/dev/null; then
  # as_our_own NAME NUMBER SIZE CALL: NUMBER and SIZE are Chakra's for all ranks' CALL of 64 KiB.
  as_our_own() {
    for rank in 0 1 2 3; do collective "$work/$1.$rank.et" "$2" "$3"; done
    "$tutti" goal export "$4" --algo ring --proto LL -b 64K -g 4 -o "$work/$1.goal" >"$work/log" &&
      says 0 "finished after" sim "$work/$1.goal" &&
      end=$(sed -n 's/^finished after \([0-9]*\) ns.*/\1/p' "$work/log") &&
      says 0 "finished after $((end + 7000)) ns" sim --algo ring --proto LL "$work/$1".?.et
  }
  as_our_own coll 0 65536 all_reduce
  check $? "a collective becomes the library's own messages, and its successors wait for them"
  as_our_own each 2 16384 all_gather
  check $? "the size of an all-gather is each rank's size"
  collective "$work/coll.2.et" 2 65536
  says 4 "coll.2.et: node 5 \`coll\` is collective 0 of its rank, of type 2 and 65536 bytes" \
    sim "$work"/coll.?.et
  check $? "a rank that calls another collective is reported"
else
  echo "skip: collectives: python3 is not installed"
fi

# ---- schedules that do not end
# deadlocks TEXT: the schedule on standard input exits with 1 and prints TEXT.
deadlocks() {
  cat >"$work/deadlocks.goal"
  says 1 "$1" sim "$work/deadlocks.goal"
}
deadlocks "rank 1, line 5: recv 8b from 0 tag 2: nobody sends it" <<'END' &&
num_ranks 2
rank 0 {
send 8b to 1 tag 1 }
rank 1 {
recv 8b from 0 tag 2 }
END
  grep -qF "rank 0, line 3: send 8b to 1 tag 1: nobody receives it" "$work/log"
check $? "a send and a receive that do not match deadlock"
deadlocks "1 of 1 operations never end: 1 receives that nobody sends to" <<'END'
num_ranks 1
rank 0 {
recv 8b from -1 tag -1
}
END
check $? "a receive from any rank without a sender deadlocks"
deadlocks "sent: rank 0, line 3: send 8b to 1; rank 1, line 6: recv 9b from 0" <<'END'
num_ranks 2
rank 0 {
send 8b to 1
}
rank 1 {
recv 9b from 0
}
END
check $? "a receive of another size deadlocks"
deadlocks "4 of 4 operations never end: 4 wait for each other in a cycle" <<'END' &&
num_ranks 2
rank 0 {
r: recv 8b from 1
s: send 8b to 1
s requires r
}
rank 1 {
r: recv 8b from 0
s: send 8b to 0
s requires r
}
END
  grep -qF "rank 0, line 3: recv 8b from 1 waits for rank 1, line 9: send 8b to 0" "$work/log" &&
  grep -qF "rank 1, line 9: send 8b to 0 waits for rank 1, line 8: recv 8b from 0" "$work/log"
check $? "two ranks that both receive first deadlock"
deadlocks "2 wait for each other in a cycle" <<'END'
num_ranks 1
rank 0 {
a: calc 1
b: calc 1
a requires b
b irequires a
}
END
check $? "computations that wait for each other deadlock"
deadlocks "rank 0, line 3: send 9b to 1: nobody receives it" <<'END'
num_ranks 2
rank 0 {
send 9b to 1 }
rank 1 {
}
END
check $? "a message that nobody receives is reported"

# ---- bad files
# bad TEXT: the schedule on standard input is refused with TEXT.
bad() {
  cat >"$work/bad.goal"
  says 4 "$1" sim "$work/bad.goal"
}
printf 'ranks 4' | bad 'bad.goal:1: expected `num_ranks`, found `ranks 4`'
check $? "a file without a header is refused"
printf 'num_ranks 1099511627776' | bad 'expected a number of ranks from 0 to 1048576, found `1099511627776`'
check $? "2^40 ranks are refused"
printf 'num_ranks 2\nrank 0 {\nsend 8 to 1\n}' | bad 'bad.goal:3: expected `b` behind the number of bytes'
check $? "a size without b is refused"
printf 'num_ranks 2\nrank 0 {\nsend 8b to 2\n}' | bad 'bad.goal:3: expected a rank from 0 to 1, found `2`'
check $? "a rank that is too high is refused"
printf 'num_ranks 2\nrank 0 {\nsend 8b to 1 tg 4\n}' |
  bad 'expected `tag`, `cpu`, `nic` or the end of the line, found `tg 4`'
check $? "an unknown option is refused"
printf 'num_ranks 1\nrank 0 {\na: calc 4\na requires b\n}' |
  bad 'bad.goal:4: no operation above is named `b`'
check $? "a label that does not exist is refused"
printf 'num_ranks 1\nrank 0 {\na: calc 4\na: calc 4\n}' |
  bad 'bad.goal:4: `a` is the name of an operation above'
check $? "a label that exists twice is refused"
printf 'num_ranks 1\nrank 0 {\ncalc 4' | bad 'bad.goal:2: rank 0 begins here and has no `}`'
check $? "a file without its end is refused"
printf 'num_ranks 2\nrank 0 {\n}\n' | bad 'the file ends without `rank 1 {`'
check $? "a missing rank is refused"
printf 'num_ranks 1\n/* rank 0 {\n}\n' | bad 'bad.goal:2: the comment that begins here has no `*/`'
check $? "a comment without an end is refused"
says 4 "No such file" sim /no/such/file &&
  says 2 "expected L, o, g, O, G or S" sim --loggops X=3 "$work/two.goal" &&
  says 2 "G is at most 1048576" sim --loggops G=2000000 "$work/two.goal" &&
  says 2 "no form \`run\`" run && says 2 "what is asked for?"
check $? "contradictory flags are refused"

[ "$failures" -eq 0 ]
