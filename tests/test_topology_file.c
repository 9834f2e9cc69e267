/* test_topology_file.c: NCCL's topology XML read, refused and written; presets; paths between its devices:
 * their types, their bandwidth, the nearest NICs. test_topology.c tests paths of a real machine. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "core/topology/topology_paths.h"

static struct paths_rules default_rules(void) {
  const struct paths_rules rules = PATHS_RULES_DEFAULT;
  return rules;
}

static struct topology parse(const char *text) {
  struct topology topology;
  const ncclResult_t result = topology_parse("text.xml", text, strlen(text), 1, &topology);
  if (result != ncclSuccess) fail_msg("%s", log_last_error());
  return topology;
}

/* ---- Reading and writing ---- */

/* One device of every kind, as a machine would describe it. */
static const char whole[] =
    "<?xml version=\"1.0\"?>\n"
    "<!-- a node --><system version=\"1\" more=\"ignored\">\n"
    "  <cpu numaid=\"1\" affinity=\"ffff,00000000\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" "
    "modelid=\"143\">\n"
    "    <pci busid=\"0000:1A:00.0\" class=\"0x060400\" vendor=\"0x1000\" device=\"0xc030\" "
    "subsystem_vendor=\"0x1000\" subsystem_device=\"0x100b\" link_speed=\"32.0 GT/s PCIe\" "
    "link_width=\"16\">\n"
    "      <pci busid=\"00000000:1b:00.0\" class=\"0x030200\" link_speed=\"\" link_width=\"0\">\n"
    "        <gpu dev=\"4\" sm=\"90\" rank=\"0\" gdr=\"1\">\n"
    "          <nvlink target=\"0000:05:00.0\" count=\"18\" tclass=\"0x068000\"/>\n"
    "          <c2c bw=\"44712\" count=\"10\"/>\n"
    "          <future thing=\"1\"><gpu dev=\"4\"/></future>\n"
    "        </gpu>\n"
    "      </pci>\n"
    "      <pci busid=\"0000:1c:00.0\" class=\"0x020700\" link_speed=\"Unknown\" link_width=\"8\"><nic>\n"
    "        <net name=\"a&lt;&amp;&quot;b\" dev=\"3\" speed=\"400000\" port=\"2\" latency=\"1.5\" "
    "guid=\"0xfedcba9876543210\" maxconn=\"131072\" gdr=\"1\" coll=\"1\"/>\n"
    "      </nic></pci>\n"
    "    </pci>\n"
    "    <nic><net name=\"eth0\" dev=\"0\" speed=\"10000\"/></nic>\n"
    "  </cpu>\n"
    "</system>\n";

static void test_everything_is_read(void **state) {
  (void)state;
  struct topology topology = parse(whole);
  const struct topology_device *rows = topology.devices;
  assert_int_equal(topology.device_count, 9);
  assert_int_equal(topology.gpu_count, 1);
  assert_int_equal(topology.net_count, 2);
  assert_int_equal(rows[0].number, 1);
  assert_string_equal(rows[0].affinity, "ffff,00000000");
  assert_int_equal(rows[0].model, 143);
  assert_string_equal(rows[1].name, "0000:1a:00.0");
  assert_int_equal(rows[1].pci_ids[3], 0x100b);
  assert_true(topology_link_gbps(&topology, 1) == 48);
  assert_string_equal(rows[2].name, "0000:1b:00.0");
  assert_true(topology_link_gbps(&topology, 2) == 12); /* unknown */
  assert_int_equal(rows[3].number, 4);
  assert_true(rows[3].direct);
  assert_int_equal(rows[3].host_links, 10);
  assert_int_equal(topology.links[0].count, 18);
  assert_true(topology_link_is_switch(&topology.links[0]));
  const struct topology_device *net = &rows[topology.nets[1]]; /* by number: eth0 first */
  assert_string_equal(net->name, "a<&\"b");
  assert_true(topology_net_gbps(net) == 50);
  assert_true(net->latency_us == 1.5 && net->guid == 0xfedcba9876543210u && net->adds);
  topology_free(&topology);
}

static void check_round_trip(const struct topology *topology) {
  char *text = topology_text(topology);
  struct topology second = parse(text);
  char *text_second = topology_text(&second);
  assert_string_equal(text, text_second);
  assert_int_equal(second.device_count, topology->device_count);
  assert_int_equal(second.link_count, topology->link_count);
  assert_memory_equal(second.devices, topology->devices, second.device_count * sizeof *second.devices);
  os_free(text);
  os_free(text_second);
  topology_free(&second);
}

