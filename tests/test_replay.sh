#!/bin/sh
# test_replay.sh: `tutti replay`: each trace of traces/ reaches the recorded state, and gives the answer
# stored beside it; so do new hangs with every algorithm and protocol; corrupted counters are found; and
# files from elsewhere are checked. Prints one `ok - ` or `not ok - ` line per check and fails if a check
# failed.
# runner: 53 s, waits
. "$(dirname "$0")/script.inc"
use_build
tutti=$build/bin/tutti
export NCCL_DEBUG=NONE TUTTI_STALL_SECONDS=1
said() {
  grep -q "$1" "$work/log"
  noted $? "a line like $1"
}
hang() { TUTTI_TRACE=$work/run timeout 60 "$build/tests/hang_program" "$1" >/dev/null 2>&1; }
spoil() { sed "0,/$1/s//$2/" "$absent" >"$work/spoilt" && ! cmp -s "$absent" "$work/spoilt"; }
reached() { timeout 60 "$tutti" replay "$work/spoilt" >"$work/log" 2>&1; }
refused() {
  reached
  [ $? -eq 4 ]
}

for trace in "$root"/traces/*/ "$root"/traces/gpu/*/; do
  [ -e "$trace/replayed" ] || continue
  name=${trace#"$root"/traces/} name=${name%/}
  timeout 60 "$tutti" replay "$trace"*.txt >"$work/log" 2>&1 && cmp -s "$work/log" "$trace/replayed"
  check $? "$name: $(sed -n 2p "$trace/replayed" | cut -c 1-100)"
done

# New runs: rings, trees and direct collectives in each protocol.
for option in Ring,LL Ring,LL128 Ring,Simple Tree,LL Tree,Simple Direct,LL Direct,Simple; do
  missing=
  for scenario in absent blocked cycle; do
    NCCL_ALGO=${option%,*} NCCL_PROTO=${option#*,} hang $scenario
    timeout 60 "$tutti" replay "$work/run" >"$work/log" 2>&1 || missing="$missing $scenario"
    case $scenario in
    absent)
      said '^missing: "rank 2 call"' && said '^with it: all ranks end' || missing="$missing absent:"
      ;;
    blocked)
      said '^missing: "rank 2 start"' && said '^with it: all ranks end' || missing="$missing blocked:"
      ;;
    cycle) said '^missing: nothing that could arrive' || missing="$missing cycle:" ;;
    esac
    rm -f "$work/run"
  done
  [ -z "$missing" ]
  check $? "$option: a rank that does not call, one that does not start, and a cycle are replayed$missing"
done

# Records say that slots were at the sender.
NCCL_P2P_READ_ENABLE=1 NCCL_ALGO=Ring NCCL_PROTO=Simple hang blocked
timeout 60 "$tutti" replay --rank 0 "$work/run" >"$work/log" 2>&1 && said '^missing: "rank 2 start"' &&
  said '^    from rank 3: .* of 8 slots at the sender filled'
check $? "slots at the sender are replayed, and shown there"
rm -f "$work/run"

# Records say that sums were in rank order: the replay makes the same plans without the setting.
for protocol in LL Simple; do
  TUTTI_SUM_ORDER=rank NCCL_PROTO=$protocol hang blocked
  timeout 60 "$tutti" replay "$work/run" >"$work/log" 2>&1 && said '^missing: "rank 2 start"'
  check $? "sums in rank order are replayed in $protocol"
  [ $protocol = LL ] && rm -f "$work/run"
done
timeout 60 "$tutti" trace dump "$work/run" 2>/dev/null | grep -v 'name=rank_order' >"$work/other"
grep -q 'name=net_plain' "$work/other" && ! timeout 60 "$tutti" replay "$work/other" >"$work/log" 2>&1 &&
  said 'was TwoShot Simple'
check $? "... and not as sums in any order"
rm -f "$work/run"

