/* refine.c: see refine.h. Partition refinement with a list of splitters: of a part that was split all pieces
 * but the largest are added to the list, because counts into the largest follow from the others (Hopcroft
 * 1971; Paige and Tarjan 1987); so a node is examined at most once each time the size of its part halves. */
#include "simulate/refine.h"

#include <stdlib.h>
#include <string.h>

#include "base/os.h"

/* ---- graphs ---- */

bool refine_graph_make(uint32_t node_count, const struct refine_edge *edges, uint32_t edge_count,
                       struct refine_graph *graph) {
  graph->node_count = node_count;
  graph->first = (uint32_t *)os_alloc(((size_t)node_count + 2) * sizeof(uint32_t));
  graph->to = (uint32_t *)os_alloc((2 * (size_t)edge_count + 1) * sizeof(uint32_t));
  graph->label = (uint16_t *)os_alloc((2 * (size_t)edge_count + 1) * sizeof(uint16_t));
  if (!graph->first || !graph->to || !graph->label) {
    refine_graph_free(graph);
    return false;
  }
  uint32_t *at =
      graph->first + 1; /* ends at the end of the node's entries, so that `first` is right at the end */
  for (uint32_t i = 0; i < edge_count; i++) {
    at[edges[i].one + (size_t)1] += 1;
    at[edges[i].other + (size_t)1] += 1;
  }
  for (uint32_t node = 1; node <= node_count; node++) at[node] += at[node - 1];
  for (uint32_t i = 0; i < edge_count; i++) {
    const uint32_t one = at[edges[i].one]++, other = at[edges[i].other]++;
    graph->to[one] = edges[i].other;
    graph->to[other] = edges[i].one;
    graph->label[one] = graph->label[other] = edges[i].label;
  }
  return true;
}

void refine_graph_free(struct refine_graph *graph) {
  os_free(graph->first);
  os_free(graph->to);
  os_free(graph->label);
  memset(graph, 0, sizeof *graph);
}

/* ---- parts ---- */

struct part {
  uint32_t first, count; /* in order */
  uint32_t touched;      /* by the current splitter */
  uint64_t sum;          /* of the first that was touched */
  bool listed, sums_differ;
};

struct touch {
  uint64_t sum;
  uint32_t part, node;
};

struct refiner {
  const struct refine_graph *graph;
  uint32_t *part_of;
  uint32_t *order, *place; /* nodes part by part, and the reverse */
  struct part *parts;
  uint32_t part_count;
  uint32_t *list, list_count; /* parts that may split others */
  uint64_t *sum;              /* by node */
  bool *seen;                 /* by node: touched */
  struct touch *touches;
  uint32_t touch_count;
};

static uint64_t label_hash(uint16_t label) {
  uint64_t hash = (label + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15);
  hash = (hash ^ hash >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  return hash ^ hash >> 27;
}

static int touch_order(const void *a, const void *b) {
  const struct touch *one = (const struct touch *)a, *two = (const struct touch *)b;
  if (one->part != two->part) return one->part < two->part ? -1 : 1;
  if (one->sum != two->sum) return one->sum < two->sum ? -1 : 1;
  return one->node < two->node ? -1 : one->node > two->node;
}

static void part_list(struct refiner *refiner, uint32_t part) {
  if (refiner->parts[part].listed) return;
  refiner->parts[part].listed = true;
  refiner->list[refiner->list_count++] = part;
}

static void node_put(struct refiner *refiner, uint32_t node, uint32_t place) {
  const uint32_t other = refiner->order[place], was = refiner->place[node];
  refiner->order[place] = node;
  refiner->place[node] = place;
  refiner->order[was] = other;
  refiner->place[other] = was;
}

/* For each node: what the part's members see of the splitter. */
static void splitter_touch(struct refiner *refiner, const struct part *splitter) {
  const struct refine_graph *graph = refiner->graph;
  refiner->touch_count = 0;
  for (uint32_t i = splitter->first; i < splitter->first + splitter->count; i++) {
    const uint32_t node = refiner->order[i];
    for (uint32_t e = graph->first[node]; e < graph->first[node + 1]; e++) {
      const uint32_t seer = graph->to[e];
      if (!refiner->seen[seer]) refiner->touches[refiner->touch_count++].node = seer;
      refiner->seen[seer] = true;
      refiner->sum[seer] += label_hash(graph->label[e]);
    }
  }
}

/* Of the touched nodes keeps those whose parts are split. */
static void touches_weigh(struct refiner *refiner) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < refiner->touch_count; i++) {
    struct touch *touch = &refiner->touches[i];
    struct part *part = &refiner->parts[refiner->part_of[touch->node]];
    touch->part = refiner->part_of[touch->node];
    touch->sum = refiner->sum[touch->node];
    refiner->sum[touch->node] = 0;
    refiner->seen[touch->node] = false;
    if (part->touched++ == 0) part->sum = touch->sum;
    else if (part->sum != touch->sum) part->sums_differ = true;
  }
  for (uint32_t i = 0; i < refiner->touch_count; i++) {
    const struct part *part = &refiner->parts[refiner->touches[i].part];
    if (part->sums_differ || part->touched < part->count) refiner->touches[kept++] = refiner->touches[i];
  }
  for (uint32_t i = 0; i < refiner->touch_count; i++) {
    struct part *part = &refiner->parts[refiner->part_of[refiner->touches[i].node]];
    part->touched = 0;
    part->sums_differ = false;
  }
  refiner->touch_count = kept;
}