static void test_round_trips(void **state) {
  (void)state;
  struct topology topology = parse(whole);
  check_round_trip(&topology);
  topology_free(&topology);
  for (uint32_t i = 0; topology_preset(i) != NULL; i++) {
    const struct topology_spec spec = {topology_preset(i), 3, i % 2 ? 5 : 0, i % 3 ? 3 : 0};
    assert_int_equal(topology_make(&spec, &topology), ncclSuccess);
    assert_int_equal(topology.node_count, 3);
    check_round_trip(&topology);
    topology_free(&topology);
  }
}

static void test_files(void **state) {
  (void)state;
  char path[] = "/tmp/topology.XXXXXX";
  const int file = mkstemp(path);
  assert_true(file >= 0);
  close(file);
  const struct topology_spec spec = {"dgx-h100", 1, 0, 0};
  struct topology topology, second;
  assert_int_equal(topology_make(&spec, &topology), ncclSuccess);
  assert_int_equal(topology_write(&topology, path), ncclSuccess);
  assert_int_equal(topology_read(path, 7, &second), ncclSuccess);
  assert_int_equal(second.node_count, 7);
  assert_int_equal(second.gpu_count, 8);
  topology_free(&second);
  unlink(path);
  assert_int_equal(topology_read(path, 1, &second), ncclSystemError);
  assert_non_null(strstr(log_last_error(), path));
  assert_int_equal(topology_read("/dev/zero", 1, &second), ncclSystemError); /* endless */
  assert_int_equal(topology_write(&topology, "/no/such/folder/file"), ncclSystemError);
  topology_free(&topology);
}

/* ---- What is refused ---- */

#define GPU "<pci busid=\"0000:01:00.0\"><gpu dev=\"0\"/></pci>"
#define NODE(inside) "<system><cpu>" inside "</cpu></system>"

static void check_refused(const char *text, const char *complaint) {
  struct topology topology;
  memset(&topology, 0x5a, sizeof topology);
  const struct topology untouched = topology;
  const uint64_t live = os_alloc_live();
  assert_int_equal(topology_parse("bad.xml", text, strlen(text), 1, &topology), ncclInvalidUsage);
  if (strstr(log_last_error(), complaint) == NULL)
    fail_msg("\"%s\" does not say \"%s\"", log_last_error(), complaint);
  assert_memory_equal(&topology, &untouched, sizeof topology);
  assert_int_equal(os_alloc_live(), live);
}

static void test_bad_files(void **state) {
  (void)state;
  static const char *const rows[][2] = {
      {"", "bad.xml:1: no element found; expected the XML of a topology"},
      {"<system>\n<cpu>\n</system>", "bad.xml:3: mismatched tag"},
      {"<system><cpu>", "bad.xml:1: "},
      {"<graphs></graphs>", "<graphs> is the outermost element; expected <system>"},
      {"<cpu></cpu>", "<cpu> is the outermost element; expected it inside <system>"},
      {"<system></system>", "there is no GPU; expected at least one <gpu>"},
      {"<system><cpu/>\n" GPU "</system>",
       "bad.xml:2: <pci> inside <system>; expected it inside <cpu> or <pci>"},
      {NODE("<gpu dev=\"0\"/>"), "<gpu> inside <cpu>; expected it inside <pci>"},
      {NODE("\n\n<pci/>"), "bad.xml:3: <pci> has no busid; expected a bus id like 0000:3b:00.0"},
      {NODE("<pci busid=\"here\"/>"), "<pci> busid=\"here\"; expected a bus id"},
      {NODE("<pci busid=\"0000:01:00.0x\"/>"), "expected a bus id"},
      {NODE("<pci busid=\"0000:01:00.0\"><gpu/></pci>"),
       "<gpu> has no dev; expected a number from 0 to 65535"},
      {NODE("<pci busid=\"0000:01:00.0\"><gpu dev=\"-1\"/></pci>"), "dev=\"-1\"; expected a number from 0"},
      {NODE("<pci busid=\"0000:01:00.0\"><gpu dev=\"0\" sm=\"9.0\"/></pci>"),
       "sm=\"9.0\"; expected a number from 0 to 999"},
      {NODE("<pci busid=\"0000:01:00.0\"><gpu dev=\"1\"/><gpu dev=\"2\"/></pci>"),
       "a second <gpu> in <pci busid=\"0000:01:00.0\">; expected one"},
      {NODE(GPU "<pci busid=\"0000:02:00.0\"><gpu dev=\"0\"/></pci>"),
       "two <gpu> have dev=\"0\"; expected each number once"},
      {NODE("<nic><net name=\"x\"/></nic>"), "<net> has no dev"},
      {NODE("<nic><net dev=\"0\" speed=\"fast\"/></nic>"), "speed=\"fast\"; expected a number"},
      {NODE("<nic><net dev=\"0\" speed=\"99999999999\"/></nic>"), "expected a number from 0 to 4000000000"},
      {NODE("<nic><net dev=\"0\" guid=\"-1\"/></nic>"), "expected a hexadecimal number of 64 bits"},
      {NODE("<nic><net dev=\"0\" latency=\"nan\"/></nic>"), "latency=\"nan\"; expected a number"},
      {NODE("<pci busid=\"0000:01:00.0\" class=\"gpu\"/>"), "class=\"gpu\"; expected a hexadecimal number"},
      {NODE("<pci busid=\"0000:01:00.0\" link_speed=\"full\"/>"), "expected a speed like \"32.0 GT/s PCIe\""},
      {NODE("<pci busid=\"0000:01:00.0\"><gpu dev=\"0\"><nvlink target=\"0000:02:00.0\"/></gpu></pci>"),
       "<nvlink> has no count"},
      {"<!DOCTYPE s [<!ENTITY a \"aaaa\">]><system/>", "a document type; expected none"},
      {NODE("<pci busid=\"0000:01:00.0\" busid=\"0000:01:00.0\"/>"), "duplicate attribute"},
  };
  for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check_refused(rows[i][0], rows[i][1]);
}

