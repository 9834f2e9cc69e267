/* test_topology.c: paths between GPUs, as far as they can be tested without GPUs: places in the PCI tree, a
 * fake /sys, spellings of NCCL_P2P_LEVEL, and their effect on a communicator: LL128 only if stores of 128
 * bytes arrive whole, direct stores only with peer access. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/backend.h"
#include "backends/cuda/path.h"
#include "base/log.h"
#include "base/param.h"
#include "base/pci.h"
#include "core/settings/settings.h"

/* ---- places ---- */

#define BRIDGE "/sys/devices/pci0000:00"
#define SWITCH BRIDGE "/0000:00:01.0/0000:01:00.0" /* root port, the switch's upstream port */
#define LOWER SWITCH "/0000:02:04.0/0000:05:00.0"  /* a switch below that switch */

static void test_places(void **state) {
  static const struct {
    const char *a, *b;
    enum device_path_type type;
  } rows[] = {
      {SWITCH "/0000:02:00.0/0000:03:00.0", SWITCH "/0000:02:00.0/0000:03:00.0", PATH_LOC},
      {SWITCH "/0000:02:00.0/0000:03:00.0", SWITCH "/0000:02:01.0/0000:04:00.0", PATH_PIX},
      {SWITCH "/0000:02:00.0/0000:03:00.0", LOWER "/0000:06:00.0/0000:07:00.0", PATH_PXB},
      {LOWER "/0000:06:00.0/0000:07:00.0", LOWER "/0000:06:01.0/0000:08:00.0", PATH_PIX},
      {SWITCH "/0000:02:00.0/0000:03:00.0", BRIDGE "/0000:00:02.0/0000:09:00.0", PATH_PHB},
      {BRIDGE "/0000:00:05.0", BRIDGE "/0000:00:06.0", PATH_PHB}, /* as in virtual machines */
      {BRIDGE "/0000:00:05.0", "/sys/devices/pci0000:80/0000:80:05.0", PATH_SYS},
      {BRIDGE "/0000:00:05.0", BRIDGE "1/0000:01:05.0", PATH_SYS}, /* a bridge with the same prefix */
      {"/sys/devices/pci0000:97/0000:97:00.5/pci10000:00/10000:00:02.0/10000:01:00.0",
       "/sys/devices/pci0000:97/0000:97:00.5/pci10000:00/10000:00:02.0/10000:01:00.1", PATH_PIX},
      {"", "", PATH_SYS},
      {BRIDGE "/0000:00:05.0", "", PATH_SYS},
      {"/", "/sys", PATH_SYS},
      {"nonsense", "nonsense/more", PATH_SYS},
      {"/sys/devices/virtual/a", "/sys/devices/virtual/b", PATH_SYS},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (path_of_places(rows[i].a, rows[i].b) != rows[i].type ||
        path_of_places(rows[i].b, rows[i].a) != rows[i].type)
      fail_msg("%s and %s: not %s", rows[i].a, rows[i].b, path_name(rows[i].type));
  }
}

static void test_numa_nodes(void **state) {
  struct path_end a = {BRIDGE "/0000:00:05.0", 0, 0}, b = {"/sys/devices/pci0000:80/0000:80:05.0", 0, 0};
  (void)state;
  assert_int_equal(path_between(&a, &b), PATH_PHB);
  b.numa_node = 1;
  assert_int_equal(path_between(&a, &b), PATH_SYS);
  a.numa_node = b.numa_node = -1; /* two unknown values are not equal */
  assert_int_equal(path_between(&a, &b), PATH_SYS);
}

static void test_bus_names(void **state) {
  char name[PCI_NAME_BYTES];
  (void)state;
  assert_true(pci_name("0000:3B:00.0", name));
  assert_string_equal(name, "0000:3b:00.0");
  assert_true(pci_name("00000000:3B:00.0", name));
  assert_string_equal(name, "0000:3b:00.0");
  assert_true(pci_name("00010000:01:1F.7", name));
  assert_string_equal(name, "10000:01:1f.7");
  assert_false(pci_name("", name));
  assert_false(pci_name("3b:00", name));
  assert_false(pci_name("0000:3b:00.0x", name));
}

