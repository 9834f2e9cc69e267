/* topology_xml.c: reads a topology from NCCL's XML, with expat, and writes it. A refused file leaves nothing
 * behind; the message has its line and what was expected. Memory is bounded whatever the file contains.
 * Unknown elements and attributes are ignored, since NCCL adds some from time to time. */
#include "core/topology/topology.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/pci.h"
#include "base/text.h"
#include "core/topology/xml_reader.h"

enum element { SYSTEM, CPU, PCI, GPU, NIC, NET, NVLINK, C2C, ELEMENTS };

static const char *const element_names[ELEMENTS] = {"system", "cpu", "pci",    "gpu",
                                                    "nic",    "net", "nvlink", "c2c"};
/* The elements that may contain each element, as bits, and for messages their names. */
static const struct {
  uint32_t parents;
  const char *text;
} element_places[ELEMENTS] = {
    {0, "as the outermost element"},
    {1 << SYSTEM, "inside <system>"},
    {1 << CPU | 1 << PCI, "inside <cpu> or <pci>"},
    {1 << PCI, "inside <pci>"},
    {1 << CPU | 1 << PCI, "inside <cpu> or <pci>"},
    {1 << NIC, "inside <nic>"},
    {1 << GPU, "inside <gpu>"},
    {1 << GPU, "inside <gpu>"},
};

struct reader {
  struct xml_reader xml;
  struct topology *topology;
  uint32_t depth;                            /* number of open known elements */
  enum element open[TOPOLOGY_DEPTH_MAX + 4]; /* by depth */
  uint32_t row[TOPOLOGY_DEPTH_MAX + 4];      /* by depth: its device */
  uint32_t skipping;                         /* number of open elements from an unknown one on */
};

/* ---- Attributes ---- */

/* One attribute that an element may have, and the member that stores it. */
enum attribute_kind { TEXT, BUS_ID, SIGNED, UNSIGNED, HEX32, HEX64, REAL, FLAG, LINK_SPEED };

struct attribute {
  const char *name;
  enum attribute_kind kind;
  bool required;
  size_t offset, capacity; /* of the member; capacity: of a text */
  double lowest, highest;
};

#define AT(type, member) offsetof(struct type, member)
#define DEVICE(name, kind, required, member, lowest, highest)                                         \
  {                                                                                                   \
    name, kind, required, AT(topology_device, member), sizeof(((struct topology_device *)0)->member), \
        lowest, highest                                                                               \
  }
#define LINK(name, kind, required, member, lowest, highest)                                               \
  {                                                                                                       \
    name, kind, required, AT(topology_link, member), sizeof(((struct topology_link *)0)->member), lowest, \
        highest                                                                                           \
  }
#define END \
  { NULL, TEXT, false, 0, 0, 0, 0 }

static const struct attribute cpu_attributes[] = {DEVICE("numaid", SIGNED, false, number, -1, 65535),
                                                  DEVICE("affinity", TEXT, false, affinity, 0, 0),
                                                  DEVICE("arch", TEXT, false, name, 0, 0),
                                                  DEVICE("vendor", TEXT, false, maker, 0, 0),
                                                  DEVICE("familyid", SIGNED, false, family, -1, 1e6),
                                                  DEVICE("modelid", SIGNED, false, model, -1, 1e6),
                                                  END};
static const struct attribute pci_attributes[] = {
    DEVICE("busid", BUS_ID, true, name, 0, 0),
    DEVICE("class", HEX32, false, pci_class, 0, 0xffffff),
    DEVICE("vendor", HEX32, false, pci_ids[0], 0, 0xffff),
    DEVICE("device", HEX32, false, pci_ids[1], 0, 0xffff),
    DEVICE("subsystem_vendor", HEX32, false, pci_ids[2], 0, 0xffff),
    DEVICE("subsystem_device", HEX32, false, pci_ids[3], 0, 0xffff),
    DEVICE("link_speed", LINK_SPEED, false, link_gts, 0, 1024),
    DEVICE("link_width", UNSIGNED, false, link_width, 0, 255),
    END};
