#!/bin/sh
# test_grow_jobs.sh: communicators of several processes grow by processes that start later: whichever rank
# gave the id, whoever comes first, by one process and by two, again and again; and processes that contradict
# each other, come twice, come with another id, or die. Prints one `ok - ` or `not ok - ` line per check.
# runner: 7 s, waits
. "$(dirname "$0")/script.inc"
use_build
export TUTTI_INIT_TIMEOUT_SECONDS=30 TUTTI_EMU=mode=threads

# shellcheck source=tests/grow.inc
. "$here/grow.inc"

# ---- two processes become three

after='sum:1 sum:0 end:0 sum:1 end:1'
# shellcheck disable=SC2086
for mode in guarded threads; do
  export TUTTI_EMU=mode=$mode
  renew
  told a 0 init:0:0:2:id sum:0 id:0:more wait:go grow:0:1:3:more $after
  start b 1 init:0:1:2:id sum:0 wait:go grow:0:1:3 $after
  start c 2 join:1:2:3:more sum:1 sum:1 end:1
  seen a 'rank 2 .*has come: 1 of 3 ranks'
  : >"$work/go"
  ended
  all_ok a b c && [ "$(grep -c '^sum:1 ok' "$work/log")" -eq 6 ] &&
    has a '^\(.*: 1 of 3 ranks\|grow:0:1:3:more ok\)'
  check $? "$mode: rank 0 gives the id, and the process that joins is the first to come"

  renew
  told a 0 init:0:0:2:id sum:0 grow:0:1:3 $after
  start b 1 init:0:1:2:id sum:0 id:0:more grow:0:1:3:more $after
  seen a 'has come: 2 of 3 ranks'
  start c 2 join:1:2:3:more sum:1 sum:1 end:1
  ended
  all_ok a b c && [ "$(grep -c '^sum:1 ok' "$work/log")" -eq 6 ]
  check $? "$mode: rank 1 gives the id, and the process that joins is the last to come"
done

# ---- more of them

renew
start a 0 init:0:0:2:id id:0:more grow:0:1:4:more sum:1 id:1:again grow:1:2:5:again sum:2 sum:1 end:1 sum:0 \
  end:0 sum:2 end:2
start b 1 init:0:1:2:id grow:0:1:4 sum:1 grow:1:2:5 sum:2 sum:1 end:1 sum:0 end:0 sum:2 end:2
start c 2 join:1:2:4:more sum:1 grow:1:2:5 sum:2 sum:1 end:1 sum:2 end:2 -- \
  3 join:1:3:4:more sum:1 grow:1:2:5 sum:2 sum:1 end:1 sum:2 end:2
start d 4 join:2:4:5:again sum:2 sum:2 end:2
ended
all_ok a b c d && [ "$(grep -c '^sum:2 ok' "$work/log")" -eq 10 ]
check $? 'two processes become three of four ranks, which become four of five'

renew
start a 0 init:0:0:2:id id:0:one grow:0:1:3:one sum:1 grow:0:2:3 sum:2 sum:1 sum:0 end:2 end:1 end:0
start b 1 init:0:1:2:id grow:0:1:3 sum:1 id:0:two grow:0:2:3:two sum:2 sum:1 sum:0 end:2 end:1 end:0
start c 2 join:1:2:3:one sum:1 sum:1 end:1
start d 3 join:2:2:3:two sum:2 end:2
ended
all_ok a b c d && [ "$(grep -c '^sum:[012] ok' "$work/log")" -eq 11 ]
check $? 'one communicator grows twice, each time by another process'

renew
start a 0 init:0:0:2:id id:0:more grow:0:1:4:more sum:1 sum:0 end:0 end:1 -- \
  1 init:0:1:2:id grow:0:1:4 sum:1 sum:0 end:0 end:1
start b 2 join:1:2:4:more sum:1 end:1 -- 3 join:1:3:4:more sum:1 end:1
ended
all_ok a b && [ "$(grep -c '^sum:1 ok' "$work/log")" -eq 4 ]
check $? 'a communicator within one process grows by the ranks of another'

renew
start a 0 init:0:0:2:id later id:0:more grow:0:1:4:more end:0 touch:left settle:1 sum:1 end:1
start b 1 init:0:1:2:id later grow:0:1:4 end:0 touch:gone settle:1 sum:1 end:1 -- \
  2 later wait:gone join:1:2:4:more settle:1 sum:1 end:1
start c 3 later wait:gone wait:left join:1:3:4:more settle:1 sum:1 end:1
ended
all_ok a b c && [ "$(grep -c '^sum:1 ok' "$work/log")" -eq 4 ]
check $? 'without blocking, and the communicator that grows is destroyed meanwhile'

renew
TUTTI_EMU=mode=guarded # in threads the emulator keeps a changing number of threads
# shellcheck disable=SC2046
start a 0 $(for i in 1 2 3; do
  echo init:0:0:2:id$i id:0:more$i grow:0:1:3:more$i sum:1 end:1 grow:0:2:3 sum:2 id:0:never$i end:0 end:2
  echo count
done)
# shellcheck disable=SC2046
start b 1 $(for i in 1 2 3; do
  echo init:0:1:2:id$i grow:0:1:3 sum:1 end:1 id:0:next$i grow:0:2:3 sum:2 end:0 end:2 count
done)
# shellcheck disable=SC2046
start c 2 $(for i in 1 2 3; do echo join:1:2:3:more$i sum:1 end:1 join:2:2:3:next$i sum:2 end:2 count; done)
ended
all_ok a b c && [ "$(grep -c '^count ok' "$work/log")" -eq 9 ]
check $? 'nothing is left of communicators that have grown, nor of an id that was not used'

