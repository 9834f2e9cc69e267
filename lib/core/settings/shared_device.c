/* shared_device.c: ranks that share a GPU (NCCL_MULTI_RANK_GPU_ENABLE). Their kernels wait for each other, so
 * the blocks of all of them must run at once, and no kernel may stand in a hardware queue behind one that
 * waits for it. */
#include <stdlib.h>

#include "base/log.h"
#include "base/os.h"
#include "core/settings/settings.h"

#define QUEUES_VARIABLE "CUDA_DEVICE_MAX_CONNECTIONS"
#define QUEUES_USUAL 8 /* what CUDA makes if the variable is not set */
#define QUEUES_MOST "32"

void settings_add_device(struct settings_ranks *ranks, const struct settings_device *device) {
  const uint32_t count = device->rank_count, each = device->blocks < count ? 1 : device->blocks / count;
  if (count < 2) return;
  ranks->share_devices = true;
  if (ranks->streams < device->own_count) ranks->streams = device->own_count;
  if (device->blocks > 0 && (ranks->blocks == 0 || each < ranks->blocks)) ranks->blocks = each;
}

static uint32_t queue_count(void) {
  const char *text = os_env(QUEUES_VARIABLE);
  const int count = text != NULL ? atoi(text) : 0;
  return count > 0 ? (uint32_t)count : QUEUES_USUAL;
}

void settings_log_devices(const struct settings_ranks *ranks) {
  static bool warned; /* each rank of the process comes here */
  if (ranks->blocks == 0) return;
  log_info(LOG_INIT,
           "ranks share GPUs (NCCL_MULTI_RANK_GPU_ENABLE): at most %u channels, so that the kernels of all "
           "ranks run at once",
           ranks->blocks);
  if (ranks->streams > queue_count() && !__atomic_exchange_n(&warned, true, __ATOMIC_RELAXED))
    log_warn("%u ranks of this process share a GPU, and " QUEUES_VARIABLE
             " gives it %u hardware queues: streams in one queue wait for each other, and ranks that do so "
             "hang; set it to " QUEUES_MOST " before the program starts",
             ranks->streams, queue_count());
}

/* CUDA reads the variable when it makes a device's context, which programs do before they call us. Parameters
 * are not read yet, as a program may still set them. */
__attribute__((constructor)) static void queues_ask(void) {
  const char *shared = os_env("NCCL_MULTI_RANK_GPU_ENABLE");
  if (shared != NULL && atoi(shared) != 0) os_env_default(QUEUES_VARIABLE, QUEUES_MOST);
}
