/* test_custom.c: schedules from files: what the readers accept and refuse, that the writer's text is read as
 * the same schedule, that built-in plans are unchanged after conversion to text and back, and that schedules
 * give right results on the emulator, under random settings and with free threads. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "schedules/schedules.h"
#include "core/custom/custom_build.h"
#include "core/plan/plan.h"
#include "random.h"
#include "schedule/algo.h"
#include "tutti.h"
#include "two_blocks.h"

#define SCHEDULES "examples/schedules/"

/* ---- text in memory ---- */

struct text {
  char *bytes;
  size_t used, capacity;
};

static void text_add(void *argument, const char *line) {
  struct text *text = (struct text *)argument;
  const size_t length = strlen(line);
  while (text->used + length + 2 > text->capacity) {
    text->capacity = text->capacity == 0 ? 4096 : 2 * text->capacity;
    text->bytes = (char *)realloc(text->bytes, text->capacity);
    assert_non_null(text->bytes);
  }
  memcpy(text->bytes + text->used, line, length);
  text->used += length;
  text->bytes[text->used++] = '\n';
  text->bytes[text->used] = '\0';
}

static struct custom_schedule *parse(const char *text) {
  struct custom_schedule *schedule = NULL;
  if (custom_parse("text", text, strlen(text), &schedule) != ncclSuccess) fail_msg("%s", log_last_error());
  return schedule;
}

/* Writes the schedule of `path` to a file in tutti's text, which programs can read, and sets `path` to its
 * name. */
static void as_text(char *path, size_t path_bytes) {
  struct custom_schedule *schedule;
  struct text text = {NULL, 0, 0};
  assert_int_equal(custom_read(path, &schedule), ncclSuccess);
  custom_print(schedule, text_add, &text);
  custom_free(schedule);
  snprintf(path, path_bytes, "%s", "/tmp/test_custom.XXXXXX");
  const int file = mkstemp(path);
  assert_true(file >= 0);
  assert_int_equal(write(file, text.bytes, text.used), (int)text.used);
  close(file);
  free(text.bytes);
}

static void assert_same(const struct custom_schedule *a, const struct custom_schedule *b) {
  assert_string_equal(a->name, b->name);
  assert_int_equal(a->func, b->func);
  assert_int_equal(a->protos, b->protos);
  assert_int_equal(a->places, b->places);
  assert_int_equal(a->staged, b->staged);
  assert_int_equal(a->even, b->even);
  assert_int_equal(a->rank_count, b->rank_count);
  assert_int_equal(a->channel_count, b->channel_count);
  assert_int_equal(a->chunk_count, b->chunk_count);
  assert_int_equal(a->scratch_count, b->scratch_count);
  assert_int_equal(a->root, b->root);
  assert_int_equal(a->block_count, b->block_count);
  for (uint32_t i = 0; i < a->block_count; i++) {
    const struct custom_block *x = &a->blocks[i], *y = &b->blocks[i];
    assert_int_equal(x->rank, y->rank);
    assert_int_equal(x->channel_index, y->channel_index);
    assert_int_equal(x->recv_count, y->recv_count);
    assert_int_equal(x->send_count, y->send_count);
    assert_memory_equal(x->recv_peer, y->recv_peer, sizeof x->recv_peer);
    assert_memory_equal(x->send_peer, y->send_peer, sizeof x->send_peer);
    assert_int_equal(x->list.step_count, y->list.step_count);
    assert_int_equal(x->list.round, y->list.round);
    assert_memory_equal(x->list.steps, y->list.steps, x->list.step_count * sizeof *x->list.steps);
  }
}

/* Printed and read again. */
static void assert_round_trip(const struct custom_schedule *schedule) {
  struct text text = {NULL, 0, 0};
  custom_print(schedule, text_add, &text);
  struct custom_schedule *second = parse(text.bytes);
  assert_same(schedule, second);
  custom_free(second);
  free(text.bytes);
}

/* ---- built-in plans through text ---- */

struct origin {
  uint8_t func, algo, proto;
  uint32_t rank_count, channel_count;
};

static const struct plan_limits limits_usual = {.slots = 8,
                                                .step_bytes = {65536, 614400, 524288},
                                                .p2p_chunk_bytes = 524288,
                                                .channel_count = 1,
                                                .p2p_channel_count = 2,
                                                .p2p_channels_per_peer = 1,
                                                .flag_bits = 32,
                                                .algos = ~0u,
                                                .links = STEP_LINKS_MAX};

static void origin_plan(const struct origin *origin, const struct graph *graph, uint32_t rank, size_t count,
                        struct plan *plan) {
  static uint8_t in, out;
  const struct plan_op op = {
      .func = origin->func, .dtype = ncclInt32, .count = count, .in = &in, .out = &out};
  struct plan_request request = {.rank = rank,
                                 .rank_count = origin->rank_count,
                                 .graph = graph,
                                 .settings.limits = limits_usual,
                                 .ops = &op,
                                 .op_count = 1};
  request.settings.limits.channel_count = origin->channel_count;
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    request.settings.algo_mask[func] = 1u << origin->algo;
    request.settings.proto_mask[func] = 1u << origin->proto;
  }
  assert_int_equal(plan_build(&request, plan), ncclSuccess);
}

