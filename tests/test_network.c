/* test_network.c: the emulated network: nothing is lost over many seeds, equal seeds give equal runs, and
 * each fault hits the right message, is reported by name to the ranks concerned, and does not affect others.
 */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backend.h"
#include "backends/emu/world.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/proxy/net.h"
#include "net_pair.h"
#include "tutti.h"

#define SEEDS 200
#define RANKS 3
#define WIRES (RANKS * (RANKS - 1))
#define MESSAGES 16 /* per wire */
#define IDLE_TURNS 3000

/* The network with these settings and this seed. Its devices are not requested before the last tests, so that
 * it is not yet a service of the scheduler: each test of a request makes a turn. */
static const struct net_ops *network(const char *keys, uint64_t seed) {
  char text[256];
  tutti_emu_config_t config;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.seed = seed;
  snprintf(text, sizeof text, "net=1,%s", keys);
  setenv("TUTTI_EMU", text, 1);
  param_reset();
  assert_int_equal(tutti_emu_configure(&config), ncclSuccess);
  const struct net_ops *ops = emu_net_ops();
  assert_non_null(ops);
  return ops;
}

/* ---- a network of three ranks, all with all ---- */

struct wire {
  uint32_t from, to;
  struct net_pair pair;
  uint32_t sent, posted, sends_done, received; /* messages */
  uint32_t values[MESSAGES], got[MESSAGES + 1];
  void *sends[MESSAGES], *receives[MESSAGES];
  ncclResult_t send_result, receive_result;
  char send_text[512], receive_text[512];
};

struct mesh {
  const struct net_ops *ops;
  struct wire wires[WIRES];
  uint64_t hash; /* of the order in which everything happened */
  uint32_t idle; /* turns without progress */
};

static void mesh_open(struct mesh *mesh, const struct net_ops *ops) {
  uint32_t count = 0;
  memset(mesh, 0, sizeof *mesh);
  mesh->ops = ops;
  for (uint32_t from = 0; from < RANKS; from++) {
    for (uint32_t to = 0; to < RANKS; to++) {
      if (from == to) continue;
      struct wire *wire = &mesh->wires[count++];
      struct net_handle handle;
      const struct net_peer receiver = {77, to, from, "test", NULL, 0},
                            sender = {77, from, to, "test", NULL, 0};
      wire->from = from;
      wire->to = to;
      wire->pair.ops = ops;
      assert_int_equal(ops->listen(from % 2, &receiver, &handle, &wire->pair.listener), ncclSuccess);
      assert_int_equal(ops->accept(wire->pair.listener, &wire->pair.recv), ncclSuccess);
      assert_null(wire->pair.recv);
      assert_int_equal(ops->connect(from % 2, &sender, &handle, &wire->pair.send), ncclSuccess);
      assert_int_equal(ops->accept(wire->pair.listener, &wire->pair.recv), ncclSuccess);
      assert_non_null(wire->pair.recv);
      for (uint32_t i = 0; i < MESSAGES; i++) wire->values[i] = count * 1000 + i;
    }
  }
}

static void mesh_close(struct mesh *mesh) {
  for (uint32_t i = 0; i < WIRES; i++) net_pair_close(&mesh->wires[i].pair);
}

static void mesh_note(struct mesh *mesh, uint32_t wire, uint32_t what) {
  mesh->hash = (mesh->hash ^ (wire * 100 + what)) * 1099511628211u;
  mesh->idle = 0;
}

static void note_failure(struct mesh *mesh, uint32_t index, ncclResult_t result, ncclResult_t *at,
                         char *text) {
  if (result == ncclSuccess || *at != ncclSuccess) return;
  *at = result;
  snprintf(text, 512, "%s", log_last_error());
  mesh_note(mesh, index, 9);
}

