/* verbs.h: a table of the verbs that the ibv net uses. The implementation is libibverbs, loaded at run time,
 * or a test's emulated device. The types are libibverbs' own; its functions are called only through the
 * table, so that nothing links with it. */
#ifndef TUTTI_IBV_VERBS_H
#define TUTTI_IBV_VERBS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>

enum gid_kind { GID_NONE, GID_INFINIBAND, GID_ROCE1, GID_ROCE2 };

struct verbs {
  struct ibv_device **(*device_list)(int *count);
  void (*device_list_free)(struct ibv_device **list);
  /* The NIC's path in /sys, "" if there is none. */
  void (*device_path)(struct ibv_device *device, char *out, size_t out_bytes);
  struct ibv_context *(*context_open)(struct ibv_device *device);
  int (*context_close)(struct ibv_context *context);
  int (*device_query)(struct ibv_context *context, struct ibv_device_attr *attributes);
  int (*port_query)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attributes);
  int (*gid_query)(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
  enum gid_kind (*gid_kind)(struct ibv_context *context, uint8_t port, int index);

  struct ibv_pd *(*pd_alloc)(struct ibv_context *context);
  int (*pd_free)(struct ibv_pd *pd);
  /* `relaxed`: with relaxed ordering, if the device and the library support it. */
  struct ibv_mr *(*memory_register)(struct ibv_pd *pd, void *data, size_t bytes, int access, bool relaxed);
  int (*memory_unregister)(struct ibv_mr *memory);
  /* Memory of another device, by its DMA-BUF; NULL if the library is too old. */
  struct ibv_mr *(*dmabuf_register)(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t address,
                                    int descriptor, int access);
  /* memory_register() accepts GPU addresses: the kernel has nvidia_peermem. */
  bool (*peer_memory)(void);
  struct ibv_cq *(*cq_create)(struct ibv_context *context, int depth);
  int (*cq_destroy)(struct ibv_cq *cq);
  int (*cq_poll)(struct ibv_cq *cq, int most, struct ibv_wc *completions);
  struct ibv_qp *(*qp_create)(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes);
  int (*qp_modify)(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask);
  int (*qp_destroy)(struct ibv_qp *qp);
  /* Enhanced connection establishment (ECE): vendor options. Both are NULL if libibverbs is too old. */
  int (*options_query)(struct ibv_qp *qp, struct ibv_ece *options);
  int (*options_set)(struct ibv_qp *qp, struct ibv_ece *options);
  int (*send_post)(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **bad);
  int (*receive_post)(struct ibv_qp *qp, struct ibv_recv_wr *request, struct ibv_recv_wr **bad);

  /* Never blocks: returns non-zero if there is no event. */
  int (*event_get)(struct ibv_context *context, struct ibv_async_event *event);
  void (*event_ack)(struct ibv_async_event *event);
};

/* NULL if libibverbs cannot be loaded; `reason` then says why. */
const struct verbs *verbs_load(char *reason, size_t reason_bytes);
/* For tests: uses this table instead of libibverbs; NULL: uses libibverbs again. */
void verbs_replace(const struct verbs *verbs);

#endif