# Graphs: launched once less often, queued behind a kernel that never ends, with messages and another
# communicator in between, and injected lane stalls.
for option in Ring,LL Ring,Simple TwoShot,LL Direct,Simple; do
  missing=
  for scenario in graph graph_blocked; do
    NCCL_ALGO=${option%,*} NCCL_PROTO=${option#*,} hang $scenario
    timeout 60 "$tutti" replay "$work/run" >"$work/log" 2>&1 || missing="$missing $scenario"
    case $scenario in
    graph) said '^missing: "rank 2 launch": rank 2 has not launched the graph with operation #0' ;;
    graph_blocked) said '^missing: "rank 2 start"' ;;
    esac && said '^with it: all ranks end all that was called, 4 kernels' || missing="$missing $scenario:"
    rm -f "$work/run"
  done
  [ -z "$missing" ]
  check $? "$option: a graph that a rank does not launch, and one that does not start, are replayed$missing"
done
missing=
for option in '' NCCL_PROTO=LL NCCL_PROTO=Simple; do
  env "NCCL_ALGO=${option:+Ring}" ${option:+"$option"} "TUTTI_TRACE=$work/run" \
    timeout 60 "$build/tests/hang_program" \
    graph_mixed >/dev/null 2>&1
  timeout 60 "$tutti" explain "$work/run" >"$work/log" 2>&1
  said '^rank 2 .* has not launched the graph with operation #3, .* of comm .1.,' ||
    missing="$missing explain:$option"
  timeout 60 "$tutti" replay "$work/run" >"$work/log" 2>&1 && said '^missing: "rank 2 comm 1 launch"' &&
    said '^with it: all ranks end' || missing="$missing replay:$option"
  rm -f "$work/run"
done
[ -z "$missing" ]
check $? "a graph of two communicators with messages, between calls, is replayed$missing"
missing=
for at in 1 5 9; do
  TUTTI_EMU=devices=4,fault=freeze,fault_at=$at TUTTI_TRACE=$work/run timeout 60 \
    "$build/tests/hang_program" fault_graph >/dev/null 2>&1
  timeout 60 "$tutti" replay "$work/run" >"$work/log" 2>&1 &&
    said '^missing: "rank [0-3] channel [01] move' && said '^with it: all ranks end' || missing="$missing $at"
  rm -f "$work/run"
done
[ -z "$missing" ]
check $? "a lane that stops in a graph is replayed$missing"
graph=$root/traces/graph/0.txt
sed 's/ graph_runs=[0-9]*//' "$graph" >"$work/uncounted"
timeout 60 "$tutti" replay "$work/uncounted" >"$work/log" 2>&1 && said '^missing: "rank 2 launch"' &&
  said '^note: how often graphs were launched is not known'
check $? 'a graph without a launch count is replayed with a note'
missing=
for gone in '^launch' '^call\|^place\|^launch'; do
  sed "/$gone/d" "$graph" >"$work/gone"
  timeout 60 "$tutti" replay "$work/gone" >"$work/log" 2>&1 && said '^missing: not known: a graph' ||
    missing="$missing $gone"
done
[ -z "$missing" ]
check $? "a graph whose capture is no longer in the records is reported$missing"

# Schedules from files, which the traces do not hold.
cp "$root/examples/schedules/"*.txt "$work"
"$tutti" check --plan "$root/examples/schedules/msccl_all_reduce4.xml" --print >"$work/msccl_all_reduce4.txt"
missing=
for option in ring4.txt,LL ring4.txt,Simple all_pairs4.txt,LL msccl_all_reduce4.txt,LL; do
  TUTTI_CUSTOM_FILE=$work/${option%,*} NCCL_PROTO=${option#*,} hang absent
  timeout 60 "$tutti" replay --plan "$work/${option%,*}" "$work/run" >"$work/log" 2>&1 &&
    said '^missing: "rank 2 call"' && said '^with it: all ranks end all' || missing="$missing $option"
  case $option in
  ring4.txt,LL)
    timeout 60 "$tutti" replay "$work/run" >"$work/log" 2>&1
    [ $? -eq 4 ] && said 'ran a schedule from a file, .* name it by --plan' || missing="$missing unnamed"
    ;;
  esac
  rm -f "$work/run"
