#!/bin/sh
# test_launch.sh: ranks in processes of their own: `tutti launch` (failing ranks, signals, remaining
# processes), and the same programs under it, under Open MPI's mpirun, and with the variables that srun and
# torchrun set. Prints one `ok - ` or `not ok - ` line per check and fails if a check failed. Finds the
# build at ${BUILD:-build}.
# runner: 10 s, waits
. "$(dirname "$0")/script.inc"
use_build
tutti=$build/bin/tutti
unset TUTTI_RANK TUTTI_SIZE TUTTI_LOCAL_RANK TUTTI_LOCAL_SIZE TUTTI_RENDEZVOUS TUTTI_JOB NCCL_COMM_ID
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT PMI_RANK PMI_SIZE PMIX_RANK
export TUTTI_INIT_TIMEOUT_SECONDS=20

# try CODE COMMAND...: runs it for at most a minute; true if it exits with CODE. Its output is in $work/out
# and $work/log.
try() {
  wanted=$1
  shift
  timeout 60 "$@" >"$work/out" 2>"$work/log" </dev/null
  code=$?
  [ "$code" -eq "$wanted" ] && return 0
  echo "exit code $code, not $wanted: $*" >>"$work/log"
  return 1
}

# said TEXT: the last command printed it on standard error.
said() {
  grep -qF -e "$1" "$work/log"
  noted $? "the text $1"
}

# gone FILE: the processes whose ids the file holds have ended, or end within ten seconds.
gone() {
  for number in $(cat "$1"); do
    tries=0
    while kill -0 "$number" 2>/dev/null; do
      tries=$((tries + 1))
      [ "$tries" -lt 200 ] || { echo "process $number is still there" >>"$work/log"; return 1; }
      sleep 0.05
    done
  done
}

# lines FILE COUNT: waits until the file has COUNT lines.
lines() {
  tries=0
  while [ "$(cat "$1" 2>/dev/null | wc -l)" -lt "$2" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 200 ] || return 1
    sleep 0.05
  done
}

