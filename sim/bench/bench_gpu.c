/* bench_gpu.c: `tutti bench --gpu`: the same table on the GPUs of this machine, with a library and a CUDA
 * runtime that are loaded from files. Rejects flags that only the emulator has; bench_rank.c runs the rows.
 */
#include <stdlib.h>
#include <string.h>

#include "base/param.h"
#include "bench/bench.h"

/* Returns a flag that only the emulator has; NULL when none is given. */
static const char *emulator_flag(const struct bench_flags *flags) {
  if (flags->slots) return "--slots";
  if (flags->chunk_bytes) return "--chunk";
  if (flags->flag_bits) return "--flag-bits";
  if (flags->depth) return "--depth";
  if (flags->lag_percent) return "--lag";
  if (flags->trace_path) return "--trace";
  return flags->rate ? "--rate" : NULL;
}

static bool devices_count(struct bench *bench) {
  int count = 0;
  const cudaError_t error = api->cudaGetDeviceCount(&count);
  if (error != cudaSuccess)
    fprintf(stderr, "tutti bench: --gpu: no GPU: %s; without --gpu the emulator runs\n",
            api->cudaGetErrorString(error));
  else if (count == 0) fprintf(stderr, "tutti bench: --gpu: no GPU is visible (CUDA_VISIBLE_DEVICES)\n");
  bench->gpu_count = error == cudaSuccess ? count : 0;
  return bench->gpu_count > 0;
}

void bench_channels_set(int64_t channels) {
  char count[24];
  if (channels == 0) return;
  snprintf(count, sizeof count, "%lld", (long long)channels);
  setenv("NCCL_MIN_CTAS", count, 1);
  setenv("NCCL_MAX_CTAS", count, 1);
}

enum exit_code bench_gpu_begin(struct bench *bench) {
  struct bench_flags *flags = &bench->flags;
  char reason[512];
  flags->gpu = flags->gpu || flags->nccl_path || flags->cudart_path;
  if (!flags->gpu) return EXIT_GOOD;
  if (emulator_flag(flags)) {
    fprintf(stderr, "tutti bench: %s is the emulator's; leave it out, or --gpu, --nccl and --cudart\n",
            emulator_flag(flags));
    return EXIT_USAGE;
  }
  setenv("TUTTI_BACKEND", "cuda", 0); /* else the emulator could get GPU memory */
  bench_channels_set(flags->channel_count);
  if (!api_load(flags->nccl_path, flags->cudart_path, reason, sizeof reason)) {
    fprintf(stderr, "tutti bench: --gpu: %s\n", reason);
    return EXIT_ENVIRONMENT;
  }
  if (flags->tune_path && !api->tutti_comm_tuning_options) {
    fprintf(stderr, "tutti bench: --tune asks tutti's own libnccl.so.2, and %s is another\n",
            api_library_path());
    return EXIT_USAGE;
  }
  return devices_count(bench) ? EXIT_GOOD : EXIT_ENVIRONMENT;
}

bool bench_gpu_ranks_fit(const struct bench *bench) {
  if (bench_own_count(bench) <= (uint32_t)bench->gpu_count) return true;
  if (param_int(PARAM_MULTI_RANK_GPU_ENABLE) != 0) return true;
  fprintf(stderr,
          "tutti bench: %u ranks in this process, and %d GPUs are visible; take fewer (-g, -t), or set "
          "NCCL_MULTI_RANK_GPU_ENABLE=1, and ranks share GPUs\n",
          bench_own_count(bench), bench->gpu_count);
  return false;
}

bool bench_id_make(struct bench *bench) {
  ncclResult_t result = ncclInvalidUsage;
  if (api->tutti_launch_id) {
    result = api->tutti_launch_id(&bench->launch, &bench->id);
  } else if (bench->launch.rank_count > 1 && !os_env("NCCL_COMM_ID")) {
    fprintf(stderr,
            "tutti bench: %s cannot pass its unique id on to %d processes; set NCCL_COMM_ID=HOST:PORT, an "
            "address of rank 0's host\n",
            api_library_path(), bench->launch.rank_count);
    return false;
  } else {
    result = api->ncclGetUniqueId(&bench->id);
  }
  if (result != ncclSuccess)
    fprintf(stderr, "tutti bench: no id to meet under: %s\n", api->ncclGetLastError(NULL));
  return result == ncclSuccess;
}