done
[ -z "$missing" ]
check $? "--plan replays a schedule from a file$missing"
"$tutti" replay --plan "$work/nothing" "$root/traces/absent/0.txt" >"$work/log" 2>&1
[ $? -eq 4 ] && said 'nothing: the schedule cannot be read'
check $? '--plan refuses a file that is not a schedule'

# Slots, slices and a network.
NCCL_ALGO=Ring NCCL_PROTO=Simple hang root
timeout 60 "$tutti" replay "$work/run" >"$work/log" 2>&1 && said 'waits for a free slot at rank'
check $? 'lanes that wait for slots are replayed'
TUTTI_EMU=nodes=2,devices=4,net=1,fault=stop,fault_at=9 TUTTI_TRACE=$work/net timeout 60 \
  "$build/tests/rank_program" --threads --size 4 --ops all_reduce --bytes 9000000 --deadline 20 \
  >/dev/null 2>&1
timeout 60 "$tutti" replay "$work/net" >"$work/log" 2>&1 &&
  said '^missing: "rank [0-9] channel [01] send [0-9]*": rank [0-9] has sent it'
check $? 'a rank whose messages stop arriving over a network is replayed'

NCCL_PROTO=LL TUTTI_EMU=nodes=2,devices=4,net=1,fault=stop,fault_at=30 TUTTI_TRACE=$work/lines timeout 60 \
  "$build/tests/rank_program" --threads --size 4 --ops broadcast --bytes 3000000 --deadline 20 \
  >/dev/null 2>&1
timeout 60 "$tutti" replay "$work/lines" >"$work/log" 2>&1 && said '^reached: the 4 ranks' &&
  said '^missing: "rank [0-9] channel [01] send [0-9]*": rank [0-9] has sent it'
check $? 'LL lines that stop arriving over a network are replayed'
other=
for at in 5 14 33; do
  TUTTI_SEED=$at TUTTI_EMU=nodes=2,devices=4,net=1,fault=stop,fault_at=$at TUTTI_TRACE=$work/messages \
    timeout 60 "$build/tests/hang_program" fault_messages >/dev/null 2>&1
  timeout 60 "$tutti" replay "$work/messages" >"$work/log" 2>&1 && said '^reached: the 4 ranks' &&
    said '^missing: "rank [0-9] channel [01] send [0-9]*": rank [0-9] has sent it' &&
    ! said 'comes out another' || other="$other $at"
  rm -f "$work/messages"
done
[ -z "$other" ]
check $? "messages of both protocols in a group over a network are replayed$other"

# Runs with random faults: a lane that stops with all lines sent, messages whose channels one end recorded,
# stores within nodes of a job with a network.
cat >"$work/each" <<END
#!/bin/sh
shift
"$tutti" replay "\$@" >"$work/log" 2>&1 || basename "\$1" >>"$work/random"
END
chmod +x "$work/each"
for seed in 66 125 180 286 20415; do
  timeout 60 "$build/tests/diagnosis_program" $seed 1 --replay "$work/each" 2>&1 | grep -q ' 1 made' ||
    echo "$seed" >>"$work/random"
done
[ ! -e "$work/random" ]
check $? 'runs with random faults are replayed'

# Drawn runs: devices, nodes, networks, sizes, algorithms, protocols, settings, splits, groups and graphs. The
# records hold what the planner was given, so a replay makes the same plans, or fails.
for seed in $(seq 30); do
  TUTTI_TRACE=$work/drawn timeout 60 "$build/tests/replay_program" "$seed" >"$work/settings" 2>&1
  timeout 60 "$tutti" replay "$work/drawn" >"$work/log" 2>&1 && said '^reached: ' ||
    echo "$seed: $(cat "$work/settings")" >>"$work/unlike"
  rm -f "$work/drawn" "$work/drawn.rules"
