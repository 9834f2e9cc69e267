/* test_rails.c: the choice of a connection's NIC on machines with NICs close to some GPUs: receives and
 * collectives use the GPU's own NIC, messages the receiver's rail through the GPU close to it, if a rank of
 * the process is on it and the settings allow it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "backends/net.h"
#include "base/log.h"
#include "base/param.h"
#include "core/topology/rails.h"
#include "tutti.h"

enum { GPUS = 8 };

static struct topology topology;
static struct paths paths;
static bool here[GPUS];

static void machine_open(uint32_t nics) {
  const struct topology_spec spec = {.machine = "dgx-h100", .gpus = GPUS, .nics = nics};
  const struct paths_rules rules = PATHS_RULES_DEFAULT;
  assert_int_equal(topology_make(&spec, &topology), ncclSuccess);
  assert_int_equal(paths_find(&topology, &rules, &paths), ncclSuccess);
  memset(here, true, sizeof here);
}

static void machine_close(void) {
  paths_free(&paths);
  topology_free(&topology);
}

static struct rails_answer choose(uint32_t gpu, uint32_t peer_gpu, bool sends, bool message, uint32_t level) {
  const struct rails_ask ask = {&paths, gpu, peer_gpu, here, 0, sends, message, level, 0};
  return rails_choose(&ask);
}

static void assert_answer(struct rails_answer answer, uint32_t net, uint32_t over) {
  assert_int_equal(answer.net, net);
  assert_true(answer.over == over);
}

static void messages_take_the_receivers_rail(void **state) {
  (void)state;
  machine_open(GPUS);
  for (uint32_t gpu = 0; gpu < GPUS; gpu++)
    for (uint32_t peer = 0; peer < GPUS; peer++) {
      const uint32_t own = paths_net_near(&paths, gpu, 0), theirs = paths_net_near(&paths, peer, 0);
      assert_answer(choose(gpu, peer, false, true, 2), own, TOPOLOGY_NONE);
      assert_answer(choose(gpu, peer, true, false, 2), own, TOPOLOGY_NONE);
      assert_answer(choose(gpu, peer, true, true, 1), own, TOPOLOGY_NONE);
      assert_answer(choose(gpu, peer, true, true, 0), own, TOPOLOGY_NONE);
      const struct rails_answer answer = choose(gpu, peer, true, true, 2);
      assert_int_equal(answer.net, theirs); /* one rail for all senders of the node */
      if (gpu == peer) assert_true(answer.over == TOPOLOGY_NONE);
      else if (answer.over != TOPOLOGY_NONE)
        assert_true(paths.gpu_net[answer.over * paths.net_count + theirs].type <= GRAPH_PXB);
      else assert_true(paths.gpu_net[gpu * paths.net_count + theirs].type <= GRAPH_PXB);
    }
  machine_close();
}

static void nobody_beside_the_nic_is_no_route(void **state) {
  (void)state;
  machine_open(GPUS);
  memset(here, false, sizeof here);
  here[0] = true;
  uint32_t fallen_back = 0;
  for (uint32_t peer = 1; peer < GPUS; peer++) {
    const struct rails_answer answer = choose(0, peer, true, true, 2);
    assert_true(answer.over == TOPOLOGY_NONE);
    fallen_back += answer.net == paths_net_near(&paths, 0, 0);
  }
  assert_true(fallen_back > 0);
  machine_close();
}

/* Equally near NICs are used in turn. */
static void channels_spread_over_nics(void **state) {
  (void)state;
  machine_open(2 * GPUS);
  uint32_t spread = 0;
  for (uint32_t gpu = 0; gpu < GPUS; gpu++) {
    struct rails_ask ask = {&paths, gpu, 0, here, 0, false, false, 0, 0};
    const struct paths_route *routes = &paths.net_gpu[gpu * paths.net_count];
    const uint32_t first = paths_net_near(&paths, gpu, 0), second = paths_net_near(&paths, gpu, 1);
    const bool alike = routes[first].type == routes[second].type && routes[second].gbps >= routes[first].gbps;
    spread += alike;
    for (ask.channel_index = 0; ask.channel_index < 6; ask.channel_index++)
      assert_int_equal(rails_choose(&ask).net, alike && ask.channel_index % 2 == 1 ? second : first);
    ask.channel_index = 1;
    ask.nets_most = 2;
    assert_int_equal(rails_choose(&ask).net, alike ? second : first);
    ask.nets_most = 1;
    assert_int_equal(rails_choose(&ask).net, first);
  }
  assert_true(spread > 0);
  machine_close();
}

