/* shape.c: a word is the kind of a row, its parent, and what paths and searches read of it. */
#include "core/topology/shape.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"

#define KIND_BITS 3
#define ROW_BITS 11 /* a row and one, so that none is 0 */
#define KIND_LINK ((uint32_t)TOPOLOGY_KINDS)

enum { LINK_OTHER, LINK_SWITCH, LINK_GPU };

static const char *const arch_names[] = {"x86_64", "arm64", "ppc64", ""};
static const char *const maker_names[] = {"GenuineIntel", "AuthenticAMD", "", ""};

static uint32_t name_find(const char *const names[4], const char *name) {
  uint32_t i = 0;
  while (i < 3 && strcmp(names[i], name) != 0) i += 1;
  return i;
}

/* ---- words ---- */

struct word {
  uint64_t value;
  uint32_t at; /* bit */
};

/* What exceeds its bits is the highest number that they hold. */
static void word_put(struct word *word, uint32_t bits, uint64_t value) {
  const uint64_t most = (UINT64_C(1) << bits) - 1;
  word->value |= (value < most ? value : most) << word->at;
  word->at += bits;
}

static uint32_t word_take(struct word *word, uint32_t bits) {
  const uint64_t value = word->value >> word->at & ((UINT64_C(1) << bits) - 1);
  word->at += bits;
  return (uint32_t)value;
}

static uint32_t place_in(const uint32_t *rows, uint32_t row) {
  uint32_t place = 0;
  while (rows[place] != row) place += 1;
  return place;
}

static uint64_t device_word(const struct topology *topology, uint32_t row) {
  const struct topology_device *device = &topology->devices[row];
  struct word word = {0, 0};
  word_put(&word, KIND_BITS, (uint64_t)device->kind + 1);
  word_put(&word, ROW_BITS, device->parent + UINT32_C(1));
  if (device->kind == TOPOLOGY_CPU) {
    word_put(&word, 2, name_find(arch_names, device->name));
    word_put(&word, 2, name_find(maker_names, device->maker));
    word_put(&word, 16, (uint32_t)device->model);
  } else if (device->kind == TOPOLOGY_PCI) {
    word_put(&word, 14, (uint64_t)(device->link_gts * 10 + 0.5));
    word_put(&word, 8, device->link_width);
  } else if (device->kind == TOPOLOGY_GPU) {
    word_put(&word, 7, place_in(topology->gpus, row));
    word_put(&word, 10, device->capability);
    word_put(&word, 8, device->host_links);
    word_put(&word, 24, device->host_mbps);
  } else if (device->kind == TOPOLOGY_NET) {
    word_put(&word, 7, place_in(topology->nets, row));
    word_put(&word, 1, device->adds);
    word_put(&word, 32, device->speed_mbits);
  }
  return word.value;
}

static uint64_t link_word(const struct topology_link *link) {
  const uint32_t ends = topology_link_is_switch(link) ? LINK_SWITCH
                        : link->peer != TOPOLOGY_NONE ? LINK_GPU
                                                      : LINK_OTHER;
  struct word word = {0, 0};
  word_put(&word, KIND_BITS, KIND_LINK + 1);
  word_put(&word, ROW_BITS, link->gpu + UINT32_C(1));
  word_put(&word, 2, ends);
  word_put(&word, ROW_BITS, ends == LINK_GPU ? link->peer : 0);
  word_put(&word, 11, link->count);
  return word.value;
}

uint64_t *shape_write(const struct topology *topology, uint32_t *count) {
  const uint32_t devices = topology->device_count;
  uint64_t *words = (uint64_t *)os_alloc((devices + (size_t)topology->link_count) * sizeof *words);
  if (words == NULL) return NULL;
  for (uint32_t row = 0; row < devices; row++) words[row] = device_word(topology, row);
  for (uint32_t i = 0; i < topology->link_count; i++) words[devices + i] = link_word(&topology->links[i]);
  *count = devices + topology->link_count;
  return words;
}

/* ---- reading ---- */

static void row_name(char name[TOPOLOGY_NAME_BYTES], uint32_t row) {
  snprintf(name, TOPOLOGY_NAME_BYTES, "%04x:%02x:00.0", row >> 8, row & 255);
}