done
[ ! -e "$work/unlike" ]
check $? "30 drawn runs reach their recorded states$(cat "$work/unlike" 2>/dev/null)"
TUTTI_TRACE=$work/small TUTTI_EMU=chunk=64,devices=4 timeout 60 "$build/examples/forgets" >/dev/null 2>&1
timeout 60 "$tutti" replay "$work/small" >"$work/log" 2>&1 && said '^missing: "rank 2 call"' &&
  said '^with it: all ranks end all that was called, 4 kernels'
check $? 'chunks of 64 bytes are replayed'
"$tutti" trace dump "$work/small" >"$work/text" && "$tutti" replay "$work/text" >"$work/other" 2>&1 &&
  cmp "$work/log" "$work/other" >"$work/differs" &&
  grep -q '^input @[0-9]* used=1 name=chunk_bytes a=64$' "$work/text"
check $? 'the text form of records holds what plans were made from'
altered() {
  sed "$1" "$work/text" >"$work/altered" && ! cmp -s "$work/text" "$work/altered" &&
    timeout 60 "$tutti" replay "$work/altered" >"$work/log" 2>&1
  [ $? -eq 4 ]
}
altered 's/name=channels a=2$/name=channels a=1/' &&
  said 'rank 0 of comm .1. comes out different from the job.s: it was Ring LL128, 2 channels'
check $? 'records with another setting are refused: the plans differ'
altered '/name=slots/d' && said 'do not hold all that its plans were made from: a setting is missing' &&
  altered '/name=end/d' && said ': they are incomplete' &&
  altered 's/name=end a=\([0-9]*\)/name=end a=\1 b=1/' && said 'there was no space for all' &&
  altered 's/name=slots a=8/name=slots a=800/' && said 'its limits are impossible' &&
  altered '/name=places/d' && said 'the places of some ranks are missing' &&
  altered 's/name=ranks a=4/name=ranks a=5/' && said 'its number of ranks differs'
check $? 'records with incomplete or impossible inputs of plans are refused, with the reason'
sed 's/input_rows=[0-9]* input_offset=[0-9]*//; /^input/d' "$work/text" >"$work/older" &&
  timeout 60 "$tutti" replay "$work/older" >"$work/log" 2>&1 && said '^missing: "rank 2 call"'
check $? 'records of earlier releases, which lack them, are replayed'
NCCL_TOPO_DUMP_FILE=$work/topology.xml TUTTI_EMU=devices=4,nodes=2 "$build/examples/init_all" >/dev/null 2>&1
NCCL_TOPO_FILE=$work/topology.xml TUTTI_TRACE=$work/placed TUTTI_EMU=devices=4,nodes=2 timeout 60 \
  "$build/examples/forgets" >/dev/null 2>&1
NCCL_TOPO_FILE=$work/topology.xml timeout 60 "$tutti" replay "$work/placed" >"$work/log" 2>&1 &&
  said '^reached: the 4 ranks'
check $? 'a topology from a file is found by NCCL_TOPO_FILE'
timeout 60 "$tutti" replay "$work/placed" >"$work/log" 2>&1
[ $? -eq 4 ] && said 'cannot be made again: NCCL_TOPO_FILE was set, and is not set now' &&
  sed 's/<nic>/<nic >/; s/$/ /' "$work/topology.xml" >"$work/other.xml" && {
  NCCL_TOPO_FILE=$work/other.xml timeout 60 "$tutti" replay "$work/placed" >"$work/log" 2>&1
  [ $? -eq 4 ] && said 'NCCL_TOPO_FILE has another content than the job.s'
}
check $? 'without that file, or with another, the replay is refused'
cat >"$work/rings.xml" <<'XML'
<graphs><graph id="0" pattern="4" nchannels="1" speedintra="20"><channel>
<gpu dev="2"/><gpu dev="0"/><gpu dev="3"/><gpu dev="1"/></channel></graph></graphs>
XML
NCCL_GRAPH_FILE=$work/rings.xml TUTTI_TRACE=$work/ringed TUTTI_EMU=devices=4 timeout 60 \
  "$build/examples/forgets" >/dev/null 2>&1
