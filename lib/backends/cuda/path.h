/* path.h: what lies between two devices on the PCI tree, read from sysfs, and the names of paths. It includes
 * no CUDA header and asks no driver, so that any machine can test it; where the tree says little, as in
 * virtual machines, the answer is the longer path, never an error. It knows nothing of NVLink. */
#ifndef TUTTI_BACKENDS_CUDA_PATH_H
#define TUTTI_BACKENDS_CUDA_PATH_H

#include "backends/backend.h"

#define PATH_NAME_BYTES 32    /* of a bus id */
#define PATH_PLACE_BYTES 1024 /* of a place in the PCI tree */

/* A device's place, as sysfs has it. */
struct path_end {
  char place[PATH_PLACE_BYTES]; /* "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"; "" when unknown */
  int numa_node;                /* -1 when unknown */
  double gbps;                  /* GB/s of the device's slot, one direction; 0 when unknown */
};

/* "LOC", "NVL", "PIX", "PXB", "PHB", "SYS". */
const char *path_name(enum device_path_type type);

/* A level as NCCL_P2P_LEVEL spells it: a name in any case, or one of its old numbers: 0 LOC, 1 PIX, 2 PXB,
 * 3 PHB, 4 and more SYS. False, and *level untouched, for anything else. */
bool path_level_parse(const char *text, enum device_path_type *level);

/* A bus id in any case, with a domain of four digits or eight ("00000000:3B:00.0"), as sysfs spells it
 * ("0000:3b:00.0"). False when it is none. */
bool path_bus_name(const char *bus_id, char name[PATH_NAME_BYTES]);

/* PIX: both hang on one switch. PXB: several switches lie between them, but no host bridge. PHB: one host
 * bridge. SYS: no common ancestor, or nothing known. LOC: the same place. A pure function of two places. */
enum device_path_type path_of_places(const char *a, const char *b);

/* The same, and two host bridges of one NUMA node count as one. */
enum device_path_type path_between(const struct path_end *a, const struct path_end *b);

/* Reads a device's place below `sys_root` (usually "/sys"). What cannot be read is left unknown. */
void path_end_read(const char *sys_root, const char *bus_id, struct path_end *end);

#endif
