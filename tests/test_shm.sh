#!/bin/sh
# test_shm.sh: processes whose GPUs do not map each other's memory share memory of the host (SHM), on the GPU
# backend without a GPU (tests/simt), where a page that is not registered, or no longer, cannot be accessed:
# which transport each pair of processes uses, right results of all collectives, failures, and that nothing
# stays registered. Prints one `ok - ` or `not ok - ` line per check and fails if a check failed. QUICK=1 runs
# fewer sizes.
# runner: 30 s
. "$(dirname "$0")/script.inc"
use_build
unset NCCL_MAX_CTAS NCCL_NET NCCL_NET_PLUGIN NCCL_COMM_ID NCCL_HOSTID NCCL_P2P_LEVEL NCCL_SHM_DISABLE \
  NCCL_P2P_DISABLE SIMT_SEED SIMT_IPC_NAMESPACE SIMT_NO_REGISTER
export NCCL_SOCKET_IFNAME=lo
simt=$build/simt
tutti=$build/bin/tutti
[ -e "$simt/libtutti-cuda.so" ] || { echo "not ok - build/simt is there"; exit 1; }

# bench PROCESSES COLLECTIVE FLAGS...: every row was checked and is right, and nothing stays registered.
bench() {
  ranks=$1
  shift
  rm -f "$work"/registered "$work"/debug.*
  # $each, options of launch or a command's prefix, is a list of words.
  # shellcheck disable=SC2086
  LD_LIBRARY_PATH=$simt TUTTI_BACKEND=cuda TUTTI_EMU=mode=threads,devices=${gpus:-4} NCCL_MAX_CTAS=2 \
    NCCL_DEBUG=INFO NCCL_DEBUG_FILE="$work/debug.%p" SIMT_REGISTERED="$work/registered" timeout 120 \
    "$tutti" launch -n "$ranks" ${each:-} "$tutti" bench "$@" -n 1 -w 0 -q --nccl "$simt/libnccl.so.2" \
    --cudart "$simt/libtutti-simt.so" >"$work/out" 2>"$work/log" </dev/null
  noted $? "the command succeeds" || { cat "$work"/debug.* >>"$work/log"; return 1; }
  cat "$work"/debug.* >>"$work/log"
  [ "$(awk '$9 != "N/A" { wrong += $9 } $13 != "N/A" { wrong += $13 } END { print (NR > 0), wrong + 0 }' \
    "$work/out")" = "1 0" ]
  noted $? "all rows are right" || return 1
  [ "$(grep -c 'registered [0-9]*, left 0$' "$work/registered")" -eq "$ranks" ]
  noted $? "nothing stays registered"
}

# via PAIRS: exactly these transports connected ranks, as "0>1=SHM 1>0=SHM", sorted.
via() {
  found=$(sed -n 's|.* INFO Channel [0-9/]* : \([0-9]*\) -> \([0-9]*\) via \([A-Za-z0-9]*\).*|\1>\2=\3|p' \
    "$work/log" | sort -u | tr '\n' ' ')
  [ "$found" = "$1 " ]
  noted $? "transports are $1: $found"
}

# only TRANSPORT: all connections use it.
only() {
  found=$(sed -n 's|.* INFO Channel [0-9/]* : [0-9]* -> [0-9]* via \([A-Za-z0-9]*\).*|\1|p' "$work/log" |
    sort -u | tr '\n' ' ')
  [ "$found" = "$1 " ]
  noted $? "all connections are via $1: $found"
}

most=200K
[ -n "${QUICK:-}" ] && most=20K

bench 2 all_reduce -b 128 -e 128 && only P2P && grep -q 'registered 0, left 0' "$work/registered"
check $? "processes whose GPUs map each other's memory use it, and register nothing"

SIMT_VGPU=1 bench 2 all_reduce -b 128 -e 20K -f 37 && only SHM && ! grep -q ' WARN ' "$work/log" &&
  grep -q 'device 0, GRID H100-80C, is a virtual GPU (vGPU): .* data goes through memory of the host' \
    "$work/log" && grep -q 'no CUDA IPC here: processes share memory of the host' "$work/log"
check $? "processes on virtual GPUs share memory of the host, and the log says so"
SIMT_VGPU=1 bench 1 all_reduce -g 3 -b 128 -e 20K -f 37 && ! grep -q ' WARN ' "$work/log"
check $? "threads on virtual GPUs share memory of the host"

# NVLinks join the two GPUs, and the driver has disabled access over them, as NVML says.
cc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o "$work/libnvidia-ml.so.1" "$here/machines/fake_nvml.c" \
  -DBUS_IDS='"00000000:01:00.0", "00000000:02:00.0", "00000000:C1:00.0"' || exit 3