NCCL_GRAPH_FILE=$work/rings.xml timeout 60 "$tutti" replay "$work/ringed" >"$work/log" 2>&1 &&
  said '^reached: the 4 ranks'
check $? 'so are rings from a file by NCCL_GRAPH_FILE'
timeout 60 "$tutti" replay "$work/ringed" >"$work/log" 2>&1
[ $? -eq 4 ] && said 'cannot be made again: NCCL_GRAPH_FILE was set, and is not set now'
check $? 'without it the replay is refused'

# ---- sessions: commands as in a debugger
absent=$root/traces/absent/0.txt
session() { timeout 60 "$tutti" replay "$@" >"$work/log" 2>&1; }
printf '%s\n' 'break op all_reduce #2' 'continue' 'print ranks' 'continue' '' 'reverse-continue' \
  'delete 1' 'break rank 1 channel 0 step 1' 'goto 0' 'continue' 'info breakpoints' 'continue' 'continue' \
  'continue' 'print waits' 'quit' | session -I "$absent"
check $? 'commands come from standard input'
sed -n '/^breakpoint [12], at\|^rank\|^waits\|^the run\|^breakpoint 2: /p' "$work/log" >"$work/told"
cat >"$work/expected" <<'END'
breakpoint 1, at event 45
rank 0 of comm '1', device 0: 2 of 3 kernels ended; in operation #2 AllReduce, Direct Simple
rank 1 of comm '1', device 1: 1 of 3 kernels ended; in operation #1 AllReduce, Direct Simple
rank 2 of comm '1', device 2: 1 of 2 kernels ended; in operation #1 AllReduce, Direct Simple
rank 3 of comm '1', device 3: 1 of 3 kernels ended; in operation #1 AllReduce, Direct Simple
breakpoint 1, at event 50
breakpoint 1, at event 54
breakpoint 1, at event 50
breakpoint 2: rank 1 channel 0 step 1
breakpoint 2, at event 2
breakpoint 2: rank 1 channel 0 step 1
breakpoint 2, at event 26
breakpoint 2, at event 53
the run ends at event 57, in the recorded state
waits for no rank: rank 2 of comm '1', device 2: 2 of 2 kernels ended
END
diff "$work/expected" "$work/told" >"$work/differs" || cp "$work/differs" "$work/log"
[ ! -s "$work/differs" ]
check $? 'breakpoints at operations and steps stop, forward and back; ranks and waits are printed'
wrong=
for event in 1 7 23 44 56; do
  for back in 1 2 13; do
    session -e "goto $event" -e 'print state' "$absent" && tail -n +2 "$work/log" >"$work/state.1" &&
      session -e "goto $event" -e "step $back" -e 'goto 57' -e "goto $((event + 1))" -e back \
        -e 'print state' "$absent" && sed -n '/^event/,$p' "$work/log" >"$work/state.2" &&
      sed -n '/^event/,$p' "$work/state.1" | cmp - "$work/state.2" >"$work/differs" 2>&1 ||
      wrong="$wrong $event"
  done
done
for trace in cycle graph frozen_slot lost; do
  session -e 'goto 6' -e 'print state' "$root/traces/$trace/"*.txt &&
    sed -n '/^event/,$p' "$work/log" >"$work/state.1"
  session -e 'step 7' -e back -e 'print state' "$root/traces/$trace/"*.txt &&
    sed -n '/^event/,$p' "$work/log" | cmp - "$work/state.1" >"$work/differs" 2>&1 || wrong="$wrong $trace"
