/* proxy_memory.c: user memory that networks access directly: memory that the program has registered with a
 * communicator or allocated with ncclMemAlloc, and the parts of it that are registered with each connection,
 * from the first slice on. Memory that cannot be registered uses slots. Guarded by the engine's lock. */
#include <inttypes.h>

#include "base/log.h"
#include "base/os.h"
#include "core/proxy/proxy_impl.h"

static bool memory_holds(const struct proxy_memory *memory, uintptr_t begin, size_t bytes) {
  return begin >= memory->begin && bytes <= memory->bytes && begin - memory->begin <= memory->bytes - bytes;
}

static const struct proxy_memory *memory_find(const struct proxy_memory *list, const void *data,
                                              size_t bytes) {
  while (list != NULL && !memory_holds(list, (uintptr_t)data, bytes)) list = list->next;
  return list;
}

static struct proxy_memory *memory_add(struct proxy_memory **list, uintptr_t begin, size_t bytes) {
  struct proxy_memory *memory = (struct proxy_memory *)os_alloc(sizeof *memory);
  if (memory == NULL) return NULL;
  *memory = (struct proxy_memory){*list, begin, bytes, NULL};
  return *list = memory;
}

/* Removes the first entry for this memory; NULL if there is none. */
static struct proxy_memory *memory_take(struct proxy_memory **list, uintptr_t begin, size_t bytes) {
  while (*list != NULL && ((*list)->begin != begin || (*list)->bytes != bytes)) list = &(*list)->next;
  struct proxy_memory *memory = *list;
  if (memory != NULL) *list = memory->next;
  return memory;
}

static struct proxy_memory *offered; /* for all communicators */

void *proxy_conn_registration(struct proxy_conn *conn, const void *data, size_t bytes) {
  const struct net_ops *net = conn->comm->net;
  const struct proxy_memory *known = memory_find(conn->memory, data, bytes);
  if (known != NULL) return known->registration;
  const struct proxy_memory *announced = memory_find(conn->comm->announced, data, bytes);
  if (announced == NULL) announced = memory_find(offered, data, bytes);
  if (announced == NULL) return NULL;
  struct proxy_memory *memory = memory_add(&conn->memory, announced->begin, announced->bytes);
  if (memory == NULL) return NULL;
  if (net->register_memory(conn->connection, (void *)memory->begin, memory->bytes, NET_MEMORY_HOST,
                           &memory->registration) != ncclSuccess) {
    memory->registration = NULL;
    log_warn("comm %s: rank %" PRIu32 ": %zu bytes of registered memory go to and from rank %" PRIu32
             " through slots: %s",
             conn->comm->name, conn->comm->call.rank, memory->bytes, conn->name.peer, log_own_error());
  }
  return memory->registration;
}

void proxy_conn_update_zero_copy(const struct proxy_conn *conn) {
  struct device_net_direct *direct = conn->end.direct;
  if (!conn->direct) return;
  __atomic_store_n(&direct->holds, conn->parts == NET_PARTS_REGISTERED, __ATOMIC_RELAXED);
  const bool known = conn->comm->announced != NULL || offered != NULL;
  __atomic_store_n(&direct->zero_copy_send, conn->parts != NET_PARTS_REGISTERED || known, __ATOMIC_RELEASE);
}

static void comm_update_zero_copy(struct proxy_comm *comm) {
  for (const struct proxy_conn *conn = comm->first; conn != NULL; conn = conn->next)
    proxy_conn_update_zero_copy(conn);
}

ncclResult_t proxy_comm_announce(struct proxy_comm *comm, uintptr_t begin, size_t bytes) {
  proxy_lock();
  const bool added = memory_add(&comm->announced, begin, bytes) != NULL;
  comm_update_zero_copy(comm);
  proxy_unlock();
  return added
             ? ncclSuccess
             : log_no_memory("comm %s: rank %" PRIu32 ": noting a registration", comm->name, comm->call.rank);
}

/* Memory that messages still use, which is a usage error, stays registered until the connection ends. */
static void conn_withdraw(struct proxy_conn *conn, uintptr_t begin, size_t bytes) {
  struct proxy_memory *memory = NULL;
  bool busy = false;
  for (uint64_t k = conn->n_done; k < conn->n_posted; k++)
    busy |= conn->flights[k % PROXY_SLICES_MAX].direct != NULL;
  if (!busy) memory = memory_take(&conn->memory, begin, bytes);
  if (memory == NULL) return;
  if (memory->registration != NULL)
    conn->comm->net->unregister_memory(conn->connection, memory->registration);
  os_free(memory);
}

void proxy_comm_withdraw(struct proxy_comm *comm, uintptr_t begin, size_t bytes) {
  proxy_lock();
  os_free(memory_take(&comm->announced, begin, bytes));
  for (struct proxy_conn *conn = comm->first; conn != NULL; conn = conn->next)
    conn_withdraw(conn, begin, bytes);
  comm_update_zero_copy(comm);
  proxy_unlock();
}

static void all_update_zero_copy(void) {
  for (struct proxy_comm *comm = proxy_comms(); comm != NULL; comm = comm->next) comm_update_zero_copy(comm);
}

ncclResult_t proxy_memory_offer(uintptr_t begin, size_t bytes) {
  proxy_lock();
  const bool added = memory_add(&offered, begin, bytes) != NULL;
  all_update_zero_copy();
  proxy_unlock();
  return added ? ncclSuccess : log_no_memory("noting an allocation of %zu bytes", bytes);
}

void proxy_memory_withdraw(uintptr_t begin) {
  proxy_lock();
  const struct proxy_memory *memory = offered;
  while (memory != NULL && memory->begin != begin) memory = memory->next;
  if (memory != NULL) {
    const size_t bytes = memory->bytes;
    os_free(memory_take(&offered, begin, bytes));
    for (struct proxy_comm *comm = proxy_comms(); comm != NULL; comm = comm->next)
      for (struct proxy_conn *conn = comm->first; conn != NULL; conn = conn->next)
        conn_withdraw(conn, begin, bytes);
    all_update_zero_copy();
  }
  proxy_unlock();
}

struct proxy_bytes proxy_comm_bytes(struct proxy_comm *comm) {
  proxy_lock();
  const struct proxy_bytes bytes = comm->bytes;
  proxy_unlock();
  return bytes;
}

void proxy_conn_forget_memory(const struct net_ops *net, struct proxy_conn *conn) {
  for (struct proxy_memory *memory; (memory = conn->memory) != NULL; os_free(memory)) {
    conn->memory = memory->next;
    if (memory->registration != NULL) net->unregister_memory(conn->connection, memory->registration);
  }
}

void proxy_comm_forget_memory(struct proxy_comm *comm) {
  for (struct proxy_memory *memory; (memory = comm->announced) != NULL; os_free(memory))
    comm->announced = memory->next;
}
