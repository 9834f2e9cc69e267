#!/bin/sh
# test_wrap.sh: results on both sides of the steps at which flags, tags and halves of the flag's period wrap:
# connections that begin shortly before them (TUTTI_FIRST_STEP), in the emulator's two modes, with weak memory,
# over the emulated network, between processes and between hosts; every call, each protocol, bit for bit
# (wrap.c). The fresh lines hold flags that match after the wrap, so a clean-up that is left out gives wrong
# results here. tests/test_simt.sh does the same with the GPUs' kernels. Prints one `ok - ` or `not ok - ` line
# per check and fails if a check failed.
# runner: 60 s
. "$(dirname "$0")/script.inc"
use_build
tutti=$build/bin/tutti
export NCCL_DEBUG=WARN NCCL_SOCKET_IFNAME=lo LD_LIBRARY_PATH="$build/lib"
unset TUTTI_FIRST_STEP
cc -O1 -o "$work/wrap" "$here/wrap.c" -I"$build/include" -I"$build/include/tutti-emu" -L"$build/lib" \
  -ltutti-cudart -lnccl || exit 3
near_31=2147483616 near_32=4294967264 # 32 steps before 2^31 and 2^32

# right ARGS...: wrap with these arguments gives right results with connections that begin at $first.
right() {
  # The command's prefix is a list of words.
  # shellcheck disable=SC2086
  TUTTI_FIRST_STEP=$first timeout 120 $starter "$work/wrap" "$@" >"$work/log" 2>&1 </dev/null &&
    tail -n 1 "$work/log" | grep -q ': ok$'
}
starter=

# The emulator in one process. Slots that are no power of two count their turns differently.
for first in $near_31 $near_32; do
  for protocol in LL LL128 Simple; do
    export NCCL_PROTO=$protocol
    missing=
    for emu in mode=guarded,slots=8,channels=1 mode=guarded,slots=7,channels=2,depth=3,lag=40,span=16 \
      mode=guarded,slots=3,channels=1,weak=1 mode=threads,slots=8 mode=threads,slots=5; do
      TUTTI_EMU=$emu,chunk=480 right 3 300 4 || missing="$missing $emu"
    done
    [ -z "$missing" ]
    check $? "$protocol from step $first: all calls have the right bits$missing"
  done
  for option in Tree:LL Tree:Simple Direct:LL Direct:Simple TwoShot:LL TwoShot:LL128 TwoShot:Simple PAT:Simple; do
    algo=${option%:*} missing=
    case $algo in
    TwoShot) NCCL_ALGO='allreduce:TwoShot;allgather:Direct;reducescatter:Direct;broadcast:Direct' ;;
    Direct) NCCL_ALGO='allreduce:Direct;allgather:Direct;reducescatter:Ring;broadcast:Direct' ;;
    Tree) NCCL_ALGO='allreduce:Tree' ;;
    *) NCCL_ALGO='allgather:PAT;reducescatter:PAT' ;;
    esac
    export NCCL_ALGO NCCL_PROTO="${option#*:}"
    nodes=1
    [ "$algo" != PAT ] || nodes=4
    for mode in guarded threads; do
      TUTTI_EMU=mode=$mode,chunk=480,channels=1,devices=4,nodes=$nodes right 4 250 2 || missing="$missing $mode"
    done
    unset NCCL_ALGO
    [ -z "$missing" ]
    check $? "$option from step $first, mixed with rings: right bits$missing"
  done
  unset NCCL_PROTO
done

# Every end of a half period of a short flag.
for first in 16 32 48 4294967280; do
  missing=
  for protocol in LL LL128; do
    for ranks in 2 5; do
      TUTTI_EMU=mode=guarded,slots=8,channels=1,chunk=480,flag_bits=5 NCCL_PROTO=$protocol right $ranks 250 4 ||
        missing="$missing $protocol,$ranks"
    done
  done
  [ -z "$missing" ]
  check $? "flags of 5 bits from step $first: all calls have the right bits$missing"
done

# Proxies, whose lines and counters are the host's; processes and hosts.
printf '#!/bin/sh\nNCCL_HOSTID=host$$ exec "$@"\n' >"$work/host"
chmod +x "$work/host"
for first in $near_31 $near_32; do
  for protocol in LL Simple; do
    export NCCL_PROTO=$protocol
    missing=
    for emu in mode=guarded,slots=4,weak=1 mode=guarded,slots=8 mode=threads; do
      TUTTI_EMU=$emu,chunk=480,nodes=3,devices=3,net=1 right 3 250 4 || missing="$missing $emu"
    done
    [ -z "$missing" ]
    check $? "$protocol over the emulated network from step $first: right bits$missing"
    missing=
    for mode in guarded threads; do
      for starter in "$tutti launch -n 3" "$tutti launch -n 3 $work/host"; do
        TUTTI_EMU=mode=$mode,chunk=480 right 3 250 2 all_reduce broadcast all_to_all exchange ||
          missing="$missing ${starter#"$tutti"},$mode"
      done
    done
    starter=
    [ -z "$missing" ]
    check $? "$protocol between processes and between hosts from step $first: right bits$missing"
  done
  unset NCCL_PROTO
done

# Wrong values, and ranks that differ.
first=4294967296
! right 2 250 0 all_reduce && grep -q 'TUTTI_FIRST_STEP=4294967296 is outside 0..4294967295' "$work/log"
check $? "a step beyond 2^32 is refused"
cat >"$work/apart" <<'END'
#!/bin/sh
TUTTI_FIRST_STEP=$((TUTTI_RANK * 8)) exec "$@"
END
chmod +x "$work/apart"
first=0 starter="$tutti launch -n 2 $work/apart"
! TUTTI_EMU=mode=threads right 2 250 0 all_reduce &&
  grep -q 'has TUTTI_FIRST_STEP=0 and rank 1 .* 8; give it the same value everywhere' "$work/log"
check $? "ranks with different first steps get an error that names the variable"
starter=

# Reports and records know where the counters began.
TUTTI_FIRST_STEP=4294967264 TUTTI_SEED=9 TUTTI_EMU=mode=guarded,slots=1,chunk=64 NCCL_ALGO=Ring timeout 60 \
  "$work/wrap" 3 250 0 all_reduce >"$work/log" 2>&1
grep -q 'reproduce: TUTTI_SEED=9 TUTTI_FIRST_STEP=4294967264 TUTTI_EMU=' "$work/log"
check $? "the command that repeats a run has the first step"
missing=
for protocol in LL Simple; do
  for scenario in absent cycle; do
    rm -f "$work/run"
    TUTTI_FIRST_STEP=4294967264 NCCL_ALGO=Ring NCCL_PROTO=$protocol TUTTI_TRACE=$work/run NCCL_DEBUG=NONE \
      TUTTI_STALL_SECONDS=1 timeout 60 "$build/tests/hang_program" $scenario >/dev/null 2>&1
    timeout 60 "$tutti" replay "$work/run" >"$work/log" 2>&1 && grep -q '^missing: ' "$work/log" ||
      missing="$missing $protocol,$scenario"
  done
done
[ -z "$missing" ]
check $? "a hung run from step 4294967264 is replayed, without the variable$missing"
[ "$failures" -eq 0 ]
