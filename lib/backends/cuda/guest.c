/* guest.c: a device that this process does not have for itself: a virtual GPU (vGPU) of a hypervisor, or a
 * client's part of one under the Multi-Process Service (MPS). Says in the log what is used then. Both work
 * like other devices, within what the driver says of them; it knows nothing of paths and transports. */
#include <cuda.h>
#include <stdlib.h>

#include "backends/cuda/device.h"
#include "base/log.h"
#include "base/os.h"
#include "base/vgpu.h"

/* The part of the device that its environment allows a client of MPS, in percent; what the control daemon
 * allows is not asked. */
static double mps_percentage(const char *text) {
  const double percentage = text != NULL ? strtod(text, NULL) : 0;
  return percentage > 0 && percentage < 100 ? percentage : 100;
}

/* Multiprocessors that this process may use. */
static uint32_t mps_blocks(uint32_t device_index, uint32_t blocks) {
  const char *pipe = os_env("CUDA_MPS_PIPE_DIRECTORY"), *text = os_env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
  const uint32_t part = (uint32_t)(blocks * mps_percentage(text) / 100);
  const uint32_t allowed = part > 0 ? part : 1;
  log_info(LOG_INIT,
           "device %u is shared by the Multi-Process Service (MPS) of %s: kernels of this process get %u of "
           "its %u multiprocessors (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE %s)",
           device_index, pipe != NULL ? pipe : "/tmp/nvidia-mps", allowed, blocks,
           text != NULL ? text : "is not set");
  return allowed;
}

void cuda_guest_fill(uint32_t device_index, struct device_info *info) {
  if (vgpu_is_named(info->name))
    log_info(
        LOG_INIT,
        "device %u, %s, is a virtual GPU (vGPU): where its driver offers no peer access and no CUDA IPC, "
        "data goes through memory of the host",
        device_index, info->name);
  if (cuda_device_ask(device_index, CU_DEVICE_ATTRIBUTE_MPS_ENABLED) != 0)
    info->blocks = mps_blocks(device_index, info->blocks);
}
