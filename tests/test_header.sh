#!/bin/sh
# test_header.sh: nccl.h and tutti.h compile on their own, as C11 and as C++17, without a warning; libnccl
# exports only nccl*, pnccl* and tutti_*, and each ncclX is weak; a program may unload it; nccl.h has the
# layouts, values and declarations of the nccl.h in NVIDIA's Python package, and the library its symbols.
# Prints one `ok - ` or `not ok - ` line per check.
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
library=${BUILD:-$here/../build}/lib/libnccl.so
work=$(mktemp -d) || exit 3
trap 'rm -rf "$work"' EXIT
failures=0

# check STATUS DESCRIPTION
check() {
  if [ "$1" -eq 0 ]; then echo "ok - $2"; return; fi
  echo "not ok - $2"
  sed -n '1,12s/^/    /p' "$work/out"
  failures=$((failures + 1))
}

flags="-Wall -Wextra -Wpedantic -Werror -fsyntax-only -I$here/../lib"
for header in nccl.h tutti.h; do
  echo "#include \"$header\"" >"$work/alone.c"
  cp "$work/alone.c" "$work/alone.cpp"
  # shellcheck disable=SC2086
  ${CC:-gcc} -std=c11 $flags "$work/alone.c" >"$work/out" 2>&1
  check $? "$header compiles on its own as C11"
  if command -v "${CXX:-g++}" >/dev/null; then
    # shellcheck disable=SC2086
    ${CXX:-g++} -std=c++17 $flags "$work/alone.cpp" >"$work/out" 2>&1
    check $? "$header compiles on its own as C++17"
  fi
done

if [ -e "$library" ] && command -v nm >/dev/null; then
  nm -D --defined-only "$library" | awk '{print $2, $3}' | sed 's/@.*//' >"$work/symbols"
  grep -vE ' (nccl[A-Z]|pnccl[A-Z]|tutti_)' "$work/symbols" | grep -v '^A ' >"$work/out"
  check $((! $?)) "libnccl exports only nccl*, pnccl* and tutti_*"
  sed -n 's/^T pnccl/W nccl/p' "$work/symbols" | sort >"$work/wanted"
  grep '^W nccl' "$work/symbols" | sort | diff "$work/wanted" - >"$work/out"
  check $? "each pnccl symbol has its weak nccl symbol"
  sed -n 's/^[WT] nccl/nccl/p' "$work/symbols" | sort -u >"$work/wanted"
  sed -n '/^## Functions/,/^## Members/{/^## /d;p}' "$here/../docs/nccl.md" |
    grep -o 'nccl[A-Z][A-Za-z0-9]*' | grep -v 'ncclInvalidUsage' | sort -u |
    diff "$work/wanted" - >"$work/out"
  check $? "docs/nccl.md has each function"
  sed -n '/^typedef struct ncclConfig_v/,/^} ncclConfig_t/p' "$here/../lib/nccl.h" |
    sed -n 's/^  [a-z][^;]*[ *]\([A-Za-z0-9]*\);.*/\1/p' | grep -vxE 'size|magic|version' |
    sort >"$work/wanted"
  sed -n '/^## Members/,/^## Env/{/^## /d;p}' "$here/../docs/nccl.md" |
    sed -n 's/^| \(`[^|]*\) |.*/\1/p' | tr -d '`' | tr ' ' '\n' | sort | diff "$work/wanted" - >"$work/out"
  check $? "docs/nccl.md has each member of ncclConfig_t"
fi

# ---- NVIDIA's own header and library, which PyTorch's packages bring

packages=$("${TORCH_PYTHON:-python3}" -c 'import nvidia.nccl; print(nvidia.nccl.__path__[0])' 2>/dev/null)
theirs=$packages/include/nccl.h
emulated=${BUILD:-$here/../build}/include/tutti-emu
if [ -z "$packages" ] || ! grep -qs '^#define NCCL_MINOR 30$' "$theirs"; then
  echo 'skip: the header of NCCL 2.30: no Python package nvidia-nccl-cu13 of 2.30 here'
else
  cat >"$work/values.c" <<'END'