static const struct attribute gpu_attributes[] = {
    DEVICE("dev", UNSIGNED, true, number, 0, 65535), DEVICE("sm", UNSIGNED, false, capability, 0, 999),
    DEVICE("rank", SIGNED, false, rank, -1, 1e9), DEVICE("gdr", FLAG, false, direct, 0, 1), END};
static const struct attribute net_attributes[] = {DEVICE("name", TEXT, false, name, 0, 0),
                                                  DEVICE("dev", UNSIGNED, true, number, 0, 65535),
                                                  DEVICE("speed", UNSIGNED, false, speed_mbits, 0, 4e9),
                                                  DEVICE("port", UNSIGNED, false, port, 0, 65535),
                                                  DEVICE("latency", REAL, false, latency_us, 0, 1e6),
                                                  DEVICE("guid", HEX64, false, guid, 0, 0),
                                                  DEVICE("maxconn", UNSIGNED, false, connections_max, 0, 4e9),
                                                  DEVICE("gdr", FLAG, false, direct, 0, 1),
                                                  DEVICE("coll", FLAG, false, adds, 0, 1),
                                                  END};
static const struct attribute c2c_attributes[] = {DEVICE("bw", UNSIGNED, true, host_mbps, 0, 4e9),
                                                  DEVICE("count", UNSIGNED, true, host_links, 0, 65535), END};
static const struct attribute nvlink_attributes[] = {
    LINK("target", BUS_ID, true, target, 0, 0), LINK("count", UNSIGNED, true, count, 1, 1024),
    LINK("tclass", HEX32, false, target_class, 0, 0xffffff), END};
static const struct attribute no_attributes[] = {END};

static const struct attribute *const element_attributes[ELEMENTS] = {
    no_attributes, cpu_attributes, pci_attributes,    gpu_attributes,
    no_attributes, net_attributes, nvlink_attributes, c2c_attributes};

/* A bus id: four or eight digits of domain, then bus, device, function; stored in lower case. */
static bool bus_id_store(const char *value, char *member) {
  char name[PCI_NAME_BYTES];
  if (!pci_name(value, name)) return false;
  snprintf(member, TOPOLOGY_NAME_BYTES, "%s", name);
  return true;
}

static bool number_parse(const struct attribute *attribute, const char *value, double *number) {
  char *end;
  if (*value == '\0' || strspn(value, "+-0123456789.eExXabcdfABCDF") < 1 || *value == ' ') return false;
  if (attribute->kind == HEX32) *number = (double)strtoull(value, &end, 16);
  else if (attribute->kind == REAL || attribute->kind == LINK_SPEED) *number = strtod(value, &end);
  else *number = (double)strtoll(value, &end, 10);
  const bool whole =
      attribute->kind == LINK_SPEED ? *end == '\0' || strncmp(end, " GT/s", 5) == 0 : *end == '\0';
  return end != value && whole && *number >= attribute->lowest && *number <= attribute->highest;
}

static const char *attribute_purpose(const struct attribute *attribute, char *text, size_t bytes) {
  switch (attribute->kind) {
    case TEXT: snprintf(text, bytes, "at most %zu bytes", attribute->capacity - 1); break;
    case BUS_ID: snprintf(text, bytes, "a bus id like 0000:3b:00.0"); break;
    case LINK_SPEED: snprintf(text, bytes, "a speed like \"32.0 GT/s PCIe\""); break;
    case HEX64: snprintf(text, bytes, "a hexadecimal number of 64 bits"); break;
    case HEX32: snprintf(text, bytes, "a hexadecimal number up to 0x%x", (unsigned)attribute->highest); break;
    default:
      snprintf(text, bytes, "a number from %.0f to %.0f", attribute->lowest, attribute->highest);
      break;
  }
  return text;
}

static bool text_store(const struct attribute *attribute, const char *value, char *member) {
  if (strlen(value) >= attribute->capacity) return false;
  memcpy(member, value, strlen(value) + 1);
  return true;
}