done
[ -z "$wrong" ] && grep -q '^event 6, hash of all events [0-9a-f]*$' "$work/state.1"
check $? "a step back gives exactly the state before it$wrong"
session -e continue -e 'print rank 0 channel 0' -e 'print plan rank 0 op #2' -e 'bt rank 0 channel 0 3' \
  -e 'list 2' "$absent" &&
  said '^  rank 0 of comm .1., channel 0, lane 0: AllReduce #2, Direct Simple, batch 0' &&
  said '^    to rank 1: step 3, posted 3, seen 0; head 2, tail 3, 8 slots of 131072 bytes' &&
  said '^      steps in the slots: -, -, 2, -, -, -, -, -; next: slot 3' &&
  said '^  channel 0, batch 0, lane 0: AllReduce #2, Direct Simple, 1024 of 1024 elements' &&
  said '^47 lane comm 00000001 rank 0 channel 0 lane 0 begin'
check $? 'lanes with their slots and counters, plans, and the last events are printed'
NCCL_ALGO=Ring NCCL_PROTO=LL hang absent
session -e continue -e 'print rank 1' "$work/run" &&
  said '^      flags in the slots: 9 (128 of 4096 lines, then 0), 10 ' &&
  said '^      [0-9]* steps of LL before; the next has flag [0-9]*'
check $? 'flags of LL lines are printed'
rm -f "$work/run"
session -e continue -e 'print waits' "$root"/traces/cycle/*.txt &&
  said "^a cycle: rank 0 of comm '1' -> rank 2 of comm '1' -> rank 2 of comm 'other' -> "
check $? 'a cycle over two communicators is printed'
session -e 'inject rank 2 call' -e continue "$absent" && said '^the run ends at event 72' &&
  session --inject 'rank 2 call' -e continue "$absent" && said '^the run ends at event 72'
check $? 'a missing event is injected'
printf '# a comment\n\ngoto 3\nback 2\n' >"$work/script" && session -x "$work/script" "$absent" &&
  [ "$(sed -n 's/ .*//p' "$work/log" | uniq | tr '\n' ' ')" = '3 1 ' ]
check $? 'commands come from a file'
fails() {
  timeout 60 "$tutti" replay "$@" "$absent" >"$work/log" 2>&1
  [ $? -eq 2 ]
}
fails -e bogus -e step && said 'there is no command "bogus"' && ! said '^1 ' &&
  fails -k -e bogus -e step && said '^1 ' &&
  fails -e 'b' && said 'a place was expected' &&
  fails -e 'break rank 9' && said 'a number up to 3 was expected' &&
  fails -e 'break op nothing' && said 'an operation was expected' &&
  fails -e 'step x' && fails -e 'delete 7' &&
  fails -e 'goto' && fails -e 'print nothing' && fails -e 're' && said 'may be reverse-continue or restart' &&
  fails -e 'inject rank 3 call' && said '`rank 2 call` is' && fails -e 'break comm x' && fails -e back &&
  said 'this is the begin' && fails -e 'c' -e 'c' && said 'the run has ended' && fails -x "$work/nothing" &&
  fails --json -e step && said 'a session takes no --json'
check $? 'commands that fail end a script with status 2 and a sentence, unless --keep-going is given'
NCCL_ALGO=Ring NCCL_PROTO=Simple TUTTI_TRACE=$work/long TUTTI_EMU=chunk=16,devices=8 timeout 60 \
  "$build/examples/forgets" >/dev/null 2>&1
session -e 'inject rank 2 call' -e 'goto 1000000' -e back "$work/long" && said '^999999 lane'
check $? 'a step back in a run of a million events'

# ---- flags
absent=$root/traces/absent/0.txt lost=$root/traces/lost/0.txt
"$tutti" replay --inject 'rank 2 channel 0 send 1' --rank 0 "$lost" >"$work/log" 2>&1 &&
  said '^with it: all ranks end all that was called, 4 kernels' && said '^in the end:' &&
  said 'no kernel is under way'
check $? '--inject makes a missing step arrive'
"$tutti" replay --inject 'rank 2 call' --step 3 "$absent" >"$work/log" 2>&1 &&
  said '^after that many more events:' &&
  said 'rank 2 of comm .1., channel 0: operation #2'
