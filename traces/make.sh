#!/bin/sh
# make.sh: runs that hang, one for each verdict of `tutti explain`, made by the emulator:
#
#   traces/make.sh FOLDER [NAME...]
#
# puts the text of each process's file, NAME/RANK.txt, into FOLDER, what explain says of them into NAME/expected,
# and what replay says into NAME/replayed. traces/ has what it made once; test_traces.sh makes them anew and
# compares.
. "$(dirname "$0")/../tests/script.inc"
use_build
folder=$1
shift
host=$(uname -n)
export NCCL_DEBUG=NONE TUTTI_STALL_SECONDS=1
hanging='fine absent destroyed collective count type operator root order communicator send_alone recv_alone
  message_count open_group refused blocked cycle behind slow graph'

# One process with four ranks, which kills itself once they hang.
make_one() {
  scenario=${2:-$1}
  TUTTI_TRACE=$work/$1.0 timeout 60 "$build/tests/hang_program" "$scenario" >"$work/log" 2>&1
  status=$?
  noted $((status != 137)) "hang_program $scenario ends with status 137, not $status"
}

# Four processes, one of which kills itself.
make_died() {
  for rank in 0 1 2 3; do
    more=
    [ $rank != 2 ] || more='--kill-at 2'
    # shellcheck disable=SC2086
    TUTTI_EMU=mode=threads TUTTI_TRACE=$work/$1.%r timeout 60 "$build/tests/rank_program" --rank $rank \
      --size 4 --id "$work/$1.id" --ops all_reduce --iterations 4 $more >"$work/$1.log$rank" 2>&1 &
  done
  wait
  rm -f "$work/$1.id" "$work/$1".log*
}

# Three of four processes meet, and wait for the fourth.
make_not_met() {
  processes=
  for rank in 0 1 3; do
    TUTTI_EMU=mode=threads TUTTI_TRACE=$work/$1.%r timeout -s KILL 60 "$build/tests/rank_program" --rank $rank \
      --size 4 --id "$work/$1.id" --ops all_reduce >/dev/null 2>&1 &
    processes="$processes $!"
  done
  for _ in $(seq 500); do
    "$build/bin/tutti" explain "$work/$1".? 2>/dev/null | grep -q ': 3 of 4 ranks still wait' && break
    sleep 0.1
  done
  for signal in STOP KILL; do # so that none sees another one end
    for process in $processes; do
      pkill -$signal -P "$process" >/dev/null 2>&1
    done
  done
  wait
  rm -f "$work/$1.id"
}

# A fault of the emulator: of its network, where there are several nodes, or of a lane.
make_fault() {
  TUTTI_EMU=devices=4,$2 make_one "$1" "${3:-fault}"
}

# The same on any host, of any build: without the places of calls, which lie in a program of that host.
anywhere() {
  sed "s/host=\"[^\"]*\"/host=\"node\"/; s/\( on\| host\) $host\([) ]\)/\1 node\2/g
    s/([0-9.]*:[0-9]*)/(10.0.0.1:4000)/g; s/ control=\"[^\"]*\"//
    s/ modules=\"[^\"]*\"//; /^caller @/d"
}

make() {
  case $1 in
  died) make_died died ;;
  no_file) make_died no_file && rm "$work/no_file.2" ;;
  not_met) make_not_met not_met ;;
  lost) NCCL_PROTO=Simple make_fault "$1" nodes=2,net=1,fault=drop,fault_at=1 fault_small ;;
  refuse) make_fault "$1" nodes=2,net=1,fault=refuse,fault_at=2 ;;
  linger) make_fault "$1" nodes=2,net=1,fault=linger,fault_at=2 ;;
  slow_link) NCCL_ALGO=Ring make_fault "$1" nodes=2,net=1,fault=slow,fault_at=9 slow_link ;;
  reset) make_fault "$1" nodes=2,net=1,fault=reset,fault_at=3 ;;
  frozen_data) make_fault "$1" fault=freeze,fault_at=4 ;;
  frozen_slot) make_fault "$1" fault=freeze,fault_at=5 ;;
  stale) make_fault "$1" fault=stale,fault_at=9 ;;
  corrupt) make_fault "$1" fault=corrupt,fault_at=9 ;;
  *) make_one "$1" ;;
  esac
}

for name in ${*:-$hanging died no_file not_met slow_link lost refuse linger
  reset frozen_data frozen_slot stale corrupt}; do
  make "$name"
  check $? "$name: stands as it should" >&2
  mkdir -p "$folder/$name"
  for file in "$work/$name".?; do
    "$build/bin/tutti" trace dump "$file" | anywhere >"$folder/$name/${file##*.}.txt"
  done
  "$build/bin/tutti" explain "$folder/$name"/*.txt >"$folder/$name/expected"
  "$build/bin/tutti" replay "$folder/$name"/*.txt >"$folder/$name/replayed"
done
[ "$failures" -eq 0 ]