/* "Unknown", which a driver reports for a link that is down, counts as absent. */
static bool attribute_store(const struct attribute *attribute, const char *value, void *struct_begin) {
  char *member = (char *)struct_begin + attribute->offset, *end;
  double number = 0;
  if (attribute->kind == TEXT) return text_store(attribute, value, member);
  if (attribute->kind == BUS_ID) return bus_id_store(value, member);
  if (attribute->kind == HEX64) {
    errno = 0;
    const unsigned long long wide = strtoull(value, &end, 16);
    const bool good = *value != '\0' && *value != '-' && *end == '\0' && errno == 0;
    if (good) *(uint64_t *)(void *)member = wide;
    return good;
  }
  if (attribute->kind == LINK_SPEED && (*value == '\0' || strncmp(value, "Unknown", 7) == 0)) return true;
  if (!number_parse(attribute, value, &number)) return false;
  if (attribute->kind == FLAG) *(bool *)(void *)member = number != 0;
  else if (attribute->kind == SIGNED) *(int32_t *)(void *)member = (int32_t)number;
  else if (attribute->kind == REAL || attribute->kind == LINK_SPEED) *(double *)(void *)member = number;
  else *(uint32_t *)(void *)member = (uint32_t)number;
  return true;
}

static void attributes_read(struct reader *reader, enum element element, const char **given, void *target) {
  for (const struct attribute *attribute = element_attributes[element]; attribute->name; attribute++) {
    const char *value = NULL;
    char purpose[96];
    for (uint32_t i = 0; given[i] != NULL && value == NULL; i += 2)
      if (strcmp(given[i], attribute->name) == 0) value = given[i + 1];
    if (value == NULL && attribute->required)
      xml_fail(&reader->xml, "<%s> has no %s; expected %s", element_names[element], attribute->name,
               attribute_purpose(attribute, purpose, sizeof purpose));
    if (value != NULL && !attribute_store(attribute, value, target))
      xml_fail(&reader->xml, "<%s> %s=\"%.40s\"; expected %s", element_names[element], attribute->name, value,
               attribute_purpose(attribute, purpose, sizeof purpose));
  }
}

/* ---- Elements ---- */

static enum element element_find(const char *name) {
  uint32_t element = 0;
  while (element < ELEMENTS && strcmp(element_names[element], name) != 0) element += 1;
  return (enum element)element;
}

static const enum topology_kind element_kinds[ELEMENTS] = {TOPOLOGY_KINDS, TOPOLOGY_CPU,  TOPOLOGY_PCI,
                                                           TOPOLOGY_GPU,   TOPOLOGY_NIC,  TOPOLOGY_NET,
                                                           TOPOLOGY_KINDS, TOPOLOGY_KINDS};

static bool element_fits(struct reader *reader, enum element element) {
  const uint32_t parents = element_places[element].parents;
  const bool outermost = reader->depth == 0;
  const enum element parent = outermost ? ELEMENTS : reader->open[reader->depth - 1];
  if (outermost ? parents == 0 : (parents >> parent & 1) != 0) return true;
  xml_fail(&reader->xml, "<%s> %s%s%s; expected it %s", element_names[element],
           outermost ? "is the outermost element" : "inside <", outermost ? "" : element_names[parent],
           outermost ? "" : ">", element_places[element].text);
  return false;
}

/* The row of the tree, or of the links, that this element describes; NULL after a failure. */
static void *element_target(struct reader *reader, enum element element) {
  struct topology *topology = reader->topology;
  const uint32_t parent = reader->depth > 1 ? reader->row[reader->depth - 1] : TOPOLOGY_NONE;
  uint32_t *row = &reader->row[reader->depth];
  void *target = NULL;
  *row = parent;
  if (element == SYSTEM) return topology; /* it has no attributes that are read */
  if (element == C2C) return &topology->devices[parent];
  if (element == NVLINK) target = topology_add_link(topology, parent);
  else target = topology_add(topology, element_kinds[element], parent);
  if (element != NVLINK) *row = topology->device_count - 1;
  if (target == NULL)
    xml_fail(&reader->xml,
             "<%s> is one too many, or memory is out; expected at most %u devices and %u rows of "
             "NVLinks",
             element_names[element], TOPOLOGY_DEVICES_MAX, TOPOLOGY_LINKS_MAX);
  return target;
}

