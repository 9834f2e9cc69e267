#!/bin/sh
# test_doctor.sh: every way in which a program can load this library or another one (a small stand-in), each
# tried for real and compared with the prediction of `tutti doctor`: LD_PRELOAD, LD_LIBRARY_PATH, LD_AUDIT,
# a wheel, programs with RPATH and RUNPATH, Python; running processes; settings; limits; files that are not
# programs. Prints one `ok - ` or `not ok - ` line per check and fails if a check failed. Finds the build at
# ${BUILD:-build}.
# runner: 20 s
. "$(dirname "$0")/script.inc"
use_build
unset LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT PYTHONPATH VLLM_NCCL_SO_PATH NCCL_CONF_FILE
export HOME="$work" PYTHONDONTWRITEBYTECODE=1
tutti=$build/bin/tutti
ours=$build/lib/libnccl.so.2
audit=$build/lib/libtutti-audit.so
real=$(realpath "$ours")

# doctor STATUS PATTERN [NAME=VALUE...] -- ARGUMENTS...: runs `tutti doctor` with these variables; true if
# it exits with STATUS and a line matches the pattern.
doctor() {
  expected=$1 pattern=$2
  shift 2
  set -- "$@"
  variables=
  while [ "$1" != -- ]; do
    variables="$variables $1"
    shift
  done
  shift
  # The variables are a list of words.
  # shellcheck disable=SC2086
  timeout 60 env $variables "$tutti" doctor "$@" >"$work/log" 2>&1 </dev/null
  status=$?
  echo "exit status $status" >>"$work/log"
  [ "$status" -eq "$expected" ] && grep -qE "$pattern" "$work/log"
}

# gets WHICH [NAME=VALUE...] PROGRAM...: the program itself prints whether it loaded this library or the
# stand-in.
gets() {
  wanted=$1
  shift
  timeout 60 env "$@" >"$work/log" 2>&1 </dev/null
  case $wanted in
    ours) grep -qx 23007 "$work/log" && grep -qxF "$real" "$work/log" ;;
    other) grep -qx 29999 "$work/log" && ! grep -qF "$real" "$work/log" ;;
  esac
}

# ---- the stand-in, and programs that use it
mkdir -p "$work/other" "$work/bin" "$work/alone"
cat >"$work/other.c" <<'C'
int ncclGetVersion(int *version) {
  *version = 29999;
  return 0;
}
C
cat >"$work/says.h" <<'C'
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
/* The version, and each libnccl that is mapped. */
static int say(int (*version)(int *)) {
  char line[4096], last[4096] = "";
  int number = 0;
  version(&number);
  printf("%d\n", number);
  FILE *maps = fopen("/proc/self/maps", "r");
  while (fgets(line, sizeof line, maps)) {
    char *path = strchr(line, '/');
    if (path && strstr(path, "/libnccl.so") && strcmp(path, last)) printf("%s", strcpy(last, path));
  }
  return fflush(stdout);
}
C
cat >"$work/linked.c" <<'C'
#include "says.h"
int ncclGetVersion(int *version);
int main(int argc, char **argv) {
  (void)argv;
  say(ncclGetVersion);
  if (argc > 1) sleep(30);
  return 0;
}
C
cat >"$work/opens.c" <<'C'
#include "says.h"
int main(int argc, char **argv) {
  int (*version)(int *) = NULL;
  void *library = dlopen(argc > 1 ? argv[1] : "libnccl.so.2", RTLD_NOW);
  if (library) *(void **)&version = dlsym(library, "ncclGetVersion");
  if (!version) return puts(dlerror());
  say(version);
  if (argc > 2) sleep(30);
  return 0;
}
C
cc -shared -fPIC -o "$work/other/libnccl.so.2" "$work/other.c" -Wl,-soname,libnccl.so.2 &&
  ln -s libnccl.so.2 "$work/other/libnccl.so" &&
  cc -o "$work/bin/rpath" "$work/linked.c" -L"$work/other" -lnccl -ldl \
    -Wl,--disable-new-dtags,-rpath,"$work/other" &&
  cc -o "$work/bin/runpath" "$work/linked.c" -L"$work/other" -lnccl -ldl \
    -Wl,--enable-new-dtags,-rpath,"$work/other" &&
  cc -o "$work/bin/nowhere" "$work/linked.c" -L"$build/lib" -lnccl -ldl &&
  cc -o "$work/bin/opens" "$work/opens.c" -ldl
