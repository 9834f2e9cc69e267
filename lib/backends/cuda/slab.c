/* slab.c: host memory for plans that do not fit in a kernel's arguments: one pool for all ranks of the
 * process, because a graph may outlive the rank whose plan it contains. A kernel that the host launches
 * returns its slab by an event, a graph by its destructor. It promises that nothing here waits, and that the
 * pool is freed with the last rank, except what graphs still use. */
#include "backends/cuda/device.h"
#include "base/log.h"

#define SLAB_BYTES (64u << 10)
#define SLABS_PER_RANK 8

/* Guards the pool. The destructor of a graph takes it on a CUDA thread, so no CUDA call may be made under
 * it. */
static os_mutex slab_mutex = OS_MUTEX_INITIALIZER;
static struct cuda_slab *slab_pool;
static uint32_t rank_count;

void cuda_slab_put(struct cuda_slab *slab) {
  os_mutex_lock(&slab_mutex);
  slab->next = slab_pool;
  slab_pool = slab;
  os_mutex_unlock(&slab_mutex);
}

static ncclResult_t slab_create(size_t bytes, struct cuda_slab **result) {
  int device_index = 0;
  const size_t whole_bytes = (bytes + SLAB_BYTES - 1) / SLAB_BYTES * SLAB_BYTES;
  struct cuda_slab *slab = (struct cuda_slab *)os_alloc(sizeof *slab);
  if (slab == NULL) return log_no_memory("a plan of %zu bytes", bytes);
  ncclResult_t made = cuda_result(cudaGetDevice(&device_index), "asking for the thread's device");
  if (made == ncclSuccess) made = cuda_host_take(whole_bytes, &slab->memory);
  if (made != ncclSuccess) {
    os_free(slab);
    return made;
  }
  slab->device_index = (uint32_t)device_index;
  slab->life = cuda_life(slab->device_index);
  *result = slab;
  return ncclSuccess;
}

/* A slab ends with the life of its own device, which another device's ranks may outlive. */
static bool slab_fits(const struct cuda_slab *slab, uint32_t device_index, size_t bytes) {
  return slab->memory.bytes >= bytes && slab->device_index == device_index &&
         slab->life == cuda_life(device_index);
}

static struct cuda_slab *pool_take(uint32_t device_index, size_t bytes) {
  os_mutex_lock(&slab_mutex);
  struct cuda_slab **place = &slab_pool;
  while (*place != NULL && !slab_fits(*place, device_index, bytes)) place = &(*place)->next;
  struct cuda_slab *found = *place;
  if (found != NULL) *place = found->next;
  os_mutex_unlock(&slab_mutex);
  return found;
}

ncclResult_t cuda_slabs_open(struct device_comm *comm) {
  struct cuda_slab *slab = NULL;
  comm->last_slab = &comm->slabs_read;
  os_mutex_lock(&slab_mutex);
  rank_count += 1;
  os_mutex_unlock(&slab_mutex);
  for (uint32_t i = 0; i < SLABS_PER_RANK; i++) {
    TRY(slab_create(SLAB_BYTES, &slab));
    cuda_slab_put(slab);
    comm->memory_bytes += slab->memory.bytes;
  }
  return ncclSuccess;
}

/* Returns the rank's oldest slab to the pool. */
static void slab_return(struct device_comm *comm) {
  struct cuda_slab *slab = comm->slabs_read;
  comm->slabs_read = slab->next;
  if (comm->slabs_read == NULL) comm->last_slab = &comm->slabs_read;
  if (slab->read != NULL && slab->life == cuda_life(slab->device_index)) cudaEventDestroy(slab->read);
  slab->read = NULL;
  cuda_slab_put(slab);
}

void cuda_slabs_close(struct device_comm *comm) {
  if (comm->last_slab == NULL) return;
  while (comm->slabs_read != NULL) slab_return(comm);
  os_mutex_lock(&slab_mutex);
  struct cuda_slab *slab = --rank_count == 0 ? slab_pool : NULL;
  if (slab != NULL) slab_pool = NULL;
  os_mutex_unlock(&slab_mutex);
  for (struct cuda_slab *next; slab != NULL; slab = next) {
    next = slab->next;
    cuda_host_give(&slab->memory, slab->life != cuda_life(slab->device_index));
    os_free(slab);
  }
}

ncclResult_t cuda_slab_take(struct device_comm *comm, size_t bytes, struct cuda_slab **result) {
  while (comm->slabs_read != NULL && comm->slabs_read->read != NULL &&
         cudaEventQuery(comm->slabs_read->read) == cudaSuccess)
    slab_return(comm);
  cudaGetLastError(); /* clears cudaErrorNotReady, which is not an error */
  struct cuda_slab *found = pool_take(comm->config.device_index, bytes);
  if (found == NULL) TRY(slab_create(bytes, &found));
  *result = found;
  return ncclSuccess;
}

void cuda_slab_hold(struct device_comm *comm, struct cuda_slab *slab, cudaStream_t stream) {
  cudaEvent_t read = NULL;
  slab->next = NULL;
  *comm->last_slab = slab;
  comm->last_slab = &slab->next;
  if (cudaEventCreateWithFlags(&read, cudaEventDisableTiming) != cudaSuccess) read = NULL;
  if (read != NULL && cudaEventRecord(read, stream) != cudaSuccess) {
    cudaEventDestroy(read);
    read = NULL; /* the slab stays with the rank until the rank closes */
  }
  slab->read = read;
}

static void CUDART_CB slab_released(void *slab) { cuda_slab_put((struct cuda_slab *)slab); }

ncclResult_t cuda_slab_leave(struct cuda_slab *slab, cudaGraph_t graph) {
  cudaUserObject_t object = NULL;
  int error = cudaUserObjectCreate(&object, slab, slab_released, 1, cudaUserObjectNoDestructorSync);
  if (error != 0) {
    cuda_slab_put(slab);
    return cuda_result(error, "noting a plan of a graph");
  }
  error = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (error != 0) cudaUserObjectRelease(object, 1);
  return cuda_result(error, "giving a graph its plan");
}