/* ---- a fake /sys ---- */

static char root[64];

static void make(const char *command_format, const char *argument) {
  char command[512];
  const int length = snprintf(command, sizeof command, "cd %s && ", root);
  snprintf(command + length, sizeof command - (size_t)length, command_format, argument);
  assert_int_equal(system(command), 0);
}

/* A device at `place` below the tree's devices/, with its link by bus id. */
static void make_device(const char *place) {
  make("mkdir -p devices/%s bus/pci/devices", place);
  make("ln -s ../../../devices/%s bus/pci/devices/", place);
}

static void test_tree(void **state) {
  struct path_end a, b, c, none;
  (void)state;
  snprintf(root, sizeof root, "/tmp/test_topology.XXXXXX");
  assert_non_null(mkdtemp(root));
  make_device("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:3b:00.0");
  make_device("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:3c:00.0");
  make_device("pci0000:80/0000:80:01.0/0000:81:00.0");
  make("echo 1 >%s/numa_node", "bus/pci/devices/0000:3b:00.0");
  make("echo '32.0 GT/s PCIe' >%s/max_link_speed", "bus/pci/devices/0000:3b:00.0");
  make("echo 16 >%s/max_link_width", "bus/pci/devices/0000:3b:00.0");
  make("echo 'Unknown' >%s/max_link_speed", "bus/pci/devices/0000:3c:00.0");
  path_end_read(root, "0000:3B:00.0", &a);
  path_end_read(root, "00000000:3C:00.0", &b);
  path_end_read(root, "0000:81:00.0", &c);
  path_end_read(root, "0000:99:00.0", &none);
  assert_int_equal(path_between(&a, &b), PATH_PIX);
  assert_int_equal(path_between(&a, &c), PATH_SYS);
  assert_int_equal(path_between(&a, &none), PATH_SYS);
  assert_int_equal(path_between(&none, &none), PATH_SYS);
  assert_int_equal(a.numa_node, 1);
  assert_int_equal(b.numa_node, -1);
  assert_true(a.gbps > 62 && a.gbps < 64);
  assert_true(b.gbps == 0 && c.gbps == 0 && none.gbps == 0);
  path_end_read("/nowhere", "0000:3b:00.0", &none);
  assert_string_equal(none.place, "");
  make("rm -r %s", root);
}

/* ---- NCCL_P2P_LEVEL ---- */

static void test_levels(void **state) {
  static const struct {
    const char *text;
    int level; /* -1: no level */
  } rows[] = {{"LOC", PATH_LOC}, {"nvl", PATH_NVL}, {"Pix", PATH_PIX}, {"PXB", PATH_PXB}, {"phb", PATH_PHB},
              {"SYS", PATH_SYS}, {"0", PATH_LOC},   {"1", PATH_PIX},   {"2", PATH_PXB},   {"3", PATH_PHB},
              {"4", PATH_SYS},   {"5", PATH_SYS},   {"77", PATH_SYS},  {"", -1},          {"-1", -1},
              {"PIXX", -1},      {"2x", -1},        {"NODE", -1},      {"1.5", -1}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    enum device_path_type level = PATH_NVL;
    const bool good = path_level_parse(rows[i].text, &level);
    if (good != (rows[i].level >= 0) || (int)level != (good ? rows[i].level : (int)PATH_NVL))
      fail_msg("\"%s\": %s, %s", rows[i].text, good ? "good" : "bad", path_name(level));
  }
}

/* ---- effects on a communicator ---- */

