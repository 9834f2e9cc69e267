/* shared_device.c: ranks that share a GPU (NCCL_MULTI_RANK_GPU_ENABLE). Their kernels wait for each other, so
 * the blocks of all of them must run at once, beside those of other communicators on the GPU, and no kernel
 * may stand in a hardware queue behind one that waits for it. */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/os.h"
#include "core/settings/settings.h"

#define QUEUES_VARIABLE "CUDA_DEVICE_MAX_CONNECTIONS"
#define QUEUES_USUAL 8 /* what CUDA makes if the variable is not set */
#define QUEUES_MOST "32"

/* Blocks that other communicators leave. Kernels of a rank alone on its device may wait for those of other
 * communicators like it, but not for those that share it. */
static uint32_t blocks_free(const struct settings_device *device) {
  const bool shares = device->rank_count > 1;
  const uint32_t used = device->use.shared_blocks + (shares ? device->use.single_blocks : 0);
  return device->blocks > used ? device->blocks - used : 0;
}

/* One for each rank that shares the device, also of the communicators that the same call makes. */
static uint32_t blocks_needed(const struct settings_device *device) {
  const uint32_t count = device->rank_count;
  return count > 1 && device->sharers > count ? device->sharers : count;
}

void settings_add_device(struct settings_ranks *ranks, const struct settings_device *device) {
  const uint32_t count = device->rank_count, available = blocks_free(device);
  uint32_t each = available;
  if (count > 1) {
    ranks->share_devices = true;
    if (ranks->streams < device->own_count) ranks->streams = device->own_count;
    each = available / 2 / blocks_needed(device);
  }
  if (device->blocks == 0 || (count < 2 && device->use.shared_blocks == 0)) return;
  if (available < blocks_needed(device)) ranks->full = *device;
  if (each == 0) each = 1;
  if (ranks->blocks == 0 || each < ranks->blocks) ranks->blocks = each;
}

static uint32_t queue_count(void) {
  const char *text = os_env(QUEUES_VARIABLE);
  const int count = text != NULL ? atoi(text) : 0;
  return count > 0 ? (uint32_t)count : QUEUES_USUAL;
}

/* The most channels with which all of these ranks fit: the cure. */
static ncclResult_t device_full(const struct settings_device *device) {
  const uint32_t needed = blocks_needed(device);
  const uint32_t fitting = device->blocks / (needed + device->use.rank_count);
  char cure[96];
  if (fitting > 0)
    snprintf(cure, sizeof cure, "set NCCL_MAX_CTAS=%u for all of them, or destroy some first", fitting);
  else snprintf(cure, sizeof cure, "use fewer ranks on the GPU, or destroy some communicators first");
  return log_fail(
      ncclInvalidUsage,
      "ranks of new communicators on one GPU (%u) need as many multiprocessors at least, and of its %u the "
      "kernels of other communicators' ranks there (%u) may take %u: kernels that wait for each other might "
      "never run together; %s",
      needed, device->blocks, device->use.rank_count, device->blocks - blocks_free(device), cure);
}

ncclResult_t settings_check_devices(const struct settings_ranks *ranks) {
  static bool warned; /* each rank of the process comes here */
  if (ranks->full.rank_count > 0) return device_full(&ranks->full);
  if (ranks->blocks == 0) return ncclSuccess;
  log_info(LOG_INIT,
           "ranks share GPUs (NCCL_MULTI_RANK_GPU_ENABLE): at most %u channels, so that the kernels of all "
           "ranks run at once",
           ranks->blocks);
  if (ranks->streams > queue_count() && !__atomic_exchange_n(&warned, true, __ATOMIC_RELAXED))
    log_warn("%u ranks of this process share a GPU, and " QUEUES_VARIABLE
             " gives it %u hardware queues: streams in one queue wait for each other, and ranks that do so "
             "hang; set it to " QUEUES_MOST " before the program starts",
             ranks->streams, queue_count());
  return ncclSuccess;
}

/* CUDA reads the variable when it makes a device's context, which programs do before they call us. Parameters
 * are not read yet, as a program may still set them. */
__attribute__((constructor)) static void queues_ask(void) {
  const char *shared = os_env("NCCL_MULTI_RANK_GPU_ENABLE");
  if (shared != NULL && atoi(shared) != 0) os_env_default(QUEUES_VARIABLE, QUEUES_MOST);
}
