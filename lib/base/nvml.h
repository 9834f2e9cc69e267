/* nvml.h: what the driver's management library reports about GPUs and their NVLinks. It is opened at run
 * time, if installed. Any thread may call. It knows nothing of PCI trees or of how the result is used. */
#ifndef TUTTI_BASE_NVML_H
#define TUTTI_BASE_NVML_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pci.h"

#define NVML_GPUS_MAX 64
#define NVML_LINKS_MAX 36 /* more than any device has */

struct nvml_links {
  uint32_t count;     /* active links of the pair, direct or through common switches; 0: none */
  double gbps_a_link; /* raw GB/s in one direction; 0 if unknown */
  bool disabled;      /* links are up, and the driver allows no peer-to-peer access over them: count is 0 */
};

/* False if unknown: no library, or it does not answer for these devices. Devices are identified by bus id, so
 * they need not be visible to this process. */
bool nvml_links_between(const char *bus_a, const char *bus_b, struct nvml_links *links);

/* True if NVLinks connect a device to every other device that the library sees; if it sees no other, as in
 * containers, true if all its links lead to switches. */
bool nvml_links_everywhere(const char *bus_id, struct nvml_links *links);

struct nvml_link {
  char remote[PCI_NAME_BYTES]; /* bus id at the other end; "" if unknown */
  bool to_gpu, to_switch;      /* what is there; neither: a CPU, or unknown */
};

struct nvml_gpu {
  char bus_id[PCI_NAME_BYTES];
  uint32_t capability;          /* compute capability times ten; 0 if unknown */
  uint32_t c2c_count, c2c_mbps; /* links to the CPU of a superchip, and MB/s of each; 0: none */
  uint32_t link_count;          /* active NVLinks */
  struct nvml_link links[NVML_LINKS_MAX];
};

/* The GPUs that the library sees, in its order, at most `most` of them: their number; 0 without the library.
 */
uint32_t nvml_gpus(struct nvml_gpu *gpus, uint32_t most);

#endif