/* A list has a step of one link for each block. */
static void assert_same_blocks(const struct step *each, struct algo_iter *it, const struct work *list) {
  const uint32_t own_copied = (each->flags & STEP_COPY_IN) != 0 && (each->flags & STEP_KEEP) != 0;
  const bool sends = each->send_links != 0;
  uint32_t links = sends ? each->send_links : each->recv_links;
  struct step single;
  if (own_copied) {
    assert_true(algo_next(it, list, &single));
    assert_int_equal(single.flags, STEP_COPY_IN | STEP_KEEP);
    assert_int_equal(single.in_offset, each->in_offset + each->own_index * each->stride);
    assert_int_equal(single.out_offset, each->out_offset + each->own_index * each->stride);
  }
  while (links != 0) {
    assert_true(algo_next(it, list, &single));
    const uint32_t link = (uint32_t)__builtin_ctz(sends ? single.send_links : single.recv_links);
    const uint32_t block = link < each->own_index ? link : link + 1;
    const size_t rest = each->end > block * each->stride ? each->end - block * each->stride : 0;
    assert_int_equal(single.flags, sends ? STEP_SEND | STEP_COPY_IN : STEP_RECV | STEP_KEEP);
    assert_int_equal(sends ? single.recv_links : single.send_links, 0);
    assert_int_equal(single.count, size_min(each->count, rest));
    assert_int_equal(sends ? single.in_offset : single.out_offset,
                     (sends ? each->in_offset : each->out_offset) + block * each->stride);
    assert_true((links >> link & 1) != 0);
    links &= ~(1u << link);
  }
}

/* Compares every step of both, except for what lists leave out. */
static void assert_same_steps(const struct work *built_in, const struct work *list) {
  struct algo_iter a, b;
  struct step x, y;
  assert_int_equal(built_in->channel_index, list->channel_index);
  algo_begin(&a, built_in);
  algo_begin(&b, list);
  while (algo_next(&a, built_in, &x)) {
    if (step_is_each(&x)) {
      assert_same_blocks(&x, &b, list);
      continue;
    }
    assert_true(algo_next(&b, list, &y));
    x.flags &= ~(uint32_t)(STEP_SEND_FINAL | STEP_RECV_FINAL);
    assert_int_equal(x.flags, y.flags);
    assert_int_equal(x.recv_links, y.recv_links);
    assert_int_equal(x.send_links, y.send_links);
    assert_int_equal(x.count, y.count);
    assert_true(!(x.flags & STEP_COPY_IN) || x.in_offset == y.in_offset);
    assert_true(!(x.flags & STEP_KEEP) || x.out_offset == y.out_offset);
    assert_true(!(x.flags & STEP_COPY_IN) || !(x.flags & STEP_RECV) || x.own_index == y.own_index);
  }
  assert_false(algo_next(&b, list, &y));
}

/* Counts that divide evenly among channels and a loop's chunks: whole units (chunk.h) if there are several.
 */
static size_t origin_count(const struct origin *origin) {
  const bool all = origin->func == FUNC_ALL_GATHER || origin->func == FUNC_REDUCE_SCATTER;
  const size_t chunks = origin->func == FUNC_ALL_REDUCE ? origin->rank_count : 1;
  const size_t weight = all ? origin->rank_count : origin->func == FUNC_ALL_REDUCE ? 2 : 1;
  if (origin->channel_count == 1) return 16 * chunks;
  return origin->channel_count * chunks *
         (size_round_up(size_div_up(CHUNK_UNIT_TRAFFIC_BYTES, weight), 16) / sizeof(int32_t));
}

static void check_origin(const struct origin *origin) {
  struct graph graph;
  struct plan plans[8];
  struct custom_schedule *schedule = NULL;
  const size_t count = origin_count(origin);
  assert_int_equal(graph_flat(origin->rank_count, &graph), ncclSuccess);
  for (uint32_t rank = 0; rank < origin->rank_count; rank++)
    origin_plan(origin, &graph, rank, count, &plans[rank]);
  if (custom_of_plans("built in", plans, origin->rank_count, &schedule) != ncclSuccess)
    fail_msg("%s", log_last_error());
  assert_round_trip(schedule);
  assert_false(schedule->even);
  for (uint32_t rank = 0; rank < origin->rank_count; rank++) {
    struct plan plan;
    assert_int_equal(custom_plan(schedule, rank, count, &limits_usual, &plan), ncclSuccess);
    assert_int_equal(plan.work_count, plans[rank].work_count);
    for (uint32_t i = 0; i < plan.work_count; i++) assert_same_steps(&plans[rank].works[i], &plan.works[i]);
    plan_free(&plan);
    plan_free(&plans[rank]);
  }
  custom_free(schedule);
  graph_free(&graph);
}