check $? "the test programs build" >"$work/said"
cat "$work/said"
rpath=$work/bin/rpath runpath=$work/bin/runpath opens=$work/bin/opens

# ---- what programs load, and what doctor predicts
gets other "$rpath" && doctor 1 "gets another library: $work/other" -- "$rpath" &&
  grep -q "cure: LD_PRELOAD=$ours" "$work/log"
check $? "a program with RPATH loads another library; doctor names the fix"
gets ours LD_PRELOAD="$ours" "$rpath" &&
  doctor 0 "gets tutti: $ours .*by LD_PRELOAD" LD_PRELOAD="$ours" -- "$rpath"
check $? "LD_PRELOAD makes a program with RPATH load this library"
gets other LD_LIBRARY_PATH="$build/lib" "$rpath" &&
  doctor 1 "gets another library" LD_LIBRARY_PATH="$build/lib" -- "$rpath"
check $? "RPATH takes precedence over LD_LIBRARY_PATH"
gets ours LD_LIBRARY_PATH="$build/lib" "$runpath" &&
  doctor 0 "gets tutti: .*by LD_LIBRARY_PATH" LD_LIBRARY_PATH="$build/lib" -- "$runpath"
check $? "LD_LIBRARY_PATH takes precedence over RUNPATH"
gets ours LD_AUDIT="$audit" "$rpath" && doctor 0 "gets tutti: .*by LD_AUDIT" LD_AUDIT="$audit" -- "$rpath"
check $? "LD_AUDIT takes precedence over RPATH"
gets ours LD_AUDIT="$audit" "$opens" && gets ours LD_AUDIT="$audit" "$opens" "$work/other/libnccl.so.2" &&
  gets ours LD_AUDIT="$audit" "$opens" "$work/other/libnccl.so"
check $? "LD_AUDIT redirects dlopen by name and by full path"
gets ours LD_PRELOAD="$ours" "$opens" && ! gets ours LD_PRELOAD="$ours" "$opens" "$work/other/libnccl.so.2"
check $? "LD_PRELOAD redirects dlopen by name only"
cp "$audit" "$work/alone/" && gets other LD_AUDIT="$work/alone/libtutti-audit.so" "$rpath" &&
  doctor 1 "gets another library" LD_AUDIT="$work/alone/libtutti-audit.so" -- "$rpath"
check $? "an audit library without libnccl beside it changes nothing"
cp "$work/other/libnccl.so.2" "$work/other/libnccl.so.3" &&
  cp "$work/other/libnccl.so.2" "$work/other/libnccl.so.20" &&
  gets other LD_AUDIT="$audit" "$opens" "$work/other/libnccl.so.3" &&
  gets other LD_AUDIT="$audit" "$opens" "$work/other/libnccl.so.20"
check $? "LD_AUDIT ignores libraries of other names"
LD_AUDIT=$audit ls / >"$work/log" 2>&1 && LD_AUDIT=$audit "$tutti" --version >"$work/log" 2>&1
check $? "LD_AUDIT does not affect other programs"
doctor 0 "gets tutti" LD_PRELOAD="$ours" -- "$opens" &&
  doctor 0 "gets tutti" LD_LIBRARY_PATH="$build/lib" -- "$opens"
check $? "a program that opens the library by name is predicted right"
gets ours LD_LIBRARY_PATH="$build/lib" "$work/bin/nowhere" &&
  doctor 0 "gets tutti" LD_LIBRARY_PATH="$build/lib" -- "$work/bin/nowhere"
check $? "a program without a library path is predicted right"
doctor 1 "LD_PRELOAD names $work/none.so, which is not there" LD_PRELOAD="$work/none.so" -- "$rpath"
check $? "LD_PRELOAD of a missing file is reported"
cp -r "$build/lib/." "$work/copy" && rm -f "$work/copy/libtutti-cuda.so" &&
  doctor 0 "tutti of another build" LD_PRELOAD="$work/copy/libnccl.so.2" -- "$rpath" &&
  grep -q 'note .*no libtutti-cuda.so' "$work/log"
check $? "another copy of this library without the CUDA backend is reported"
doctor 0 "the emulator" TUTTI_BACKEND=emu LD_PRELOAD="$ours" -- "$rpath"
check $? "the backend that the program would use is named"
if [ ! -e /dev/nvidia0 ]; then
  doctor 1 "finds no backend: .*" TUTTI_BACKEND=cuda LD_PRELOAD="$ours" -- "$rpath"
  check $? "an unavailable backend is reported"
fi