static void piece_make(struct refiner *refiner, uint32_t first, uint32_t count) {
  const uint32_t made = refiner->part_count++;
  refiner->parts[made] = (struct part){first, count, 0, 0, false, false};
  for (uint32_t i = first; i < first + count; i++) refiner->part_of[refiner->order[i]] = made;
  part_list(refiner, made);
}

/* Splits the part of these touched nodes: untouched nodes stay in front, then one piece per sum. The largest
 * piece keeps the number. */
static void part_split(struct refiner *refiner, const struct touch *touches, uint32_t count) {
  const uint32_t number = touches[0].part;
  const struct part was = refiner->parts[number];
  const uint32_t untouched = was.first + was.count - count;
  uint32_t largest = was.first, most = untouched - was.first;
  for (uint32_t i = 0; i < count; i++) node_put(refiner, touches[i].node, untouched + i);
  for (uint32_t begin = 0, i = 1; i <= count; i++) {
    if (i < count && touches[i].sum == touches[begin].sum) continue;
    if (i - begin > most) {
      most = i - begin;
      largest = untouched + begin;
    }
    begin = i;
  }
  refiner->parts[number].first = largest;
  refiner->parts[number].count = most;
  if (untouched > was.first && largest != was.first) piece_make(refiner, was.first, untouched - was.first);
  for (uint32_t begin = 0, i = 1; i <= count; i++) {
    if (i < count && touches[i].sum == touches[begin].sum) continue;
    if (untouched + begin != largest) piece_make(refiner, untouched + begin, i - begin);
    begin = i;
  }
}

static void refine(struct refiner *refiner) {
  while (refiner->list_count > 0) {
    const uint32_t splitter = refiner->list[--refiner->list_count];
    refiner->parts[splitter].listed = false;
    splitter_touch(refiner, &refiner->parts[splitter]);
    touches_weigh(refiner);
    qsort(refiner->touches, refiner->touch_count, sizeof *refiner->touches, touch_order);
    for (uint32_t begin = 0, i = 1; i <= refiner->touch_count; i++) {
      if (i < refiner->touch_count && refiner->touches[i].part == refiner->touches[begin].part) continue;
      part_split(refiner, &refiner->touches[begin], i - begin);
      begin = i;
    }
  }
}

/* One part per colour. */
static void refiner_begin(struct refiner *refiner, const uint64_t *colour) {
  const uint32_t nodes = refiner->graph->node_count;
  for (uint32_t node = 0; node < nodes; node++)
    refiner->touches[node] = (struct touch){colour[node], 0, node};
  qsort(refiner->touches, nodes, sizeof *refiner->touches, touch_order);
  for (uint32_t i = 0; i < nodes; i++) {
    refiner->order[i] = refiner->touches[i].node;
    refiner->place[refiner->touches[i].node] = i;
  }
  for (uint32_t begin = 0, i = 1; i <= nodes; i++) {
    if (i < nodes && refiner->touches[i].sum == refiner->touches[begin].sum) continue;
    piece_make(refiner, begin, i - begin);
    begin = i;
  }
}

