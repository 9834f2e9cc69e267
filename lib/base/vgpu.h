/* vgpu.h: virtual GPUs (vGPU) of a hypervisor, as their names tell them: older drivers begin them with GRID,
 * and all end them with a profile, the size of the GPU's part and a letter: "NVIDIA A100-3-20C". */
#ifndef TUTTI_BASE_VGPU_H
#define TUTTI_BASE_VGPU_H

#include <stdbool.h>
#include <string.h>

static inline bool vgpu_is_named(const char *name) {
  const char *profile = strrchr(name, '-');
  if (strncmp(name, "GRID ", 5) == 0) return true;
  const size_t digits = profile != NULL ? strspn(profile + 1, "0123456789") : 0;
  if (digits == 0 || profile[1 + digits] == '\0') return false;
  return strchr("ABCQ", profile[1 + digits]) != NULL && profile[2 + digits] == '\0';
}

#endif