/* `count` times `piece` between two other texts; free it with os_free. */
static char *repeated(const char *before, const char *piece, uint32_t count, const char *after) {
  const size_t bytes = strlen(before) + count * strlen(piece) + strlen(after) + 1;
  char *text = (char *)os_alloc(bytes);
  strcpy(text, before);
  char *end = text + strlen(text);
  for (uint32_t i = 0; i < count; i++, end += strlen(piece)) strcpy(end, piece);
  strcpy(end, after);
  return text;
}

static void test_bounds(void **state) {
  (void)state;
  char *deep = repeated("<system><cpu>", "<pci busid=\"0000:01:00.0\">", 100, "");
  check_refused(deep, "lies too deep; expected at most 16");
  os_free(deep);
  char *wide = repeated("<system><cpu>", "<nic></nic>", 2000, "</cpu></system>");
  check_refused(wide, "<nic> is one too many");
  os_free(wide);
  char *linked =
      repeated("<system><cpu><pci busid=\"0000:01:00.0\"><gpu dev=\"0\">",
               "<nvlink target=\"0000:02:00.0\" count=\"1\"/>", 5000, "</gpu></pci></cpu></system>");
  check_refused(linked, "<nvlink> is one too many");
  os_free(linked);
  char *text = repeated("<system><cpu vendor=\"", "x", 200, "\"/></system>");
  check_refused(text, "expected at most 63 bytes");
  os_free(text);
  char *long_file = repeated("<system>", "                ", 300000, "</system>");
  check_refused(long_file, "expected at most 4194304");
  os_free(long_file);
  char *unknown = repeated("<system>", "<x>", 100000, "");
  check_refused(unknown, "bad.xml:1: no element found");
  os_free(unknown);
}

static void test_memory_runs_out(void **state) {
  (void)state;
  const uint64_t live = os_alloc_live();
  ncclResult_t result = ncclSystemError;
  uint32_t failures = 0;
  struct topology topology;
  for (uint64_t k = 1; result != ncclSuccess; k++) {
    os_alloc_fail_at(k);
    result = topology_parse("text.xml", whole, strlen(whole), 1, &topology);
    os_alloc_fail_at(0);
    failures += result != ncclSuccess;
    if (result != ncclSuccess) assert_int_equal(os_alloc_live(), live);
  }
  assert_true(failures > 3);
  for (uint64_t k = 1; k < 3; k++) {
    os_alloc_fail_at(k);
    char *text = topology_text(&topology);
    os_alloc_fail_at(0);
    os_free(text);
  }
  topology_free(&topology);
  assert_int_equal(os_alloc_live(), live);
}

