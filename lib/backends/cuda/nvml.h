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
 * CUDA's number, for what is remembered, and bus id. */
bool nvml_links_between(uint32_t a, const char *bus_a, uint32_t b, const char *bus_b,
                        struct nvml_links *links);

#endif