check $? '--step makes a few more events'
"$tutti" replay --inject 'rank 3 call' "$absent" >"$work/log" 2>&1
[ $? -eq 2 ] && said 'is nothing that is missing here; these are: "rank 2 call"'
check $? '--inject refuses an event that is not missing, and lists those that are'
"$tutti" replay --until 'rank 1 channel 0 step 1' --rank 1 "$lost" >"$work/log" 2>&1 &&
  said '^at that step:' && said 'channel 0: operation #0, step 1' &&
  said '  to rank 0: step 1, head 0, tail 1: 1 of 8 slots filled'
check $? '--until stops a lane at a step and prints its connections'
"$tutti" replay --until 'rank 1 channel 1 step 99' "$lost" >"$work/log" 2>&1 &&
  said '^no lane reaches that step; last states of the ranks:'
check $? '--until reports a step that is never reached'
usage() {
  timeout 60 "$tutti" replay "$@" >"$work/log" 2>&1
  [ $? -eq 2 ]
}
usage --until 'rank 9 channel 0 step 1' "$absent" && said 'no rank 9: these files are of ranks 0 to 3' &&
  usage --rank 4 "$absent" && said 'there is no rank 4' &&
  usage --until 'rank 0 channel 0 step 99999999999999999999' "$absent" && said 'is no place; one is' &&
  usage --until 'rank 0 channel 0 step 1 lane 3' "$absent" && said 'is no place' &&
  usage --until 'rank 0 channel 0 step 1' --step 2 "$absent" && said 'give one of them' &&
  usage --json --rank 0 "$absent" && said 'json prints no lanes' &&
  usage --inject 'rank 2 call please' "$absent" && said 'is nothing that is missing here' &&
  usage --inject '' "$absent" && usage --inject 'rank' "$absent" && usage --step 0 "$absent"
check $? 'invalid ranks, places, events and flags are refused'
timeout 60 "$tutti" replay "$absent" "$root/traces/count/0.txt" >"$work/log" 2>&1
[ $? -eq 0 ] && said 'these files are of 2 jobs; this is job process-21537'
check $? 'of the files of two jobs those of the last one are replayed, and the others named'
for seed in 2 3 4; do
  "$tutti" replay --seed $seed "$lost" | grep '^missing\|^with it' >"$work/seed.$seed"
done
cmp -s "$work/seed.2" "$work/seed.3" && cmp -s "$work/seed.3" "$work/seed.4" && [ -s "$work/seed.2" ] &&
  "$tutti" replay --seed 5 "$lost" >"$work/first" && "$tutti" replay --seed 5 "$lost" | cmp -s - "$work/first"
check $? '--seed gives another order and the same answer; the same seed gives the same text'
"$tutti" replay --json "$absent" >"$work/log" && said '"missing": "rank 2 call"' &&
  said '"explains_all": true' && said '"reached": true'
check $? '--json prints the answer as JSON'
died=$root/traces/died
"$tutti" replay "$died"/0.txt "$died"/1.txt "$died"/3.txt >"$work/log" 2>&1 &&
  said '^missing: "rank 2 call": rank 2 left no file; perhaps'
check $? 'a job with a missing file is replayed'
"$tutti" trace pack "$absent" "$work/binary" && "$tutti" replay "$work/binary" >"$work/log" 2>&1 &&
  cmp -s "$work/log" "$root/traces/absent/replayed"
check $? 'a binary file is replayed'

# Wrong counters: of rank 0's lane, and of its end of the connection from rank 1.
link='link @0 used=1 proto=Simple peer=1'
spoil 'peer=2 sequence=2 step=1' 'peer=2 sequence=2 step=9' && ! reached &&
  said '^not reached: rank 0 .* was at step 9 of operation #2 on channel 0, to which it cannot come'