/* A PCI function may have only one device. */
static void gpu_check(struct reader *reader, uint32_t gpu) {
  const struct topology_device *devices = reader->topology->devices;
  for (uint32_t i = 0; i < gpu; i++)
    if (devices[i].kind == TOPOLOGY_GPU && devices[i].parent == devices[gpu].parent)
      xml_fail(&reader->xml, "a second <gpu> in <pci busid=\"%s\">; expected one",
               devices[devices[gpu].parent].name);
}

static void XMLCALL element_begin(void *data, const char *name, const char **attributes) {
  struct reader *reader = (struct reader *)data;
  const enum element element = element_find(name);
  if (reader->skipping > 0 || (element == ELEMENTS && reader->depth > 0)) {
    reader->skipping += 1;
    return;
  }
  if (element == ELEMENTS) {
    xml_fail(&reader->xml, "<%.40s> is the outermost element; expected <system>", name);
    return;
  }
  if (reader->depth == TOPOLOGY_DEPTH_MAX) {
    xml_fail(&reader->xml, "<%s> lies too deep; expected at most %u elements inside each other", name,
             TOPOLOGY_DEPTH_MAX);
    return;
  }
  if (!element_fits(reader, element)) return;
  void *target = element_target(reader, element);
  if (target == NULL) return;
  if (element == CPU) ((struct topology_device *)target)->number = -1;
  attributes_read(reader, element, attributes, target);
  if (element == GPU) gpu_check(reader, reader->row[reader->depth]);
  reader->open[reader->depth++] = element;
}

static void XMLCALL element_end(void *data, const char *name) {
  struct reader *reader = (struct reader *)data;
  (void)name;
  if (reader->skipping > 0) reader->skipping -= 1;
  else if (reader->depth > 0) reader->depth -= 1;
}

/* ---- A whole text ---- */

static ncclResult_t parse_into(const char *path, const char *text, size_t bytes, struct topology *topology) {
  struct reader reader;
  memset(&reader, 0, sizeof reader);
  reader.xml.prefix = "";
  reader.xml.path = path;
  reader.xml.expected = "the XML of a topology, <system version=\"1\">...</system>";
  reader.topology = topology;
  return xml_read(&reader.xml, element_begin, element_end, text, bytes);
}

static ncclResult_t text_parse(const char *path, const char *text, size_t bytes, uint32_t nodes, bool part,
                               struct topology *topology) {
  struct topology fresh;
  memset(&fresh, 0, sizeof fresh);
  if (bytes > TOPOLOGY_FILE_BYTES_MAX)
    return log_fail(ncclInvalidUsage, "%s: %zu bytes; expected at most %u", path, bytes,
                    TOPOLOGY_FILE_BYTES_MAX);
  if (nodes < 1 || nodes > TOPOLOGY_NODES_MAX)
    return log_fail(ncclInvalidUsage, "%s: %u nodes; expected 1 to %u", path, nodes, TOPOLOGY_NODES_MAX);
  const char *name = strrchr(path, '/') == NULL ? path : strrchr(path, '/') + 1;
  snprintf(fresh.name, sizeof fresh.name, "%.*s", TOPOLOGY_NAME_BYTES - 1, name);
  fresh.node_count = nodes;
  ncclResult_t result = parse_into(path, text, bytes, &fresh);
  if (result == ncclSuccess && !part) result = topology_finish(path, &fresh);
  if (result == ncclSuccess) *topology = fresh;
  else topology_free(&fresh);
  return result;
}

ncclResult_t topology_parse(const char *path, const char *text, size_t bytes, uint32_t nodes,
                            struct topology *topology) {
  return text_parse(path, text, bytes, nodes, false, topology);
}

static ncclResult_t file_parse(const char *path, uint32_t nodes, bool part, struct topology *topology) {
  size_t bytes = 0;
  char *text = os_file_read_most(path, TOPOLOGY_FILE_BYTES_MAX, &bytes);
  if (text == NULL) return log_fail(ncclSystemError, "%s: cannot be read: %s", path, strerror(errno));
  const ncclResult_t result = text_parse(path, text, bytes, nodes, part, topology);
  os_free(text);
  return result;
}