static bool parent_fits(const struct topology *topology, enum topology_kind kind, uint32_t parent) {
  static const uint8_t parents[TOPOLOGY_KINDS] = {
      [TOPOLOGY_CPU] = 0,
      [TOPOLOGY_PCI] = 1 << TOPOLOGY_CPU | 1 << TOPOLOGY_PCI,
      [TOPOLOGY_GPU] = 1 << TOPOLOGY_PCI,
      [TOPOLOGY_NIC] = 1 << TOPOLOGY_CPU | 1 << TOPOLOGY_PCI,
      [TOPOLOGY_NET] = 1 << TOPOLOGY_NIC,
  };
  uint32_t depth = 1;
  if (parent == TOPOLOGY_NONE) return kind == TOPOLOGY_CPU;
  if (parent >= topology->device_count) return false;
  for (uint32_t row = parent; row != TOPOLOGY_NONE; row = topology->devices[row].parent) depth += 1;
  return depth <= TOPOLOGY_DEPTH_MAX && (parents[kind] >> topology->devices[parent].kind & 1) != 0;
}

static bool device_take(struct word *word, enum topology_kind kind, struct topology *topology) {
  const uint32_t parent = word_take(word, ROW_BITS) - 1, row = topology->device_count;
  if (topology->link_count > 0 || !parent_fits(topology, kind, parent)) return false;
  struct topology_device *device = topology_add(topology, kind, parent);
  if (device == NULL) return false;
  if (kind == TOPOLOGY_CPU) {
    snprintf(device->name, sizeof device->name, "%s", arch_names[word_take(word, 2)]);
    snprintf(device->maker, sizeof device->maker, "%s", maker_names[word_take(word, 2)]);
    device->model = (int32_t)word_take(word, 16);
    device->number = (int32_t)row;
  } else if (kind == TOPOLOGY_PCI) {
    row_name(device->name, row);
    device->link_gts = word_take(word, 14) / 10.0;
    device->link_width = word_take(word, 8);
  } else if (kind == TOPOLOGY_GPU) {
    device->number = (int32_t)word_take(word, 7);
    device->capability = word_take(word, 10);
    device->host_links = word_take(word, 8);
    device->host_mbps = word_take(word, 24);
  } else if (kind == TOPOLOGY_NET) {
    device->number = (int32_t)word_take(word, 7);
    device->adds = word_take(word, 1) != 0;
    device->speed_mbits = word_take(word, 32);
  }
  return true;
}

static bool is_gpu(const struct topology *topology, uint32_t row) {
  return row < topology->device_count && topology->devices[row].kind == TOPOLOGY_GPU;
}

static bool link_take(struct word *word, struct topology *topology) {
  const uint32_t gpu = word_take(word, ROW_BITS) - 1, ends = word_take(word, 2),
                 peer = word_take(word, ROW_BITS);
  struct topology_link *link = is_gpu(topology, gpu) ? topology_add_link(topology, gpu) : NULL;
  if (link == NULL || (ends == LINK_GPU && !is_gpu(topology, peer))) return false;
  if (ends == LINK_GPU) row_name(link->target, topology->devices[peer].parent);
  link->target_class = ends == LINK_SWITCH ? 0x068000 : ends == LINK_GPU ? 0x030200 : 0;
  link->count = word_take(word, 11);
  return true;
}

static bool word_read(uint64_t value, struct topology *topology) {
  struct word word = {value, 0};
  const uint32_t kind = word_take(&word, KIND_BITS) - 1;
  if (kind == KIND_LINK) return link_take(&word, topology);
  return kind < TOPOLOGY_KINDS && device_take(&word, (enum topology_kind)kind, topology);
}

ncclResult_t shape_read(const struct node_shape *shape, const char *name, uint32_t nodes,
                        struct topology *topology) {
  struct topology made;
  ncclResult_t result = ncclSuccess;
  memset(&made, 0, sizeof made);
  snprintf(made.name, sizeof made.name, "%s", name);
  made.node_count = nodes;
  for (uint32_t i = 0; i < shape->count && result == ncclSuccess; i++)
    if (!word_read(shape->words[i], &made))
      result =
          log_fail(ncclInvalidUsage, "%s: row %u of %u that describe a node makes no sense, or memory is out",
                   name, i, shape->count);
  if (result == ncclSuccess) result = topology_finish(name, &made);
  if (result == ncclSuccess) *topology = made;
  else topology_free(&made);
  return result;
}