check $? 'an impossible step is reported'
spoil "$link step=2 head=2 tail=3" "$link step=5 head=5 tail=6" && ! reached &&
  said '^not reached: rank 0 .* a counter is stale or corrupted'
check $? 'a connection with wrong counters is reported'
spoil "$link step=2 head=2 tail=3" "$link step=2 head=2 tail=9" && ! reached &&
  said '^not reached: .* step 2, head 2, tail 9 from rank 1'
check $? 'a counter ahead of what was sent is reported'
spoil ' ended=2' ' ended=3' && ! reached &&
  said '^not reached: rank 0 .* had ended 3 of the kernels that are replayed, and here it can end 2'
check $? 'a kernel that cannot have ended is reported'

sed 's/^\(link @1 .* peer=2\) step=2 head=2/\1 step=3 head=3/' "$absent" >"$work/spoilt"
! cmp -s "$absent" "$work/spoilt" && reached && said '^missing: "rank 2 call"'
check $? 'a row that is older than its connection does no harm'

# Rows of a device that is observed from outside: steps of links are those at the begin of the operation.
sed 's/ counts=1/ counts=2/; s/^\(lane.*\) step=1 /\1 /; s/^\(link.*conn=128.*\)step=3/\1step=2/' "$absent" \
  >"$work/spoilt" && reached && said '^missing: "rank 2 call"' && said '^with it: all ranks end'
check $? 'counters that were only observed are accepted'

gpu=$root/traces/gpu
sed 's/step=4294967294 //; s/^\(link.*\)step=5/\1step=3/; s/^\(link.*\)step=4/\1step=2/' "$gpu/absent/0.txt" \
  >"$work/spoilt" && reached && tail -n +2 "$work/log" >"$work/begun" &&
  tail -n +2 "$gpu/absent/replayed" | cmp -s - "$work/begun"
check $? 'observed counters within their operation are accepted'
sed 's/^\(link @1 .*\) head=3 /\1 head=9 /' "$gpu/absent/0.txt" >"$work/spoilt" && ! reached &&
  said '^not reached: rank 0 .* counts step 5, head 9, tail 3 from rank 1 .* stale or corrupted'
check $? 'an observed counter beyond its operation is reported'
sed 's/launched=3 started=2/launched=3 started=3/' "$gpu/blocked/0.txt" >"$work/spoilt" && reached &&
  said '^missing: "rank 1 channel 0-21 send": rank 1 has sent it' && said '^with it: all ranks end all' &&
  said 'rank 0 of comm .1., channels 0-21: operation #2, step 1, waits for data of rank 1, which is there'
check $? 'data that was sent but not received, on all channels alike, is reported'
timeout 60 "$tutti" replay --inject 'rank 1 channel 7 send' "$work/spoilt" >"$work/log" 2>&1 &&
  said '^in the end:' && said 'no kernel is under way'
check $? '--inject on one of several channels applies to all of them'

# ---- malformed files
spoil 'rank_count=4' 'rank_count=4000000000' && refused &&
  said 'has 4000000000 ranks; a replay takes 1024 at most'
check $? 'too many ranks are refused'
spoil 'op=sum count=1024' 'op=sum count=99999999999999' && refused && said 'a replay takes 2 GiB at most'
check $? 'too large an operation is refused'
spoil 'slots=8 element_bytes=4' 'slots=200 element_bytes=4' && refused && said 'is none that can be made'
check $? 'an impossible plan is refused'
spoil 'lane @0 used=1 wait=data' 'lane @0 used=1 wait=200' && timeout 60 "$tutti" replay "$work/spoilt" \
  >"$work/log" 2>&1
check $? 'an invalid wait record is ignored'
echo 'no trace' >"$work/spoilt" && refused && said 'the first 8 bytes are not'
check $? 'a file that is not a trace is refused'
"$tutti" replay >"$work/log" 2>&1
[ $? -eq 2 ] && said 'which files?'
check $? 'no file is an error'
[ "$failures" -eq 0 ]
