/* plan_inputs.c: writes and reads the rows. One table of settings serves both. Rows of unknown names are
 * skipped, so that a later release may add some; a row that this release needs and does not find is an error.
 */
#include "core/plan/plan_inputs.h"

#include <string.h>

#include "base/os.h"
#include "core/custom/custom.h"
#include "core/plan/tune_file.h"
#include "core/plugins/tuner.h"

struct number {
  uint8_t name; /* enum record_input_name */
  uint8_t bytes;
  uint16_t offset; /* in struct plan_settings */
  bool optional;   /* 0 if the records, of an earlier release, do not have it */
};
#define NUMBER_OF(name, member, optional) \
  { name, sizeof(((struct plan_settings *)0)->member), offsetof(struct plan_settings, member), optional }
#define NUMBER(name, member) NUMBER_OF(name, member, false)
static const struct number numbers[] = {
    NUMBER(INPUT_SLOTS, limits.slots),
    NUMBER(INPUT_STEP_BYTES_LL, limits.step_bytes[PROTO_LL]),
    NUMBER(INPUT_STEP_BYTES_LL128, limits.step_bytes[PROTO_LL128]),
    NUMBER(INPUT_STEP_BYTES_SIMPLE, limits.step_bytes[PROTO_SIMPLE]),
    NUMBER(INPUT_CHUNK_BYTES, limits.chunk_bytes),
    NUMBER(INPUT_P2P_CHUNK_BYTES, limits.p2p_chunk_bytes),
    NUMBER(INPUT_CHANNELS, limits.channel_count),
    NUMBER(INPUT_P2P_CHANNELS, limits.p2p_channel_count),
    NUMBER(INPUT_P2P_CHANNELS_PER_PEER, limits.p2p_channels_per_peer),
    NUMBER(INPUT_FLAG_BITS, limits.flag_bits),
    NUMBER(INPUT_DIRECT, limits.direct),
    NUMBER(INPUT_ALGOS, limits.algos),
    NUMBER(INPUT_ALGOS_LAST, limits.algos_last),
    NUMBER(INPUT_LINKS, limits.links),
    NUMBER(INPUT_PROTOS, limits.protos),
    NUMBER(INPUT_RESERVED_BYTES, limits.reserved_bytes),
    NUMBER(INPUT_CORES, limits.cores),
    NUMBER(INPUT_QUICK_PROTOS, limits.quick_protos),
    NUMBER(INPUT_PROTOS_TORN, protos_torn),
    NUMBER(INPUT_ALGOS_OFF, algos_off),
    NUMBER(INPUT_P2P_LL_THRESHOLD, p2p_ll_threshold),
    NUMBER(INPUT_NET_PEER_CHANNELS, net_peer_channels),
    NUMBER(INPUT_NET_PLAIN, net_plain),
    NUMBER_OF(INPUT_FIRST_STEP, limits.first_step, true),
    NUMBER_OF(INPUT_READS_SLOTS, reads_slots, true),
    NUMBER_OF(INPUT_ON_HOST, limits.on_host, true),
};
#define NUMBERS (sizeof numbers / sizeof numbers[0])

#define SHAPE_ROW_WORDS 3u /* a, b and c */

static uint64_t halves(uint32_t low, uint32_t high) { return low | (uint64_t)high << 32; }
static uint32_t low(uint64_t value) { return (uint32_t)value; }
static uint32_t high(uint64_t value) { return (uint32_t)(value >> 32); }

/* ---- writing ---- */

struct writing {
  struct record_input *rows;
  uint32_t count, most;
  bool full;
};

static void put(struct writing *writing, enum record_input_name name, uint32_t index, uint64_t a, uint64_t b,
                uint64_t c) {
  if (writing->count + 1 >= writing->most || index > UINT16_MAX) { /* the last row is for INPUT_END */
    writing->full = true;
    return;
  }
  writing->rows[writing->count++] = (struct record_input){
      .used = 1, .name = (uint8_t)name, .index = (uint16_t)index, .a = a, .b = b, .c = c};
}