static void test_built_in(void **state) {
  static const struct {
    uint8_t func, algo;
  } rows[] = {
      {FUNC_ALL_REDUCE, ALGO_RING},       {FUNC_ALL_GATHER, ALGO_RING},     {FUNC_REDUCE_SCATTER, ALGO_RING},
      {FUNC_BROADCAST, ALGO_RING},        {FUNC_REDUCE, ALGO_RING},         {FUNC_ALL_REDUCE, ALGO_TREE},
      {FUNC_ALL_REDUCE, ALGO_DIRECT},     {FUNC_ALL_REDUCE, ALGO_TWO_SHOT}, {FUNC_ALL_GATHER, ALGO_DIRECT},
      {FUNC_REDUCE_SCATTER, ALGO_DIRECT}, {FUNC_BROADCAST, ALGO_DIRECT},    {FUNC_REDUCE, ALGO_DIRECT}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    for (uint32_t ranks = 2; ranks <= 6; ranks++)
      for (uint32_t channels = 1; channels <= 2; channels++)
        for (uint8_t proto = 0; proto < PROTO_COUNT; proto++) {
          if (channels > 1 && proto != PROTO_SIMPLE) continue;
          const struct origin origin = {rows[i].func, rows[i].algo, proto, ranks, channels};
          check_origin(&origin);
        }
}

/* ---- reading ---- */

#define HEAD "tutti-schedule 1\ncollective: all_reduce\nranks: 2\nchunks: 2\nscratch: 1\n"
#define ALGO(more) \
  "<algo name=\"x\" proto=\"Simple\" nchunksperloop=\"2\" ngpus=\"2\" coll=\"allreduce\" " more ">"
#define TB "<gpu id=\"0\" s_chunks=\"1\"><tb id=\"0\" send=\"1\" recv=\"1\" chan=\"0\">"
#define END "</tb></gpu></algo>"

/* A text that is refused, and the message, beginning with file and line. */
static const struct {
  const char *text, *said;
} refused[] = {
    {"", "text:1: expected 'tutti-schedule 1'"},
    {"hello\n", "text:1: expected 'tutti-schedule 1'"},
    {"tutti-schedule 1\n", "expected 'collective:'"},
    {"tutti-schedule 1\nranks: 2\n\nrank 0 channel 0:\n",
     "text:4: expected 'collective:' before the first block"},
    {"tutti-schedule 1\ncolour: red\n", "text:2: expected name, collective"},
    {"tutti-schedule 1\nranks 2\n", "text:2: expected ':' behind 'ranks'"},
    {"tutti-schedule 1\nranks: two\n", "text:2: expected ranks, found 'two'"},
    {"tutti-schedule 1\nranks: 1\n", "text:2: expected two ranks or more"},
    {"tutti-schedule 1\nranks: 4097\n", "text:2: ranks is at most 4096"},
    {"tutti-schedule 1\nranks: 99999999999999999999\n", "text:2: ranks is at most 4096"},
    {"tutti-schedule 1\nranks: 2\nranks: 2\n", "text:3: 'ranks' is given twice"},
    {"tutti-schedule 1\nchunks: 0\n", "text:2: expected one chunk or more"},
    {"tutti-schedule 1\nchunks: 65537\n", "text:2: chunks is at most 65536"},
    {"tutti-schedule 1\nprotocol: fast\n", "text:2: expected simple, ll, ll128 or any"},
    {"tutti-schedule 1\nin-place: maybe\n", "text:2: expected yes, no or any"},
    {"tutti-schedule 1\ncollective: send\n", "text:2: expected broadcast"},
    {HEAD, "text: it has no steps"},
    {HEAD "root: 2\nrank 0 channel 0:\n", "root 2 is none of the 2 ranks"},
    {HEAD "rank 2 channel 0:\n", "text:6: rank 2 is none of the 2 ranks"},
    {HEAD "rank 0 channel 64:\n", "text:6: a channel is at most 63"},
    {HEAD "rank 0 channel 0\n", "text:6: expected ':'"},
    {HEAD "rank 0 chanel 0:\n", "text:6: expected 'channel'"},
    {HEAD "rank 0 channel 0:\nsend in[0] -> 0\n", "text:7: rank 0 as a peer of rank 0"},
    {HEAD "rank 0 channel 0:\nsend in[0] -> 2\n", "text:7: rank 2 as a peer of rank 0"},
    {HEAD "rank 0 channel 0:\nsend in[2] -> 1\n", "text:7: chunks 2 to 2 are read of a buffer that has 2"},
    {HEAD "rank 0 channel 0:\nsend in[1..2] -> 1\n", "text:7: chunks 1 to 2 are read of a buffer that has 2"},
    {HEAD "rank 0 channel 0:\nsend in[1..0] -> 1\n", "text:7: chunks 1..0 run backwards"},
    {HEAD "rank 0 channel 0:\nsend scratch[1] -> 1\n",
     "text:7: chunks 1 to 1 are read of a buffer that has 1"},
    {HEAD "rank 0 channel 0:\nrecv <- 1, keep out[2]\n", "text:7: chunks 2 to 2 are written"},
    {HEAD "rank 0 channel 0:\nrecv <- 1, keep in[0]\n", "text:7: the user's input may be written"},
    {HEAD "rank 0 channel 0:\nrecv <- 1\n", "text:7: what it has goes nowhere"},
    {HEAD "rank 0 channel 0:\nkeep out[0]\n", "text:7: there is nothing to send or to keep"},
    {HEAD "rank 0 channel 0:\nsend -> 1\n", "text:7: there is nothing to send or to keep"},
    {HEAD "rank 0 channel 0:\nadd in[0], send -> 1\n", "text:7: 'add' comes behind 'recv'"},
    {HEAD "rank 0 channel 0:\nrecv <- 1, add in[0] after 2, keep out[0]\n", "text:7: it receives from fewer"},
    {HEAD "rank 0 channel 0:\nrecv <- 1, sum out[0]\n", "text:7: a sum with what is there is for own chunks"},
    {HEAD "rank 0 channel 0:\nread in[0..1], keep out[0]\n", "text:7: 1 chunks here and 2 before"},
    {HEAD "rank 0 channel 0:\nread in[0], read in[1], keep out[0]\n", "occurs twice in this step"},
    {HEAD "rank 0 channel 0:\ndance\n", "text:7: expected after, recv"},
    {HEAD "rank 0 channel 0:\nsend in[0] -> 1 now\n", "text:7: expected the end of the line, found 'now'"},
    {HEAD "rank 0 channel 0:\nafter block 1 step 0, nothing\n", "text:7: it waits for block 1: rank 0 has 1"},
    {HEAD "rank 0 channel 0:\nafter block 0 step 1, nothing\n", "text:7: it waits for step 1 of block 0"},
    {HEAD "rank 0 channel 0:\nsend in[0] -> 1\nrank 0 channel 0:\nsend in[1] -> 1\n",
     "text:8: two blocks of rank 0 on channel 0 use the connection"},
    {"tutti-schedule 1\ncollective: broadcast\nranks: 2\nchunks: 1\nrank 1 channel 0:\nsend in[0] -> 0\n",
     "text:6: only the root of a broadcast has an input"},
    {"tutti-schedule 1\ncollective: reduce\nranks: 2\nchunks: 1\nrank 1 channel 0:\nread in[0], keep "
     "out[0]\n",
     "text:6: only the root of a reduce has an output"},
    {"<algo", "text:1: expected well-formed XML"},
    {"<!DOCTYPE algo [<!ENTITY a \"b\">]><algo/>", "text:1: expected <algo>, found a document type"},
    {"<gpu/>", "text:1: expected <algo>, found <gpu>"},
    {"<algo coll=\"dance\"/>", "text:1: <algo coll>: expected broadcast"},
    {"<algo coll=\"allreduce\" proto=\"x\"/>", "text:1: <algo proto>: expected Simple, LL or LL128"},
    {"<algo coll=\"allreduce\" proto=\"LL\"/>", "text:1: <algo> has no ngpus"},
    {"<algo coll=\"allreduce\" proto=\"LL\" ngpus=\"1\"/>", "<algo ngpus>: expected a number from 2 to 4096"},
    {"<algo coll=\"allgather\" proto=\"LL\" ngpus=\"2\" nchunksperloop=\"3\"/>", "a multiple of the 2 ranks"},
    {ALGO("inplace=\"0\" outofplace=\"0\"") "</algo>", "neither in place nor out of place"},
    {ALGO("") "</algo>", "text: it has no steps"},
    {ALGO("") "<tb/></algo>", "text:1: expected <gpu>, found <tb>"},
    {ALGO("") "\n<gpu id=\"2\"/></algo>", "text:2: <gpu id>: expected a number from 0 to 1, found '2'"},
    {ALGO("") "<gpu id=\"0\"/><gpu id=\"0\"/></algo>", "<gpu id=\"0\"> is listed twice"},
    {ALGO("") "<gpu id=\"0\"><tb id=\"1\"/></gpu></algo>",
     "<tb id>: expected 0, the next of its gpu, found 1"},
    {ALGO("") "<gpu id=\"0\"><tb id=\"0\" send=\"0\" recv=\"-1\" chan=\"0\"/></gpu></algo>",
     "as a peer of rank 0"},
    {ALGO("") TB "<step s=\"1\"/>" END, "<step s>: expected 0, the next of its tb, found 1"},
    {ALGO("") TB "<step s=\"0\" type=\"x\"/>" END, "<step type>: expected s, r, rcs"},
    {ALGO("") TB "<step s=\"0\" type=\"s\" srcbuf=\"q\" srcoff=\"0\"/>" END,
     "<step srcbuf>: expected i, o or s"},
    {ALGO("") TB "<step s=\"0\" type=\"s\" srcbuf=\"i\" srcoff=\"-1\"/>" END,
     "<step srcoff>: expected a number"},
    {ALGO("") TB "<step s=\"0\" type=\"s\" srcbuf=\"i\" srcoff=\"1\" cnt=\"2\"/>" END,
     "chunks 1 to 2 are read"},
    {ALGO("") TB "<step s=\"0\" type=\"r\" dstbuf=\"i\" dstoff=\"0\" cnt=\"1\"/>" END,
     "the user's input may be"},
    {ALGO("") TB "<step s=\"0\" type=\"nop\" depid=\"3\" deps=\"0\"/>" END,
     "it waits for block 3: rank 0 has 1"},
    {ALGO("") TB "<step s=\"0\" type=\"nop\"><step/></step>" END, "expected nothing within <step>"},
    {ALGO("") "<gpu id=\"0\"><tb id=\"0\" send=\"-1\" recv=\"-1\" chan=\"0\"><step s=\"0\" type=\"s\"/>" END,
     "sends, and its <tb> has no rank to send to"},
};

static void test_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    struct custom_schedule *schedule = NULL;
    const ncclResult_t result = custom_parse("text", refused[i].text, strlen(refused[i].text), &schedule);
    assert_null(schedule);
    assert_int_equal(result, ncclInvalidUsage);
    if (strstr(log_last_error(), refused[i].said) == NULL)
      fail_msg("said: %s\nexpected: %s\nof: %s", log_last_error(), refused[i].said, refused[i].text);
  }
}

