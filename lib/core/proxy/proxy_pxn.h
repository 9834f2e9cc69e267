/* proxy_pxn.h: sends through another process of the host (PXN): the connection's NIC is next to a GPU that a
 * rank of that process uses. That process's PXN proxy provides slots and counters, in memory that the
 * sender's process maps, and a network connection on behalf of the sender. Neither the receiver nor the
 * sender's kernel notices a difference. The sender's own engine iterates over its works as usual, but instead
 * of sending it describes each message in a ring next to the counters. */
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

/* Memory shared by both processes. Each process writes its own cache lines. */
struct pxn_block {
  uint64_t posted;     /* atomic; slices described since the connection was made */
  uint32_t came, left; /* atomic; came: the sender's process has mapped it; left: it no longer uses it */
  struct os_process sender;
  uint64_t pad[10];
  uint64_t transmitted; /* atomic; slices that the network has sent */
  uint32_t connected;   /* atomic */
  uint32_t asleep;      /* atomic; ring the bell after a description */
  uint32_t failed;      /* atomic; ncclResult_t, set after `text` */
  uint32_t device;
  struct os_process pxn;
  struct share_bell bell;
  uint64_t more_pad[8];
  char text[PROXY_TEXT_BYTES];
  struct pxn_slice slices[PROXY_SLICES_MAX]; /* slices that are not done, at index: number mod array length */
};

/* ---- in the process that sends (the PXN proxy) ---- */

struct proxy_pxn_call {
  const struct backend *ops;
  struct device_comm *device_comm; /* of the rank next to the NIC */
  uint64_t comm_key;
  struct secret secret;
  uint32_t rank, over, rank_count; /* rank: the sender; over: the rank next to the NIC */
  const char *comm_name;
  uint32_t traffic_class;       /* as in struct net_peer */
  struct device_conn_name name; /* as the sender names it */
  struct net_handle handle;     /* of the receiver's listener */
  bool apart;                   /* proxy_takes_apart() of the receiver */
  const struct net_ops *net;    /* NULL: the process's network */
  uint32_t net_device;
};
/* Makes a PXN proxy, or finds the existing one of this name. *handle is for the sender. Any thread. The PXN
 * proxy connects and sends on its own thread until the sender has left or its process has ended, even if the
 * communicator is closed here. Fails if the process's network has no such device. */
ncclResult_t proxy_pxn_open(const struct proxy_pxn_call *call, struct device_conn_handle *handle);
/* The communicator is broken, or the rank has aborted it: ends its PXN proxies and notifies their senders. */
void proxy_pxn_break(uint64_t comm_key, uint32_t over, const char *text);
/* Number of PXN proxies that exist or are being closed. */
uint32_t proxy_pxn_count(void);
/* Reads the next slice that the sender has described into conn->next_slice. */
bool proxy_pxn_take(struct proxy_conn *conn);

/* ---- in the sender's process (the PXN client): on its engine, under the engine's lock ---- */

/* Attaches to the connection's end that conn_import has mapped. */
ncclResult_t proxy_pxn_client_make(struct proxy_conn *conn);
/* Describes conn->next_slice, which is about to be posted. */
void proxy_pxn_client_describe(struct proxy_conn *conn);
/* False if the PXN proxy has failed or its process has ended; the communicator has then failed too. */
bool proxy_pxn_client_check(struct proxy_conn *conn);
void proxy_pxn_client_close(struct proxy_conn *conn);
/* The process ends: tells all PXN proxies that its connections are closed. */
void proxy_pxn_client_leave(void);

#endif
