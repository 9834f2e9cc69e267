/* test_plugin.c: network plugins: each version of the interface, tested with a plugin that checks its caller
 * (tests/plugins/loopback.c), and unusable plugins, which are rejected with a message and no harm. Each case
 * runs in a process of its own, because a process chooses its network once. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/proxy/net.h"
#include "net_pair.h"
#include "plugins/loopback.h"

#define PATH_BYTES 4096
#define LOG_BYTES 65536

static char folder[PATH_BYTES]; /* directory of the plugins */

static void plugin_path(char *path, const char *name) {
  snprintf(path, PATH_BYTES, "%.*s/libnccl-net-%s.so", PATH_BYTES - 256, folder, name);
}

/* The child's log. */
static char said[LOG_BYTES];

/* Runs a case in a child with these settings; the child's log is in `said`. */
static void in_child(const char *net, const char *plugins, void (*body)(void)) {
  char path[] = "/tmp/tutti-plugin-XXXXXX";
  const int log = mkstemp(path);
  int status = -1;
  assert_true(log >= 0);
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* an assertion ends the child, which must not go on as its parent */
    setenv("NCCL_DEBUG", "INFO", 1);
    setenv("NCCL_DEBUG_SUBSYS", "ALL", 1);
    setenv("NCCL_DEBUG_FILE", path, 1);
    if (net != NULL) setenv("NCCL_NET", net, 1);
    if (plugins != NULL) setenv("NCCL_NET_PLUGIN", plugins, 1);
    param_reset();
    log_reset();
    body();
    exit(0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  const ssize_t bytes = pread(log, said, sizeof said - 1, 0);
  said[bytes > 0 ? bytes : 0] = '\0';
  close(log);
  unlink(path);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("status %x; log:\n%s", status, said);
}

static void assert_said(const char *text) {
  if (strstr(said, text) == NULL) fail_msg("the log does not say '%s':\n%s", text, said);
}

/* The child's plugin stays loaded; returns its counters. */
static void *plugin_symbol(const char *name, const char *symbol) {
  char path[PATH_BYTES];
  plugin_path(path, name);
  void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  assert_non_null(library);
  void *found = dlsym(library, symbol);
  assert_non_null(found);
  dlclose(library);
  return found;
}

static const struct net_ops *chosen(uint32_t *count) {
  const struct net_ops *ops = NULL;
  assert_int_equal(net_choose(&ops, count), ncclSuccess);
  return ops;
}

/* ---- a working plugin ---- */

static const char *speaking; /* name of the plugin */
static int version;

static void assert_properties(const struct net_ops *ops) {
  struct net_properties first, second;
  assert_int_equal(ops->properties(0, &first), ncclSuccess);
  assert_int_equal(ops->properties(1, &second), ncclSuccess);
  assert_string_equal(second.name, "loop1");
  assert_string_equal(first.pci_path, "/sys/devices/pci0000:00/0000:00:01.0");
  assert_string_equal(second.pci_path, "");
  assert_int_equal(second.guid, 77);
  assert_int_equal(second.speed_mbps, 25000);
  assert_int_equal(second.port, 2);
  assert_true(second.latency_us == 1.5f);
  assert_int_equal(second.max_comms, 4096);
  assert_int_equal(second.max_recvs, 4);
  assert_int_equal(second.max_message_bytes, version < 9 ? 1u << 30 : 1u << 24); /* before 9 not told */
  assert_false(second.memory_cuda || second.memory_dmabuf || second.force_flush);
  assert_int_equal(second.global_registration, version == 8);
  assert_int_equal(second.rail, version >= 12 ? 1 : -1);
  assert_int_equal(second.plane, version >= 12 ? 3 : -1);
}

static void speak(void) {
  struct net_pair pairs[3];
  uint32_t count = 0;
  const struct net_ops *ops = chosen(&count), *second = NULL;
  assert_string_equal(ops->name, "Loopback");
  assert_int_equal(count, 2);
  assert_int_equal(net_choose(&second, &count), ncclSuccess);
  assert_ptr_equal(second, ops);
  assert_properties(ops);
  const struct loopback_counts *counts =
      ((loopback_counted_type)plugin_symbol(speaking, "loopback_counted"))();
  const char *offence = ((loopback_fault_type)plugin_symbol(speaking, "loopback_fault"))();
  const loopback_contexts_type contexts =
      (loopback_contexts_type)plugin_symbol(speaking, "loopback_contexts");
  for (uint32_t i = 0; i < 3; i++) net_pair_open(ops, i % 2, 100 + i / 2, NULL, &pairs[i]);
  assert_int_equal(contexts(), version <= 10 ? 0 : 3); /* the process's, and two communicators' */
  for (uint32_t i = 0; i < 3; i++) net_pair_exercise(&pairs[i], i % 2, i);
  assert_true(counts->messages > 0 && counts->iflush > 0);
  for (uint32_t i = 0; i < 2; i++) net_pair_close(&pairs[i]);
  assert_int_equal(ops->close_listen(pairs[2].listener), ncclSuccess);
  assert_int_equal(ops->close_send(pairs[2].send), ncclSuccess);
  assert_int_equal(contexts(), version <= 10 ? 0 : 2); /* an accepted connection keeps its context */
  assert_int_equal(ops->close_recv(pairs[2].recv), ncclSuccess);
  assert_int_equal(contexts(), version <= 10 ? 0 : 1);
  assert_int_equal(ops->finish(), ncclSuccess);
  assert_int_equal(contexts(), 0);
  assert_int_equal(counts->links, 0);
  assert_int_equal(counts->registrations, 0);
  assert_int_equal(counts->init, version <= 10 ? 1 : 3);
  assert_int_equal(counts->finalize, version <= 10 ? 0 : 3);
  assert_string_equal(offence, "");
}

static void test_versions(void **state) {
  (void)state;
  for (version = 6; version <= 12; version++) {
    char path[PATH_BYTES], line[128], name[32];
    snprintf(name, sizeof name, "loopback%d", version);
    speaking = name;
    plugin_path(path, speaking);
    in_child(NULL, path, speak);
    snprintf(line, sizeof line, "'Loopback', version %d of the interface", version);
    assert_said(line);
    assert_said("Network Loopback, 2 devices (loop0, loop1): a plugin comes before our own networks");
    snprintf(line, sizeof line, "loopback plugin, version %d", version);
    assert_said(line); /* through this library's log */
  }
}

/* The context of a cancelled connect is kept until the end, and no longer. */
static void give_up(void) {
  uint32_t count = 0;
  const struct net_ops *ops = chosen(&count);
  const struct net_peer peer = {7, 1, 0, "test", NULL, 0}, other = {8, 1, 0, "test", NULL, 0};
  struct net_handle handle, remote;
  void *listener = NULL, *connection = NULL;
  const loopback_contexts_type contexts =
      (loopback_contexts_type)plugin_symbol(speaking, "loopback_contexts");
  assert_int_equal(ops->listen(0, &other, &handle, &listener), ncclSuccess);
  assert_int_equal(ops->connect(0, &peer, &handle, &connection), ncclSuccess);
  assert_null(connection);
  assert_int_equal(contexts(), 3);
  assert_int_equal(ops->connect(0, &other, &handle, &connection), ncclSuccess); /* reuses its slot */
  assert_int_equal(contexts(), 2);
  assert_int_equal(ops->close_listen(listener), ncclSuccess);
  memset(&remote, 0, sizeof remote);
  assert_int_not_equal(ops->connect(0, &peer, &remote, &connection),
                       ncclSuccess); /* not a handle of this network */
  assert_int_equal(contexts(), 2);
  assert_int_equal(ops->finish(), ncclSuccess);
  assert_int_equal(contexts(), 0);
}

/* ---- messages of two parts ---- */

#define PARTS_MESSAGES 24
#define PARTS_FIRST_MOST 5000

struct parts {
  uint8_t first[PARTS_FIRST_MOST], last[16];
};
static struct parts parts_sent[PARTS_MESSAGES], parts_got[PARTS_MESSAGES];

static size_t parts_bytes(uint32_t i) { return i % 5 == 0 ? 0 : (i * 977u) % PARTS_FIRST_MOST; }

static void parts_register(const struct net_ops *ops, void *connection, void *data, void **registration) {
  assert_int_equal(ops->register_memory(connection, data, sizeof parts_sent, NET_MEMORY_HOST, registration),
                   ncclSuccess);
}

/* Each other message is a plain one, of the last part alone. */
static void parts_begin(const struct net_pair *pair, uint32_t i, void *const *registrations, void **send,
                        void **receive) {
  struct parts *from = &parts_sent[i], *to = &parts_got[i];
  const struct net_part out = {from->first, parts_bytes(i), registrations[0]};
  const struct net_part in = {to->first, PARTS_FIRST_MOST, registrations[1]};
  const bool plain = i % 2 == 1;
  const size_t bytes = sizeof to->last;
  void *data = to->last, *registration = registrations[1];
  const int tag = 0;
  while (*send == NULL)
    assert_int_equal(
        plain ? pair->ops->isend(pair->send, from->last, bytes, 0, registrations[0], send)
              : pair->ops->isend_parts(pair->send, &out, from->last, bytes, registrations[0], send),
        ncclSuccess);
  while (*receive == NULL)
    assert_int_equal(
        plain ? pair->ops->irecv(pair->recv, 1, &data, &bytes, &tag, &registration, receive)
              : pair->ops->irecv_parts(pair->recv, &in, NET_PARTS_TAIL, data, bytes, registration, receive),
        ncclSuccess);
}

static void parts_end(const struct net_pair *pair, uint32_t i, void *send, void *receive) {
  bool sent = false, received = false;
  size_t bytes = 0;
  while (!sent || !received) {
    if (!sent) assert_int_equal(pair->ops->test(send, &sent, NULL), ncclSuccess);
    if (!received) assert_int_equal(pair->ops->test(receive, &received, &bytes), ncclSuccess);
  }
  assert_int_equal(bytes, sizeof parts_got[i].last + (i % 2 == 1 ? 0 : parts_bytes(i)));
}

static void send_parts(void) {
  struct net_pair pair;
  uint32_t count = 0;
  void *sends[PARTS_MESSAGES] = {NULL}, *receives[PARTS_MESSAGES] = {NULL}, *registrations[2];
  const struct net_ops *ops = chosen(&count);
  net_pair_open(ops, 0, 9, NULL, &pair);
  assert_int_equal(ops->takes_parts(pair.send), NET_PARTS_NONE); /* but slots of GPUs' memory need them */
  parts_register(ops, pair.send, parts_sent, &registrations[0]);
  parts_register(ops, pair.recv, parts_got, &registrations[1]);
  for (uint32_t i = 0; i < PARTS_MESSAGES; i++) {
    memset(&parts_sent[i], (int)i + 1, sizeof parts_sent[i]);
    parts_begin(&pair, i, registrations, &sends[i], &receives[i]);
    if (i >= 4) parts_end(&pair, i - 4, sends[i - 4], receives[i - 4]);
  }
  for (uint32_t i = PARTS_MESSAGES - 4; i < PARTS_MESSAGES; i++) parts_end(&pair, i, sends[i], receives[i]);
  for (uint32_t i = 0; i < PARTS_MESSAGES; i++) {
    const size_t bytes = i % 2 == 1 ? 0 : parts_bytes(i);
    assert_memory_equal(parts_got[i].first, parts_sent[i].first, bytes);
    if (bytes < PARTS_FIRST_MOST) assert_int_equal(parts_got[i].first[bytes], 0);
    assert_memory_equal(parts_got[i].last, parts_sent[i].last, sizeof parts_got[i].last);
  }
  assert_int_equal(ops->unregister_memory(pair.send, registrations[0]), ncclSuccess);
  assert_int_equal(ops->unregister_memory(pair.recv, registrations[1]), ncclSuccess);
  net_pair_close(&pair);
  ops->finish();
  assert_string_equal(((loopback_fault_type)plugin_symbol(speaking, "loopback_fault"))(), "");
}

static void test_parts(void **state) {
  (void)state;
  for (version = 6; version <= 12; version += 3) {
    char path[PATH_BYTES], name[32];
    snprintf(name, sizeof name, "loopback%d", version);
    speaking = name;
    plugin_path(path, speaking);
    in_child(NULL, path, send_parts);
  }
}

/* Before version 8 a plugin counts registered bytes as int. */
static void register_much(void) {
  uint32_t count = 0;
  struct net_pair pair;
  void *registration = NULL;
  char byte = 0;
  const struct net_ops *ops = chosen(&count);
  net_pair_open(ops, 0, 9, NULL, &pair);
  const size_t bytes = (size_t)1 << 32; /* 0 as an int */
  const ncclResult_t wanted = version < 8 ? ncclInvalidArgument : ncclSuccess;
  assert_int_equal(ops->register_memory(pair.send, &byte, bytes, NET_MEMORY_HOST, &registration), wanted);
  if (wanted == ncclSuccess) assert_int_equal(ops->unregister_memory(pair.send, registration), ncclSuccess);
  net_pair_close(&pair);
  ops->finish();
}

static void test_large_memory(void **state) {
  (void)state;
  for (version = 7; version <= 8; version++) {
    char path[PATH_BYTES];
    speaking = version == 7 ? "loopback7" : "loopback8";
    plugin_path(path, speaking);
    in_child(NULL, path, register_much);
    if (version == 7)
      assert_said(
          "version 7 of the interface registers at most 2147483647 bytes at once, not 4294967296; use a "
          "newer release of the plugin");
  }
}

static void test_given_up(void **state) {
  char path[PATH_BYTES];
  (void)state;
  version = 11;
  speaking = "loopback11";
  plugin_path(path, speaking);
  in_child(NULL, path, give_up);
  assert_said("connect of rank 1 with rank 0 of communicator test fails with 'invalid usage");
}

/* The plugin reports violations of its rules; the library passes them on with names. */
static void offend(void) {
  uint32_t count = 0;
  struct net_pair pair;
  char message[64] = "", capacity[64];
  void *request = NULL;
  const struct net_ops *ops = chosen(&count);
  net_pair_open(ops, 0, 9, NULL, &pair);
  assert_int_equal(ops->isend(pair.send, message, sizeof message, 0, NULL, &request), ncclInvalidUsage);
  assert_null(request);
  assert_string_equal(((loopback_fault_type)plugin_symbol(speaking, "loopback_fault"))(),
                      "isend: memory is not registered");
  assert_int_equal(net_pair_send_one(&pair, message, sizeof message, capacity, 16, NULL), ncclInvalidUsage);
  ops->close_send(pair.send);
  ops->close_recv(pair.recv);
  ops->close_listen(pair.listener);
  ops->finish();
  _exit(0); /* the plugin has closed its links, whose memory is still registered */
}

static void lie(void) {
  uint32_t count = 0;
  struct net_pair pair;
  char message[64] = "", capacity[64];
  const struct net_ops *ops = chosen(&count);
  net_pair_open(ops, 0, 9, NULL, &pair);
  ((loopback_lie_type)plugin_symbol(speaking, "loopback_lie"))();
  size_t got = 0;
  assert_int_equal(net_pair_send_one(&pair, message, sizeof message, capacity, sizeof capacity, &got),
                   ncclInternalError);
  assert_non_null(strstr(log_last_error(), "test yields a size of -1 bytes"));
  _exit(0); /* with requests in flight */
}

static void test_offences(void **state) {
  char path[PATH_BYTES];
  (void)state;
  version = 12;
  speaking = "loopback12";
  plugin_path(path, speaking);
  in_child(NULL, path, lie);
  in_child(NULL, path, offend);
  assert_said("isend of rank 0 with rank 1 of communicator test fails with 'invalid usage");
  assert_said("offence: a message that is longer than its receive");
}

/* ---- unusable plugins ---- */

static void choose_loopback(void) {
  uint32_t count = 0;
  assert_string_equal(chosen(&count)->name, "Loopback");
  assert_int_equal(count, 2);
}

static void choose_other(void) {
  const struct net_ops *ops = NULL;
  uint32_t count = 0;
  if (net_choose(&ops, &count) == ncclSuccess) assert_string_not_equal(ops->name, "Broken");
}

static void choose_nothing(void) {
  const struct net_ops *ops = NULL;
  uint32_t count = 0;
  for (uint32_t i = 0; i < 2; i++) assert_int_equal(net_choose(&ops, &count), ncclInvalidUsage);
  assert_null(ops);
}

static void test_broken(void **state) {
  static const struct {
    const char *name, *sentence;
  } rows[] = {
      {"broken0", "it has no table of version 6 to 12"},
      {"broken1", "only older ones; use a newer release of it"},
      {"broken2", "ncclNetPlugin_v11 is left out: it has no 'irecv'"},
      {"broken3", "init fails with 'unhandled system error"},
      {"broken4", "Network Broken is left out: it has 0 devices"},
      {"broken5", "device 0 is driven by GPUs, not by the host"},
      {"broken6", "undefined symbol: tutti_tests_no_such_function"},
      {"broken7", "device 0 takes no host memory"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    char path[PATH_BYTES], list[2 * PATH_BYTES + 2], good[PATH_BYTES];
    plugin_path(path, rows[i].name);
    plugin_path(good, "loopback11");
    in_child(NULL, path, choose_other);
    assert_said(rows[i].sentence);
    snprintf(list, sizeof list, "%s,%s", path, good); /* the next plugin of the list is tried */
    in_child(NULL, list, choose_loopback);
    assert_said(rows[i].sentence);
  }
}

/* ---- names ---- */

static void test_names(void **state) {
  char list[2 * PATH_BYTES], good[PATH_BYTES];
  (void)state;
  in_child(NULL, "/no/such/file.so", choose_other);
  assert_said("NCCL_NET_PLUGIN: '/no/such/file.so' cannot be loaded: /no/such/file.so: cannot open");
  in_child(NULL, "nosuch", choose_other);
  assert_said("libnccl-net-nosuch.so: cannot open shared object file");
  in_child(NULL, "none", choose_other);
  assert_said("No network plugin: NCCL_NET_PLUGIN says none");
  in_child(NULL, NULL, choose_other);
  assert_said("No network plugin: libnccl-net.so: cannot open shared object file");
  in_child(NULL, "STATIC_PLUGIN", choose_other);
  assert_said("network plugin STATIC_PLUGIN is left out: it has no table of version 6 to 12");
  in_child(NULL, "loopback10", choose_loopback); /* libnccl-net-loopback10.so in LD_LIBRARY_PATH */
  in_child(NULL, "libnccl-net-loopback12.so", choose_loopback);
  plugin_path(good, "loopback12");
  snprintf(list, sizeof list, ",nosuch, %s,", good);
  in_child("loopBACK", list, choose_loopback); /* names are compared without case */
  assert_said("'nosuch' cannot be loaded");
  assert_said("Network Loopback, 2 devices (loop0, loop1): NCCL_NET names it");
  in_child("Nonsense", good, choose_nothing);
  assert_said("Network Loopback is left out: NCCL_NET names Nonsense");
  assert_said("NCCL_NET=Nonsense: no network of this name can be used here; there is: Loopback");
}

/* ---- the library's own plugin with faults ---- */

#define FAULT_NET_MESSAGES 12

/* Sends messages until all have arrived or a call fails; `got` counts them. */
static ncclResult_t fault_net_stream(struct net_pair *pair, uint32_t *got, uint32_t *received) {
  const struct net_ops *ops = pair->ops;
  uint32_t values[FAULT_NET_MESSAGES], sent = 0, posted = 0, sends_done = 0;
  void *sends[FAULT_NET_MESSAGES] = {NULL}, *receives[FAULT_NET_MESSAGES] = {NULL}, *registration = NULL;
  const size_t capacity = sizeof values[0];
  const int tag = 0;
  for (uint32_t idle = 0; *received < FAULT_NET_MESSAGES && idle < 300; idle++) {
    bool done = false;
    if (sent < FAULT_NET_MESSAGES) {
      values[sent] = sent + 1;
      TRY(ops->isend(pair->send, &values[sent], capacity, tag, NULL, &sends[sent]));
      sent += sends[sent] != NULL;
    }
    if (posted < FAULT_NET_MESSAGES) {
      void *data = &got[posted];
      TRY(ops->irecv(pair->recv, 1, &data, &capacity, &tag, &registration, &receives[posted]));
      posted += receives[posted] != NULL;
    }
    if (sends_done < sent) TRY(ops->test(sends[sends_done], &done, NULL));
    sends_done += done;
    if (done) idle = 0;
    done = false;
    if (*received < posted) TRY(ops->test(receives[*received], &done, NULL));
    *received += done;
    if (done) idle = 0;
    os_sleep_ms(1);
  }
  return ncclSuccess;
}

static const char *fault;

static void suffer(void) {
  struct net_pair pair;
  uint32_t count = 0, got[FAULT_NET_MESSAGES + 1] = {0}, received = 0;
  const struct net_ops *ops = chosen(&count);
  assert_string_equal(ops->name, "FaultNet");
  net_pair_open(ops, 0, 21, NULL, &pair);
  const ncclResult_t result = fault_net_stream(&pair, got, &received);
  const bool lost = strcmp(fault, "reset") == 0, silent = strcmp(fault, "stop") == 0;
  assert_int_equal(result, lost ? ncclRemoteError : ncclSuccess);
  if (lost || silent) {
    assert_true(received < FAULT_NET_MESSAGES);
  } else {
    const uint32_t whole = strcmp(fault, "drop") == 0 ? FAULT_NET_MESSAGES - 1 : FAULT_NET_MESSAGES;
    const uint32_t behind = whole < FAULT_NET_MESSAGES ? 1 : 0, second = strcmp(fault, "duplicate") == 0;
    assert_int_equal(received, whole);
    for (uint32_t i = 0; i < whole; i++)
      assert_int_equal(got[i], i + 1 + (i >= 4) * behind - (i >= 5) * second);
  }
  ops->close_send(pair.send);
  ops->close_recv(pair.recv);
  ops->close_listen(pair.listener);
  assert_int_equal(ops->finish(), ncclSuccess);
}

static void test_fault_net(void **state) {
  static const char *const names[] = {"nothing", "drop", "duplicate", "hold", "stop", "reset"};
  char path[2 * PATH_BYTES], keys[64];
  (void)state;
  snprintf(path, sizeof path, "%s/../../lib/libtutti-net-fault.so", folder);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    fault = names[i];
    snprintf(keys, sizeof keys, "fault=%s,fault_at=5", fault);
    setenv("TUTTI_NET_FAULTS", keys, 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    in_child(NULL, path, suffer);
    if (i == 1) assert_said("fault injection: fault 'drop' happens to message 5");
  }
  setenv("TUTTI_NET_FAULTS", "fault=nonsense", 1);
  in_child(NULL, path, choose_other);
  assert_said("TUTTI_NET_FAULTS: 'fault=nonsense' is none of fault=NAME (drop,");
  setenv("TUTTI_NET_FAULTS", "fault_at=soon", 1);
  in_child(NULL, path, choose_other);
  assert_said("TUTTI_NET_FAULTS: 'fault_at=soon' is none of");
  unsetenv("TUTTI_NET_FAULTS");
  unsetenv("NCCL_SOCKET_IFNAME");
}

/* ---- the choice of a device ---- */

static void test_device(void **state) {
  (void)state;
  assert_int_equal(net_device_of(1, 5, 3), 0);
  for (uint32_t channel = 0; channel < 8; channel++) assert_true(net_device_of(3, 1, channel) < 3);
  assert_int_equal(net_device_of(2, 0, 0), 0);
  assert_int_equal(net_device_of(2, 1, 0), 1);
}

int main(int count, char **arguments) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_versions),  cmocka_unit_test(test_given_up),     cmocka_unit_test(test_offences),
      cmocka_unit_test(test_broken),    cmocka_unit_test(test_names),        cmocka_unit_test(test_device),
      cmocka_unit_test(test_fault_net), cmocka_unit_test(test_large_memory), cmocka_unit_test(test_parts),
  };
  char self[PATH_BYTES - 256] = "";
  (void)count;
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 2;
  snprintf(folder, sizeof folder, "%s/plugins", dirname(self));
  /* The loader reads LD_LIBRARY_PATH when a program starts. */
  if (getenv("LD_LIBRARY_PATH") == NULL || strstr(getenv("LD_LIBRARY_PATH"), folder) == NULL) {
    setenv("LD_LIBRARY_PATH", folder, 1);
    execv("/proc/self/exe", arguments);
    return 2;
  }
  unsetenv("NCCL_NET");
  unsetenv("NCCL_NET_PLUGIN");
  return cmocka_run_group_tests(tests, NULL, NULL);
}