static void put_settings(struct writing *writing, const struct plan_settings *settings) {
  for (size_t i = 0; i < NUMBERS; i++) {
    uint64_t value = 0;
    memcpy(&value, (const uint8_t *)settings + numbers[i].offset, numbers[i].bytes);
    put(writing, (enum record_input_name)numbers[i].name, 0, value, 0, 0);
  }
  for (uint32_t func = 0; func < FUNC_COUNT; func++)
    put(writing, INPUT_MASKS, func, settings->algo_mask[func], settings->proto_mask[func],
        settings->proto_named[func]);
  for (uint32_t proto = 0; proto < PROTO_COUNT; proto++)
    put(writing, INPUT_THREADS, proto, settings->max_threads[proto], settings->thread_bytes[0][proto],
        settings->thread_bytes[1][proto]);
  if (settings->rank_order) put(writing, INPUT_RANK_ORDER, 0, 1, 0, 0);
}

static void put_rules(struct writing *writing, const struct tune_file *file) {
  for (uint32_t i = 0; file != NULL && i < file->count; i++) {
    const struct tune_rule *rule = &file->rules[i];
    put(writing, INPUT_RULE_BYTES, i, rule->from_bytes, rule->to_bytes,
        halves(rule->rank_count, rule->node_count));
    put(writing, INPUT_RULE_CHOICE, i, halves(rule->channel_count, rule->line),
        rule->func | (uint64_t)rule->algo << 8 | (uint64_t)rule->proto << 16,
        halves(rule->collectives, rule->chunk_bytes));
  }
}

/* What a tuner plugin has chosen so far, as rules behind those of the file. */
static void put_answers(struct writing *writing, const struct tuner *tuner, uint32_t index) {
  const struct tuner_answer *answer;
  for (uint32_t i = 0; (answer = tuner_answer_at(tuner, i)) != NULL; i++) {
    if (!answer->changed) continue;
    put(writing, INPUT_RULE_BYTES, index, answer->bytes, answer->bytes + 1, 0);
    put(writing, INPUT_RULE_CHOICE, index++, answer->channel_count,
        answer->func | (uint64_t)answer->algo << 8 | (uint64_t)answer->proto << 16,
        halves(answer->collectives, answer->chunk_bytes));
  }
}

static void put_origin(struct writing *writing, const struct graph_origin *origin) {
  put(writing, INPUT_TOPOLOGY, 0, halves(origin->nodes, origin->gpus), halves(origin->nics, origin->flat),
      origin->file_digest);
  put(writing, INPUT_TOPOLOGY_RULES, 0, halves(origin->cross_nic, origin->channels), origin->peer_level,
      (uint64_t)origin->over_gpu | (uint64_t)origin->nic_over_gpu << 1 | origin->graph_digest << 2);
  for (uint32_t i = 0; i < origin->shape.count; i += SHAPE_ROW_WORDS) {
    uint64_t words[SHAPE_ROW_WORDS] = {0};
    for (uint32_t k = 0; k < SHAPE_ROW_WORDS && i + k < origin->shape.count; k++)
      words[k] = origin->shape.words[i + k];
    put(writing, INPUT_SHAPE, i / SHAPE_ROW_WORDS, words[0], words[1], words[2]);
  }
}

/* Consecutive ranks of one node with consecutive GPUs, in one group and one P2P domain. Further such runs of
 * the same length on the nodes that follow, each a group and a domain of its own, are in the same row: its
 * index is their number. */
struct run {
  uint32_t first, count, node, gpu, group, domain;
};

static uint32_t domain_of(const uint32_t *domains, uint32_t rank) {
  return domains != NULL ? domains[rank] : 0;
}

static struct run run_find(const struct plan_request *request, uint32_t first) {
  const struct graph *graph = request->graph;
  struct run run = {first,
                    1,
                    graph->node[first],
                    graph->gpu[first],
                    domain_of(request->groups, first),
                    domain_of(request->p2p_domains, first)};
  for (uint32_t rank = first + 1; rank < request->rank_count; rank++, run.count++)
    if (graph->node[rank] != run.node || graph->gpu[rank] != run.gpu + run.count ||
        domain_of(request->groups, rank) != run.group || domain_of(request->p2p_domains, rank) != run.domain)
      break;
  return run;
}

static uint32_t domain_next(const uint32_t *domains, uint32_t domain, uint32_t count) {
  return domains != NULL ? domain + count : domain;
}