static void test_presets_refused(void **state) {
  (void)state;
  struct topology topology;
  const struct topology_spec unknown = {"dgx-1", 0, 0, 0}, large = {NULL, 1, 1000, 0};
  assert_int_equal(topology_make(&unknown, &topology), ncclInvalidUsage);
  assert_non_null(strstr(log_last_error(), "no machine 'dgx-1'; there are dgx-h100, dgx-h200"));
  assert_int_equal(topology_make(&large, &topology), ncclInvalidUsage);
  assert_non_null(strstr(log_last_error(), "1000 GPUs"));
}

/* ---- Paths ---- */

static struct paths find(const struct topology *topology, struct paths_rules rules) {
  struct paths paths;
  assert_int_equal(paths_find(topology, &rules, &paths), ncclSuccess);
  return paths;
}

static const struct paths_route *between(const struct paths *paths, uint32_t from, uint32_t to) {
  return &paths->gpu_gpu[from * paths->gpu_count + to];
}

static const struct paths_route *to_net(const struct paths *paths, uint32_t gpu, uint32_t net) {
  return &paths->gpu_net[gpu * paths->net_count + net];
}

static const struct paths_route *from_net(const struct paths *paths, uint32_t gpu, uint32_t net) {
  return &paths->net_gpu[gpu * paths->net_count + net];
}

static void test_paths_with_switches(void **state) {
  (void)state;
  const struct topology_spec spec = {"dgx-h100", 1, 0, 0};
  struct topology topology;
  assert_int_equal(topology_make(&spec, &topology), ncclSuccess);
  struct paths paths = find(&topology, default_rules());
  assert_int_equal(between(&paths, 3, 3)->type, GRAPH_LOC);
  assert_int_equal(between(&paths, 0, 7)->type, GRAPH_NVL);
  assert_float_equal(between(&paths, 0, 7)->gbps, 18 * 20.6, 1e-9);
  assert_int_equal(to_net(&paths, 2, 2)->type, GRAPH_PIX);
  assert_float_equal(to_net(&paths, 2, 2)->gbps, 48, 1e-9); /* the slot; the NIC has 50 */
  assert_int_equal(to_net(&paths, 2, 3)->type, GRAPH_PXN);
  assert_int_equal(to_net(&paths, 2, 3)->over, 3);
  assert_int_equal(from_net(&paths, 2, 3)->type, GRAPH_PHB);
  assert_int_equal(from_net(&paths, 2, 7)->type, GRAPH_SYS);
  for (uint32_t gpu = 0; gpu < 8; gpu++) assert_int_equal(paths_net_near(&paths, gpu, 0), gpu);
  paths_free(&paths);
  struct paths_rules direct = default_rules();
  direct.nic_over_gpu = false;
  direct.peer_level = GRAPH_LOC; /* no peer access at all: everything through the host */
  paths = find(&topology, direct);
  assert_int_equal(to_net(&paths, 2, 3)->type, GRAPH_PHB);
  assert_int_equal(between(&paths, 0, 1)->type, GRAPH_PHB);
  assert_int_equal(between(&paths, 0, 7)->type, GRAPH_SYS);
  paths_free(&paths);
  topology_free(&topology);
}

static void test_paths_over_pci(void **state) {
  (void)state;
  const struct topology_spec spec = {"pcie-box", 1, 0, 1};
  struct topology topology;
  assert_int_equal(topology_make(&spec, &topology), ncclSuccess);
  struct paths paths = find(&topology, default_rules());
  assert_int_equal(between(&paths, 0, 1)->type, GRAPH_PIX);
  assert_float_equal(between(&paths, 0, 1)->gbps, 24, 1e-9);
  assert_int_equal(between(&paths, 0, 4)->type, GRAPH_SYS);
  assert_int_equal(to_net(&paths, 7, 0)->type, GRAPH_PIX);
  assert_int_equal(to_net(&paths, 0, 0)->type, GRAPH_SYS);         /* no GPU helps that has no NVLink to it */
  assert_float_equal(between(&paths, 0, 4)->gbps, 10 / 1.2, 1e-9); /* between Intel sockets, GPUs' packets */
  paths_free(&paths);
  struct paths_rules rules = default_rules();
  rules.peer_level = GRAPH_NVL;
  paths = find(&topology, rules);
  assert_int_equal(between(&paths, 0, 1)->type, GRAPH_PHB); /* through host memory */
  paths_free(&paths);
  topology_free(&topology);
}