# ---- a stand-in for the driver: three GPUs, one closed to programs, one too old; or none; or it fails, or
# crashes
cat >"$work/driver.c" <<'C'
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { return getenv("CRASHES") ? abort(), 1 : getenv("FAILS") ? 999 : (int)flags; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuDeviceGetCount(int *count) { return *count = getenv("NO_GPU") ? 0 : 3, 0; }
int cuDeviceGet(int *gpu, int index) { return *gpu = index, 0; }
int cuDeviceGetName(char *name, int bytes, int gpu) {
  return strncpy(name, getenv("VIRTUAL") ? "NVIDIA A100-3-20C" : "GPU of a kind", bytes), gpu * 0; }
int cuDeviceGetAttribute(int *value, int which, int gpu) {
  *value = which == 75 ? (gpu == 2 ? 7 : 9) : which == 20 && gpu == 1 ? 2 : 0;
  if (which == 133) *value = getenv("SHARED") != NULL;
  return 0;
}
int cuDeviceCanAccessPeer(int *yes, int a, int b) { return *yes = a + b != 2, 0; }
int cuDeviceGetP2PAttribute(int *value, int which, int a, int b) { return *value = which == 3 &&
  a + b == 1, 0; }
C
mkdir "$work/driver" && cc -shared -fPIC -o "$work/driver/libcuda.so.1" "$work/driver.c"
driver=LD_LIBRARY_PATH=$work/driver
doctor 1 "not ok .*GPU 1, GPU of a kind, lets no program in" "$driver" -- "$rpath" &&
  grep -q "not ok .*GPU 2, .*compute capability 7.0" "$work/log" &&
    grep -q "^ok .*GPU 0: GPU of a kind" "$work/log" &&
  grep -q "of 6 ordered pairs of GPUs 4 reach each other, 2 over NVLink" "$work/log" &&
  grep -q "GPU 0 cannot map memory of GPU 2" "$work/log" && grep -q "serves CUDA 13.0" "$work/log"
check $? "GPUs that are closed, too old or usable are told apart, and their P2P paths listed"
doctor 1 "GPU 0 is a virtual GPU" "$driver" VIRTUAL=1 SHARED=1 CUDA_MPS_PIPE_DIRECTORY=/run/mps \
  CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50 -- "$rpath" &&
  grep -q "GPU 0 is shared by .* (MPS) of /run/mps; CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is 50" "$work/log" &&
  doctor 1 "GPU 0: GPU" "$driver" -- "$rpath" && ! grep -q "virtual\|MPS" "$work/log"
check $? "virtual GPUs, and those that MPS shares, are named"
doctor 1 "it would use the emulator, though GPUs are here" "$driver" TUTTI_BACKEND=emu LD_PRELOAD="$ours" \
  -- "$rpath" &&
  grep -q "not ok .*TUTTI_BACKEND=emu" "$work/log"
check $? "GPUs that settings exclude are reported"
doctor 1 "a driver is here, and no GPU: CUDA_VISIBLE_DEVICES=9" "$driver" NO_GPU=1 CUDA_VISIBLE_DEVICES=9 \
  -- "$rpath" &&
  doctor 1 "does not start: cuInit answers 999" "$driver" FAILS=1 -- "$rpath" &&
  doctor 1 "did not come back" "$driver" CRASHES=1 -- "$rpath"
check $? "a driver without GPUs, that fails or that crashes is reported"

# ---- Python
if command -v python3 >/dev/null; then
  cat >"$work/says.py" <<'PYTHON'
import ctypes
import sys
library = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else 'libnccl.so.2')
version = ctypes.c_int()
library.ncclGetVersion(ctypes.byref(version))
print(version.value)
with open('/proc/self/maps', encoding='utf-8') as maps:
    print('\n'.join(sorted({line.split()[-1] for line in maps if '/libnccl.so' in line})))