static void wire_send(struct mesh *mesh, uint32_t index) {
  struct wire *wire = &mesh->wires[index];
  if (wire->send_result != ncclSuccess) return;
  ncclResult_t result = ncclSuccess;
  if (wire->sent < MESSAGES && wire->sent - wire->sends_done < 4) {
    result = mesh->ops->isend(wire->pair.send, &wire->values[wire->sent], sizeof wire->values[0], 0, NULL,
                              &wire->sends[wire->sent]);
    wire->sent += result == ncclSuccess;
  }
  bool done = false;
  if (result == ncclSuccess && wire->sends_done < wire->sent)
    result = mesh->ops->test(wire->sends[wire->sends_done], &done, NULL);
  wire->sends_done += done;
  if (done) mesh_note(mesh, index, 1);
  note_failure(mesh, index, result, &wire->send_result, wire->send_text);
}

static void wire_receive(struct mesh *mesh, uint32_t index) {
  struct wire *wire = &mesh->wires[index];
  if (wire->receive_result != ncclSuccess) return;
  ncclResult_t result = ncclSuccess;
  if (wire->posted < MESSAGES && wire->posted - wire->received < 3) {
    void *data = &wire->got[wire->posted], *registration = NULL;
    const size_t bytes = sizeof wire->got[0];
    const int tag = 0;
    result = mesh->ops->irecv(wire->pair.recv, 1, &data, &bytes, &tag, &registration,
                              &wire->receives[wire->posted]);
    wire->posted += result == ncclSuccess;
  }
  bool done = false;
  size_t bytes = 0;
  if (result == ncclSuccess && wire->received < wire->posted)
    result = mesh->ops->test(wire->receives[wire->received], &done, &bytes);
  if (done) assert_int_equal(bytes, sizeof wire->got[0]);
  wire->received += done;
  if (done) mesh_note(mesh, index, 2);
  note_failure(mesh, index, result, &wire->receive_result, wire->receive_text);
}

static bool mesh_over(const struct mesh *mesh) {
  for (uint32_t i = 0; i < WIRES; i++) {
    const struct wire *wire = &mesh->wires[i];
    if (wire->send_result == ncclSuccess && wire->sends_done < MESSAGES) return false;
    if (wire->receive_result == ncclSuccess && wire->received < MESSAGES) return false;
  }
  return true;
}

/* Everything that has arrived, even if no test() has reported it. */
static void mesh_note_arrivals(struct mesh *mesh) {
  for (uint32_t i = 0; i < WIRES; i++)
    for (uint32_t message = 0; message < MESSAGES; message++)
      mesh->hash = (mesh->hash ^ mesh->wires[i].got[message]) * 1099511628211u;
}

/* Until all wires are done, or nothing makes progress. */
static void mesh_run(struct mesh *mesh, const char *keys, uint64_t seed) {
  uint32_t round = 0; /* one end and one message per round, so that the order shows */
  mesh_open(mesh, network(keys, seed));
  while (!mesh_over(mesh) && mesh->idle < IDLE_TURNS) {
    mesh->idle += 1;
    const uint32_t end = round++ % (2 * WIRES);
    if (end % 2 == 0) wire_send(mesh, end / 2);
    else wire_receive(mesh, end / 2);
    mesh_note_arrivals(mesh);
  }
}

static bool wire_whole(const struct wire *wire) {
  return wire->sends_done == MESSAGES && wire->received == MESSAGES &&
         memcmp(wire->got, wire->values, sizeof wire->values) == 0;
}

static uint32_t mesh_whole(const struct mesh *mesh) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < WIRES; i++) count += wire_whole(&mesh->wires[i]);
  return count;
}

/* ---- without faults ---- */

