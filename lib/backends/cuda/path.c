/* path.c: places in the PCI tree and what is between two of them. It has a result for any text. It does not
 * know which devices are GPUs. */
#include "backends/cuda/path.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/os.h"
#include "base/pci.h"

static const char *const names[] = {"LOC", "NVL", "PIX", "PXB", "PHB", "SYS"};

const char *path_name(enum device_path_type type) { return names[type <= PATH_SYS ? type : PATH_SYS]; }

bool path_level_parse(const char *text, enum device_path_type *level) {
  static const enum device_path_type numbers[] = {PATH_LOC, PATH_PIX, PATH_PXB, PATH_PHB, PATH_SYS};
  char *end = NULL;
  for (int type = PATH_LOC; type <= PATH_SYS; type++) {
    if (strcasecmp(text, names[type]) != 0) continue;
    *level = (enum device_path_type)type;
    return true;
  }
  const long number = strtol(text, &end, 10);
  if (end == text || *end != '\0' || number < 0) return false;
  *level = numbers[number < 4 ? number : 4];
  return true;
}

/* ---- places ---- */

/* True if a component of a place is a PCI device: "0000:3b:00.0". */
static bool part_is_device(const char *part, size_t length) {
  return length >= 7 && part[length - 2] == '.' && part[length - 5] == ':' &&
         memchr(part, ':', length - 5) != NULL;
}

/* Number of PCI devices among the components of a place from `at` on. */
static uint32_t devices_count(const char *at) {
  uint32_t count = 0;
  while (*at != '\0') {
    const size_t length = strcspn(at, "/");
    count += part_is_device(at, length) ? 1u : 0u;
    at += length + (at[length] == '/' ? 1 : 0);
  }
  return count;
}

/* Length of the common prefix of two places, in whole components. */
static size_t common_length(const char *a, const char *b) {
  size_t common = 0;
  for (size_t i = 0; a[i] == b[i] && a[i] != '\0'; i++)
    if (a[i] == '/') common = i + 1;
  return common;
}

/* True if one of the components in the first `length` characters is a host bridge or a device below one. */
static bool holds_bridge(const char *place, size_t length) {
  const char *bridge = strstr(place, "/pci");
  return bridge != NULL && (size_t)(bridge - place) + 1 < length;
}

/* A switch adds two devices to a place, its upstream port and the downstream port, so a device on the same
 * switch is at most a port and itself away from the common ancestor. */
#define DEVICES_BELOW_ONE_SWITCH 2

enum device_path_type path_of_places(const char *a, const char *b) {
  if (a[0] == '\0' || b[0] == '\0') return PATH_SYS;
  if (strcmp(a, b) == 0) return PATH_LOC;
  const size_t common = common_length(a, b);
  if (!holds_bridge(a, common)) return PATH_SYS;
  const uint32_t below_a = devices_count(a + common), below_b = devices_count(b + common);
  if (devices_count(a) == below_a) return PATH_PHB; /* nothing in common but the host bridge */
  return below_a <= DEVICES_BELOW_ONE_SWITCH && below_b <= DEVICES_BELOW_ONE_SWITCH ? PATH_PIX : PATH_PXB;
}

enum device_path_type path_between(const struct path_end *a, const struct path_end *b) {
  const enum device_path_type type = path_of_places(a->place, b->place);
  if (type != PATH_SYS || a->numa_node < 0 || a->numa_node != b->numa_node) return type;
  return PATH_PHB;
}

/* ---- sysfs ---- */

/* First line of a device's file, "" if there is none. */
static void file_line(const char *place, const char *file, char *line, size_t line_bytes) {
  char path[PATH_PLACE_BYTES + 32];
  line[0] = '\0';
  if (place[0] == '\0') return;
  snprintf(path, sizeof path, "%s/%s", place, file);
  char *text = os_file_read(path, NULL);
  if (text != NULL) snprintf(line, line_bytes, "%.*s", (int)strcspn(text, "\n"), text);
  os_free(text);
}

/* Parses "32.0 GT/s PCIe" and "16" lanes: links of 8 GT/s and more send 130 bits for 128, slower ones 10 for
 * 8. */
static double slot_gbps(const char *place) {
  char speed[32], width[32];
  file_line(place, "max_link_speed", speed, sizeof speed);
  file_line(place, "max_link_width", width, sizeof width);
  const double transfers = strtod(speed, NULL), lanes = strtod(width, NULL);
  if (!(transfers > 0 && transfers < 1000 && lanes >= 1 && lanes <= 32)) return 0;
  return transfers * lanes / 8 * (transfers >= 8 ? 128.0 / 130 : 0.8);
}

static int numa_node(const char *place) {
  char text[32];
  file_line(place, "numa_node", text, sizeof text);
  return text[0] != '\0' ? (int)strtol(text, NULL, 10) : -1;
}

void path_end_read(const char *sys_root, const char *bus_id, struct path_end *end) {
  char name[PCI_NAME_BYTES], link[PATH_PLACE_BYTES], place[PATH_MAX];
  memset(end, 0, sizeof *end);
  end->numa_node = -1;
  if (!pci_name(bus_id, name)) return;
  snprintf(link, sizeof link, "%s/bus/pci/devices/%s", sys_root, name);
  if (realpath(link, place) == NULL || strlen(place) >= sizeof end->place) return;
  memcpy(end->place, place, strlen(place) + 1);
  end->numa_node = numa_node(place);
  end->gbps = slot_gbps(place);
}
