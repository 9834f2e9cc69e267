/* topo_record.c: copies the few files of /sys that core/topology/machine.h reads, with their links, and
 * writes nvml.xml and cpuinfo beside them. Nothing else of the machine is copied. */
#include "topo_record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/folder.h"
#include "base/log.h"
#include "base/os.h"
#include "core/topology/machine.h"

enum { PATH_BYTES = 4096 };

struct copy {
  char from[MACHINE_PATH_BYTES]; /* without links */
  const char *to;
};

static ncclResult_t fail(const char *path, const char *what) {
  return log_fail(ncclSystemError, "%s: cannot be %s: %s", path, what, strerror(errno));
}

/* Makes a folder below `to`, and those on the way. */
static ncclResult_t folder_make(const struct copy *copy, const char *below) {
  char path[PATH_BYTES];
  const int length = snprintf(path, sizeof path, "%s/%s", copy->to, below);
  for (size_t i = strlen(copy->to) + 1; i <= (size_t)length && (size_t)length < sizeof path; i++) {
    if (path[i] != '/' && path[i] != '\0') continue;
    const char end = path[i];
    path[i] = '\0';
    if (mkdir(path, 0777) != 0 && errno != EEXIST) return fail(path, "made");
    path[i] = end;
  }
  return ncclSuccess;
}

/* Copies the first line of a file, if there is one. */
static ncclResult_t file_copy(const struct copy *copy, const char *below, const char *name) {
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "%s/%s/%s", copy->from, below, name);
  char *text = os_file_read_most(path, 1 << 16, NULL);
  if (text == NULL) return ncclSuccess;
  snprintf(path, sizeof path, "%s/%s/%s", copy->to, below, name);
  const bool written = os_file_write(path, text, strcspn(text, "\n"));
  os_free(text);
  return written ? ncclSuccess : fail(path, "written");
}

static ncclResult_t files_copy(const struct copy *copy, const char *below, const char *const *names) {
  TRY(folder_make(copy, below));
  for (; *names != NULL; names++) TRY(file_copy(copy, below, *names));
  return ncclSuccess;
}

/* Where a path below `from` leads, as a path below `from`; NULL: to no place there. */
static const char *place_of(const struct copy *copy, const char *below, char place[PATH_BYTES]) {
  char path[PATH_BYTES];
  const size_t length = strlen(copy->from);
  snprintf(path, sizeof path, "%s/%s", copy->from, below);
  if (realpath(path, place) == NULL || strncmp(place, copy->from, length) != 0 || place[length] != '/')
    return NULL;
  return place + length + 1;
}

/* A link at `below` to another path below the folder. */
static ncclResult_t link_make(const struct copy *copy, const char *below, const char *target) {
  char path[PATH_BYTES], relative[PATH_BYTES] = "";
  for (const char *at = strchr(below, '/'); at != NULL; at = strchr(at + 1, '/'))
    strncat(relative, "../", sizeof relative - strlen(relative) - 1);
  strncat(relative, target, sizeof relative - strlen(relative) - 1);
  snprintf(path, sizeof path, "%s/%s", copy->to, below);
  return symlink(relative, path) == 0 ? ncclSuccess : fail(path, "made");
}

/* ---- what there is ---- */

/* GPUs, NICs and bridges. */
static ncclResult_t function_copy(const struct copy *copy, const char *name) {
  static const char *const files[] = {
      "class",          "vendor",           "device",           "numa_node", "max_link_speed",
      "max_link_width", "subsystem_vendor", "subsystem_device", NULL};
  char below[PATH_BYTES], path[PATH_BYTES + 8], place[PATH_BYTES];
  snprintf(below, sizeof below, "bus/pci/devices/%s", name);
  const char *target = place_of(copy, below, place);
  if (target == NULL) return ncclSuccess;
  snprintf(path, sizeof path, "%s/class", place);
  char *text = os_file_read_most(path, 1 << 16, NULL);
  const unsigned long pci_class = text != NULL ? strtoul(text, NULL, 16) >> 16 : 0;
  os_free(text);
  if (pci_class != 2 && pci_class != 3 && pci_class != 6) return ncclSuccess;
  TRY(files_copy(copy, target, files));
  return link_make(copy, below, target);
}

/* The link to a NIC's device. False if it has none. */
static ncclResult_t device_link(const struct copy *copy, const char *below, bool *there) {
  char device[PATH_BYTES], place[PATH_BYTES];
  snprintf(device, sizeof device, "%s/device", below);
  const char *target = place_of(copy, device, place);
  *there = target != NULL;
  if (target == NULL) return ncclSuccess;
  TRY(folder_make(copy, target));
  TRY(folder_make(copy, below));
  return link_make(copy, device, target);
}