static void test_seeds(void **state) {
  uint64_t first = 0;
  uint32_t differ = 0;
  (void)state;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    struct mesh mesh, second;
    mesh_run(&mesh, "devices=8,nodes=4", seed);
    assert_int_equal(mesh_whole(&mesh), WIRES);
    mesh_close(&mesh);
    mesh_run(&second, "devices=8,nodes=4", seed);
    assert_true(second.hash == mesh.hash); /* the same seed, the same run */
    mesh_close(&second);
    if (seed == 1) first = mesh.hash;
    differ += mesh.hash != first;
  }
  assert_true(differ > SEEDS / 2);
}

static void test_messages(void **state) {
  (void)state;
  for (uint32_t threads = 0; threads < 2; threads++) {
    const struct net_ops *ops = network(threads == 0 ? "mode=guarded" : "mode=threads", 5);
    struct net_pair pair;
    net_pair_open(ops, 0, 11, NULL, &pair);
    for (uint64_t seed = 0; seed < 3; seed++) net_pair_exercise(&pair, 0, seed);
    net_pair_close(&pair);
  }
}

/* Two threads, one per end. */
static void *receive_all(void *argument) {
  struct net_pair *pair = (struct net_pair *)argument;
  for (uint32_t i = 0; i < 2000; i++) {
    uint32_t value = 0;
    void *data = &value, *registration = NULL, *request = NULL;
    const size_t capacity = sizeof value;
    const int tag = 0;
    size_t bytes = 0;
    bool done = false;
    while (request == NULL)
      if (pair->ops->irecv(pair->recv, 1, &data, &capacity, &tag, &registration, &request) != ncclSuccess)
        return NULL;
    while (!done)
      if (pair->ops->test(request, &done, &bytes) != ncclSuccess) return NULL;
    if (bytes != sizeof value || value != i) return NULL;
  }
  return pair;
}

static void test_threads(void **state) {
  const struct net_ops *ops = network("mode=threads", 6);
  struct net_pair pair;
  pthread_t receiver;
  void *good = NULL;
  (void)state;
  net_pair_open(ops, 0, 12, NULL, &pair);
  assert_int_equal(pthread_create(&receiver, NULL, receive_all, &pair), 0);
  for (uint32_t i = 0; i < 2000; i++) {
    void *request = NULL;
    bool done = false;
    while (request == NULL)
      assert_int_equal(ops->isend(pair.send, &i, sizeof i, 0, NULL, &request), ncclSuccess);
    while (!done) assert_int_equal(ops->test(request, &done, NULL), ncclSuccess);
  }
  pthread_join(receiver, &good);
  assert_ptr_equal(good, &pair);
  net_pair_close(&pair);
}

/* ---- faults ---- */

/* Wires with an error at either end, or with missing messages. */
static const struct wire *wire_hit(const struct mesh *mesh, uint32_t *count) {
  const struct wire *hit = NULL;
  *count = 0;
  for (uint32_t i = 0; i < WIRES; i++) {
    if (wire_whole(&mesh->wires[i])) continue;
    hit = hit == NULL ? &mesh->wires[i] : hit;
    *count += 1;
  }
  return hit;
}

static void assert_names(const char *text, const struct wire *wire, bool sender, const char *why) {
  char expected[128];
  snprintf(expected, sizeof expected,
           "network Emu, device emu%u: rank %u has lost rank %u of test: ", wire->from % 2,
           sender ? wire->from : wire->to, sender ? wire->to : wire->from);
  if (strstr(text, expected) == NULL || strstr(text, why) == NULL)
    fail_msg("'%s' does not say '%s%s'", text, expected, why);
}

static void assert_both_told(const struct wire *wire, const char *why) {
  assert_int_equal(wire->send_result, ncclRemoteError);
  assert_int_equal(wire->receive_result, ncclRemoteError);
  assert_names(wire->send_text, wire, true, why);
  assert_names(wire->receive_text, wire, false, why);
}

