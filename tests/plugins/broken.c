/* broken.c: unusable network plugins, one for each reason (BROKEN selects it): a loader must reject each with
 * a message, and without harm. */
#include "backends/net_abi.h"

#define EXPORT __attribute__((visibility("default")))

enum broken { NO_TABLE, OLD_TABLE, NULL_MEMBER, INIT_FAILS, NO_DEVICES, GPU_DRIVEN, NO_SYMBOL, GPU_MEMORY };

#if BROKEN == 6
extern void tutti_tests_no_such_function(void);
#endif

static ncclResult_t init(void **context, uint64_t comm_id, struct abi_config *config, abi_log log,
                         abi_profile profile) {
  (void)context, (void)comm_id, (void)config, (void)profile;
  log(3, 16, __FILE__, __LINE__, "broken plugin %d", BROKEN);
#if BROKEN == 6
  tutti_tests_no_such_function();
#endif
  return BROKEN == INIT_FAILS ? ncclSystemError : ncclSuccess;
}

static ncclResult_t devices(int *count) {
  *count = BROKEN == NO_DEVICES ? 0 : 1;
  return ncclSuccess;
}

static ncclResult_t properties(int device, void *result) {
  struct abi_device *mine = result;
  (void)device;
  mine->memory = BROKEN == GPU_MEMORY ? ABI_MEMORY_CUDA : ABI_MEMORY_HOST;
  mine->device_type = BROKEN == GPU_DRIVEN ? 1 : ABI_OFFLOAD_NONE;
  return ncclSuccess;
}

static ncclResult_t refuse(void) { return ncclInternalError; }
#define REFUSE (void *)(uintptr_t)refuse

#if BROKEN == 1
#define TABLE ncclNetPlugin_v5
#elif BROKEN == 0
#define TABLE ncclCollNetPlugin_v11
#else
#define TABLE ncclNetPlugin_v11
#endif

EXPORT const struct abi_net TABLE = {
    .name = "Broken",
    .init.v11 = init,
    .devices = devices,
    .properties = properties,
    .listen.v11 = REFUSE,
    .connect.v11 = REFUSE,
    .accept.v7 = REFUSE,
    .register_memory.v8 = REFUSE,
    .unregister_memory = REFUSE,
    .isend.v10 = REFUSE,
    .irecv.v10 = BROKEN == NULL_MEMBER ? NULL : REFUSE,
    .test = REFUSE,
    .close_send = REFUSE,
    .close_recv = REFUSE,
    .close_listen = REFUSE,
};