/* Limits that need long texts. */
static void test_bounds(void **state) {
  struct text text = {NULL, 0, 0};
  struct custom_schedule *schedule = NULL;
  (void)state;
  text_add(&text, "tutti-schedule 1\ncollective: all_reduce\nranks: 12\nchunks: 1");
  for (int i = 1; i < 10; i++) {
    char line[80];
    snprintf(line, sizeof line, "rank 0 channel 3:\nsend in[0] -> %d", i);
    text_add(&text, line);
  }
  assert_int_equal(custom_parse("text", text.bytes, text.used, &schedule), ncclInvalidUsage);
  assert_non_null(strstr(log_last_error(), "rank 0 has more than 8 blocks on channel 3"));
  text.used = 0;
  text_add(&text, "tutti-schedule 1\ncollective: all_reduce\nranks: 2\nchunks: 65536\nrank 0 channel 0:");
  text_add(&text, "send in[0..65535] -> 1\nsend in[0] -> 1");
  assert_int_equal(custom_parse("text", text.bytes, text.used, &schedule), ncclInvalidUsage);
  assert_non_null(strstr(log_last_error(), "text:7: a block has at most 65536 steps"));
  assert_int_equal(custom_parse("text", "tutti-schedule 1\0x", 18, &schedule), ncclInvalidUsage);
  assert_int_equal(custom_read("/nowhere/at all", &schedule), ncclSystemError);
  assert_non_null(strstr(log_last_error(), "/nowhere/at all: the schedule cannot be read"));
  assert_int_equal(custom_read("/dev/zero", &schedule), ncclSystemError);
  assert_null(schedule);
  free(text.bytes);
}