static ncclResult_t ports_copy(const struct copy *copy, const char *name) {
  static const char *const files[] = {"sys_image_guid", NULL};
  static const char *const port_files[] = {"state", "rate", "link_layer", NULL};
  char below[PATH_BYTES], port[PATH_BYTES + FOLDER_NAME_BYTES + 8], path[2 * PATH_BYTES];
  struct folder ports;
  bool there = false;
  ncclResult_t result = ncclSuccess;
  snprintf(below, sizeof below, "class/infiniband/%s", name);
  TRY(device_link(copy, below, &there));
  TRY(files_copy(copy, below, files));
  snprintf(path, sizeof path, "%s/%s/ports", copy->from, below);
  folder_read(path, &ports);
  for (uint32_t i = 0; i < ports.count && result == ncclSuccess; i++) {
    snprintf(port, sizeof port, "%s/ports/%s", below, ports.names[i]);
    result = files_copy(copy, port, port_files);
  }
  folder_free(&ports);
  return result;
}

static ncclResult_t interface_copy(const struct copy *copy, const char *name) {
  static const char *const files[] = {"operstate", "speed", NULL};
  char below[PATH_BYTES];
  bool there = false;
  snprintf(below, sizeof below, "class/net/%s", name);
  TRY(device_link(copy, below, &there));
  return there ? files_copy(copy, below, files) : ncclSuccess;
}

static ncclResult_t node_copy(const struct copy *copy, const char *name) {
  static const char *const files[] = {"cpumap", NULL};
  char below[PATH_BYTES];
  if (strncmp(name, "node", 4) != 0) return ncclSuccess;
  snprintf(below, sizeof below, "devices/system/node/%s", name);
  return files_copy(copy, below, files);
}

static ncclResult_t module_copy(const struct copy *copy, const char *name) {
  char below[PATH_BYTES];
  if (strcmp(name, "nvidia_peermem") != 0) return ncclSuccess;
  snprintf(below, sizeof below, "module/%s", name);
  return folder_make(copy, below);
}

static ncclResult_t all_copy(const struct copy *copy, const char *below,
                             ncclResult_t (*each)(const struct copy *copy, const char *name)) {
  char path[PATH_BYTES];
  struct folder folder;
  ncclResult_t result = folder_make(copy, below);
  snprintf(path, sizeof path, "%s/%s", copy->from, below);
  folder_read(path, &folder);
  for (uint32_t i = 0; i < folder.count && result == ncclSuccess; i++) result = each(copy, folder.names[i]);
  folder_free(&folder);
  return result;
}

/* Of the first processor, as all are alike. */
static ncclResult_t cpuinfo_copy(const struct copy *copy, const char *sysfs) {
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "%s/cpuinfo", strcmp(sysfs, MACHINE_SYSFS) == 0 ? "/proc" : sysfs);
  char *text = os_file_read_most(path, 16 << 20, NULL);
  if (text == NULL) return ncclSuccess;
  const char *end = strstr(text, "\n\n");
  snprintf(path, sizeof path, "%s/cpuinfo", copy->to);
  const bool written = os_file_write(path, text, end != NULL ? (size_t)(end - text) + 1 : strlen(text));
  os_free(text);
  return written ? ncclSuccess : fail(path, "written");
}

static ncclResult_t gpus_copy(const struct copy *copy, const struct machine *machine) {
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "%s/nvml.xml", copy->to);
  return topology_write(&machine->gpus, path);
}

static ncclResult_t record(const char *sysfs, const struct machine *machine, const struct copy *copy) {
  if (mkdir(copy->to, 0777) != 0) return fail(copy->to, "made");
  TRY(gpus_copy(copy, machine));
  TRY(cpuinfo_copy(copy, sysfs));
  TRY(all_copy(copy, "bus/pci/devices", function_copy));
  TRY(all_copy(copy, "class/infiniband", ports_copy));
  TRY(all_copy(copy, "class/net", interface_copy));
  TRY(all_copy(copy, "devices/system/node", node_copy));
  return all_copy(copy, "module", module_copy);
}

ncclResult_t topo_record(const char *sysfs, const char *folder) {
  struct machine machine;
  struct copy copy = {.to = folder};
  char whole[PATH_BYTES];
  if (realpath(sysfs, whole) == NULL || strlen(whole) >= sizeof copy.from) return fail(sysfs, "read");
  memcpy(copy.from, whole, strlen(whole) + 1);
  TRY(machine_open(sysfs, NULL, &machine));
  const ncclResult_t result = record(sysfs, &machine, &copy);
  machine_close(&machine);
  return result;
}