/* Three switches in a row below one CPU, and a ring of four GPUs with NVLinks to their neighbours. */
static const char ring_of_four[] =
    "<system><cpu numaid=\"0\" arch=\"x86_64\" vendor=\"AuthenticAMD\">"
    "<pci busid=\"0000:01:00.0\" class=\"0x060400\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">"
    "<pci busid=\"0000:02:00.0\" class=\"0x060400\">"
    "<pci busid=\"0000:10:00.0\"><gpu dev=\"0\" sm=\"70\">"
    "<nvlink target=\"0000:11:00.0\" count=\"2\" tclass=\"0x030200\"/>"
    "<nvlink target=\"0000:13:00.0\" count=\"1\" tclass=\"0x030200\"/></gpu></pci></pci>"
    "<pci busid=\"0000:03:00.0\" class=\"0x060400\">"
    "<pci busid=\"0000:11:00.0\"><gpu dev=\"1\" sm=\"70\">"
    "<nvlink target=\"0000:10:00.0\" count=\"2\" tclass=\"0x030200\"/>"
    "<nvlink target=\"0000:12:00.0\" count=\"1\" tclass=\"0x030200\"/></gpu></pci>"
    "<pci busid=\"0000:20:00.0\"><nic><net dev=\"0\" speed=\"100000\"/></nic></pci></pci></pci>"
    "<pci busid=\"0000:12:00.0\"><gpu dev=\"2\" sm=\"70\">"
    "<nvlink target=\"0000:11:00.0\" count=\"1\" tclass=\"0x030200\"/>"
    "<nvlink target=\"0000:13:00.0\" count=\"2\" tclass=\"0x030200\"/></gpu></pci></cpu>"
    "<cpu numaid=\"1\" arch=\"x86_64\" vendor=\"AuthenticAMD\">"
    "<pci busid=\"0000:13:00.0\"><gpu dev=\"3\" sm=\"70\">"
    "<nvlink target=\"0000:10:00.0\" count=\"1\" tclass=\"0x030200\"/>"
    "<nvlink target=\"0000:12:00.0\" count=\"2\" tclass=\"0x030200\"/></gpu></pci>"
    "<pci busid=\"0000:14:00.0\"><gpu dev=\"4\" sm=\"90\"><c2c bw=\"45000\" count=\"10\"/></gpu></pci>"
    "<pci busid=\"0000:21:00.0\"><nic><net dev=\"1\" speed=\"400000\"/></nic></pci></cpu></system>";

static void test_paths_of_other_kinds(void **state) {
  (void)state;
  struct topology topology = parse(ring_of_four);
  struct paths paths = find(&topology, default_rules());
  assert_int_equal(between(&paths, 0, 1)->type, GRAPH_NVL);
  assert_float_equal(between(&paths, 0, 1)->gbps, 40, 1e-9);
  assert_int_equal(between(&paths, 0, 2)->type, GRAPH_NVB);
  assert_float_equal(between(&paths, 0, 2)->gbps, 20, 1e-9);
  assert_int_equal(from_net(&paths, 1, 0)->type, GRAPH_PIX);
  assert_int_equal(from_net(&paths, 0, 0)->type, GRAPH_PXB);
  assert_int_equal(from_net(&paths, 2, 0)->type, GRAPH_PHB);
  assert_int_equal(from_net(&paths, 3, 0)->type, GRAPH_SYS);
  assert_int_equal(to_net(&paths, 4, 1)->type, GRAPH_P2C);
  assert_int_equal(to_net(&paths, 2, 0)->type, GRAPH_PXN);
  assert_int_equal(paths_net_near(&paths, 1, 0), 0);
  assert_int_equal(paths_net_near(&paths, 3, 0), 1);
  paths_free(&paths);
  struct paths_rules rules = default_rules();
  rules.over_gpu = false;
  paths = find(&topology, rules);
  assert_int_equal(between(&paths, 0, 2)->type, GRAPH_PHB);
  assert_int_equal(between(&paths, 0, 3)->type, GRAPH_NVL);
  paths_free(&paths);
  topology_free(&topology);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_everything_is_read),
      cmocka_unit_test(test_round_trips),
      cmocka_unit_test(test_files),
      cmocka_unit_test(test_bad_files),
      cmocka_unit_test(test_bounds),
      cmocka_unit_test(test_memory_runs_out),
      cmocka_unit_test(test_presets_refused),
      cmocka_unit_test(test_paths_with_switches),
      cmocka_unit_test(test_paths_over_pci),
      cmocka_unit_test(test_paths_of_other_kinds),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
