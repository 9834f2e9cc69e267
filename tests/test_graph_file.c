/* test_graph_file.c: rings and trees of NCCL_GRAPH_FILE: those of a dump are those of the search, an edited
 * file is followed, and a wrong one is refused with its line. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/topology/graph_build.h"

enum { GPUS = 4 };

static struct topology topology;
static struct graph_place places[2 * GPUS];
static struct graph_request request;

static void machine_open(uint32_t nodes, uint32_t used) {
  const struct topology_spec spec = {NULL, nodes, GPUS, GPUS};
  const struct paths_rules rules = PATHS_RULES_DEFAULT;
  assert_int_equal(topology_make(&spec, &topology), ncclSuccess);
  memset(&request, 0, sizeof request);
  request.topology = &topology;
  request.places = places;
  request.rank_count = used * nodes;
  request.channels_min = 1;
  request.channels_max = PLAN_CHANNELS_MAX;
  request.rules = rules;
  for (uint32_t rank = 0; rank < request.rank_count; rank++) {
    places[rank].node = rank / used;
    places[rank].gpu = rank % used;
  }
}

static int close_machine(void **state) {
  (void)state;
  topology_free(&topology);
  return 0;
}

/* The graphs of a text for the machine; the result of reading and of building them. */
static ncclResult_t graph_of(const char *text, struct graph *graph) {
  struct graph_file *file = NULL;
  ncclResult_t result = graph_file_parse("g.xml", text, strlen(text), &file);
  request.file = file;
  if (result == ncclSuccess) result = graph_build(&request, graph);
  request.file = NULL;
  graph_file_free(file);
  return result;
}

#define RING_GRAPH(channels, count)                                                                        \
  "<graphs version=\"1\">\n<graph id=\"0\" pattern=\"4\" crossnic=\"0\" nchannels=\"" count                \
  "\" "                                                                                                    \
  "speedintra=\"20\" speedinter=\"12\" typeintra=\"NVL\" typeinter=\"PIX\" samechannels=\"0\">\n" channels \
  "</graph></graphs>"
#define GPUS_OF(a, b, c, d) "<gpu dev=\"" a "\"/><gpu dev=\"" b "\"/><gpu dev=\"" c "\"/><gpu dev=\"" d "\"/>"
#define CHANNEL(a, b, c, d) "<channel>" GPUS_OF(a, b, c, d) "</channel>\n"
#define NET_CHANNEL(net, a, b, c, d) \
  "<channel><net dev=\"" net "\"/>" GPUS_OF(a, b, c, d) "<net dev=\"" net "\"/></channel>\n"

static void a_file_is_followed(void **state) {
  static const uint32_t rings[2][GPUS] = {{0, 2, 1, 3}, {0, 1, 2, 3}};
  struct graph graph;
  (void)state;
  machine_open(1, GPUS);
  assert_int_equal(graph_of(RING_GRAPH(CHANNEL("1", "3", "0", "2") CHANNEL("3", "0", "1", "2"), "2"), &graph),
                   ncclSuccess);
  assert_int_equal(graph.ring_speed.channel_count, 2);
  assert_true(graph.ring_speed.intra_gbps == 20);
  assert_int_equal(graph.ring_speed.intra_path, GRAPH_NVL);
  assert_int_equal(graph.channel_count, 4); /* each twice, as those of a search */
  for (uint32_t channel = 0; channel < 4; channel++)
    assert_memory_equal(graph.ring[channel], rings[channel % 2], sizeof rings[0]);
  graph_free(&graph);
}

static void nodes_are_joined(void **state) {
  static const uint32_t ring[2 * GPUS] = {0, 1, 3, 6, 4, 5, 7, 2};
  struct graph graph;
  (void)state;
  machine_open(2, GPUS);
  assert_int_equal(graph_of(RING_GRAPH(NET_CHANNEL("3", "2", "0", "1", "3"), "1"), &graph), ncclSuccess);
  assert_memory_equal(graph.ring[0], ring, sizeof ring);
  assert_true(graph.ring_speed.inter_gbps == 12);
  assert_int_equal(graph.ring_speed.inter_path, GRAPH_PIX);
  graph_free(&graph);
}