static void policies_limit_the_nics_of_a_gpu(void **state) {
  static const struct {
    const char *text;
    uint32_t most;
    bool wrong;
  } rows[] = {{"", 0, false},      {"AUTO", 0, false},      {"ALL", 0, false},   {"MAX:1", 1, false},
              {"max:3", 3, false}, {"MAX:999", 128, false}, {"MAX:0", 0, true},  {"MAX:", 0, true},
              {"MAX:2x", 0, true}, {"MAX:-1", 0, true},     {"NEAREST", 0, true}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    setenv("NCCL_NETDEVS_POLICY", rows[i].text, 1);
    param_reset();
    log_warn("no fault");
    assert_int_equal(rails_nets_most(), rows[i].most);
    assert_true((strstr(log_own_error(), "is none of AUTO, ALL and MAX:1") != NULL) == rows[i].wrong);
  }
  unsetenv("NCCL_NETDEVS_POLICY");
  param_reset();
}

/* Four NICs for eight GPUs: the nearest NIC of a GPU without its own may be behind another GPU. */
static void collectives_go_over_the_gpu_beside(void **state) {
  (void)state;
  machine_open(2);
  uint32_t over = 0;
  for (uint32_t gpu = 0; gpu < GPUS; gpu++) {
    const struct rails_answer answer = choose(gpu, 0, true, false, 2);
    const struct paths_route *route = &paths.gpu_net[gpu * paths.net_count + answer.net];
    assert_int_equal(answer.net, paths_net_near(&paths, gpu, 0));
    assert_true((answer.over != TOPOLOGY_NONE) == (route->type == GRAPH_PXN));
    over += answer.over != TOPOLOGY_NONE;
    assert_true(choose(gpu, 0, true, false, 0).over == TOPOLOGY_NONE);
  }
  assert_true(over > 0);
  machine_close();
}

/* Ranks of two emulated nodes of eight GPUs, half of each in this process. */
static void ranks_by_device(void **state) {
  (void)state;
  struct rails_place places[16];
  struct rails *rails = NULL;
  uint32_t over;
  setenv("TUTTI_EMU", "devices=16,nodes=2", 1);
  param_reset();
  for (uint32_t rank = 0; rank < 16; rank++) places[rank] = (struct rails_place){rank, rank < 8, rank / 8, 0};
  assert_int_equal(rails_create(emu_backend(), places, 16, &rails), ncclSuccess);
  assert_non_null(rails);
  struct device_conn_name name = {13, 0, CONN_MESSAGE, PROTO_SIMPLE, true, false};
  const uint32_t device = rails_device(rails, 2, &name, 8, &over);
  for (uint32_t rank = 0; rank < 8; rank++) {
    assert_int_equal(rails_device(rails, rank, &name, 8, &over), device);
    assert_true(over == rank || over == 5);
  }
  rails_device(rails, 2, &name, 8, &over);
  assert_int_equal(over, 5);
  setenv("NCCL_PXN_DISABLE", "1", 1);
  param_reset();
  rails_device(rails, 2, &name, 8, &over);
  assert_int_equal(over, 2);
  unsetenv("NCCL_PXN_DISABLE");
  rails_free(rails);
  rails_free(NULL);
  assert_int_equal(rails_device(NULL, 3, &name, 8, &over), 0);
}

/* NICs that the rank uses access the memory of its GPU. */
static bool memory_is_near(const struct rails *rails, uint32_t rank) {
  struct rails_reach reach;
  bool near = true;
  for (uint32_t net = 0; net < rails_net_count(rails); net++) {
    assert_true(rails_reach(rails, rank, net, &reach));
    near = near && (!reach.used || reach.path <= rails_gdr_level());
  }
  return near;
}

