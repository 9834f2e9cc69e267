/* nvml.h: what the driver's management library reports about NVLinks. It is opened at run time, if installed.
 * Called with cuda_mutex held. It knows nothing of PCI trees or of how the result is used. */
#ifndef TUTTI_BACKENDS_CUDA_NVML_H
#define TUTTI_BACKENDS_CUDA_NVML_H

#include <stdbool.h>
#include <stdint.h>

struct nvml_links {
  uint32_t count;     /* active links of the pair, direct or through common switches; 0: none */
  double gbps_a_link; /* raw GB/s in one direction; 0 if unknown */
};

/* False if unknown: no library, or it does not answer for these devices. Devices are identified by bus id, so
 * they need not be visible to this process. */
bool nvml_links_between(const char *bus_a, const char *bus_b, struct nvml_links *links);

/* True if NVLinks connect a device to every other device that the library sees; if it sees no other, as in
 * containers, true if all its links lead to switches. */
bool nvml_links_everywhere(const char *bus_id, struct nvml_links *links);

#endif