static bool run_follows(const struct plan_request *request, const struct run *next, const struct run *last) {
  return next->count == last->count && next->node == last->node + 1 && next->gpu == last->gpu &&
         next->group == domain_next(request->groups, last->group, last->count) &&
         next->domain == domain_next(request->p2p_domains, last->domain, last->count);
}

static void put_places(struct writing *writing, const struct plan_request *request) {
  for (uint32_t rank = 0; rank < request->rank_count;) {
    const struct run run = run_find(request, rank);
    struct run last = run;
    uint32_t more = 0;
    for (rank += run.count; rank < request->rank_count && more < UINT16_MAX; rank += last.count, more++) {
      const struct run next = run_find(request, rank);
      if (!run_follows(request, &next, &last)) break;
      last = next;
    }
    put(writing, INPUT_PLACES, more, halves(run.first, run.count), halves(run.node, run.gpu),
        halves(run.group, run.domain));
  }
}

uint32_t plan_inputs_write(const struct plan_request *request, struct record_input *rows, uint32_t most) {
  struct writing writing = {rows, 0, most, false};
  const uint32_t divided = (request->groups != NULL) | (uint32_t)(request->p2p_domains != NULL) << 1;
  if (most == 0) return 0;
  put_settings(&writing, &request->settings);
  put_origin(&writing, &request->graph->origin);
  put(&writing, INPUT_RANKS, 0, request->rank_count, divided,
      request->custom != NULL ? custom_digest(request->custom) : 0);
  put_places(&writing, request);
  const struct tune_file *file = request->settings.tune_file;
  put_rules(&writing, file);
  put_answers(&writing, request->settings.tuner, file != NULL ? file->count : 0);
  rows[writing.count] =
      (struct record_input){.used = 1, .name = INPUT_END, .a = writing.count, .b = writing.full};
  return writing.count + 1;
}

/* ---- reading ---- */

struct reading {
  const struct record_input *rows;
  uint32_t count;
};

static const struct record_input *find(const struct reading *reading, enum record_input_name name,
                                       uint32_t index) {
  for (uint32_t i = 0; i < reading->count; i++) {
    const struct record_input *row = &reading->rows[i];
    if (row->used == 1 && row->name == name && row->index == index) return row;
  }
  return NULL;
}

static bool take_settings(const struct reading *reading, struct plan_settings *settings) {
  for (size_t i = 0; i < NUMBERS; i++) {
    const struct record_input *row = find(reading, (enum record_input_name)numbers[i].name, 0);
    const bool wide = numbers[i].bytes == sizeof(uint64_t);
    if (row == NULL && numbers[i].optional) continue;
    if (row == NULL || (!wide && row->a >> (8 * numbers[i].bytes) != 0)) return false;
    memcpy((uint8_t *)settings + numbers[i].offset, &row->a, numbers[i].bytes);
  }
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    const struct record_input *row = find(reading, INPUT_MASKS, func);
    if (row == NULL || low(row->a) == 0 || low(row->b) == 0) return false;
    settings->algo_mask[func] = low(row->a);
    settings->proto_mask[func] = low(row->b);
    settings->proto_named[func] = low(row->c);
  }
  for (uint32_t proto = 0; proto < PROTO_COUNT; proto++) {
    const struct record_input *row = find(reading, INPUT_THREADS, proto);
    if (row == NULL) return false;
    settings->max_threads[proto] = low(row->a);
    settings->thread_bytes[0][proto] = low(row->b);
    settings->thread_bytes[1][proto] = low(row->c);
  }
  settings->rank_order = find(reading, INPUT_RANK_ORDER, 0) != NULL;
  return true;
}

static bool is_power_of_two(uint32_t value) { return value != 0 && (value & (value - 1)) == 0; }

#define STEP_BYTES_MOST (1u << 26)
#define SLOTS_MOST 8