static void check_drop(const struct mesh *mesh) {
  uint32_t count, missing = 0;
  const struct wire *wire = wire_hit(mesh, &count);
  assert_int_equal(count, 1);
  assert_int_equal(wire->sends_done, MESSAGES);
  assert_int_equal(wire->received, MESSAGES - 1);
  while (missing < MESSAGES - 1 && wire->got[missing] == wire->values[missing]) missing += 1;
  for (uint32_t i = missing; i < MESSAGES - 1; i++) assert_int_equal(wire->got[i], wire->values[i + 1]);
}

static void check_duplicate(const struct mesh *mesh) {
  uint32_t count, twice = 0;
  const struct wire *wire = wire_hit(mesh, &count);
  if (wire == NULL) return; /* the last message of a connection: no later receive could take it */
  assert_int_equal(count, 1);
  while (wire->got[twice] == wire->values[twice]) twice += 1;
  assert_in_range(twice, 1, MESSAGES - 1);
  for (uint32_t i = twice; i < MESSAGES; i++) assert_int_equal(wire->got[i], wire->values[i - 1]);
}

static void check_hold(const struct mesh *mesh) { assert_int_equal(mesh_whole(mesh), WIRES); }

static void check_cut(const struct mesh *mesh) {
  uint32_t count;
  const struct wire *hit = wire_hit(mesh, &count);
  assert_in_range(count, 1, 2); /* one or both directions; the other may have ended before */
  for (const struct wire *wire = hit; wire < mesh->wires + WIRES; wire++) {
    if (wire_whole(wire)) continue;
    assert_true((wire->from == hit->from && wire->to == hit->to) ||
                (wire->from == hit->to && wire->to == hit->from));
    if (wire->sends_done < MESSAGES)
      assert_names(wire->send_text, wire, true, "nothing was heard of it any more");
    assert_names(wire->receive_text, wire, false, "nothing was heard of it any more");
  }
}

static void check_stop(const struct mesh *mesh) {
  uint32_t count, stopped[RANKS] = {0};
  wire_hit(mesh, &count);
  assert_in_range(count, 1, 4);
  for (uint32_t i = 0; i < WIRES; i++) {
    const struct wire *wire = &mesh->wires[i];
    assert_int_equal(wire->send_result, ncclSuccess); /* no error is reported */
    assert_int_equal(wire->receive_result, ncclSuccess);
    if (wire_whole(wire)) continue;
    stopped[wire->from] += 1;
    stopped[wire->to] += 1;
  }
  assert_true(stopped[0] == count || stopped[1] == count || stopped[2] == count);
}

static void check_reset(const struct mesh *mesh) {
  uint32_t count;
  const struct wire *wire = wire_hit(mesh, &count);
  assert_int_equal(count, 1);
  assert_both_told(wire, "the connection was reset");
}

static void test_faults(void **state) {
  static const struct {
    const char *name;
    void (*check)(const struct mesh *mesh);
  } rows[] = {{"drop", check_drop}, {"duplicate", check_duplicate}, {"hold", check_hold},
              {"cut", check_cut},   {"stop", check_stop},           {"reset", check_reset}};
  (void)state;
  for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++) {
    for (uint64_t seed = 1; seed <= SEEDS / 3; seed++) {
      struct mesh mesh, second;
      char keys[64];
      snprintf(keys, sizeof keys, "fault=%s%s", rows[row].name, seed % 3 == 0 ? ",fault_at=7" : "");
      mesh_run(&mesh, keys, seed);
      rows[row].check(&mesh);
      mesh_close(&mesh);
      mesh_run(&second, keys, seed);
      assert_true(second.hash == mesh.hash);
      mesh_close(&second);
    }
  }
}

/* ---- misuse ---- */