ncclResult_t topology_read(const char *path, uint32_t nodes, struct topology *topology) {
  return file_parse(path, nodes, false, topology);
}

ncclResult_t topology_read_part(const char *path, struct topology *topology) {
  return file_parse(path, 1, true, topology);
}

/* ---- Writing ---- */

static void member_write(struct text *text, const struct attribute *attribute, const void *struct_begin) {
  const char *member = (const char *)struct_begin + attribute->offset;
  const void *aligned = member;
  if ((attribute->kind == TEXT || attribute->kind == BUS_ID) && *member == '\0') return;
  text_add(text, " %s=\"", attribute->name);
  switch (attribute->kind) {
    case TEXT:
    case BUS_ID: text_add_xml(text, member); break;
    case SIGNED: text_add(text, "%" PRId32, *(const int32_t *)aligned); break;
    case UNSIGNED: text_add(text, "%" PRIu32, *(const uint32_t *)aligned); break;
    case HEX32:
      text_add(text, "0x%0*" PRIx32, attribute->highest > 0xffff ? 6 : 4, *(const uint32_t *)aligned);
      break;
    case HEX64: text_add(text, "0x%" PRIx64, *(const uint64_t *)aligned); break;
    case REAL: text_add(text, "%.17g", *(const double *)aligned); break;
    case FLAG: text_add(text, "%d", *(const bool *)aligned ? 1 : 0); break;
    case LINK_SPEED:
      if (*(const double *)aligned > 0) text_add(text, "%.17g GT/s PCIe", *(const double *)aligned);
      break;
  }
  text_add(text, "\"");
}

static void element_write(struct text *text, enum element element, const void *struct_begin, uint32_t depth,
                          const char *end) {
  text_add(text, "%*s<%s", (int)(2 * depth), "", element_names[element]);
  for (const struct attribute *attribute = element_attributes[element]; attribute->name; attribute++)
    member_write(text, attribute, struct_begin);
  text_add(text, "%s\n", end);
}

static void links_write(struct text *text, const struct topology *topology, uint32_t gpu, uint32_t depth) {
  const struct topology_device *device = &topology->devices[gpu];
  for (uint32_t i = 0; i < topology->link_count; i++)
    if (topology->links[i].gpu == gpu) element_write(text, NVLINK, &topology->links[i], depth, "/>");
  if (device->host_links > 0) element_write(text, C2C, device, depth, "/>");
}

/* Writes a device and all its descendants; rows of a tree have parents first and children together. */
static uint32_t device_write(struct text *text, const struct topology *topology, uint32_t row,
                             uint32_t depth) {
  static const enum element elements[TOPOLOGY_KINDS] = {CPU, PCI, GPU, NIC, NET};
  const enum element element = elements[topology->devices[row].kind];
  element_write(text, element, &topology->devices[row], depth, element == NET ? "/>" : ">");
  uint32_t next = row + 1;
  if (element == GPU) links_write(text, topology, row, depth + 1);
  while (next < topology->device_count && topology->devices[next].parent == row)
    next = device_write(text, topology, next, depth + 1);
  if (element != NET) text_add(text, "%*s</%s>\n", (int)(2 * depth), "", element_names[element]);
  return next;
}

char *topology_text(const struct topology *topology) {
  struct text text;
  memset(&text, 0, sizeof text);
  text_add(&text, "<system version=\"1\">\n");
  for (uint32_t row = 0; row < topology->device_count;) row = device_write(&text, topology, row, 1);
  text_add(&text, "</system>\n");
  return text.begin;
}

ncclResult_t topology_write(const struct topology *topology, const char *path) {
  char *text = topology_text(topology);
  if (text == NULL) return log_no_memory("%s: what is to be written there", path);
  const bool written = os_file_write(path, text, strlen(text));
  const int cause = errno;
  os_free(text);
  if (written) return ncclSuccess;
  return log_fail(ncclSystemError, "%s: cannot be written: %s", path, strerror(cause));
}
