/* capability.c: which GPUs the library has code for (capability.h). */
#include "backends/cuda/capability.h"

#include <stdio.h>

#define LIST_BYTES 128

enum capability_support capability_support(const struct capability_code *code, uint32_t capability) {
  for (const uint32_t *machine = code->machine; *machine != 0; machine++)
    if (*machine / 10 == capability / 10 && *machine <= capability) return CAPABILITY_NATIVE;
  for (const uint32_t *ptx = code->ptx; *ptx != 0; ptx++)
    if (*ptx <= capability) return CAPABILITY_BY_PTX;
  return CAPABILITY_NONE;
}

/* Writes "8.0, 9.0", truncated to the text's size. */
static void list_write(const uint32_t *list, char *text, size_t text_bytes) {
  size_t used = 0;
  text[0] = '\0';
  for (const uint32_t *each = list; *each != 0 && used < text_bytes; each++) {
    const int length =
        snprintf(text + used, text_bytes - used, "%s%u.%u", each == list ? "" : ", ", *each / 10, *each % 10);
    used += length > 0 ? (size_t)length : 0;
  }
}

void capability_explain(const struct capability_code *code, uint32_t device_index, const char *name,
                        uint32_t capability, char *text, size_t text_bytes) {
  char machine[LIST_BYTES], ptx[LIST_BYTES], cure[LIST_BYTES];
  list_write(code->machine, machine, sizeof machine);
  list_write(code->ptx, ptx, sizeof ptx);
  if (capability >= CAPABILITY_OLDEST)
    snprintf(cure, sizeof cure, "build it with `scons GPUS=%u`, or for every supported GPU with `scons`",
             capability);
  else
    snprintf(cure, sizeof cure, "GPUs before %u.%u are not supported; TUTTI_BACKEND=emu runs without a GPU",
             CAPABILITY_OLDEST / 10, CAPABILITY_OLDEST % 10);
  snprintf(text, text_bytes,
           "device %u (%s) has compute capability %u.%u, and libtutti-cuda.so has no code for it, only "
           "machine code for %s and PTX for %s: %s",
           device_index, name, capability / 10, capability % 10, machine, ptx, cure);
}
