/* path.h: what is between two devices in the PCI tree, read from sysfs, and the names of paths. It uses no
 * CUDA header and no driver, so that it can be tested on any machine. If the tree has little information, as
 * in virtual machines, the result is the longer path, never an error. It knows nothing of NVLink. */
#ifndef TUTTI_BACKENDS_CUDA_PATH_H
#define TUTTI_BACKENDS_CUDA_PATH_H

#include "backends/backend.h"

#define PATH_PLACE_BYTES 1024 /* length of a path in the PCI tree */

/* A device's place in the PCI tree, from sysfs. */
struct path_end {
  char place[PATH_PLACE_BYTES]; /* "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"; "" when unknown */
  int numa_node;                /* -1 when unknown */
  double gbps;                  /* GB/s of the device's slot, one direction; 0 when unknown */
};

/* "LOC", "NVL", "PIX", "PXB", "PHB", "SYS". */
const char *path_name(enum device_path_type type);

/* Parses a level of NCCL_P2P_LEVEL: a name in any case, or an old number: 0 LOC, 1 PIX, 2 PXB, 3 PHB, 4 and
 * more SYS. False, with *level unchanged, for anything else. */
bool path_level_parse(const char *text, enum device_path_type *level);

/* PIX: both are below one switch. PXB: several switches are between them, but no host bridge. PHB: one host
 * bridge. SYS: no common ancestor, or unknown. LOC: the same place. A pure function of two places. */
enum device_path_type path_of_places(const char *a, const char *b);

/* The same, but two host bridges of one NUMA node count as one. */
enum device_path_type path_between(const struct path_end *a, const struct path_end *b);

/* Reads a device's place below `sys_root` (usually "/sys"). What cannot be read stays unknown. */
void path_end_read(const char *sys_root, const char *bus_id, struct path_end *end);

#endif
