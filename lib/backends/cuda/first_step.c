/* first_step.c: the memory of connections that do not begin at step 0 (TUTTI_FIRST_STEP), written before any
 * kernel uses them. The host writes one image of it, so it is the same for memory of the device and of the
 * host. */
#include "backends/first_step.h"

#include "backends/cuda/device.h"
#include "base/log.h"
#include "base/os.h"

ncclResult_t cuda_first_end(const struct plan_limits *limits, bool sends, void *end) {
  uint64_t image[LAUNCH_END_BYTES / 8] = {0};
  if (limits->first_step == 0) return ncclSuccess; /* the memory is zeroed */
  first_step_end(limits, sends, image);
  return cuda_memory_write(end, image, sizeof image);
}

ncclResult_t cuda_first_slots(const struct plan_limits *limits, uint8_t proto, uint32_t slot_bytes,
                              void *buffer) {
  const size_t bytes = (size_t)limits->slots * slot_bytes;
  if (limits->first_step == 0 || proto == PROTO_SIMPLE) return ncclSuccess;
  uint8_t *image = (uint8_t *)os_alloc(bytes);
  if (image == NULL) return log_no_memory("TUTTI_FIRST_STEP: %zu bytes to write slots from", bytes);
  for (uint32_t slot = 0; slot < limits->slots; slot++)
    first_step_fill(limits, proto, slot, image + (size_t)slot * slot_bytes, slot_bytes);
  const ncclResult_t result = cuda_memory_write(buffer, image, bytes);
  os_free(image);
  return result;
}