disabled='NVLinks join GPU 0000:0[12]:00.0 and GPU 0000:0[12]:00.0, and NVML says that peer-to-peer access'
export LD_PRELOAD="$work/libnvidia-ml.so.1"
for job in '2 all_reduce' '1 all_reduce -g 2'; do
  # $job is a list of words.
  # shellcheck disable=SC2086
  bench $job -b 128 -e 128 && ! grep -q "$disabled" "$work/log" &&
    ! FAKE_NVML_P2P=4 bench $job -b 128 -e 128 &&
    grep -q "WARN .*$disabled.* NCCL_IGNORE_DISABLED_P2P=1 data goes" "$work/log" &&
    grep -q 'ncclCommInitRank.* system error' "$work/log"
  check $? "P2P that is disabled between GPUs with NVLinks is an error with a cure ($job)"
  # shellcheck disable=SC2086
  FAKE_NVML_P2P=4 NCCL_IGNORE_DISABLED_P2P=1 bench $job -b 128 -e 20K -f 37 &&
    ! grep -q "$disabled" "$work/log" && FAKE_NVML_P2P=4 NCCL_P2P_DISABLE=1 bench $job -b 128 -e 128 &&
    ! grep -q "$disabled" "$work/log"
  check $? "and none with NCCL_IGNORE_DISABLED_P2P=1, or without P2P ($job)"
done
# The first process that ends with the error must not end the other one before that is told.
each=--keep-going FAKE_NVML_P2P=4 bench 2 all_reduce -b 128 -e 128
started=$(grep -c 'Init START' "$work/log")
[ "$started" -eq 2 ] && [ "$(grep -c 'ncclCommInitRank.* system error' "$work/log")" -eq 2 ]
check $? "both processes are told"
unset LD_PRELOAD

export NCCL_P2P_DISABLE=1
for collective in all_reduce all_gather reduce_scatter broadcast reduce sendrecv alltoall gather scatter; do
  for ranks in 2 3 4; do
    [ -z "${QUICK:-}" ] || [ "$ranks" -eq 3 ] || [ "$collective" = all_reduce ] || continue
    bench $ranks $collective -b 128 -e $most -f 37 && only SHM
    check $? "$collective of $ranks processes without P2P gives right results via SHM"
  done