/* The k-th allocation fails, for every k: an error message, and no leak. */
static void test_memory(void **state) {
  static const char *const files[] = {SCHEDULES "all_pairs4.txt", SCHEDULES "msccl_all_reduce4.xml",
                                      SCHEDULES "mscclpp_all_reduce4.json",
                                      SCHEDULES "mscclpp_packets3.json"};
  (void)state;
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    const uint64_t live = os_alloc_live();
    for (uint64_t k = 1;; k++) {
      struct custom_schedule *schedule = NULL;
      os_alloc_fail_at(k);
      const ncclResult_t result = custom_read(files[i], &schedule);
      os_alloc_fail_at(0);
      custom_free(schedule);
      assert_int_equal(os_alloc_live(), live);
      if (result == ncclSuccess) break;
      assert_int_equal(result, ncclSystemError);
      assert_true(k < 10000);
    }
  }
}

/* Every keyword of the text format, and the resulting steps. */
static void test_words(void **state) {
  struct custom_schedule *schedule = parse(
      "tutti-schedule 1\nname: all words # and a comment\ncollective: reduce_scatter\nranks: 3\nchunks: 2\n"
      "protocol: ll or simple\nin-place: yes\nscratch: 3\n"
      "rank 0 channel 1 recv 2 1:\n"
      "  send in[2..3] -> 1\n"
      "  after block 1 step 0, recv <- 1 2, add in[0] after 1, finish, keep out[0], send -> 2 1\n"
      "  read scratch[1], sum in[5]\n"
      "  nothing\n"
      "rank 0 channel 0:\n"
      "  after block 0 step 2, read out[0..1], keep scratch[1..2]\n");
  (void)state;
  const struct list_step *steps = schedule->blocks[0].list.steps;
  assert_string_equal(schedule->name, "all words");
  assert_int_equal(schedule->protos, 1u << PROTO_LL | 1u << PROTO_SIMPLE);
  assert_int_equal(schedule->places, CUSTOM_IN_PLACE);
  assert_true(schedule->waits && schedule->even && !schedule->staged);
  assert_int_equal(schedule->blocks[0].recv_peer[0], 2);
  assert_int_equal(schedule->blocks[0].list.step_count, 5);
  assert_int_equal(steps[1].in_chunk, 3);
  assert_int_equal(steps[2].flags, STEP_AWAIT_LIST | STEP_RECV | STEP_COPY_IN | STEP_REDUCE | STEP_POST_OP |
                                       STEP_KEEP | STEP_SEND);
  assert_int_equal(steps[2].recv_links, 3);
  assert_int_equal(steps[2].own_index, 1);
  assert_int_equal(steps[2].wait_lane, 1);
  assert_int_equal(steps[2].wait_steps, 2); /* both rows of the waited-for step */
  assert_int_equal(steps[2].wait_round, 2);
  assert_int_equal(steps[3].flags,
                   STEP_COPY_IN | STEP_FROM_SCRATCH | STEP_REDUCE | STEP_FOLD | STEP_KEEP | STEP_TO_INPUT);
  assert_int_equal(steps[4].flags, 0);
  assert_round_trip(schedule);
  custom_free(schedule);
}

static void test_samples(void **state) {
  static const char *const files[] = {
      "ring4.txt",  "all_pairs4.txt", "four_slots.txt",        "deadlock3.txt",
      "wrong3.txt", "staged2.txt",    "msccl_all_gather4.xml", "msccl_all_reduce4.xml"};
  (void)state;
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    char path[80];
    struct custom_schedule *schedule = NULL;
    snprintf(path, sizeof path, SCHEDULES "%s", files[i]);
    if (custom_read(path, &schedule) != ncclSuccess) fail_msg("%s", log_last_error());
    assert_round_trip(schedule);
    custom_free(schedule);
  }
}

/* ---- running ---- */

enum { RUN_RANKS = 4, RUN_COUNT_MAX = 600, GUARD = 0x5a5a5a5a };
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { RUN_SEEDS = 4 };
#else
enum { RUN_SEEDS = 25 };
#endif