/* Devices 0 and 1 are connected by NVLink, 2 by PCIe, 3 reaches no other, and the paths of 4 are unknown. */
static ncclResult_t fake_path(uint32_t from, uint32_t to, struct device_path_info *info) {
  const uint32_t far = from > to ? from : to;
  memset(info, 0, sizeof *info);
  info->type = far < 2 ? PATH_NVL : PATH_PHB;
  info->peer_access = far != 3;
  info->ll128 = far < 2 || far == 4;
  return far == 4 ? ncclSystemError : ncclSuccess;
}

static struct settings_paths paths_of(const struct backend *ops, const uint32_t *devices, uint32_t count) {
  struct settings_paths paths = {true, true};
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t j = 0; j < count; j++)
      if (i != j) settings_add_path(ops, devices[i], devices[j], &paths);
  return paths;
}

static void test_paths(void **state) {
  static const struct device_ops device = {.size = sizeof device, .path = fake_path};
  static const struct device_ops old_device = {.size = offsetof(struct device_ops, path)};
  static const struct backend fake = {.size = sizeof fake, .name = "fake", .device = &device};
  static const struct backend old = {.size = sizeof old, .name = "old", .device = &old_device};
  static const uint32_t near[] = {0, 1, 0}, slow[] = {1, 0, 2}, cut[] = {3, 1}, unknown[] = {0, 4};
  struct backend_tables filled;
  (void)state;
  struct settings_paths paths = paths_of(&fake, near, 3);
  assert_true(paths.peer_access && paths.ll128);
  paths = paths_of(&fake, slow, 3);
  assert_true(paths.peer_access && !paths.ll128);
  paths = paths_of(&fake, cut, 2);
  assert_true(!paths.peer_access && !paths.ll128);
  paths = paths_of(&fake, unknown, 2);
  assert_true(!paths.peer_access && !paths.ll128);
  assert_int_equal(settings_add_path(&fake, 0, 4, &paths), ncclSystemError);
  backend_fill(&filled, &old); /* a backend that does not distinguish paths */
  paths = paths_of(&filled.backend, near, 3);
  assert_true(paths.peer_access && paths.ll128);
}

#define LL (1u << PROTO_LL)
#define LL128 (1u << PROTO_LL128)
#define SIMPLE (1u << PROTO_SIMPLE)

/* Settings as set by NCCL_PROTO=text. */
static struct settings settings_with(const char *proto) {
  struct settings settings;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  setenv("NCCL_PROTO", proto, 1);
  setenv("TUTTI_BACKEND", "emu", 1);
  param_reset();
  config.minCTAs = 1;
  config.maxCTAs = 4;
  assert_int_equal(settings_read(backend_ops(), &config, &settings), ncclSuccess);
  unsetenv("NCCL_PROTO");
  param_reset();
  return settings;
}

static void test_protocols(void **state) {
  static const struct {
    const char *proto;
    uint32_t all_reduce, broadcast; /* masks without whole lines */
    bool kept;
  } rows[] = {
      {"", LL | SIMPLE, LL | SIMPLE, false},
      {"^LL", SIMPLE, SIMPLE, false},
      {"LL,simple", LL | SIMPLE, LL | SIMPLE, false},
      {"ll128,Simple", LL128 | SIMPLE, LL128 | SIMPLE, true},
      {"allreduce:LL128", LL128, LL | SIMPLE, true},
      {"^LL128", LL | SIMPLE, LL | SIMPLE, false},
      {"^LL,Simple", LL128, LL128, true}, /* no other protocol is left */
      {"LL128;allreduce:^LL", SIMPLE, LL128, true},
  };
  static const struct settings_paths whole = {true, true}, torn = {true, false}, cut = {false, false};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct settings settings = settings_with(rows[i].proto);
    const struct settings before = settings;
    assert_false(settings_take_paths(&settings, &whole));
    assert_memory_equal(settings.plan.proto_mask, before.plan.proto_mask, sizeof before.plan.proto_mask);
    assert_true(settings.plan.limits.direct);
    if (settings_take_paths(&settings, &torn) != rows[i].kept ||
        settings.plan.proto_mask[FUNC_ALL_REDUCE] != rows[i].all_reduce ||
        settings.plan.proto_mask[FUNC_BROADCAST] != rows[i].broadcast)
      fail_msg("NCCL_PROTO=%s: all-reduce %x, broadcast %x", rows[i].proto,
               settings.plan.proto_mask[FUNC_ALL_REDUCE], settings.plan.proto_mask[FUNC_BROADCAST]);
    assert_true(settings.plan.limits.direct);
    settings_take_paths(&settings, &cut);
    assert_false(settings.plan.limits.direct);
  }
}

