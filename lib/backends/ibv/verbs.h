/* verbs.h: the verbs that the ibv net uses, as one table: libibverbs, loaded at run time, or a device that a
 * test emulates. Types are libibverbs' own; all of its functions that are not in the table are not called, so
 * nothing here is linked with it. */
#ifndef TUTTI_IBV_VERBS_H
#define TUTTI_IBV_VERBS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>

enum gid_kind { GID_NONE, GID_INFINIBAND, GID_ROCE1, GID_ROCE2 };

struct verbs {
  struct ibv_device **(*device_list)(int *count);
  void (*device_list_free)(struct ibv_device **list);
  /* Of the NIC below /sys, "" where there is none. */
  void (*device_path)(struct ibv_device *device, char *out, size_t out_bytes);
  struct ibv_context *(*context_open)(struct ibv_device *device);
  int (*context_close)(struct ibv_context *context);
  int (*device_query)(struct ibv_context *context, struct ibv_device_attr *attributes);
  int (*port_query)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attributes);
  int (*gid_query)(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
  enum gid_kind (*gid_kind)(struct ibv_context *context, uint8_t port, int index);

  struct ibv_pd *(*pd_alloc)(struct ibv_context *context);
  int (*pd_free)(struct ibv_pd *pd);
  /* `relaxed`: with relaxed ordering, where the device and the library know it. */
  struct ibv_mr *(*memory_register)(struct ibv_pd *pd, void *data, size_t bytes, int access, bool relaxed);
  int (*memory_unregister)(struct ibv_mr *memory);
  /* Memory of another device, by its DMA-BUF; NULL where the library is too old. */
  struct ibv_mr *(*dmabuf_register)(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t address,
                                    int descriptor, int access);
  /* memory_register takes addresses of GPUs: the kernel has a module for that. */
  bool (*peer_memory)(void);
  struct ibv_cq *(*cq_create)(struct ibv_context *context, int depth);
  int (*cq_destroy)(struct ibv_cq *cq);
  int (*cq_poll)(struct ibv_cq *cq, int most, struct ibv_wc *completions);
  struct ibv_qp *(*qp_create)(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes);
  int (*qp_modify)(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask);
  int (*qp_destroy)(struct ibv_qp *qp);
  /* Enhanced connection establishment: options of a device's maker. NULL, both, in an old libibverbs. */
  int (*options_query)(struct ibv_qp *qp, struct ibv_ece *options);
  int (*options_set)(struct ibv_qp *qp, struct ibv_ece *options);
  int (*send_post)(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **bad);
  int (*receive_post)(struct ibv_qp *qp, struct ibv_recv_wr *request, struct ibv_recv_wr **bad);

  /* Never waits: not 0 where there is none. */
  int (*event_get)(struct ibv_context *context, struct ibv_async_event *event);
  void (*event_ack)(struct ibv_async_event *event);
};

/* NULL where libibverbs cannot be loaded; `reason` says why then. */
const struct verbs *verbs_load(char *reason, size_t reason_bytes);
/* The table in use from now on, in place of libibverbs; NULL: that again. For tests. */
void verbs_replace(const struct verbs *verbs);

#endif