static bool limits_are_sane(const struct plan_limits *limits) {
  for (uint32_t proto = 0; proto < PROTO_COUNT; proto++) {
    const uint32_t bytes = limits->step_bytes[proto], unit = proto == PROTO_LL128 ? 128 : 16;
    if (bytes < unit || bytes % unit != 0 || bytes > STEP_BYTES_MOST) return false;
  }
  return limits->slots >= 1 && limits->slots <= SLOTS_MOST && limits->channel_count >= 1 &&
         limits->channel_count <= PLAN_CHANNELS_MAX && is_power_of_two(limits->p2p_channel_count) &&
         limits->p2p_channel_count <= PLAN_CHANNELS_MAX && is_power_of_two(limits->p2p_channels_per_peer) &&
         limits->p2p_channels_per_peer <= limits->p2p_channel_count && limits->flag_bits >= 5 &&
         limits->flag_bits <= 32 && limits->links <= STEP_LINKS_MAX && limits->p2p_chunk_bytes >= 1 &&
         limits->chunk_bytes <= 1u << 30 && limits->reserved_bytes < limits->step_bytes[PROTO_SIMPLE] &&
         limits->p2p_chunk_bytes <= limits->step_bytes[PROTO_SIMPLE] - limits->reserved_bytes;
}

static bool take_origin(const struct reading *reading, struct graph_origin *origin) {
  const struct record_input *row = find(reading, INPUT_TOPOLOGY, 0);
  const struct record_input *rules = find(reading, INPUT_TOPOLOGY_RULES, 0);
  if (row == NULL || rules == NULL || rules->b > GRAPH_DIS || high(row->b) > 1 ||
      high(rules->a) > PLAN_CHANNELS_MAX || low(row->a) > TOPOLOGY_NODES_MAX)
    return false;
  *origin = (struct graph_origin){.flat = high(row->b) != 0,
                                  .file_digest = row->c,
                                  .nodes = low(row->a),
                                  .gpus = high(row->a),
                                  .nics = low(row->b),
                                  .cross_nic = low(rules->a),
                                  .channels = high(rules->a),
                                  .peer_level = low(rules->b),
                                  .over_gpu = (rules->c & 1) != 0,
                                  .nic_over_gpu = (rules->c & 2) != 0,
                                  .graph_digest = rules->c >> 2};
  return true;
}

/* No word is 0: the last row may have fewer. */
static const char *take_shape(const struct reading *reading, struct plan_inputs *inputs) {
  struct node_shape *shape = &inputs->origin.shape;
  uint32_t rows = 0;
  while (find(reading, INPUT_SHAPE, rows) != NULL) rows += 1;
  if (rows == 0) return NULL;
  inputs->shape = (uint64_t *)os_alloc(rows * SHAPE_ROW_WORDS * sizeof *inputs->shape);
  if (inputs->shape == NULL) return "there is no memory for them";
  for (uint32_t i = 0; i < rows; i++) {
    const struct record_input *row = find(reading, INPUT_SHAPE, i);
    uint64_t *words = inputs->shape + (size_t)i * SHAPE_ROW_WORDS;
    words[0] = row->a;
    words[1] = row->b;
    words[2] = row->c;
  }
  shape->words = inputs->shape;
  shape->count = rows * SHAPE_ROW_WORDS;
  while (shape->count > 0 && shape->words[shape->count - 1] == 0) shape->count -= 1;
  return NULL;
}

/* False if the run exceeds the ranks, or a rank has a place already. */
static bool take_run(const struct record_input *row, struct plan_inputs *inputs, uint32_t *placed) {
  const uint32_t count = high(row->a);
  for (uint32_t i = 0; i <= row->index; i++) {
    const uint64_t first = low(row->a) + (uint64_t)i * count;
    if (count == 0 || first != *placed || first + count > inputs->rank_count) return false;
    for (uint32_t k = 0; k < count; k++) {
      const uint32_t rank = (uint32_t)first + k;
      inputs->places[rank] = (struct graph_place){low(row->b) + i, high(row->b) + k, false};
      if (inputs->groups != NULL) inputs->groups[rank] = low(row->c) + i * count;
      if (inputs->p2p_domains != NULL) inputs->p2p_domains[rank] = high(row->c) + i * count;
    }
    *placed += count;
  }
  return true;
}