/* Slots of messages over networks are as large as their chunks: one variable sets both. */
static void test_network_settings(void **state) {
  (void)state;
  struct settings settings = settings_with("LL,Simple");
  const uint64_t digest = settings_digest(&settings);
  assert_true(settings.plan.limits.p2p_chunk_bytes > 131072);
  assert_false(settings_take_network(&settings, true, 8));
  assert_int_equal(settings.plan.proto_mask[FUNC_ALL_REDUCE], LL | SIMPLE);
  assert_int_equal(settings.plan.proto_mask[FUNC_SEND], LL | SIMPLE);
  assert_false(settings.plan.net_plain);
  settings_take_network(&settings, true, SETTINGS_NET_LL_RANKS);
  assert_false(settings.plan.net_plain);
  settings_take_network(&settings, true, SETTINGS_NET_LL_RANKS + 1);
  assert_true(settings.plan.net_plain);
  settings.net_ll_for_all = true;
  assert_true(settings_digest(&settings) != digest);
  settings_take_network(&settings, true, SETTINGS_NET_LL_RANKS + 1);
  assert_false(settings.plan.net_plain);
  assert_true(settings_take_network(&settings, false, 8)); /* LL was requested */
  assert_int_equal(settings.plan.proto_mask[FUNC_ALL_REDUCE], SIMPLE);
  assert_int_equal(settings.plan.limits.p2p_chunk_bytes, 131072);
  assert_int_equal(settings.plan.proto_mask[FUNC_SEND], SIMPLE);
  setenv("NCCL_P2P_NET_CHUNKSIZE", "65552", 1);
  settings = settings_with("Simple");
  setenv("NCCL_P2P_NET_CHUNKSIZE", "1000000000", 1);
  struct settings large = settings_with("Simple");
  unsetenv("NCCL_P2P_NET_CHUNKSIZE");
  assert_true(settings_digest(&settings) != digest && settings_digest(&settings) != settings_digest(&large));
  const uint32_t most = large.plan.limits.p2p_chunk_bytes;
  assert_false(settings_take_network(&settings, true, 8));
  assert_false(settings_take_network(&large, true, 8));
  assert_int_equal(settings.plan.limits.p2p_chunk_bytes, 65552);
  assert_int_equal(large.plan.limits.p2p_chunk_bytes, most);
}

static void test_named(void **state) {
  uint32_t named[FUNC_COUNT];
  (void)state;
  settings_parse_named("LL128,simple;broadcast:^LL,LL128;reduce: LL", named);
  assert_int_equal(named[FUNC_ALL_REDUCE], LL128 | SIMPLE);
  assert_int_equal(named[FUNC_BROADCAST], 0);
  assert_int_equal(named[FUNC_REDUCE], LL);
  settings_parse_named("", named);
  assert_int_equal(named[FUNC_ALL_REDUCE], 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_places),    cmocka_unit_test(test_numa_nodes),
      cmocka_unit_test(test_bus_names), cmocka_unit_test(test_tree),
      cmocka_unit_test(test_levels),    cmocka_unit_test(test_paths),
      cmocka_unit_test(test_protocols), cmocka_unit_test(test_network_settings),
      cmocka_unit_test(test_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
