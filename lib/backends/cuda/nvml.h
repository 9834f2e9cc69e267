/* nvml.h: what the driver's management library tells about NVLinks. It is opened at run time and only if it
 * is there. Called with cuda_mutex held. It knows nothing of PCI trees nor of what is done with the answer.
 */
#ifndef TUTTI_BACKENDS_CUDA_NVML_H
#define TUTTI_BACKENDS_CUDA_NVML_H

#include <stdbool.h>
#include <stdint.h>

struct nvml_links {
  uint32_t count;     /* active links of the pair, directly or to the switches that both hang on; 0: none */
  double gbps_a_link; /* GB/s on the wire in one direction; 0 when not told */
};

/* False when nobody can tell: no library, or one that does not answer for these devices. Devices are named by
 * their bus ids, so that they need not be visible to this process. */
bool nvml_links_between(const char *bus_a, const char *bus_b, struct nvml_links *links);

/* True where NVLinks lead from a device to each other one that the library sees; where it sees no other, as
 * in containers, where all its links lead to switches. */
bool nvml_links_everywhere(const char *bus_id, struct nvml_links *links);

#endif
