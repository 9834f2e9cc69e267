#!/bin/sh
# Wrong settings: of tutti's own an error at the first call of NCCL or of the emulated CUDA runtime, and of
# each verb that reads them; of NCCL's a warning on standard error, once; `tutti doctor` lists both. Right
# settings next to them print nothing.
# runner: 10 s
. "$(dirname "$0")/script.inc"
use_build
verb=
. "$here/verb.inc"

# first LIBRARY_CALL VARIABLE=VALUE...: the result of the first NCCL call of a program, and its last error.
cat >"$work/first.py" <<'P'
import ctypes, sys
nccl = ctypes.CDLL(sys.argv[1])
nccl.ncclGetLastError.restype = ctypes.c_char_p
calls = {'id': lambda: nccl.ncclGetUniqueId(ctypes.create_string_buffer(128)),
         'memory': lambda: nccl.ncclMemAlloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(64)),
         'init': lambda: nccl.ncclCommInitAll((ctypes.c_void_p * 2)(), 2, None)}
print(sys.argv[2], calls[sys.argv[2]](), nccl.ncclGetLastError(None).decode())
P
first() {
  call=$1
  shift
  env "$@" timeout 60 python3 "$work/first.py" "$build/lib/libnccl.so.2" "$call" >"$work/out" 2>"$work/err"
  cat "$work/out" "$work/err" >"$work/log"
}
# A program that looks at CUDA's errors alone ends at its first call; its status is the program's.
cuda() {
  env "$@" timeout 60 "$build/examples/init_all" >"$work/out" 2>"$work/err"
  code=$?
  cat "$work/out" "$work/err" >"$work/log"
  return $code
}
# The doctor finds a fault and says TEXT.
doctor() {
  ! env "$1" timeout 60 "$tutti" doctor -q >"$work/log" 2>&1 && says "$2" &&
    grep -q '^not ok  setting' "$work/log"
}

# VARIABLE=VALUE | what the sentence says
while IFS='|' read -r setting text; do
  [ -n "$setting" ] || continue
  ! cuda "$setting" && says "initialization error" "$text" && [ "$(grep -cF -e "$text" "$work/err")" = 1 ] &&
    for call in id memory init; do
      # An id needs no emulator, which reads these.
      case $call$setting in idTUTTI_EMU* | idTUTTI_RANK*) continue ;; esac
      first $call "$setting" && says "$call 5 " "$text" || break
    done && says "$text"
  check $? "$setting is refused by the first call of CUDA and of NCCL"
  doctor "$setting" "$text"
  check $? "... and doctor says why"
done <<'T'
TUTTI_SEED=banana|TUTTI_SEED=banana is no seed; give a number
TUTTI_SED=7|TUTTI_SED is no known setting; did you mean TUTTI_SEED?
TUTTI_EMU=mode=xx,foo=1|mode cannot be "xx" (it takes guarded, threads); there is no key foo (
TUTTI_EMU=slot=2|there is no key slot; did you mean slots?
TUTTI_EVENTS=/nowhere/events|TUTTI_EVENTS=/nowhere/events cannot be written: /nowhere/: No such file
TUTTI_WATCHDOG_SECONDS=never|TUTTI_WATCHDOG_SECONDS=never is no whole number from 0 to 86400
TUTTI_BACKEND=emo|TUTTI_BACKEND=emo is none of emu and cuda; did you mean emu?
TUTTI_SUM_ORDER=ranks|TUTTI_SUM_ORDER=ranks is none of any and rank; did you mean rank?
TUTTI_RANK=one|TUTTI_SIZE is not set
T

# Verbs: VARIABLE=VALUE is a misuse of those that run or plan something, and none of the others.
bad=
for each in 'bench all_reduce -e 8' 'explain plan all_reduce' 'check all_reduce' 'sim all_reduce -e 8' topo \
  'goal export all_reduce'; do
  # shellcheck disable=SC2086
  TUTTI_SED=7 try 2 $each && says 'did you mean TUTTI_SEED?' || bad="$bad, $each"
  # shellcheck disable=SC2086
  TUTTI_EMU=slot=2 try 2 $each && says 'there is no key slot; did you mean slots?' || bad="$bad, $each"
done
TUTTI_SED=7 try 0 help bench && TUTTI_SED=7 try 0 bench --help && TUTTI_SED=7 try 4 status || bad="$bad, help"
[ -z "$bad" ]
noted $? "right${bad:-}"
check $? "a wrong setting is a misuse of each verb that reads it, and of no other"

# NCCL's: VARIABLE=VALUE | what the warning says; nothing if it has none
while IFS='|' read -r setting text; do
  [ -n "$setting" ] || continue
  cuda "$setting" && if [ -n "$text" ]; then
    says "$text" && [ "$(grep -c . "$work/err")" = 1 ]
  else
    ! [ -s "$work/err" ]
  fi
  check $? "$setting: ${text:-nothing is said}"
done <<'T'
NCCL_BUFFSIZE=big|is no size (a number, or one with K, M or G) from 1 to 4294967296; it is ignored
NCCL_DEBUG=LOUD|NCCL_DEBUG=LOUD is none of NONE, VERSION, WARN, INFO, ABORT and TRACE; it is ignored
NCCL_ALG0=ring|NCCL_ALG0 is no known setting and is ignored; did you mean NCCL_ALGO?
NCCL_LAUNCH_MODE=PARALEL|NCCL_LAUNCH_MODE=PARALEL is none of PARALLEL and GROUP; did you mean PARALLEL?
TUTTI_TRACE=/nowhere/|TUTTI_TRACE: nothing is recorded: /nowhere/
NCCL_A_SETTING_OF_ANOTHER_VERSION=1|
NCCL_TUNER_PLUGIN=none|
NCCL_BUFFSIZE=1M|
TUTTI_SEED=0x1f|
TUTTI_EMU=mode=threads,slots=2|
TUTTI_HOME=/opt/tutti|
TUTTI_SEED=|
T
doctor TUTTI_TRACE=/nowhere/ 'TUTTI_TRACE=/nowhere/: nothing is recorded'
check $? "doctor says that records have no place"
! cuda NCCL_ALGO=rnig && says "NCCL_ALGO: 'rnig' is none of Tree, Ring" &&
  doctor NCCL_ALGO=rnig "NCCL_ALGO: 'rnig' is none of"
check $? "an unknown algorithm refuses communicators, and doctor says so"
for each in 'TUTTI_TUNE_FILE=/nowhere/rules' 'TUTTI_CUSTOM_FILE=/nowhere/schedule'; do
  ! cuda "$each" && says "${each#*=}" && doctor "$each" "${each#*=}"
  check $? "$each refuses communicators, and doctor says so"
done
[ $failures -eq 0 ]