/* A schedule, and the calls that it is for. */
struct run_case {
  const char *file;
  bool gathers; /* all_gather; else all_reduce */
  int rank_count;
  bool in_place, out_of_place;
  uint32_t unit; /* counts are multiples of it */
  const char *protocols[PROTO_COUNT + 1];
};

static const struct run_case run_cases[] = {
    {"ring4.txt", false, 4, true, true, 1, {"LL", "LL128", "Simple"}},
    {"all_pairs4.txt", false, 4, true, true, 1, {"LL", "LL128", "Simple"}},
    {"four_slots.txt", true, 2, true, true, 1, {"LL", "LL128", "Simple"}},
    {"staged2.txt", true, 2, true, true, 1, {"LL", "LL128", "Simple"}},
    {"msccl_all_gather4.xml", true, 4, false, true, 1, {"Simple"}},
    {"msccl_all_reduce4.xml", false, 4, true, false, 4, {"Simple"}},
};

static uint32_t draw(uint64_t *state, uint32_t lowest, uint32_t highest) {
  return lowest + random_below(state, highest - lowest + 1);
}

static uint32_t input_of(int rank, size_t index, uint32_t turn) {
  return (uint32_t)(rank * 40503 + (int)index * 31 + (int)turn * 7);
}

static void configure(uint64_t seed, bool threads, uint32_t slots_min) {
  uint64_t state = seed;
  char more[120];
  const uint32_t span = draw(&state, 1, 8), lag = draw(&state, 0, 100);
  tutti_emu_config_t config = {.size = sizeof config, .seed = seed};
  config.slots = draw(&state, slots_min, 8);
  config.chunk_bytes = draw(&state, 4, 64);
  config.flag_bits = draw(&state, 5, 32);
  config.depth = draw(&state, 1, 4);
  snprintf(more, sizeof more, "mode=%s,lag=%u,span=%u", threads ? "threads" : "guarded", lag, span);
  setenv("TUTTI_EMU", more, 1);
  param_reset();
  assert_int_equal(tutti_emu_configure(&config), ncclSuccess);
}

static ncclResult_t launch(const struct run_case *run, ncclComm_t comm, const uint32_t *in, uint32_t *out,
                           size_t count) {
  if (run->gathers) return ncclAllGather(in, out, count, ncclUint32, comm, NULL);
  return ncclAllReduce(in, out, count, ncclUint32, ncclSum, comm, NULL);
}

/* One call on all ranks. Memory of a rank: input, guard, output, guard. */
static void run_call(const struct run_case *run, ncclComm_t *comms, uint32_t **memory, size_t count,
                     bool in_place, uint32_t turn) {
  const size_t outs = run->gathers ? count * (size_t)run->rank_count : count;
  assert_int_equal(ncclGroupStart(), ncclSuccess);
  for (int rank = 0; rank < run->rank_count; rank++) {
    uint32_t *out = memory[rank] + count + 1;
    uint32_t *in = !in_place ? memory[rank] : run->gathers ? out + (size_t)rank * count : out;
    for (size_t i = 0; i < outs; i++) out[i] = GUARD;
    for (size_t i = 0; i < count; i++) in[i] = input_of(rank, i, turn);
    memory[rank][count] = out[outs] = GUARD;
    if (launch(run, comms[rank], in, out, count) != ncclSuccess) fail_msg("%s", ncclGetLastError(NULL));
  }
  if (ncclGroupEnd() != ncclSuccess) fail_msg("%s: %s", run->file, ncclGetLastError(NULL));
  for (int rank = 0; rank < run->rank_count; rank++) {
    cudaSetDevice(rank);
    if (cudaStreamSynchronize(NULL) != cudaSuccess) fail_msg("%s: %s", run->file, ncclGetLastError(NULL));
  }
  for (int rank = 0; rank < run->rank_count; rank++) {
    const uint32_t *out = memory[rank] + count + 1;
    assert_true(memory[rank][count] == GUARD && out[outs] == GUARD);
    for (size_t i = 0; i < outs; i++) {
      uint32_t expected = run->gathers ? input_of((int)(i / count), i % count, turn) : 0;
      for (int peer = 0; peer < run->rank_count && !run->gathers; peer++) expected += input_of(peer, i, turn);
      if (out[i] != expected)
        fail_msg("%s: %zu elements%s: rank %d element %zu is %u instead of %u", run->file, count,
                 in_place ? " in place" : "", rank, i, out[i], expected);
    }
  }
}

/* Several calls on one communicator: each begins with the state that the last left in connections, units and
 * scratch. */
static void run_file(const struct run_case *run, const char *protocol, uint64_t seed, bool threads) {
  ncclComm_t comms[RUN_RANKS];
  uint32_t *memory[RUN_RANKS];
  uint64_t state = seed * 77;
  char path[80];
  snprintf(path, sizeof path, SCHEDULES "%s", run->file);
  const bool converted = strstr(run->file, ".xml") != NULL;
  if (converted) as_text(path, sizeof path);
  setenv("TUTTI_CUSTOM_FILE", path, 1);
  setenv("NCCL_ALGO", "Custom", 1);
  setenv("NCCL_PROTO", protocol, 1);
  configure(seed, threads, strcmp(run->file, "four_slots.txt") == 0 ? 4 : 2);
  for (int rank = 0; rank < run->rank_count; rank++) {
    cudaSetDevice(rank);
    assert_int_equal(cudaMalloc((void **)&memory[rank], 5 * (RUN_COUNT_MAX + 2) * sizeof(uint32_t)),
                     cudaSuccess);
  }
  if (ncclCommInitAll(comms, run->rank_count, NULL) != ncclSuccess) fail_msg("%s", ncclGetLastError(NULL));
  for (uint32_t turn = 0; turn < 3; turn++) {
    const size_t count = (size_t)draw(&state, 1, turn == 0 ? 5 : RUN_COUNT_MAX / run->unit) * run->unit;
    const bool in_place = run->in_place && (!run->out_of_place || draw(&state, 0, 1) == 1);
    run_call(run, comms, memory, count < RUN_COUNT_MAX ? count : RUN_COUNT_MAX, in_place, turn);
  }
  for (int rank = 0; rank < run->rank_count; rank++) {
    assert_int_equal(ncclCommDestroy(comms[rank]), ncclSuccess);
    cudaFree(memory[rank]);
  }
  if (converted) unlink(path);
}

