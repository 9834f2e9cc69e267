/* proxy_pxn.h: sends that another process of the host makes (PXN): the NIC that a connection takes lies
 * beside a GPU which a rank of that process drives. There the PXN proxy has slots and counters, in memory
 * that the sender's process maps, and a network connection in the sender's name; so the receiver sees no
 * difference, and neither does the sender's kernel. The sender's own engine goes through its works as ever,
 * but instead of sending it passes on what each message is, in a ring beside the counters. */
#ifndef TUTTI_CORE_PROXY_PXN_H
#define TUTTI_CORE_PROXY_PXN_H

#include "base/os.h"
#include "base/share.h"
#include "core/proxy/proxy_impl.h"

/* One slice, as the sender's process describes it. */
struct pxn_slice {
  uint64_t begin, end, bytes, agreed_bytes, operation;
  uint32_t func, skipped;
};

/* Memory of both processes. Each half writes its own lines. */
struct pxn_block {
  uint64_t posted;     /* atomic; slices that were described since the connection was made */
  uint32_t came, left; /* atomic; the sender's process has it; touches nothing of it any more */
  struct os_process sender;
  uint64_t pad[10];
  uint64_t transmitted; /* atomic; slices that the network has */
  uint32_t connected;   /* atomic */
  uint32_t asleep;      /* atomic; a description must be followed by a ring */
  uint32_t failed;      /* atomic; ncclResult_t, once `text` says why */
  uint32_t device;
  struct os_process pxn;
  struct share_bell bell;
  uint64_t more_pad[8];
  char text[PROXY_TEXT_BYTES];
  struct pxn_slice slices[PROXY_SLICES_MAX]; /* of slices that are not done; slice number mod their count */
};

/* ---- the process that sends ---- */

struct proxy_pxn_call {
  const struct backend *ops;
  struct device_comm *device_comm; /* of the rank beside the NIC */
  uint64_t comm_key;
  uint32_t rank, over, rank_count; /* who sends, through whom */
  const char *comm_name;
  struct device_conn_name name; /* as the sender names it */
  struct net_handle handle;     /* of the receiver's listener */
  const struct net_ops *net;    /* NULL: the process's own */
  uint32_t net_device;
};
/* Makes it, or finds the one of this name that stands. *handle is for the sender. Any thread; the PXN proxy
 * connects, and sends, on a thread of its own, until the sender has left or its process has ended, whatever
 * becomes of the communicator here. Fails where the process's network has no such device. */
ncclResult_t proxy_pxn_open(const struct proxy_pxn_call *call, struct device_conn_handle *handle);
/* The communicator is broken, or the rank has aborted it: what it sends for others ends, and they hear so. */
void proxy_pxn_break(uint64_t comm_key, uint32_t over, const char *text);
/* PXN proxies that stand, or are being closed. */
uint32_t proxy_pxn_count(void);
/* The next slice that the sender has described, into conn->next_slice. */
bool proxy_pxn_take(struct proxy_conn *conn);

/* ---- the sender's process: on its engine, under the engine's lock ---- */

/* The connection's end, which conn_import has made. */
ncclResult_t proxy_pxn_client_make(struct proxy_conn *conn);
/* Describes conn->next_slice, which is about to be posted. */
void proxy_pxn_client_describe(struct proxy_conn *conn);
/* False when the PXN proxy has failed, or its process has ended: then the communicator has failed too. */
bool proxy_pxn_client_check(struct proxy_conn *conn);
void proxy_pxn_client_close(struct proxy_conn *conn);
/* The process ends: tells all PXN proxies that its connections are over. */
void proxy_pxn_client_leave(void);

#endif