static void trees_are_followed(void **state) {
  struct graph graph;
  (void)state;
  machine_open(1, GPUS);
  assert_int_equal(
      graph_of("<graphs><graph id=\"1\" pattern=\"3\" nchannels=\"1\" speedintra=\"9\"><channel>"
               "<later><gpu dev=\"1\"/></later>" GPUS_OF(
                   "2", "0", "3", "1") "</channel></graph>"
                                       "<graph id=\"3\" pattern=\"5\"><channel/></graph></graphs>",
               &graph),
      ncclSuccess);
  assert_true(graph.tree_speed.intra_gbps == 9 && graph.ring_speed.intra_gbps > 9); /* rings: of the search */
  assert_int_equal(graph.tree[0][2].up, GRAPH_NONE);
  assert_int_equal(graph.tree[0][0].up, 2);
  assert_int_equal(graph.tree[0][3].up, 0);
  assert_int_equal(graph.tree[0][1].up, 3);
  graph_free(&graph);
}

/* What a search finds, written and read, is the same graph. */
static void dumps_can_be_read(void **state) {
  (void)state;
  for (uint32_t nodes = 1; nodes <= 2; nodes++) {
    struct graph searched, read;
    struct text text;
    memset(&text, 0, sizeof text);
    machine_open(nodes, GPUS);
    assert_int_equal(graph_build(&request, &searched), ncclSuccess);
    assert_int_equal(graph_describe(&request, &text), ncclSuccess);
    assert_int_equal(graph_of(text.begin, &read), ncclSuccess);
    assert_true(graph_digest(&searched) == graph_digest(&read));
    assert_memory_equal(&searched.ring_speed, &read.ring_speed, sizeof read.ring_speed);
    assert_int_equal(searched.tree_speed.pattern, read.tree_speed.pattern);
    for (uint32_t channel = 0; channel < read.channel_count; channel++)
      assert_memory_equal(searched.tree[channel], read.tree[channel],
                          request.rank_count * sizeof *read.tree[0]);
    text_free(&text);
    graph_free(&searched);
    graph_free(&read);
    topology_free(&topology);
  }
  machine_open(1, GPUS);
}

/* GPUs that the communicator does not use are left out; a rank alone needs none. */
static void parts_of_a_machine(void **state) {
  static const uint32_t ring[2] = {0, 1};
  struct graph graph;
  (void)state;
  machine_open(1, 2);
  assert_int_equal(graph_of(RING_GRAPH(CHANNEL("1", "3", "0", "2"), "1"), &graph), ncclSuccess);
  assert_memory_equal(graph.ring[0], ring, sizeof ring);
  graph_free(&graph);
  request.rank_count = 1;
  assert_int_equal(graph_of(RING_GRAPH("<channel><gpu dev=\"1\"/></channel>", "1"), &graph), ncclSuccess);
  graph_free(&graph);
}