static void test_too_long(void **state) {
  const struct net_ops *ops = network("mode=guarded", 1);
  struct net_pair pair;
  char from[100] = "", to[100];
  void *send = NULL, *recv = NULL, *data = to, *registration = NULL;
  const size_t capacity = 60;
  const int tag = 0;
  bool done = false;
  ncclResult_t results[2] = {ncclSuccess, ncclSuccess};
  (void)state;
  net_pair_open(ops, 0, 13, NULL, &pair);
  assert_int_equal(ops->isend(pair.send, from, sizeof from, 0, NULL, &send), ncclSuccess);
  assert_int_equal(ops->irecv(pair.recv, 1, &data, &capacity, &tag, &registration, &recv), ncclSuccess);
  for (uint32_t i = 0; i < IDLE_TURNS && (results[0] == ncclSuccess || results[1] == ncclSuccess); i++) {
    if (results[0] == ncclSuccess) results[0] = ops->test(send, &done, NULL);
    assert_false(done);
    if (results[1] == ncclSuccess) results[1] = ops->test(recv, &done, NULL);
    assert_false(done);
  }
  assert_int_equal(results[0], ncclInvalidUsage);
  assert_int_equal(results[1], ncclInvalidUsage);
  assert_non_null(strstr(log_last_error(), "sends 100 bytes to rank 1 of test, which has space for 60"));
  net_pair_close(&pair);
}

static void test_strangers(void **state) {
  const struct net_ops *ops = network("mode=guarded", 1);
  const struct net_peer peer = {14, 1, 0, "test", NULL, 0}, sender = {14, 0, 1, "test", NULL, 0},
                        other = {15, 0, 1, "test", NULL, 0};
  struct net_handle handle, bad;
  void *listener = NULL, *connection = NULL;
  (void)state;
  assert_int_equal(ops->listen(0, &peer, &handle, &listener), ncclSuccess);
  for (uint32_t byte = 0; byte < 24; byte++) {
    bad = handle;
    bad.bytes[byte] ^= 0x40;
    assert_int_not_equal(ops->connect(0, &sender, &bad, &connection), ncclSuccess);
    assert_null(connection);
  }
  assert_int_equal(ops->connect(0, &other, &handle, &connection), ncclRemoteError); /* a wrong key */
  assert_int_equal(ops->close_listen(listener), ncclSuccess);
  assert_int_equal(ops->connect(0, &sender, &handle, &connection), ncclRemoteError);
  assert_non_null(strstr(log_last_error(), "rank 1 of test does not listen to rank 0 any more"));
}

/* Closed in every order, with messages in flight and connections that were not accepted. */
static void test_closing(void **state) {
  const struct net_ops *ops = network("mode=guarded", 1);
  const uint64_t live = os_alloc_live();
  (void)state;
  for (uint32_t order = 0; order < 3; order++) {
    struct net_pair pair;
    char from[8] = "", to[8];
    void *request = NULL, *data = to, *registration = NULL;
    const size_t capacity = sizeof to;
    const int tag = 0;
    bool done = false;
    net_pair_open(ops, 0, 16, NULL, &pair);
    if (order == 0) {
      assert_int_equal(ops->irecv(pair.recv, 1, &data, &capacity, &tag, &registration, &request),
                       ncclSuccess);
      assert_int_equal(ops->close_send(pair.send), ncclSuccess);
      pair.send = NULL;
      assert_int_equal(ops->test(request, &done, NULL), ncclRemoteError);
      assert_non_null(strstr(log_last_error(), "rank 1 has lost rank 0 of test: it has closed"));
    } else if (order == 1) {
      assert_int_equal(ops->isend(pair.send, from, sizeof from, 0, NULL, &request), ncclSuccess);
      assert_int_equal(ops->close_recv(pair.recv), ncclSuccess);
      pair.recv = NULL;
      assert_int_equal(ops->test(request, &done, NULL), ncclRemoteError);
      assert_int_equal(ops->isend(pair.send, from, sizeof from, 0, NULL, &request), ncclRemoteError);
    }
    net_pair_close(&pair);
  }
  const struct net_peer peer = {17, 1, 0, "test", NULL, 0}, sender = {17, 0, 1, "test", NULL, 0};
  struct net_handle handle;
  void *listener = NULL, *connection = NULL;
  assert_int_equal(ops->listen(0, &peer, &handle, &listener), ncclSuccess);
  assert_int_equal(ops->connect(0, &sender, &handle, &connection), ncclSuccess);
  assert_int_equal(ops->close_listen(listener), ncclSuccess);
  assert_int_equal(ops->close_send(connection), ncclSuccess);
  assert_int_equal(os_alloc_live(), live);
}