static void clear_environment(void) {
  unsetenv("TUTTI_CUSTOM_FILE");
  unsetenv("NCCL_ALGO");
  unsetenv("NCCL_PROTO");
  unsetenv("TUTTI_EMU");
  param_reset();
}

static int after_run(void **state) {
  (void)state;
  clear_environment();
  return 0;
}

static void run_all(bool threads, uint64_t seeds) {
  for (size_t i = 0; i < sizeof run_cases / sizeof run_cases[0]; i++)
    for (size_t k = 0; run_cases[i].protocols[k] != NULL; k++)
      for (uint64_t seed = 1; seed <= seeds; seed++)
        run_file(&run_cases[i], run_cases[i].protocols[k], seed, threads);
}

/* Two calls in one group: a block may begin the second one while another block is in the first. */
static void run_two_calls(ncclComm_t *comms, uint32_t *const *memory, size_t count) {
  const size_t outs = 2 * count;
  assert_int_equal(ncclGroupStart(), ncclSuccess);
  for (int rank = 0; rank < 2; rank++)
    for (uint32_t k = 0; k < 2; k++) {
      uint32_t *in = memory[rank] + k * (count + outs), *out = in + count;
      for (size_t i = 0; i < outs; i++) out[i] = GUARD;
      for (size_t i = 0; i < count; i++) in[i] = input_of(rank, i, k);
      assert_int_equal(ncclAllGather(in, out, count, ncclUint32, comms[rank], NULL), ncclSuccess);
    }
  if (ncclGroupEnd() != ncclSuccess) fail_msg("%s", ncclGetLastError(NULL));
  for (int rank = 0; rank < 2; rank++) {
    cudaSetDevice(rank);
    if (cudaStreamSynchronize(NULL) != cudaSuccess) fail_msg("%s", ncclGetLastError(NULL));
    for (uint32_t k = 0; k < 2; k++) {
      const uint32_t *out = memory[rank] + k * (count + outs) + count;
      for (size_t i = 0; i < outs; i++) assert_int_equal(out[i], input_of((int)(i / count), i % count, k));
    }
  }
}

static void test_two_calls(void **state) {
  char path[] = "/tmp/test_custom.XXXXXX";
  const int file = mkstemp(path);
  (void)state;
  assert_true(file >= 0);
  assert_int_equal(write(file, two_blocks, strlen(two_blocks)), (int)strlen(two_blocks));
  close(file);
  setenv("TUTTI_CUSTOM_FILE", path, 1);
  setenv("NCCL_ALGO", "Custom", 1);
  for (uint64_t seed = 1; seed <= RUN_SEEDS; seed++) {
    ncclComm_t comms[2];
    uint32_t *memory[2];
    configure(seed, seed % 5 == 0, 2);
    for (int rank = 0; rank < 2; rank++) {
      cudaSetDevice(rank);
      assert_int_equal(cudaMalloc((void **)&memory[rank], (size_t)6 * 64 * sizeof(uint32_t)), cudaSuccess);
    }
    if (ncclCommInitAll(comms, 2, NULL) != ncclSuccess) fail_msg("%s", ncclGetLastError(NULL));
    run_two_calls(comms, memory, 64);
    for (int rank = 0; rank < 2; rank++) {
      assert_int_equal(ncclCommDestroy(comms[rank]), ncclSuccess);
      cudaFree(memory[rank]);
    }
  }
  unlink(path);
}

#if !defined(__SANITIZE_THREAD__)
static void test_guarded(void **state) {
  (void)state;
  run_all(false, RUN_SEEDS);
}
#endif

static void test_threads(void **state) {
  (void)state;
  run_all(true, RUN_SEEDS / 4 + 1);
}

/* ---- which calls ---- */

/* The algorithm of an all-reduce's plan with the schedule available, or -1 if there is none. */
static int algo_of(const struct custom_schedule *schedule, const struct plan_op *op, uint32_t rank_count,
                   uint32_t algos, uint32_t protos) {
  struct graph graph;
  struct plan plan;
  struct plan_request request = {.rank_count = rank_count,
                                 .custom = schedule,
                                 .graph = &graph,
                                 .settings.limits = limits_usual,
                                 .ops = op,
                                 .op_count = 1};
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    request.settings.algo_mask[func] = algos;
    request.settings.proto_mask[func] = protos;
  }
  assert_int_equal(graph_flat(rank_count, &graph), ncclSuccess);
  int algo = -1;
  if (plan_build(&request, &plan) == ncclSuccess) {
    algo = plan.works[0].algo;
    plan_free(&plan);
  }
  graph_free(&graph);
  return algo;
}