static void wrong_files_are_refused(void **state) {
  static const struct {
    uint32_t nodes;
    const char *text, *message;
  } wrong[] = {
      {1, RING_GRAPH("<channel><gpu dev=\"0\"/><gpu dev=\"1\"/><gpu dev=\"3\"/></channel>", "1"),
       "g.xml:3: the channel lacks GPU 2"},
      {1, RING_GRAPH(CHANNEL("0", "1", "2", "1"), "1"), "g.xml:3: GPU 1 is in this channel twice"},
      {1, RING_GRAPH(CHANNEL("0", "1", "2", "9"), "1"), "g.xml:3: the channel has GPU 9, and the topology"},
      {2, RING_GRAPH(CHANNEL("0", "1", "2", "3"), "1"), "g.xml:3: the channel has 0 <net>, and the communic"},
      {2, RING_GRAPH(NET_CHANNEL("7", "0", "1", "2", "3"), "1"),
       "g.xml:3: the channel has NIC 7, and the to"},
      {1, RING_GRAPH("<channel><gpu dev=\"0\"/><net dev=\"0\"/></channel>", "1"),
       "g.xml:3: a <net> too many"},
      {1, RING_GRAPH("<channel><net dev=\"0\"/><net dev=\"0\"/></channel>", "1"),
       "g.xml:3: a <net> too many"},
      {1, RING_GRAPH(CHANNEL("0", "1", "2", "3"), "2"),
       "g.xml:4: <graph nchannels=\"2\"> of line 2 has 1 cha"},
      {1, RING_GRAPH("<channel><gpu/></channel>", "1"), "g.xml:3: dev=\"\"; expected a number"},
      {1, "<graphs>\n<graph id=\"6\"/></graphs>", "g.xml:2: <graph id=\"6\">; expected 0 for rings, 1 for"},
      {1, "<graphs>\n<graph id=\"0\" pattern=\"3\" nchannels=\"0\" speedintra=\"1\"/></graphs>",
       "g.xml:2: <graph id=\"0\"> pattern=\"3\"; expected 4, rings"},
      {1, "<graphs>\n<graph id=\"1\" pattern=\"4\" nchannels=\"0\" speedintra=\"1\"/></graphs>",
       "g.xml:2: <graph id=\"1\"> pattern=\"4\"; expected 1, 2 or 3, trees"},
      {1,
       "<graphs>\n<graph id=\"1\" pattern=\"1\" typeintra=\"X\" nchannels=\"0\" speedintra=\"1\"/></graphs>",
       "g.xml:2: typeintra=\"X\"; expected a path"},
      {1,
       "<graphs><graph id=\"1\" pattern=\"1\" nchannels=\"0\" speedintra=\"1\"/>\n<graph id=\"1\"/></graphs>",
       "g.xml:2: a second <graph id=\"1\">, after that of line 1"},
      {1, "<system version=\"1\"/>", "g.xml:1: <system> is the outermost element; expected <graphs>"},
      {1, "<graphs>", "g.xml:1: no element found; expected <graphs"},
      {1, "<!DOCTYPE graphs>\n<graphs/>", "g.xml:1: a document type; expected none"},
  };
  struct graph graph;
  (void)state;
  memset(&topology, 0, sizeof topology);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    topology_free(&topology);
    machine_open(wrong[i].nodes, GPUS);
    assert_int_equal(graph_of(wrong[i].text, &graph), ncclInvalidUsage);
    if (strstr(log_last_error(), wrong[i].message) == NULL)
      fail_msg("%zu: \"%s\" instead of \"%s\"", i, log_last_error(), wrong[i].message);
  }
}

static void too_many_channels(void **state) {
  struct graph graph;
  struct text text;
  (void)state;
  memset(&text, 0, sizeof text);
  machine_open(1, GPUS);
  text_add(&text, "<graphs><graph id=\"0\" pattern=\"4\" nchannels=\"32\" speedintra=\"1\">\n");
  for (uint32_t i = 0; i < 32; i++) text_add(&text, CHANNEL("0", "1", "2", "3"));
  const size_t most = text.bytes;
  text_add(&text, "</graph></graphs>");
  assert_int_equal(graph_of(text.begin, &graph), ncclSuccess);
  graph_free(&graph);
  text.bytes = most;
  text_add(&text, CHANNEL("0", "1", "2", "3") "</graph></graphs>");
  assert_int_equal(graph_of(text.begin, &graph), ncclInvalidUsage);
  assert_non_null(strstr(log_last_error(), "g.xml:34: one <channel> too many"));
  text_free(&text);
}

static void memory_may_be_out(void **state) {
  struct graph graph;
  ncclResult_t result = ncclSystemError;
  (void)state;
  machine_open(1, GPUS);
  for (uint64_t k = 1; result != ncclSuccess; k++) {
    os_alloc_fail_at(k);
    result = graph_of(RING_GRAPH(CHANNEL("0", "1", "2", "3"), "1"), &graph);
    os_alloc_fail_at(0);
    assert_true(result == ncclSuccess || result == ncclSystemError);
  }
  graph_free(&graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(a_file_is_followed, close_machine),
                                     cmocka_unit_test_teardown(nodes_are_joined, close_machine),
                                     cmocka_unit_test_teardown(trees_are_followed, close_machine),
                                     cmocka_unit_test_teardown(dumps_can_be_read, close_machine),
                                     cmocka_unit_test_teardown(parts_of_a_machine, close_machine),
                                     cmocka_unit_test_teardown(wrong_files_are_refused, close_machine),
                                     cmocka_unit_test_teardown(too_many_channels, close_machine),
                                     cmocka_unit_test_teardown(memory_may_be_out, close_machine)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
