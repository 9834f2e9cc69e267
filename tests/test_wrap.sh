#!/bin/sh
# test_wrap.sh: results on both sides of the steps at which flags, tags and halves of the flag's period wrap:
# connections that begin shortly before them (TUTTI_FIRST_STEP). Every algorithm and protocol, in the
# emulator's two modes, with weak memory, with inputs read in place, over the emulated network, between
# processes and between hosts; all calls, bit for bit (gpu/wrap.c). The fresh lines hold flags that match
# after the wrap, so a clean-up that is left out gives wrong results here. The checker from the same steps.
# The kernels of GPUs: test_simt.sh. Prints one `ok - ` or `not ok - ` line per check and fails if a check
# failed.
# runner: 40 s
. "$(dirname "$0")/script.inc"
use_build
tutti=$build/bin/tutti
export NCCL_DEBUG=WARN NCCL_SOCKET_IFNAME=lo LD_LIBRARY_PATH="$build/lib"
unset TUTTI_FIRST_STEP TUTTI_SEED
cc -O1 -o "$work/wrap" "$here/gpu/wrap.c" -I"$build/include" -I"$build/include/tutti-emu" -L"$build/lib" \
  -ltutti-cudart -lnccl || exit 3
near_31=2147483616 near_32=4294967264 # 32 steps before 2^31 and 2^32
later=4294967288                      # within the last eight steps before 2^32, whose clean-up has begun

# right ARGS...: wrap with these arguments gives right results with connections that begin at $first.
right() {
  # The command's prefix is a list of words.
  # shellcheck disable=SC2086
  TUTTI_FIRST_STEP=$first timeout 120 $starter "$work/wrap" "$@" >"$work/log" 2>&1 </dev/null &&
    tail -n 1 "$work/log" | grep -q ': ok$'
}
starter=

# in_all SETTINGS ARGS...: right() in each of these settings of the emulator; $missing are those that fail.
in_all() {
  settings=$1 missing=
  shift
  for emu in $settings; do
    TUTTI_EMU=$emu,chunk=480 right "$@" && continue
    missing="$missing $emu"
    cp "$work/log" "$work/failed"
  done
  [ -z "$missing" ] || cp "$work/failed" "$work/log"
  [ -z "$missing" ]
}

# Rings and messages. Slots that are no power of two count their turns differently.
for first in $near_31 $near_32 $later; do
  for protocol in LL LL128 Simple; do
    export NCCL_PROTO=$protocol
    in_all 'slots=8,channels=1 slots=7,channels=2,depth=3,lag=40,span=16 slots=3,channels=1,weak=1
      mode=threads,slots=5' 3 300 2 each
    check $? "rings and messages, $protocol, from step $first: all calls have the right bits$missing"
  done
  unset NCCL_PROTO
  NCCL_PROTO='allreduce:LL;broadcast:LL128;allgather:Simple;reduce:LL;reducescatter:Simple' \
    in_all 'slots=8,channels=1 slots=3,weak=1 mode=threads' 3 300 6
  check $? "protocols that share connections, from step $first: right bits$missing"
done
first=$near_32
for protocol in LL LL128; do
  NCCL_PROTO=$protocol in_all slots=8,channels=1 2 300 0 all_gather:all_reduce
  check $? "$protocol: one call of another kind at each place before the wrap: right bits$missing"
done

# The other algorithms, mixed with rings.
others='allgather:Direct;reducescatter:Direct;broadcast:Direct;alltoall:Direct'
for first in $near_31 $near_32; do
  for option in Tree:LL Tree:LL128 Tree:Simple Direct:LL Direct:LL128 Direct:Simple TwoShot:LL TwoShot:LL128 \
    TwoShot:Simple PAT:Simple NVLS:Simple NVLSTree:Simple CollNetDirect:Simple CollNetChain:Simple; do
    algo=${option%:*} devices=devices=4 more=
    case $algo in
    PAT) NCCL_ALGO='allgather:PAT;reducescatter:PAT' devices=devices=4,nodes=4 ;;
    Direct | TwoShot) NCCL_ALGO="allreduce:$algo;$others" ;;
    NVLS) NCCL_ALGO='allreduce:NVLS;allgather:NVLS;reducescatter:NVLS' ;;
    NVLSTree | CollNetChain) NCCL_ALGO="allreduce:$algo" devices=devices=4,nodes=2 ;;
    CollNetDirect)
      NCCL_ALGO="allreduce:$algo;allgather:$algo;reducescatter:$algo" devices=devices=4,nodes=2
      ;;
    *) NCCL_ALGO="allreduce:$algo" ;;
    esac
    [ "$option" != TwoShot:Simple ] && [ "$option" != Direct:Simple ] ||
      more="$devices,inputs=2,slots=3 $devices,inputs=2,weak=1 $devices,inputs=2,mode=threads"
    export NCCL_ALGO NCCL_PROTO="allreduce:${option#*:};allgather:${option#*:};reducescatter:${option#*:}"
    in_all "$devices,channels=1 $devices,slots=5,depth=3,lag=40 $devices,mode=threads $more" \
      4 250 2 all_reduce
    check $? "$option from step $first, mixed with rings: right bits$missing"
    unset NCCL_ALGO NCCL_PROTO
  done