done
for option in Ring:LL Ring:Simple Tree:LL Tree:Simple Direct:LL Direct:Simple TwoShot:LL TwoShot:Simple; do
  NCCL_ALGO="allreduce:${option%:*}" NCCL_PROTO=${option#*:} bench 3 all_reduce -b 40 -e $most -f 37 &&
    only SHM
  check $? "all_reduce via SHM gives right results by $option"
done
for protocol in LL Simple; do
  NCCL_PROTO=$protocol bench 2 all_reduce -b 1000 -e 1000 -d all -o all && only SHM
  check $? "all types and operators give right results via SHM in $protocol"
done
bench 3 all_reduce -b 128 -e $most -f 61 && ! grep -q 'protocol 1$' "$work/log"
check $? "... which never uses LL128 of its own accord"
for collective in all_reduce sendrecv; do
  bench 2 $collective -b 8 -e 32K -f 64 -G 3 && only SHM
  check $? "$collective in graphs gives right results via SHM"
done
NCCL_P2P_READ_ENABLE=1 bench 3 all_reduce -b 20K -e $most -f 10 && only SHM
check $? "slots at the sender, read there, give right results via SHM"
gpus=1 NCCL_MULTI_RANK_GPU_ENABLE=1 bench 2 all_reduce -b 128 -e $most -f 37 && only SHM
check $? "two processes on one GPU give right results via SHM"

# Which pairs use it.
NCCL_SHM_DISABLE=1 bench 2 all_reduce -b 128 -e 4K -f 32 && only network
check $? "NCCL_SHM_DISABLE=1: the network"
cat >"$work/first" <<'END'
#!/bin/sh
# One process alone has the setting.
[ "$TUTTI_RANK" -ne 0 ] || export NCCL_SHM_DISABLE=1
exec "$@"
END
cat >"$work/pairs" <<'END'
#!/bin/sh
# Two processes in each IPC namespace.
SIMT_IPC_NAMESPACE=$((TUTTI_RANK / 2 + 1)) exec "$@"
END
chmod +x "$work/first" "$work/pairs"
each=$work/first
bench 3 alltoall -b 128 -e 4K -f 32 && via '0>1=network 0>2=network 1>0=network 1>2=SHM 2>0=network 2>1=SHM'
check $? "NCCL_SHM_DISABLE=1 in one process: the network to it, SHM between the others"
each=
SIMT_NO_REGISTER=1 bench 2 all_reduce -b 128 -e 4K -f 32 && only network &&
  grep -q 'WARN .*cudaHostRegister failed with CUDA error 801 .*NCCL_SHM_DISABLE=1 avoids the attempt' \
    "$work/log"
check $? "where the driver refuses to register memory, the network, and the log says why"
# Blocks are of 512 or 1024 bytes, by shell.
(ulimit -f 60000 && NCCL_DEBUG_SUBSYS=ALL bench 2 all_reduce -b 128 -e 4K -f 32) && only network &&
  grep -q 'INFO .*shares no memory of the host with other processes: .*ulimit -f' "$work/log"
check $? "with files of at most 59 MiB, the network, and the log says why"
! (ulimit -f 204800 && NCCL_PROTO=Simple NCCL_BUFFSIZE=268435456 bench 2 all_reduce -b 4K -e 4K) &&
  grep -q 'shared memory: .* MiB are more than .*ulimit -f' "$work/log"
check $? "a limit that is met later, here of 256 MiB, ends the call, and the message says which"
unset NCCL_P2P_DISABLE

each=$work/pairs
bench 4 alltoall -b 128 -e $most -f 37 &&
  via "0>1=P2P 0>2=SHM 0>3=SHM 1>0=P2P 1>2=SHM 1>3=SHM 2>0=SHM 2>1=SHM 2>3=P2P 3>0=SHM 3>1=SHM 3>2=P2P" &&
  [ "$(grep -c 'WARN .*on its host: .*they exchange data through memory of the host' "$work/log")" -eq 2 ]
check $? "each pair of processes uses what its containers allow, and the log says why"
for option in Ring:LL Ring:Simple Direct:Simple TwoShot:Simple; do
  NCCL_ALGO="allreduce:${option%:*}" NCCL_PROTO=${option#*:} bench 4 all_reduce -b 1000 -e $most -f 37 &&
    grep -q 'via P2P/IPC' "$work/log" && grep -q 'via SHM/direct/direct' "$work/log"
  check $? "all_reduce over both gives right results by $option"
done
NCCL_ALGO=Ring NCCL_PROTO=Simple bench 4 broadcast -b 2M -e 2M
check $? "a broadcast that stores into outputs where it can gives right results"
SIMT_NO_REGISTER=1 bench 4 alltoall -b 128 -e 4K -f 32 &&
  via "0>1=P2P 0>2=network 0>3=network 1>0=P2P 1>2=network 1>3=network 2>0=network 2>1=network 2>3=P2P \
3>0=network 3>1=network 3>2=P2P"
check $? "the network replaces SHM where it fails, and P2P stays"
each=

# Splits, graphs' ends, calls that differ, aborts, a killed process, and communicators again.
cc -O1 -o "$work/processes" "$here/gpu/processes.c" -I"$build/include" -I"$build/include/tutti-emu" \
  -L"$build/lib" -ltutti-cudart -lnccl -lpthread || exit 3
for ranks in 2 3; do
  rm -f "$work/registered"
  NCCL_P2P_DISABLE=1 SIMT_REGISTERED="$work/registered" LD_LIBRARY_PATH=$simt TUTTI_BACKEND=cuda \
    LD_PRELOAD=$simt/libtutti-simt.so NCCL_MAX_CTAS=1 TUTTI_EMU=mode=threads,devices=4 NCCL_DEBUG=INFO \
    timeout 120 "$work/processes" $ranks >"$work/log" 2>&1 </dev/null && grep -q 'via SHM' "$work/log" &&
    tail -n 1 "$work/log" | grep -q ': ok$' && ! grep -qv 'left 0$' "$work/registered"
  check $? "gpu/processes with $ranks processes succeeds via SHM, and nothing stays registered"
done

# The fake driver checks what drivers check.
cat >"$work/register.c" <<'END'
#include <cuda_runtime.h>
#include <stdlib.h>
#include <sys/mman.h>
int main(void) {
  char *shared = (char *)mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  void *device = NULL;
  if (cudaHostGetDevicePointer(&device, shared, 0) == cudaSuccess) return 1;
  if (cudaHostRegister(shared + 100, 4096, cudaHostRegisterMapped) != cudaSuccess) return 2;
  if (cudaHostRegister(shared + 4096, 10, 0) != cudaErrorHostMemoryAlreadyRegistered) return 3;
  if (cudaHostGetDevicePointer(&device, shared + 100, 0) != cudaSuccess || device == shared + 100) return 4;
  *(char *)device = 7;
  if (cudaHostUnregister(malloc(8)) != cudaErrorHostMemoryNotRegistered) return 5;
  if (cudaHostUnregister(shared + 100) != cudaSuccess) return 6;
  return shared[100] == 7 ? 0 : 7;
}
END
cc -O1 -o "$work/register" "$work/register.c" -I"$build/include/tutti-emu" -L"$build/lib" -ltutti-cudart &&
  LD_LIBRARY_PATH=$simt LD_PRELOAD=$simt/libtutti-simt.so "$work/register" >"$work/log" 2>&1
check $? "registrations are checked as a driver checks them"
[ "$failures" -eq 0 ]