renew
start a 0 init:0:0:1:id id:0:more grow:0:1:2:more sum:1 end:0 end:1
NCCL_COMM_ID=127.0.0.1:1 start b 1 join:1:1:2:more sum:1 end:1
ended
all_ok a b
check $? 'NCCL_COMM_ID is for other communicators'

# ---- wrong programs

renew
start a 0 init:0:0:2:id id:0:more grow:0:1:3:more sum:1 grow:0:2:3:more touch:late wait:refused sum:0 end:0 \
  end:1
start b 1 init:0:1:2:id grow:0:1:3 sum:1 wait:refused sum:0 end:0 end:1
start c 2 join:1:2:3:more sum:1 wait:late join:2:2:3:more touch:here end:1
start d 2 wait:here join:2:2:3:more enter:2:2:3:more join:2:1:3:more join:2:2:3:id touch:refused
ended
has a '^grow:0:2:3:more error 4: .*of an earlier one' '^sum:0 ok' &&
  has c '^join:2:2:3:more error 5: .*has made a communicator, or failed to, before; .*ncclCommGetUniqueId' &&
  has d '^join:2:2:3:more error 5: .*no communicator is being made there under this unique id' \
    '^enter:2:2:3:more error 4: .*pass it to ncclCommGrow' \
    '^join:2:1:3:more error 4: .*rank 1 of 3 ranks: the communicator has 2 ranks before the grow' \
    '^join:2:2:3:id error 4: .*is of ncclGetUniqueId' && has b '^sum:0 ok'
check $? 'an id is good for one grow, and for nothing else'

renew
start a 0 init:0:0:2:id id:0:more touch:x grow:0:1:3:more sum:0 grow:0:1:3 sum:1 sum:0 end:0 end:1
start b 1 init:0:1:2:id grow:0:1:4 sum:0 id:0:again grow:0:1:3:again sum:1 sum:0 end:0 end:1
start c 2 wait:again join:1:2:3:again sum:1 end:1
ended
has a '^grow:0:1:3:more error 5: .*rank [01] (process .* says [34] ranks, others say [34]' '^sum:0 ok' \
  '^sum:1 ok' && has b '^grow:0:1:4 error 5: .*ranks, others say' '^sum:1 ok' && has c '^sum:1 ok'
check $? 'ranks that contradict each other are named, and the communicator can grow afterwards'

renew
told a 0 init:0:0:2:id id:0:more wait:go grow:0:1:3:more sum:0 end:0
start b 1 init:0:1:2:id grow:0:1:3 sum:0 end:0
seen a 'rank 1 .*has come: '
start c 2 join:1:2:3:more
seen a 'rank 2 .*has come: '
start d 2 join:1:2:3:more
seen a 'rank 2 came twice'
: >"$work/go"
ended
for name in a b c d; do
  has $name '^\(grow\|join\):.* error 5: .*rank 2 came twice, from rank 2 .* and from rank 2 ' || break
done && has a '^sum:0 ok' && has b '^sum:0 ok'
check $? 'a rank that comes twice is an error on all'

renew
TUTTI_INIT_TIMEOUT_SECONDS=1 start a 0 init:0:0:1:id id:0:more grow:0:1:3:more sum:0 end:0
TUTTI_INIT_TIMEOUT_SECONDS=1 start b 1 join:1:1:3:more
ended
has a 'grow:0:1:3:more error 6: .*missing: rank 2' '^sum:0 ok' && has b 'error 6: .*missing: rank 2'
check $? 'a rank that never joins is named'

renew
told a 0 init:0:0:2:id id:0:more wait:go grow:0:1:4:more sum:0 end:0
start b 1 init:0:1:2:id grow:0:1:4 sum:0 end:0
start c 2 later join:1:2:4:more wait:die die
seen a 'rank 2 .*has come: 2 of 4'
: >"$work/die"
seen a 'closed its connection without goodbye'
: >"$work/go"
ended
has a '^grow:0:1:4:more error 6: .*rank 2 (process .*closed its connection without goodbye' '^sum:0 ok' &&
  has b '^grow:0:1:4 error 6: .*rank 2 (process .*closed its connection without goodbye' '^sum:0 ok'
check $? 'a process that joins and dies is an error on the others, and the communicator still works'

# ---- records

renew
export NCCL_DEBUG=NONE TUTTI_EMU=mode=guarded TUTTI_STALL_SECONDS=1
start a 0 init:0:0:2:id sum:0 id:0:more grow:0:1:3:more sum:1 sum:1
start b 1 init:0:1:2:id sum:0 grow:0:1:3 sum:1 sum:1
start c 2 join:1:2:3:more sum:1 wait:never
explained '^rank 2 .*has not called operation #1 .*for which 2 others wait'
check $? 'tutti explain names the rank that joined and does not call'
# shellcheck disable=SC2086
kill -KILL $processes
# shellcheck disable=SC2086
wait_all $processes
timeout 60 "$build/bin/tutti" replay "$work"/*.trace >"$work/log" 2>&1 &&
  grep -q '^reached: the 5 ranks of 2 communicators are in the recorded state' "$work/log" &&
  grep -q '^missing: "rank 2 comm .* call"' "$work/log"
check $? 'tutti replay repeats a run in which a communicator grew'
unset NCCL_DEBUG TUTTI_STALL_SECONDS
export TUTTI_EMU=mode=threads

# ---- afterwards

renew
start a 0 init:0:0:2:id sum:0 end:0
start b 1 init:0:1:2:id sum:0 id:0:more end:0 touch:gone wait:done
NCCL_SOCKET_RETRY_CNT=2 start c 2 wait:gone join:1:2:3:more touch:done
ended
all_ok a b && has c '^join:1:2:3:more error [1-9]: .'
check $? 'a process that comes when the communicator has been destroyed is refused'

exit "$failures"
