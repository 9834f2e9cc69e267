/* test_device_slots.c: where slots of connections lie if NICs refuse memory of GPUs that they should accept:
 * the trials of core/proxy/proxy_device.c, with a network and a backend of this file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "core/proxy/proxy_impl.h"

enum { NICS = 2, GPUS = 8, DMABUF = 1, ADDRESS = 2 };

static uint8_t sample[1 << 15];
static bool gives_dmabuf;
static int accepted;   /* the ways in which NICs accept memory of GPUs */
static int refusing;   /* the only NIC that refuses; -1: all do */
static int error;      /* with which it does */
static uint32_t tries; /* by NICs */
static enum pointer_kind receives, sends;

static ncclResult_t net_properties_of(uint32_t device, struct net_properties *properties) {
  const struct net_properties own = {.name = "nic", .memory_cuda = true, .memory_dmabuf = true};
  *properties = own;
  properties->name[3] = (char)('0' + device);
  return ncclSuccess;
}

static int net_trial(uint32_t device, void *data, size_t bytes, int descriptor, uint64_t offset) {
  assert_true(data == sample && bytes == sizeof sample);
  assert_true(descriptor < 0 || offset == 64);
  tries++;
  if (refusing >= 0 && (uint32_t)refusing != device) return 0;
  return (accepted & (descriptor >= 0 ? DMABUF : ADDRESS)) != 0 ? 0 : error;
}

static ncclResult_t net_receive_parts(void *connection, const struct net_part *first, size_t whole_bytes,
                                      void *data, size_t bytes, void *registration, void **request) {
  (void)connection, (void)first, (void)whole_bytes, (void)data, (void)bytes, (void)registration,
      (void)request;
  return ncclInternalError;
}

static const struct net_ops net = {.size = sizeof net,
                                   .name = "test",
                                   .properties = net_properties_of,
                                   .device_trial = net_trial,
                                   .irecv_parts = net_receive_parts};

static uint32_t rdma_of(struct device_comm *comm) {
  (void)comm;
  return DEVICE_RDMA_DMABUF | DEVICE_RDMA_ADDRESS;
}

static void memory_of(struct device_comm *comm, enum pointer_kind receivers, enum pointer_kind senders) {
  (void)comm;
  receives = receivers;
  sends = senders;
}

static ncclResult_t sample_of(struct device_comm *comm, size_t *bytes, uint8_t **memory) {
  (void)comm;
  assert_int_equal(receives, POINTER_DEVICE);
  *bytes = sizeof sample;
  *memory = sample;
  return ncclSuccess;
}

static ncclResult_t dmabuf_of(void *memory, size_t bytes, int *descriptor, uint64_t *offset) {
  assert_true(memory == sample && bytes == sizeof sample);
  if (!gives_dmabuf) return log_fail(ncclSystemError, "no DMA-BUF: set TUTTI_NET_DEVICE_SLOTS=0");
  *descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
  *offset = 64;
  return ncclSuccess;
}

static const struct network_ops network = {
    .size = sizeof network, .net_rdma = rdma_of, .net_memory = memory_of, .net_sample = sample_of};
static const struct memory_ops memory = {.size = sizeof memory, .dmabuf = dmabuf_of};
static const struct backend backend = {.size = sizeof backend, .network = &network, .memory = &memory};

/* True if a communicator of this GPU has its slots there. Trials are kept: each case takes a GPU of its own.
 */
static bool on_device(uint32_t gpu) {
  struct proxy_comm comm;
  memset(&comm, 0, sizeof comm);
  comm.net = &net;
  comm.net_device_count = NICS;
  comm.call.ops = &backend;
  comm.call.device_index = gpu;
  receives = sends = POINTER_HOST;
  proxy_device_choose(&comm);
  const bool there = receives == POINTER_DEVICE;
  assert_true(there || sends == POINTER_HOST);
  assert_true((comm.rdma != 0) == there);
  return there;
}

static void accept(int ways, bool dmabuf) {
  accepted = ways;
  gives_dmabuf = dmabuf;
  refusing = -1;
  error = ENOMEM;
  tries = 0;
}

static void each_pair_is_tried_once(void **state) {
  (void)state;
  accept(DMABUF, true);
  assert_true(on_device(0));
  assert_int_equal(tries, NICS);
  accept(0, true);
  assert_true(on_device(0));
  assert_int_equal(tries, 0);
  assert_false(on_device(1));
  assert_int_equal(tries, 2 * NICS);
  accept(DMABUF, true);
  assert_false(on_device(1));
  assert_int_equal(tries, 0);
}

static void every_way_is_tried(void **state) {
  (void)state;
  accept(ADDRESS, true);
  assert_true(on_device(2));
  assert_int_equal(tries, 2 * NICS);
  accept(ADDRESS, false);
  assert_true(on_device(3));
  assert_int_equal(tries, NICS);
  accept(DMABUF, false);
  assert_false(on_device(4));
  assert_string_equal(log_last_error(), "");
}

static void all_nics_must_accept(void **state) {
  (void)state;
  accept(0, true);
  refusing = NICS - 1;
  assert_false(on_device(5));
}

static void demanded_slots_are_not_tried(void **state) {
  (void)state;
  accept(0, false);
  assert_false(on_device(6));
  setenv("TUTTI_NET_DEVICE_SLOTS", "1", 1);
  param_reset();
  tries = 0;
  assert_true(on_device(6) && on_device(7));
  assert_int_equal(tries, 0);
  unsetenv("TUTTI_NET_DEVICE_SLOTS");
  param_reset();
}

static int setup(void **state) {
  (void)state;
  unsetenv("TUTTI_NET_DEVICE_SLOTS");
  setenv("NCCL_NET_GDR_LEVEL", "SYS", 1); /* the paths are not known */
  param_reset();
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_pair_is_tried_once), cmocka_unit_test(every_way_is_tried),
      cmocka_unit_test(all_nics_must_accept), cmocka_unit_test(demanded_slots_are_not_tried)};
  return cmocka_run_group_tests(tests, setup, NULL);
}