PYTHON
  gets ours LD_PRELOAD="$ours" python3 "$work/says.py" &&
    gets ours LD_AUDIT="$audit" python3 "$work/says.py" &&
    gets ours LD_LIBRARY_PATH="$build/lib" python3 "$work/says.py"
  check $? "Python's ctypes is predicted right, three ways"
  # Packages in pip's layout: a wheel of NCCL, and PyTorch's library with its RPATH.
  site=$work/site
  mkdir -p "$site/torch/lib" "$site/nvidia/nccl/lib" && : >"$site/torch/__init__.py" &&
    cp "$work/other/libnccl.so.2" "$site/nvidia/nccl/lib/" &&
    cc -shared -fPIC -o "$site/torch/lib/libtorch_cuda.so" "$work/linked.c" -L"$work/other" -lnccl \
      "-Wl,--disable-new-dtags,-rpath,\$ORIGIN/../../nvidia/nccl/lib"
  gets ours LD_AUDIT="$audit" PYTHONPATH="$site" python3 "$work/says.py" \
    "$site/nvidia/nccl/lib/libnccl.so.2" &&
    doctor 1 "PyTorch gets another library: $site/torch/lib/../../nvidia/nccl/lib/libnccl.so.2" \
      PYTHONPATH="$site" \
      LD_LIBRARY_PATH="$build/lib" -- python3 train.py &&
    grep -q "note .*wheel of NCCL is NVIDIA's: $site/nvidia/nccl/lib/libnccl.so.2" "$work/log"
  check $? "PyTorch loads the wheel's library"
  doctor 0 "PyTorch gets tutti: $ours" PYTHONPATH="$site" LD_PRELOAD="$ours" -- python3 train.py &&
    doctor 0 "PyTorch gets tutti: $ours" PYTHONPATH="$site" LD_AUDIT="$audit" -- python3 train.py
  check $? "PyTorch loads this library with LD_PRELOAD and LD_AUDIT"
  printf '#!/usr/bin/env python3\n' >"$work/bin/torchrun" && chmod +x "$work/bin/torchrun" &&
    doctor 1 "PyTorch gets another library" PYTHONPATH="$site" -- "$work/bin/torchrun" train.py
  check $? "a Python script is examined"
  (cd "$work" && timeout 60 python3 "$build/share/tutti/wheel.py") >"$work/log" 2>"$work/warned"
  wheel=$work/$(sed -n '1s#^\./##p' "$work/log")
  [ -f "$wheel" ] && (cd "$work" &&
    timeout 60 python3 "$build/share/tutti/wheel.py" --out again 2>"$work/log")
  [ $? -eq 3 ] && grep -q 'cannot be written' "$work/log" && [ -f "$wheel" ]
  check $? "wheel.py writes a wheel, or says why it cannot"
  rm -rf "$site/nvidia"
  if python3 -m pip --version >/dev/null 2>&1; then
    timeout 100 python3 -m pip install -q --disable-pip-version-check --no-index --no-deps --target "$site" \
      "$wheel" \
      >"$work/log" 2>&1
  else
    python3 -m zipfile -e "$wheel" "$site" >"$work/log" 2>&1
  fi
  cmp -s "$site/nvidia/nccl/lib/libnccl.so.2" "$ours" &&
    doctor 0 "PyTorch gets tutti of another build: .*by the program's RPATH" PYTHONPATH="$site" \
      -- python3 train.py && grep -q "wheel of NCCL holds tutti" "$work/log"
  check $? "PyTorch loads the wheel's library after an offline installation"
  timeout 60 python3 "$build/share/tutti/wheel.py" --lib "$work/other" --out "$work" >"$work/log" 2>&1
  [ $? -eq 3 ] && grep -q "is not tutti's" "$work/log"
  check $? "wheel.py refuses to package another library"
  LD_PRELOAD=$ours "$tutti" doctor --json "$rpath" >"$work/report.json" 2>"$work/log" &&
    python3 - "$work/report.json" >"$work/log" 2>&1 <<'PYTHON'
import json
import sys
report = json.load(open(sys.argv[1], encoding='utf-8'))
assert report['version'] == 1 and report['good'] is True and isinstance(report['gpus'], int)
assert {'grade', 'topic', 'text'} <= set(report['findings'][0])
assert any('gets tutti' in finding['text'] for finding in report['findings'])
PYTHON
  check $? "--json prints the answer as JSON"
else
  echo "skip: Python: python3 is not installed"
fi

# ---- processes
# mapped PROCESS: it has loaded its last library, one of these.
mapped() {
  grep -q libnccl "/proc/$1/maps" 2>/dev/null &&
    { [ "$1" != "$both" ] || grep -q "$work/other" "/proc/$1/maps"; }
}
LD_PRELOAD=$ours NCCL_P2P_DISABLE=1 "$rpath" stay >"$work/out" 2>&1 &
with=$!
"$rpath" stay >"$work/out" 2>&1 &
without=$!
LD_PRELOAD=$ours "$opens" "$work/other/libnccl.so.2" stay >"$work/out" 2>&1 &
both=$!
sleep 30 &
none=$!
for process in $with $without $both $none; do
  tries=0
  until [ "$process" = "$none" ] || [ $tries -gt 100 ] || mapped "$process"; do
    tries=$((tries + 1))
    sleep 0.05
  done