static void test_choice(void **state) {
  static uint8_t in, out;
  struct custom_schedule *ring, *pairs;
  struct plan_op op = {.func = FUNC_ALL_REDUCE, .dtype = ncclInt32, .count = 12, .in = &in, .out = &out};
  const uint32_t custom = 1u << ALGO_CUSTOM, no_custom = 1u << ALGO_RING, any = custom | no_custom;
  (void)state;
  assert_int_equal(custom_read(SCHEDULES "ring4.txt", &ring), ncclSuccess);
  assert_int_equal(custom_read(SCHEDULES "msccl_all_reduce4.xml", &pairs), ncclSuccess);
  assert_int_equal(algo_of(ring, &op, 4, any, 7), ALGO_CUSTOM);
  assert_int_equal(algo_of(NULL, &op, 4, any, 7), ALGO_RING);
  assert_int_equal(algo_of(ring, &op, 4, no_custom, 7), ALGO_RING);
  assert_int_equal(algo_of(ring, &op, 3, any, 7), ALGO_RING);
  assert_int_equal(algo_of(ring, &op, 3, custom, 7), -1);
  assert_non_null(
      strstr(log_last_error(), "NCCL_ALGO allows Custom alone, and the schedule is for another number"));
  op.op = OP_SUM_POST_DIV;
  assert_int_equal(algo_of(ring, &op, 4, any, 7), ALGO_CUSTOM);
  op.in = op.out;
  assert_int_equal(algo_of(pairs, &op, 4, any, 7), ALGO_RING);
  assert_int_equal(algo_of(pairs, &op, 4, custom, 7), -1);
  assert_non_null(strstr(log_last_error(), "does not say where its sums are finished"));
  op.op = OP_SUM;
  assert_int_equal(algo_of(pairs, &op, 4, any, 7), ALGO_CUSTOM);
  assert_int_equal(algo_of(pairs, &op, 4, any, 1u << PROTO_LL), ALGO_RING);
  op.count = 13;
  assert_int_equal(algo_of(pairs, &op, 4, custom, 7), -1);
  assert_non_null(strstr(log_last_error(), "a multiple of its chunks"));
  assert_int_equal(algo_of(ring, &op, 4, custom, 7), ALGO_CUSTOM);
  op.count = 12;
  op.in = &in;
  assert_int_equal(algo_of(pairs, &op, 4, custom, 7), -1);
  assert_non_null(strstr(log_last_error(), "for calls in place alone"));
  op.func = FUNC_ALL_GATHER;
  assert_int_equal(algo_of(ring, &op, 4, any, 7), ALGO_RING);
  custom_free(ring);
  custom_free(pairs);
}

/* A file that cannot be read fails the creation of a communicator; ranks share one reading. */
static void test_file(void **state) {
  const struct custom_schedule *first = NULL, *second = NULL;
  ncclComm_t comms[2];
  (void)state;
  setenv("TUTTI_CUSTOM_FILE", "/nowhere", 1);
  param_reset();
  assert_int_equal(ncclCommInitAll(comms, 2, NULL), ncclSystemError);
  assert_non_null(strstr(ncclGetLastError(NULL), "/nowhere: the schedule cannot be read"));
  assert_int_equal(custom_share(SCHEDULES "ring4.txt", &first), ncclSuccess);
  assert_int_equal(custom_share(SCHEDULES "ring4.txt", &second), ncclSuccess);
  assert_ptr_equal(first, second);
  custom_release(first);
  custom_release(second);
}

/* Sends before a rank's first receive must fit into its connection: this bound is exact for two ranks that do
 * nothing else. */
static bool sends_fit(void *argument, const struct plan *plans, uint32_t rank_count) {
  uint32_t *asked = (uint32_t *)argument;
  struct algo_iter it;
  struct step step;
  uint32_t sent = 0;
  *asked += 1;
  assert_int_equal(rank_count, 2);
  algo_begin(&it, &plans[1].works[0]);
  while (algo_next(&it, &plans[1].works[0], &step) && (step.flags & STEP_RECV) == 0) sent += 1;
  return sent <= plans[1].limits.slots;
}

static void test_slots_min(void **state) {
  struct custom_schedule *schedule;
  uint32_t slots = 9, asked = 0;
  (void)state;
  assert_int_equal(custom_read(SCHEDULES "four_slots.txt", &schedule), ncclSuccess);
  assert_int_equal(custom_slots_min(schedule, 8, &limits_usual, 8, sends_fit, &asked, &slots), ncclSuccess);
  assert_int_equal(slots, 4);
  assert_int_equal(asked, 4);
  assert_int_equal(custom_slots_min(schedule, 8, &limits_usual, 3, sends_fit, &asked, &slots), ncclSuccess);
  assert_int_equal(slots, 0);
  custom_free(schedule);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_built_in),
    cmocka_unit_test(test_refused),
    cmocka_unit_test(test_bounds),
    cmocka_unit_test(test_memory),
    cmocka_unit_test(test_words),
    cmocka_unit_test(test_samples),
    cmocka_unit_test(test_choice),
    cmocka_unit_test(test_slots_min),
    cmocka_unit_test_teardown(test_file, after_run),
#if !defined(__SANITIZE_THREAD__)
    cmocka_unit_test_teardown(test_guarded, after_run),
#endif
    cmocka_unit_test_teardown(test_two_calls, after_run),
    cmocka_unit_test_teardown(test_threads, after_run),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