# ---- tutti launch: the environment of ranks
# shellcheck disable=SC2016
{
try 0 "$tutti" launch -n 3 sh -c 'echo "$TUTTI_RANK $TUTTI_SIZE $TUTTI_LOCAL_RANK $TUTTI_LOCAL_SIZE"' &&
  [ "$(sort "$work/out" | tr '\n' ';')" = "0 3 0 3;1 3 1 3;2 3 2 3;" ]
check $? "each rank gets its rank and the number of ranks"
try 0 "$tutti" launch -n 4 sh -c 'echo "$TUTTI_RENDEZVOUS $TUTTI_JOB"' &&
  [ "$(sort -u "$work/out" | wc -l)" -eq 1 ] && grep -qE '^127.0.0.1:[0-9]+ [0-9a-f]{16}$' "$work/out"
check $? "all ranks get the same rendezvous address"
try 0 "$tutti" launch -n 2 -x A=1 -x B= -x A=2 sh -c 'echo "$A.$B."' && [ "$(sort -u "$work/out")" = "2.." ]
check $? "-x sets variables; the last value counts"
try 0 "$tutti" launch -n 2 -p sh -c 'echo one; echo two >&2; printf three' &&
  [ "$(sort "$work/out" | tr '\n' ';')" = "[0] one;[0] three;[1] one;[1] three;" ] &&
  [ "$(sort "$work/log" | tr '\n' ';')" = "[0] two;[1] two;" ]
check $? "--prefix marks each line with its rank, also a last line without a newline"
try 0 "$tutti" launch -n 1 -p sh -c 'head -c 100000 /dev/zero | tr "\0" x' &&
  [ "$(tr -cd x <"$work/out" | wc -c)" -eq 100000 ]
check $? "--prefix passes lines of any length"
try 0 "$tutti" launch -n 2 -p echo -n 5 --prefix &&
  [ "$(sort "$work/out" | tr '\n' ';')" = "[0] 5 --prefix;[1] 5 --prefix;" ]
check $? "flags after the program belong to the program"
echo hello | "$tutti" launch -n 3 -p cat >"$work/out" 2>"$work/log" && [ "$(cat "$work/out")" = "[0] hello" ]
check $? "rank 0 reads standard input, the others get none"
try 0 "$tutti" launch -n 2 --bind sh -c 'taskset -cp $$ | sed "s/.*: //"' &&
  { [ "$(nproc)" -ne 2 ] || [ "$(sort -u "$work/out" | wc -l)" -eq 2 ]; }
check $? "--bind divides the cores among the ranks"
try 0 "$tutti" launch -n 200 true
check $? "200 ranks start and end"

# ---- tutti launch: failures
try 7 "$tutti" launch -n 3 sh -c 'echo $$ >>"$0"
  [ "$TUTTI_RANK" = 1 ] && exit 7; sleep 100' "$work/numbers" &&
  said 'rank 1 (process ' && said 'exited with status 7; ending the others' && gone "$work/numbers"
check $? "a failing rank is named, and the others are ended"
try 139 "$tutti" launch -n 3 sh -c '[ "$TUTTI_RANK" = 2 ] && kill -SEGV $$; sleep 100' &&
  said 'rank 2 (process ' && said 'was ended by signal 11, Segmentation fault'
check $? "a rank that a signal ends is named with the signal"
NCCL_DEBUG=WARN NCCL_SOCKET_IFNAME=lo try 137 "$tutti" launch -n 4 sh -c '[ "$TUTTI_RANK" != 2 ] ||
  { until grep -q "missing: rank 2" "$1"; do sleep 0.05; done; kill -KILL $$; }
  exec "$0" --launched --ops all_reduce' "$build/tests/rank_program" "$work/out" &&
  said 'rank 2 (process ' && said 'was ended by signal 9, Killed; ending the others' &&
  grep -q '5 seconds 3 of 4 ranks have come; missing: rank 2' "$work/out"
check $? "if a rank is killed before it checks in, the others name it as missing and end"

# Rank 2 kills itself, while rank 1 has not called either, and the launcher ends both others.
# ended_by PLACE [-x VARIABLE]: the records name the one that ended first, wherever they are.
ended_by() {
  mkdir "$work/traces"
  place=$1
  shift
  TUTTI_TRACE=$place try 137 "$tutti" launch -n 3 "$@" sh -c '
    [ "$TUTTI_RANK" != 1 ] || set -- "$@" --hold 1,/nowhere
    [ "$TUTTI_RANK" != 2 ] || set -- "$@" --kill-at 1
    exec "$0" --launched --ops all_reduce "$@"' "$build/tests/rank_program" &&
    "$tutti" explain "$work"/traces/* >"$work/log" 2>&1
  grep -q '^rank 2 (process .* was killed or crashed (signal 9, Killed)' "$work/log"
  noted $? 'rank 2 is named, with the signal'
  found=$?
  rm -r "$work/traces"
  return $found
}
ended_by "$work/traces/" && ended_by "$work/traces/%h.%r.%p.trace" &&
  ended_by "$work/traces/[%%]%p*%x.%r"
check $? "a launcher notes in a killed rank's records how it ended, and explain names that rank"
ended_by "$work/elsewhere/" -x "TUTTI_TRACE=$work/traces/%p-%r"
check $? "it finds them where --export has put them"

try 3 "$tutti" launch -n 2 -g 0 sh -c 'trap "" TERM; [ "$TUTTI_RANK" = 1 ] && exit 3
  while :; do sleep 0.05; done'
check $? "a rank that ignores SIGTERM is killed after --grace"
try 5 "$tutti" launch -n 2 -k sh -c '[ "$TUTTI_RANK" = 0 ] && exit 5; sleep 0.2; echo went on' &&
  grep -q 'went on' "$work/out"
check $? "--keep-going lets the others run; the exit status is still the failure's"
try 127 "$tutti" launch -n 2 "$work/absent" && said 'No such file'
check $? "a program that does not exist exits with 127"
echo text >"$work/plain"
try 126 "$tutti" launch -n 2 "$work/plain" && said 'Permission denied'
check $? "a program that cannot be run exits with 126"
try 2 "$tutti" launch -n 2 && said 'needs a program'
check $? "without a program it prints the usage"
try 2 "$tutti" launch -n 0 true && said 'must be 1 to 4096'
check $? "without ranks it prints the usage"
try 2 "$tutti" launch -x =1 true && said 'must be NAME=VALUE'
check $? "a variable without a name prints the usage"
rm -f "$work/numbers"
try 0 "$tutti" launch -n 2 sh -c 'sleep 100 & echo $! >>"$0"' "$work/numbers" && gone "$work/numbers"
check $? "processes that ranks leave running are ended with them"

# ---- tutti launch: signals
for pair in TERM:143 INT:130 KILL:137; do
  signal=${pair%:*}
  rm -f "$work/numbers"
  "$tutti" launch -n 3 -g 1 sh -c 'echo $$ >>"$0"; exec sleep 100' "$work/numbers" \
    >"$work/out" 2>"$work/log" &
  launcher=$!
  lines "$work/numbers" 3 && kill -s "$signal" "$launcher"
  wait "$launcher"
  code=$?
  [ "$code" -eq "${pair#*:}" ] && gone "$work/numbers"
  check $? "SIG$signal to the launcher ends all ranks"
done
rm -f "$work/numbers" "$work/got"
"$tutti" launch -n 2 sh -c 'trap "echo got >>$1; exit 0" USR1; echo $$ >>"$0"
  while :; do sleep 0.05; done' "$work/numbers" "$work/got" >"$work/out" 2>"$work/log" &
launcher=$!
lines "$work/numbers" 2 && kill -s USR1 "$launcher"
wait "$launcher" && [ "$(wc -l <"$work/got")" -eq 2 ]
check $? "SIGUSR1 is passed on and does not end the ranks"
}

# ---- one program under every launcher
# ranks N LIKE PROGRAM...: N processes with the variables that srun or torchrun would set. The status is
# that of the last failing rank.
# shellcheck disable=SC2086
ranks() {
  number=$1 like=$2
  shift 2
  rank=0 jobs='' status=0
  while [ "$rank" -lt "$number" ]; do
    case $like in
      srun) values="SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS=$number SLURM_STEP_ID=0
          SLURM_JOB_ID=$$ SLURM_NNODES=1 SLURM_NODEID=0 SLURM_STEP_NUM_TASKS=$number
          SLURM_STEP_NODELIST=localhost" ;;
      torchrun) values="RANK=$rank WORLD_SIZE=$number LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$number
          MASTER_ADDR=localhost MASTER_PORT=$((26000 + $$ % 6000)) TORCHELASTIC_RUN_ID=none" ;;
    esac
    env $values "$@" &
    jobs="$jobs $!"
    rank=$((rank + 1))
  done
  for job in $jobs; do wait "$job" || status=$?; done
  return $status
}

# under LAUNCHER N PROGRAM...
under() {
  launcher=$1 number=$2
  shift 2
  case $launcher in
    tutti) timeout 60 "$tutti" launch -n "$number" "$@" ;;
    mpirun) timeout 60 mpirun --allow-run-as-root --oversubscribe -n "$number" "$@" ;;
    hydra) timeout 60 mpiexec.hydra -n "$number" "$@" ;;
    *) ranks "$number" "$launcher" timeout 60 "$@" ;;
  esac >"$work/out" 2>"$work/log" </dev/null
}

launchers="tutti srun torchrun"
if command -v mpirun >/dev/null && mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
  launchers="$launchers mpirun"
else
  echo "skip: Open MPI's mpirun: it is not here; install openmpi-bin"
fi
if command -v mpiexec.hydra >/dev/null; then
  launchers="$launchers hydra"
else
  echo "skip: MPICH's mpiexec.hydra: it is not here; install mpich"
fi
# shellcheck disable=SC2046
cc -Wall -Werror -o "$work/launched" "$here/../examples/launched.c" \
  $(pkg-config --cflags --libs tutti-emu) >"$work/log" 2>&1
check $? "examples/launched.c builds"
for launcher in $launchers; do
  for number in 1 2 5; do
    under "$launcher" "$number" "$work/launched" &&
      grep -q " $number ranks, $number on this host" "$work/out" &&
      [ "$(tail -n 1 "$work/out")" = ok ] && [ "$(grep -c '^all_' "$work/out")" -eq 6 ]
    check $? "launched.c runs $number ranks under $launcher"
  done
  under "$launcher" 2 "$tutti" bench all_reduce -b 1K -e 4K -g 2 --threads -n 2 -w 1 &&
    [ "$(grep -c '^#  Rank' "$work/out")" -eq 4 ] && [ "$(grep -c '^  *[0-9]' "$work/out")" -eq 3 ] &&
    [ "$(grep '^#  Rank' "$work/out" | awk '{ print $7 }' | sort -u | wc -l)" -eq 2 ]
  check $? "bench runs two processes of two ranks under $launcher"
done

TUTTI_SECRET=sesame \
  under tutti 2 "$tutti" bench alltoall -t 2 -g 2 -b 1K -e 16K -f 4 --threads -n 2 -w 1 \
    -J "$work/file.json" &&
  python3 -c "import json, sys; run = json.load(open(sys.argv[1]))
assert len(run['devices']) == 8
assert len({device['pid'] for device in run['devices']}) == 2 and run['tutti']['processes'] == 2
assert 'sesame' not in open(sys.argv[1]).read()
assert not run['modelled'] and run['tutti']['mode'] == 'threads'
assert all(row['out_of_place']['time'] > 0 for row in run['results'])
assert all(row['out_of_place']['nwrong'] == 0 for row in run['results'])" "$work/file.json" 2>>"$work/log"
check $? "bench runs two processes of two threads of two ranks and writes JSON"
under tutti 3 "$tutti" bench all_gather -b 1K -e 4K -q && [ "$(wc -l <"$work/out")" -eq 3 ]
check $? "bench runs guarded processes with modelled times"
under tutti 9 "$work/launched" && [ "$(tail -n 1 "$work/out")" = ok ]
check $? "a launch may have more ranks than the emulator's default number of devices"
export NCCL_COMM_ID="127.0.0.1:$((26000 + $$ % 6000))"
under tutti 2 "$work/launched" && [ "$(tail -n 1 "$work/out")" = ok ]
check $? "NCCL_COMM_ID sets the rendezvous address"
unset NCCL_COMM_ID
for launcher in $launchers; do
  NCCL_DEBUG=INFO under "$launcher" 2 "$work/launched" && cat "$work/out" >>"$work/log" &&
    [ "$(grep -c 'control server at 127.0.0.1:[0-9]* (lo)' "$work/log")" -eq 2 ] &&
    ! grep -q 'anybody who reaches this address' "$work/log"
  check $? "under $launcher, ranks of one host listen on the loopback interface alone"
done

# Repeats calls with other data; the second call takes the call cache's fast path. Each element is compared.
for bytes in 8 200 512 4096; do
  try 0 env TUTTI_EMU=mode=threads,slots=2,flag_bits=5 "$tutti" launch -n 2 "$build/tests/rank_program" \
    --launched --bytes "$bytes" --iterations 80 &&
    [ "$(grep -c '^rank [01] operations ok$' "$work/out")" -eq 2 ]
  check $? "calls of $bytes bytes are repeated between two processes with right results"
done

# As if each rank had a host of its own, with one GPU: PMIx distributes the address that rank 0 publishes.
case $launchers in *mpirun*)
  under mpirun 3 env OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 NCCL_MULTI_RANK_GPU_ENABLE=1 \
    "$work/launched" &&
    [ "$(tail -n 1 "$work/out")" = ok ]
  check $? "mpirun over several hosts: the ranks connect through PMIx"
esac

[ "$failures" -eq 0 ]