/* Each GPU of eight has a NIC of its own, or two have one of four, which another lies behind a CPU of. */
static void levels_keep_nics_from_memory(void **state) {
  static const struct {
    const char *emu, *level;
    uint32_t reached; /* ranks of eight */
  } rows[] = {
      {"devices=16,nodes=2,net=1,nics=8", "", 8},    {"devices=16,nodes=2,net=1,nics=8", "SYS", 8},
      {"devices=16,nodes=2,net=1,nics=8", "PIX", 8}, {"devices=16,nodes=2,net=1,nics=8", "1", 8},
      {"devices=16,nodes=2,net=1,nics=8", "LOC", 0}, {"devices=16,nodes=2,net=1,nics=8", "0", 0},
      {"devices=16,nodes=2,net=1,nics=2", "PIX", 2}, {"devices=16,nodes=2,net=1,nics=2", "SYS", 8},
      {"devices=16,nodes=2,net=1,nics=2", "4", 8},   {"devices=16,nodes=2,net=1,nics=8", "FAR", 8},
      {"devices=16,nodes=2,net=1,nics=2", "", 2},
  };
  struct rails_place places[16];
  (void)state;
  for (uint32_t rank = 0; rank < 16; rank++) places[rank] = (struct rails_place){rank, rank < 8, rank / 8, 0};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct rails *rails = NULL;
    uint32_t reached = 0;
    setenv("TUTTI_EMU", rows[i].emu, 1);
    setenv("NCCL_NET_GDR_LEVEL", rows[i].level, 1);
    param_reset();
    const tutti_emu_config_t config = {.size = sizeof config};
    assert_int_equal(tutti_emu_configure(&config), ncclSuccess);
    assert_int_equal(rails_create(emu_backend(), places, 16, &rails), ncclSuccess);
    assert_non_null(rails);
    for (uint32_t rank = 0; rank < 8; rank++) reached += memory_is_near(rails, rank);
    if (reached != rows[i].reached) fail_msg("%s %s: %u", rows[i].emu, rows[i].level, reached);
    rails_free(rails);
  }
  struct rails_reach reach;
  unsetenv("NCCL_NET_GDR_LEVEL");
  param_reset();
  struct rails *rails = NULL;
  setenv("TUTTI_EMU", "devices=16,nodes=2,net=1,nics=8", 1);
  const tutti_emu_config_t config = {.size = sizeof config};
  assert_int_equal(tutti_emu_configure(&config), ncclSuccess);
  assert_int_equal(rails_create(emu_backend(), places, 16, &rails), ncclSuccess);
  assert_true(rails_has_nvlink(rails, 0));
  assert_true(rails_reach(rails, 0, 5, &reach) && !reach.used && reach.sends); /* beside another GPU */
  setenv("NCCL_PXN_DISABLE", "1", 1);
  param_reset();
  assert_true(rails_reach(rails, 0, 5, &reach) && !reach.used && !reach.sends);
  assert_true(rails_reach(rails, 5, 5, &reach) && reach.used && reach.sends);
  unsetenv("NCCL_PXN_DISABLE");
  param_reset();
  rails_free(rails);
  assert_false(rails_reach(NULL, 0, 0, &reach)); /* nobody knows the paths */
  assert_false(rails_has_nvlink(NULL, 0));
}

static void default_level(void **state) {
  (void)state;
  unsetenv("NCCL_NET_GDR_LEVEL");
  param_reset();
  assert_int_equal(rails_gdr_level(), GRAPH_P2C);
  setenv("NCCL_NET_GDR_C2C", "0", 1);
  param_reset();
  assert_int_equal(rails_gdr_level(), GRAPH_PXB);
  setenv("TUTTI_NET_DEVICE_SLOTS", "1", 1); /* demanded: over any path */
  param_reset();
  assert_int_equal(rails_gdr_level(), GRAPH_SYS);
  unsetenv("NCCL_NET_GDR_C2C");
  unsetenv("TUTTI_NET_DEVICE_SLOTS");
  param_reset();
}

