/* heap.h: the heap of the command: four children per node, over an array of the owner. HEAP(name, owner,
 * item, before, put) defines name_rise() and name_sink(), which move an item from the place `at` to its
 * place. An owner has its array as `items`; before(a, b) is a strict order of two items, by pointer;
 * put(owner, at, item) stores an item, and may record its place. */
#ifndef TUTTI_SIM_HEAP_H
#define TUTTI_SIM_HEAP_H

#include <stdint.h>

#define HEAP(name, owner, item, before, put)                                                  \
  /* Towards the first place, which no item is before. */                                     \
  static inline void name##_rise(struct owner *heap, uint32_t at, const struct item *moved) { \
    const struct item kept = *moved;                                                          \
    while (at > 0 && before(&kept, &heap->items[(at - 1) / 4])) {                             \
      put(heap, at, &heap->items[(at - 1) / 4]);                                              \
      at = (at - 1) / 4;                                                                      \
    }                                                                                         \
    put(heap, at, &kept);                                                                     \
  }                                                                                           \
  /* Away from it, among `count` items. */                                                    \
  static inline void name##_sink(struct owner *heap, uint32_t count, uint32_t at,             \
                                 const struct item *moved) {                                  \
    const struct item kept = *moved;                                                          \
    for (;;) {                                                                                \
      const uint32_t child = 4 * at + 1, end = child + 4 < count ? child + 4 : count;         \
      uint32_t least = child;                                                                 \
      if (child >= count) break;                                                              \
      for (uint32_t other = child + 1; other < end; other++)                                  \
        if (before(&heap->items[other], &heap->items[least])) least = other;                  \
      if (!before(&heap->items[least], &kept)) break;                                         \
      put(heap, at, &heap->items[least]);                                                     \
      at = least;                                                                             \
    }                                                                                         \
    put(heap, at, &kept);                                                                     \
  }

#endif