done

# Every end of a half period of a short flag.
for first in 5 16 32 48 4294967280; do
  failed=
  for protocol in LL LL128; do
    export NCCL_PROTO=$protocol
    in_all 'slots=8,channels=1,flag_bits=5 slots=3,channels=1,weak=1,flag_bits=5' \
      2 250 2 all_gather exchange ||
      failed="$failed $protocol:$missing"
  done
  unset NCCL_PROTO
  [ -z "$failed" ]
  check $? "flags of 5 bits from step $first: all calls have the right bits$failed"
done

# Proxies, whose lines and counters are the host's; processes and hosts.
# shellcheck disable=SC2016
printf '#!/bin/sh\nNCCL_HOSTID=host$$ exec "$@"\n' >"$work/host"
chmod +x "$work/host"
for first in $near_31 $near_32; do
  for protocol in LL Simple; do
    export NCCL_PROTO=$protocol
    net=nodes=3,devices=3,net=1
    in_all "$net,slots=4,weak=1 $net,slots=8 $net,mode=threads" 3 250 2 all_reduce all_to_all
    check $? "$protocol over the emulated network from step $first: right bits$missing"
    failed=
    for starter in "$tutti launch -n 3" "$tutti launch -n 3 $work/host"; do
      in_all 'mode=guarded mode=threads' 0 250 2 all_reduce all_to_all ||
        failed="$failed ${starter#"$tutti"},$missing"
    done
    starter=
    [ -z "$failed" ]
    check $? "$protocol between processes and between hosts from step $first: right bits$failed"
  done
  unset NCCL_PROTO
done

# The checker proves plans from the step that the library begins with.
for first in $near_31 4294967295; do
  failed=
  for call in 'all_reduce --algo ring' 'all_reduce --algo tree' 'all_reduce --algo twoshot --slots 3' \
    'all_gather --algo PAT' 'reduce_scatter --algo direct --proto LL' 'all_reduce --algo NVLS' sendrecv; do
    # The call is a list of words.
    # shellcheck disable=SC2086
    TUTTI_FIRST_STEP=$first "$tutti" check $call --ranks 5 --count 1001 --chunk 512 >"$work/log" 2>&1 &&
      grep -q '^proved' "$work/log" || failed="$failed, $call"
  done
  [ -z "$failed" ]
  check $? "tutti check from step $first$failed"
done
TUTTI_FIRST_STEP=4294967295 "$tutti" check all_gather --algo ring --ranks 3 --slots 1 >"$work/log" 2>&1
[ $? = 1 ] && grep -q '^smallest: .* --first-step [0-9]' "$work/log"
check $? "the smallest call that fails names its first step"

# Wrong values, and ranks that differ.
for row in '4294967296:is outside 0..4294967295' '-1:is outside 0..4294967295' \
  'soon:is no whole number from 0 to 4294967295'; do
  first=${row%%:*}
  ! right 2 250 0 all_reduce && grep -q "TUTTI_FIRST_STEP=$first ${row#*:}" "$work/log" &&
    ! TUTTI_FIRST_STEP=$first "$tutti" check all_reduce >"$work/log" 2>&1 &&
    grep -q "TUTTI_FIRST_STEP=$first ${row#*:}" "$work/log"
  check $? "TUTTI_FIRST_STEP=$first is refused, with the range of steps"
done
cat >"$work/apart" <<'EOF'
#!/bin/sh
TUTTI_FIRST_STEP=$((TUTTI_RANK * 8)) exec "$@"
EOF
chmod +x "$work/apart"
first=0 starter="$tutti launch -n 2 $work/apart"
! TUTTI_EMU=mode=threads right 2 250 0 all_reduce &&
  grep -q 'has TUTTI_FIRST_STEP=0 and rank 1 .* 8; give it the same value everywhere' "$work/log"
check $? "ranks with different first steps get an error that names the variable"
starter=

# Reports and records know where the counters began.
TUTTI_FIRST_STEP=$near_32 TUTTI_SEED=9 TUTTI_EMU=mode=guarded,slots=1,chunk=64 NCCL_ALGO=Ring timeout 60 \
  "$work/wrap" 3 250 0 all_reduce >"$work/log" 2>&1
grep -q "reproduce: TUTTI_SEED=9 TUTTI_FIRST_STEP=$near_32 TUTTI_EMU=" "$work/log"
check $? "the command that repeats a run has the first step"
failed=
for protocol in LL Simple; do
  for scenario in absent cycle; do
    rm -f "$work/run"
    TUTTI_FIRST_STEP=$near_32 NCCL_ALGO=Ring NCCL_PROTO=$protocol TUTTI_TRACE=$work/run NCCL_DEBUG=NONE \
      TUTTI_STALL_SECONDS=1 timeout 60 "$build/tests/hang_program" $scenario >/dev/null 2>&1
    timeout 60 "$tutti" replay "$work/run" >"$work/log" 2>&1 && grep -q '^missing: ' "$work/log" ||
      failed="$failed $protocol,$scenario"
  done
done
[ -z "$failed" ]
check $? "a hung run from step $near_32 is replayed, without the variable$failed"
[ "$failures" -eq 0 ]