/* ---- through the API: two emulated nodes of eight GPUs, one NIC per GPU ---- */

enum { RANKS = 16, COUNT = 40, RECEIVER = 13 };

static void exchange(ncclComm_t *comms, uint32_t *memory[RANKS]) {
  assert_int_equal(ncclGroupStart(), ncclSuccess);
  for (int rank = 0; rank < GPUS; rank++) {
    for (uint32_t i = 0; i < COUNT; i++) memory[rank][i] = (uint32_t)rank * 1000 + i;
    assert_int_equal(ncclSend(memory[rank], COUNT, ncclUint32, RECEIVER, comms[rank], NULL), ncclSuccess);
    assert_int_equal(
        ncclRecv(memory[RECEIVER] + rank * COUNT, COUNT, ncclUint32, rank, comms[RECEIVER], NULL),
        ncclSuccess);
  }
  assert_int_equal(ncclGroupEnd(), ncclSuccess);
  for (int rank = 0; rank < RANKS; rank++) {
    cudaSetDevice(rank);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
  }
  for (uint32_t rank = 0; rank < GPUS; rank++)
    for (uint32_t i = 0; i < COUNT; i++)
      assert_int_equal(memory[RECEIVER][rank * COUNT + i], rank * 1000 + i);
}

/* Eight ranks of one node send to one rank of the other; returns the number of NICs that carried data. */
static uint32_t nics_used(const char *level, const char *disable, uint64_t *receivers) {
  ncclComm_t comms[RANKS];
  uint32_t *memory[RANKS], used = 0;
  const tutti_emu_config_t config = {.size = sizeof config};
  setenv("TUTTI_EMU", "devices=16,nodes=2,net=1,slots=4,chunk=64", 1);
  setenv("NCCL_P2P_PXN_LEVEL", level, 1);
  setenv("NCCL_PXN_DISABLE", disable, 1);
  param_reset();
  assert_int_equal(tutti_emu_configure(&config), ncclSuccess);
  assert_int_equal(ncclCommInitAll(comms, RANKS, NULL), ncclSuccess);
  for (int rank = 0; rank < RANKS; rank++) {
    cudaSetDevice(rank);
    assert_int_equal(cudaMalloc((void **)&memory[rank], GPUS * COUNT * sizeof(uint32_t)), cudaSuccess);
  }
  exchange(comms, memory);
  for (uint32_t device = 0; device < GPUS; device++) used += emu_net_messages(device) > 0;
  *receivers = emu_net_messages(RECEIVER % GPUS);
  for (int rank = 0; rank < RANKS; rank++) assert_int_equal(ncclCommDestroy(comms[rank]), ncclSuccess);
  for (int rank = 0; rank < RANKS; rank++) cudaFree(memory[rank]);
  unsetenv("NCCL_P2P_PXN_LEVEL");
  unsetenv("NCCL_PXN_DISABLE");
  param_reset();
  return used;
}

static void messages_go_over_one_nic_or_each_over_its_own(void **state) {
  uint64_t all = 0, own = 0;
  (void)state;
  assert_int_equal(nics_used("2", "0", &all), 1);
  assert_int_equal(nics_used("1", "0", &own), GPUS);
  assert_true(all == GPUS * own);
  assert_int_equal(nics_used("0", "0", &own), GPUS);
  assert_int_equal(nics_used("2", "1", &own), GPUS);
  assert_true(all == GPUS * own);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(messages_take_the_receivers_rail),
      cmocka_unit_test(nobody_beside_the_nic_is_no_route),
      cmocka_unit_test(channels_spread_over_nics),
      cmocka_unit_test(policies_limit_the_nics_of_a_gpu),
      cmocka_unit_test(collectives_go_over_the_gpu_beside),
      cmocka_unit_test(ranks_by_device),
      cmocka_unit_test(levels_keep_nics_from_memory),
      cmocka_unit_test(default_level),
      cmocka_unit_test(messages_go_over_one_nic_or_each_over_its_own),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