bool refine_parts(const struct refine_graph *graph, const uint64_t *colour, uint32_t *part_of,
                  uint32_t *representative) {
  const size_t nodes = (size_t)graph->node_count + 1;
  struct refiner refiner;
  memset(&refiner, 0, sizeof refiner);
  refiner.graph = graph;
  refiner.part_of = part_of;
  refiner.order = (uint32_t *)os_alloc(nodes * sizeof(uint32_t));
  refiner.place = (uint32_t *)os_alloc(nodes * sizeof(uint32_t));
  refiner.list = (uint32_t *)os_alloc(nodes * sizeof(uint32_t));
  refiner.parts = (struct part *)os_alloc(nodes * sizeof *refiner.parts);
  refiner.sum = (uint64_t *)os_alloc(nodes * sizeof(uint64_t));
  refiner.seen = (bool *)os_alloc(nodes * sizeof(bool));
  refiner.touches = (struct touch *)os_alloc(nodes * sizeof *refiner.touches);
  const bool whole = refiner.order && refiner.place && refiner.list && refiner.parts && refiner.sum &&
                     refiner.seen && refiner.touches;
  if (whole) refiner_begin(&refiner, colour);
  if (whole) refine(&refiner);
  for (uint32_t part = 0; whole && part < refiner.part_count; part++) {
    const struct part *made = &refiner.parts[part];
    uint32_t least = UINT32_MAX;
    for (uint32_t i = made->first; i < made->first + made->count; i++)
      if (refiner.order[i] < least) least = refiner.order[i];
    for (uint32_t i = made->first; i < made->first + made->count; i++)
      representative[refiner.order[i]] = least;
  }
  os_free(refiner.order);
  os_free(refiner.place);
  os_free(refiner.list);
  os_free(refiner.parts);
  os_free(refiner.sum);
  os_free(refiner.seen);
  os_free(refiner.touches);
  return whole;
}

/* ---- the proof ---- */

/* Sorts the entries of a node by label and then by part: Shell's sort, as nodes have few entries or
 * thousands. */
static void entries_sort(struct refine_graph *graph, const uint32_t *part_of, uint32_t node) {
  const uint32_t first = graph->first[node], end = graph->first[node + 1];
  uint32_t gap = 1;
  while (gap < (end - first) / 3) gap = 3 * gap + 1;
  for (; gap > 0; gap /= 3)
    for (uint32_t i = first + gap; i < end; i++) {
      const uint32_t to = graph->to[i];
      const uint16_t label = graph->label[i];
      uint32_t at = i;
      for (; at >= first + gap; at -= gap) {
        const uint32_t other = at - gap;
        const bool before = label != graph->label[other] ? label < graph->label[other]
                                                         : part_of[to] < part_of[graph->to[other]];
        if (!before) break;
        graph->to[at] = graph->to[other];
        graph->label[at] = graph->label[other];
      }
      graph->to[at] = to;
      graph->label[at] = label;
    }
}

bool refine_holds(struct refine_graph *graph, const uint32_t *part_of, const uint32_t *representative) {
  for (uint32_t node = 0; node < graph->node_count; node++) entries_sort(graph, part_of, node);
  for (uint32_t node = 0; node < graph->node_count; node++) {
    const uint32_t one = graph->first[node], two = graph->first[representative[node]];
    const uint32_t count = graph->first[node + 1] - one;
    if (part_of[node] != part_of[representative[node]] ||
        count != graph->first[representative[node] + (size_t)1] - two)
      return false;
    for (uint32_t i = 0; i < count; i++)
      if (graph->label[one + i] != graph->label[two + i] ||
          part_of[graph->to[one + i]] != part_of[graph->to[two + i]])
        return false;
  }
  return true;
}