#include <stddef.h>
#include <stdio.h>
#include "nccl.h"
#define MEMBER(type, name) \
  printf(#type "." #name " %zu %zu\n", offsetof(type, name), sizeof(((type *)0)->name));
#define SIZE(type) printf("sizeof " #type " %zu\n", sizeof(type));
#define VALUE(name) printf(#name " %lld\n", (long long)(name));
int main(void) {
#include "rows.h"
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  for (size_t i = 0; i < sizeof config; i++) printf(" %02x", ((unsigned char *)&config)[i]);
  puts("");
  return 0;
}
END
  {
    sed -n '/^typedef struct ncclConfig_v/,/^} ncclConfig_t/p' "$theirs" |
      sed -n 's/^  [a-z][^;]*[ *]\([A-Za-z0-9]*\);.*/MEMBER(ncclConfig_t, \1)/p'
    for member in opCnt peer sigIdx ctx; do echo "MEMBER(ncclWaitSignalDesc_t, $member)"; done
    for member in size magic version estimatedTime; do echo "MEMBER(ncclSimInfo_t, $member)"; done
    grep -oE '\b(nccl[A-Za-z0-9]*)_t\b' "$theirs" | grep -v dummy | sort -u | sed 's/.*/SIZE(&)/'
    grep -oE '^ *(typedef enum \{ *)?(nccl[A-Z][A-Za-z0-9]*) *= ' "$theirs" |
      sed 's/typedef enum {//; s/[ =]//g; s/.*/VALUE(&)/'
    sed -n 's/^#define \(NCCL_[A-Z_0-9]*\) .*/\1/p' "$theirs" |
      grep -vE 'SUFFIX|INITIALIZER|_PTR|_FLOAT|_NULL|_MAGIC|NCCL_VERSION$' | sed 's/.*/VALUE(&)/'
  } >"$work/rows.h"
  for side in ours theirs; do
    mkdir "$work/$side"
    case $side in ours) cp "$here/../lib/nccl.h" "$work/ours" ;; *) cp "$theirs" "$work/theirs" ;; esac
    ${CC:-gcc} -w -I"$work/$side" -I"$work" -I"$emulated" "$work/values.c" \
      -o "$work/values" >"$work/$side.log" 2>&1 && "$work/values" >"$work/$side.values"
  done
  cat "$work/ours.log" "$work/theirs.log" >"$work/out"
  [ "$(wc -l <"$work/theirs.values")" -gt 90 ] && diff "$work/theirs.values" "$work/ours.values" >>"$work/out"
  check $? "nccl.h has the sizes, offsets, values and initial config of NVIDIA's header of 2.30"
  for side in ours theirs; do
    ${CC:-gcc} -w -E -P -DNCCL_OS_LINUX -I"$work/$side" -I"$emulated" -x c "$work/$side/nccl.h" |
      tr -d '\n' | tr ';' '\n' |
      sed 's/__attribute__ *((.*))//; s/\bconst\b//g; s/(void)/()/g; s/ //g' |
      grep -oE '(ncclResult_t|char\*|void)p?nccl[A-Z][A-Za-z0-9]*\(.*\)' |
      sed 's/[A-Za-z0-9]*\([,)]\)/\1/g' | sort -u >"$work/$side.declared"
  done
  [ "$(wc -l <"$work/theirs.declared")" -gt 100 ] &&
    diff "$work/theirs.declared" "$work/ours.declared" >"$work/out"
  check $? "nccl.h declares the functions of NVIDIA's header of 2.30"
  nm -D --defined-only "$packages/lib/libnccl.so.2" | sed 's/@.*//' |
    awk '$3 ~ /^nccl/ {print $3}' | sort >"$work/wanted"
  sed -n 's/^[WT] nccl/nccl/p' "$work/symbols" | sort -u | comm -23 "$work/wanted" - >"$work/out"
  [ -s "$work/wanted" ] && [ ! -s "$work/out" ]
  check $? "libnccl has every symbol of NVIDIA's library of 2.30"
fi

# The library's thread runs on; its code must stay.
if [ -e "$library" ]; then
  cat >"$work/unload.c" <<'END'
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
  char id[128];
  void *library = dlopen(argv[argc - 1], RTLD_NOW);
  int (*get)(void *) = (int (*)(void *))dlsym(library, "ncclGetUniqueId");
  if (get == NULL || get(id) != 0 || dlclose(library) != 0) return 1;
  puts("unloaded");
  return 0;
}
END
  ${CC:-gcc} -o "$work/unload" "$work/unload.c" -ldl 2>"$work/out" &&
    NCCL_SOCKET_IFNAME=lo timeout 60 "$work/unload" "$library" >"$work/out" 2>&1
  check $? "a program may unload the library"
fi
exit $((failures > 0))
