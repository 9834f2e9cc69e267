/* own_copy.c: which copies a kernel may leave to a copy engine: those of a root or an owner, which keeps what
 * it sends, and a message to self. It promises that a work without its copy has the same steps towards
 * its peers. */
#include "backends/cuda/own_copy.h"

#include "schedule/direct.h"

/* Shorter copies do not slow down a kernel: joining another stream costs a few microseconds. */
#define OWN_COPY_BYTES_MIN ((size_t)8 << 20)

bool own_copy_takes(const struct work *work) {
  const bool kept = (work->flags & WORK_IN_PLACE) == 0;
  const bool known = work->algo == ALGO_RING || direct_is_apart(work);
  if (!known || work->proto != PROTO_SIMPLE || (work->flags & WORK_FUSED) != 0) return false;
  switch (work->func) {
    case FUNC_COPY: return work->conn_index == CONN_MESSAGE;
    case FUNC_ALL_GATHER: return kept;
    case FUNC_BROADCAST: return kept && work->rank == work->root;
    default: return false;
  }
}

void own_copy_leave(struct work *work) {
  if (work->func == FUNC_COPY) work->part_count = 0;
  else work->flags |= WORK_IN_PLACE;
}

bool own_copy_find(const struct plan *plan, struct own_copy *copy) {
  const struct work *first = NULL;
  copy->from = copy->to = NULL;
  copy->bytes = 0;
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *work = &plan->works[i];
    const size_t bytes = work->count * work->element_bytes;
    if (!own_copy_takes(work)) continue;
    if (first == NULL && bytes < OWN_COPY_BYTES_MIN) return false;
    if (first != NULL && (work->op_sequence != first->op_sequence || plan->buffers[i].in != copy->from)) {
      copy->bytes = 0;
      return false;
    }
    if (first != NULL) continue;
    first = work;
    copy->from = plan->buffers[i].in;
    copy->to = (uint8_t *)plan->buffers[i].out + (work->func == FUNC_ALL_GATHER ? work->rank * bytes : 0);
    copy->bytes = bytes;
  }
  return copy->bytes > 0;
}
