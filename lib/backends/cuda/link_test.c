/* link_test.c: runs the self-test of a link and logs its failure. Each device keeps a stream, a buffer and a
 * result once it has been tested, because freeing them would wait for the program's kernels. It promises not
 * to wait longer than its deadlines, so that it may run while other kernels spin: a test that cannot finish
 * is inconclusive, and its kernels, which may still run later, never touch another test's buffer. */
#include "kernels/link_test.h"

#include <stdio.h>
#include <string.h>

#include "backends/cuda/device.h"
#include "base/log.h"

#define PATIENCE_NS 500000ull   /* wait of a kernel for the flag; at most two run */
#define DEADLINE_NS 40000000ull /* limit of a whole test */
#define NAME_BYTES 32
#define SEEN_BYTES 192

static struct link_end {
  cudaStream_t stream;
  struct link_test_buffer *buffer;
  struct link_test_finding *finding;
  uint32_t last_sender; /* the device whose kernel was the last to store here */
} ends[DEVICES_MAX];

/* ---- one device ---- */

static void end_free(struct link_end *end) {
  if (end->finding != NULL) cudaFreeHost(end->finding);
  if (end->buffer != NULL) cudaFree(end->buffer);
  if (end->stream != NULL) cudaStreamDestroy(end->stream);
  memset(end, 0, sizeof *end);
}

/* Called within the device's scope. */
static int end_fill(struct link_end *end) {
  void *buffer = NULL, *finding = NULL;
  int error = link_test_load();
  if (error == 0) error = cudaStreamCreateWithFlags(&end->stream, cudaStreamNonBlocking);
  if (error == 0) error = cudaMalloc(&buffer, sizeof *end->buffer);
  end->buffer = (struct link_test_buffer *)buffer;
  if (error == 0)
    error = cudaHostAlloc(&finding, sizeof *end->finding, cudaHostAllocPortable | cudaHostAllocMapped);
  end->finding = (struct link_test_finding *)finding;
  if (error == 0) memset(end->finding, 0, sizeof *end->finding);
  return error != 0 ? error : (int)cudaMemsetAsync(end->buffer, 0, sizeof *end->buffer, end->stream);
}

void cuda_link_forget(uint32_t device_index) { memset(&ends[device_index], 0, sizeof ends[device_index]); }

static bool end_open(uint32_t device_index) {
  struct link_end *end = &ends[device_index];
  if (end->stream != NULL) return true;
  const struct cuda_scope scope = cuda_scope_enter(device_index);
  end->last_sender = device_index;
  const bool filled = end_fill(end) == 0;
  if (!filled) end_free(end);
  cudaGetLastError();
  cuda_scope_leave(&scope);
  return filled;
}

static bool end_idle(uint32_t device_index) {
  const struct cuda_scope scope = cuda_scope_enter(device_index);
  const bool idle = cudaStreamQuery(ends[device_index].stream) == cudaSuccess;
  cudaGetLastError();
  cuda_scope_leave(&scope);
  return idle;
}

static bool end_drain(uint32_t device_index, uint64_t deadline_ns) {
  while (!end_idle(device_index)) {
    if (os_time_ns() >= deadline_ns) return false;
    os_yield();
  }
  return true;
}

/* ---- one test ---- */

static int launch_send(uint32_t from, uint32_t to, uint64_t seed) {
  const struct cuda_scope scope = cuda_scope_enter(from);
  ends[to].last_sender = from;
  const int error = link_test_send(ends[to].buffer, seed, ends[from].stream);
  cuda_scope_leave(&scope);
  return error;
}

static int launch_check(uint32_t to, uint64_t seed, uint64_t number) {
  const struct cuda_scope scope = cuda_scope_enter(to);
  const int error =
      link_test_check(ends[to].buffer, seed, number, PATIENCE_NS, ends[to].finding, ends[to].stream);
  cuda_scope_leave(&scope);
  return error;
}

static enum link_test_outcome finding_await(uint32_t to, uint64_t number, uint64_t deadline_ns) {
  const struct link_test_finding *finding = ends[to].finding;
  while (__atomic_load_n(&finding->number, __ATOMIC_ACQUIRE) != number) {
    if (os_time_ns() >= deadline_ns) return LINK_TEST_UNKNOWN;
    os_yield();
  }
  return (enum link_test_outcome)finding->outcome;
}

/* The check waits on the receiver while the sender stores, so that it detects a flag that overtakes its data.
 * A check that saw no flag is conclusive only if it began after the sender had ended. */
static enum link_test_outcome link_try(uint32_t from, uint32_t to) {
  static uint64_t last_number;
  const uint64_t seed = last_number + 1, again = last_number + 2;
  if (!end_open(from) || !end_open(to)) return LINK_TEST_UNKNOWN;
  const uint64_t end_ns = os_time_ns() + DEADLINE_NS;
  if (!end_drain(ends[to].last_sender, end_ns) || !end_drain(from, end_ns) || !end_drain(to, end_ns))
    return LINK_TEST_UNKNOWN;
  last_number += 2;
  if (launch_check(to, seed, seed) != 0 || launch_send(from, to, seed) != 0) return LINK_TEST_UNKNOWN;
  const enum link_test_outcome outcome = finding_await(to, seed, end_ns);
  if (outcome != LINK_TEST_SILENT) return outcome;
  if (!end_drain(from, end_ns) || launch_check(to, seed, again) != 0) return LINK_TEST_UNKNOWN;
  return finding_await(to, again, end_ns);
}

/* ---- log messages ---- */

static void name_device(uint32_t device_index, char name[NAME_BYTES]) {
  char bus_id[20] = "?";
  if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, (int)device_index) != cudaSuccess) cudaGetLastError();
  snprintf(name, NAME_BYTES, "%u (%.19s)", device_index, bus_id);
}

static void seen_describe(const struct link_test_finding *finding, char seen[SEEN_BYTES]) {
  if (finding->outcome == LINK_TEST_SILENT) {
    snprintf(seen, SEEN_BYTES, "nothing of it arrives");
    return;
  }
  snprintf(seen, SEEN_BYTES, "wrong data arrives, at offset %u: %08x%08x%08x%08x instead of %08x%08x%08x%08x",
           finding->offset_bytes, finding->found[3], finding->found[2], finding->found[1], finding->found[0],
           finding->expected[3], finding->expected[2], finding->expected[1], finding->expected[0]);
}

bool cuda_link_works(uint32_t from, uint32_t to) {
  char from_name[NAME_BYTES], to_name[NAME_BYTES], seen[SEEN_BYTES];
  const enum link_test_outcome outcome = link_try(from, to);
  if (outcome == LINK_TEST_OK) return true;
  name_device(from, from_name);
  name_device(to, to_name);
  if (outcome == LINK_TEST_UNKNOWN) {
    log_info(LOG_INIT | LOG_GRAPH,
             "device %s, device %s: the link's self-test could not run because they are busy; peer access is "
             "used as the driver reports it",
             from_name, to_name);
    return true;
  }
  seen_describe(ends[to].finding, seen);
  log_warn(
      "device %s stores into memory of device %s, as the driver allows, but %s; the likely cause is an "
      "IOMMU or PCI access control (ACS) between them; their connections use host memory "
      "instead; switch ACS off, or set NCCL_P2P_DISABLE=1 for all devices",
      from_name, to_name, seen);
  return false;
}