static void test_memory(void **state) {
  const struct net_ops *ops = network("mode=guarded", 1);
  const struct net_peer peer = {18, 1, 0, "test", NULL, 0}, sender = {18, 0, 1, "test", NULL, 0};
  struct net_handle handle;
  void *listener = NULL, *connection = NULL;
  (void)state;
  os_alloc_fail_at(1);
  assert_int_equal(ops->listen(0, &peer, &handle, &listener), ncclSystemError);
  assert_int_equal(ops->listen(0, &peer, &handle, &listener), ncclSuccess);
  os_alloc_fail_at(1);
  assert_int_equal(ops->connect(0, &sender, &handle, &connection), ncclSystemError);
  os_alloc_fail_at(0);
  assert_int_equal(ops->close_listen(listener), ncclSuccess);
}

/* ---- settings, and the choice ---- */

static void test_devices(void **state) {
  static const struct {
    const char *keys;
    uint32_t count;
  } rows[] = {{"devices=8,nodes=2", 4}, {"devices=32,nodes=2", 8}, {"devices=4,nodes=2,nics=5", 5}};
  struct net_properties properties;
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    uint32_t count = 0;
    const struct net_ops *ops = network(rows[i].keys, 1);
    assert_int_equal(ops->devices(&count), ncclSuccess);
    assert_int_equal(count, rows[i].count);
    assert_int_equal(ops->properties(count - 1, &properties), ncclSuccess);
    assert_int_equal(properties.rail, count - 1);
    assert_int_not_equal(ops->properties(count, &properties), ncclSuccess);
  }
  setenv("TUTTI_EMU", "nics=2", 1);
  param_reset();
  tutti_emu_config_t config;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  assert_int_equal(tutti_emu_configure(&config), ncclSuccess);
  assert_null(emu_net_ops());
  setenv("TUTTI_EMU", "net=1,fault=nonsense", 1);
  param_reset();
  assert_int_equal(tutti_emu_configure(&config), ncclInvalidUsage);
  assert_non_null(strstr(log_last_error(), "fault cannot be \"nonsense\" (it takes nothing, drop,"));
}

static void test_chosen(void **state) {
  const struct net_ops *ops = NULL;
  uint32_t count = 0;
  (void)state;
  network("devices=8,nodes=2", 1);
  assert_int_equal(net_choose(&ops, &count), ncclSuccess);
  assert_string_equal(ops->name, "Emu");
  assert_int_equal(count, 4);
}

static void world_turn(void) { backend_ops()->device->progress(); }

/* As a service of guarded mode, which makes the turns. */
static void test_service(void **state) {
  const struct net_ops *ops = NULL;
  struct net_pair pair;
  uint32_t count = 0;
  (void)state;
  network("devices=8,nodes=2,net_delay=50", 3);
  assert_int_equal(net_choose(&ops, &count), ncclSuccess);
  assert_true(ops->in_world);
  net_pair_open(ops, 0, 31, world_turn, &pair);
  net_pair_exercise(&pair, 0, 2);
  net_pair_close(&pair);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_seeds),   cmocka_unit_test(test_messages), cmocka_unit_test(test_threads),
      cmocka_unit_test(test_faults),  cmocka_unit_test(test_too_long), cmocka_unit_test(test_strangers),
      cmocka_unit_test(test_closing), cmocka_unit_test(test_memory),   cmocka_unit_test(test_devices),
      cmocka_unit_test(test_chosen),  cmocka_unit_test(test_service),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