static const char *take_places(const struct reading *reading, struct plan_inputs *inputs) {
  const struct record_input *ranks = find(reading, INPUT_RANKS, 0);
  const size_t bytes = inputs->rank_count * sizeof(uint32_t);
  uint32_t placed = 0;
  if (ranks == NULL || ranks->a != inputs->rank_count) return "its number of ranks differs";
  inputs->custom_digest = ranks->c;
  inputs->places = (struct graph_place *)os_alloc(inputs->rank_count * sizeof *inputs->places);
  if ((ranks->b & 1) != 0) inputs->groups = (uint32_t *)os_alloc(bytes);
  if ((ranks->b & 2) != 0) inputs->p2p_domains = (uint32_t *)os_alloc(bytes);
  if (inputs->places == NULL || ((ranks->b & 1) != 0 && inputs->groups == NULL) ||
      ((ranks->b & 2) != 0 && inputs->p2p_domains == NULL))
    return "there is no memory for them";
  for (uint32_t i = 0; i < reading->count; i++) {
    const struct record_input *row = &reading->rows[i];
    if (row->used == 1 && row->name == INPUT_PLACES && !take_run(row, inputs, &placed))
      return "the places of its ranks contradict each other";
  }
  return placed == inputs->rank_count ? NULL : "the places of some ranks are missing";
}

static const char *take_rules(const struct reading *reading, struct plan_inputs *inputs) {
  uint32_t count = 0;
  while (find(reading, INPUT_RULE_BYTES, count) != NULL) count++;
  if (count == 0) return NULL;
  inputs->tune_file =
      (struct tune_file *)os_alloc(sizeof *inputs->tune_file + count * sizeof inputs->tune_file->rules[0]);
  if (inputs->tune_file == NULL) return "there is no memory for them";
  inputs->settings.tune_file = inputs->tune_file;
  for (inputs->tune_file->count = 0; inputs->tune_file->count < count; inputs->tune_file->count++) {
    const uint32_t i = inputs->tune_file->count;
    const struct record_input *bytes = find(reading, INPUT_RULE_BYTES, i);
    const struct record_input *choice = find(reading, INPUT_RULE_CHOICE, i);
    if (choice == NULL) return "a tuning rule is missing";
    const struct tune_rule rule = {bytes->a,
                                   bytes->b,
                                   low(bytes->c),
                                   high(bytes->c),
                                   low(choice->a),
                                   high(choice->a),
                                   (uint8_t)choice->b,
                                   (uint8_t)(choice->b >> 8),
                                   (uint8_t)(choice->b >> 16),
                                   low(choice->c),
                                   high(choice->c)};
    if (rule.func >= FUNC_COUNT || rule.algo >= ALGO_COUNT || rule.proto >= PROTO_COUNT ||
        rule.channel_count > PLAN_CHANNELS_MAX)
      return "a tuning rule is impossible";
    inputs->tune_file->rules[i] = rule;
  }
  return NULL;
}

static const char *take_all(const struct reading *reading, struct plan_inputs *inputs) {
  const struct record_input *end = find(reading, INPUT_END, 0);
  if (end == NULL) return "they are incomplete";
  if (end->b != 0) return "there was no space for all of them: it has many tuning rules, or irregular nodes";
  if (!take_settings(reading, &inputs->settings)) return "a setting is missing";
  if (!limits_are_sane(&inputs->settings.limits)) return "its limits are impossible: the file is damaged";
  if (!take_origin(reading, &inputs->origin)) return "its topology is missing";
  const char *wrong = take_shape(reading, inputs);
  if (wrong == NULL) wrong = take_places(reading, inputs);
  return wrong != NULL ? wrong : take_rules(reading, inputs);
}

const char *plan_inputs_read(const struct record_input *rows, uint32_t count, uint32_t rank_count,
                             struct plan_inputs *inputs) {
  const struct reading reading = {rows, count};
  memset(inputs, 0, sizeof *inputs);
  inputs->rank_count = rank_count;
  const char *wrong = take_all(&reading, inputs);
  if (wrong != NULL) plan_inputs_free(inputs);
  return wrong;
}

void plan_inputs_free(struct plan_inputs *inputs) {
  os_free(inputs->shape);
  os_free(inputs->places);
  os_free(inputs->groups);
  os_free(inputs->p2p_domains);
  os_free(inputs->tune_file);
  memset(inputs, 0, sizeof *inputs);
}