done
doctor 0 "process $with gets tutti: $real .*mapped now" -- --pid $with &&
  grep -q 'NCCL_P2P_DISABLE=1: GPUs do not reach' "$work/log"
check $? "--pid: a process with this library, and its settings"
doctor 1 "process $without gets another library: $work/other/libnccl.so.2" NCCL_P2P_DISABLE=1 -- --pid \
  $without &&
  ! grep -q P2P "$work/log"
check $? "--pid: a process with another library; the doctor's own settings do not count"
doctor 1 "process $none has no libnccl mapped" -- -p $none
check $? "--pid: a process without any libnccl"
doctor 0 "process $both has $work/other/libnccl.so.2 mapped too" -- --pid $both &&
  grep -q "gets tutti" "$work/log"
check $? "--pid: a process with both, as PyTorch with LD_PRELOAD"
kill $with $without $both $none
wait_all $with $without $both $none
doctor 4 "cannot be looked at: there is none" -- --pid $none
check $? "--pid: a process that has ended"

# ---- settings and limits
doctor 1 "not ok .*NCCL_MAX_CTAS=9999 is outside 1..64" NCCL_MAX_CTAS=9999 LD_PRELOAD="$ours" -- "$rpath"
check $? "a setting out of range is reported"
doctor 1 "not ok .*NCCL_BUFSIZE is no known .* mean NCCL_BUFFSIZE" NCCL_BUFSIZE=1 \
  LD_PRELOAD="$ours" -- "$rpath" &&
  doctor 0 "note .*NCCL_OF_A_LATER_VERSION is no known setting" NCCL_OF_A_LATER_VERSION=1 \
    NCCL_IB_MERGE_VFS=1 NCCL_ALGO=ring LD_PRELOAD="$ours" -- "$rpath" &&
  grep -q 'NCCL_IB_MERGE_VFS is accepted and has no effect in tutti: a virtual function' "$work/log" &&
    grep -q 'NCCL_ALGO=ring: over' "$work/log"
check $? "settings that are unknown, have no effect, or change behaviour are listed"
doctor 1 "VLLM_NCCL_SO_PATH names another library" VLLM_NCCL_SO_PATH="$work/other/libnccl.so.2" \
  LD_PRELOAD="$ours" \
  -- "$rpath" && doctor 0 "gets tutti" VLLM_NCCL_SO_PATH="$ours" LD_PRELOAD="$ours" -- "$rpath"
check $? "VLLM_NCCL_SO_PATH is taken into account"
(ulimit -f 20000 && doctor 1 "the size of files is limited" LD_PRELOAD="$ours" -- "$rpath")
check $? "a resource limit that is too low is reported"

# ---- files that are not programs
doctor 1 "there is no program nothing-of-this-name" -- nothing-of-this-name
check $? "a program that does not exist is reported"
printf '#!%s\n' "$work/bin/loop" >"$work/bin/loop" && chmod +x "$work/bin/loop" && mkfifo "$work/bin/pipe" &&
  chmod +x "$work/bin/pipe" && head -c 100 "$rpath" >"$work/bin/short" &&
    head -c 5000 "$rpath" >"$work/bin/half" &&
  head -c 4096 /dev/urandom >"$work/bin/noise" && : >"$work/bin/empty" && chmod +x "$work"/bin/*
good=0
for program in loop pipe short half noise empty .; do
  doctor 0 "gets tutti" LD_PRELOAD="$ours" -- "$work/bin/$program" ||
    doctor 1 "not ok" LD_PRELOAD="$ours" -- "$work/bin/$program" || good=1
done
[ $good -eq 0 ]
check $? "files that are not programs are reported"
mkdir "$work/text" && echo text >"$work/text/libnccl.so.2"
doctor 1 "not ok .*library" LD_LIBRARY_PATH="$work/text" -- "$runpath" &&
  doctor 1 "not ok .*library" LD_LIBRARY_PATH="$work/text" -- "$opens"
check $? "a libnccl.so.2 that is not a library is reported"
doctor 2 "two patients" -- --pid 1 "$rpath" && doctor 2 "no flag" -- --nonsense && doctor 2 "" -- --pid 0
check $? "a contradictory command line is refused"
doctor 0 "usage: tutti doctor" -- --help
check $? "help is printed"

[ "$failures" -eq 0 ]
