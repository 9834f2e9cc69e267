/* settings.c: converts parameters to numbers and masks. Masks are never empty, and backends accept the
 * limits. Does not know which algorithms are implemented; planning reports it if a list leaves none. */
#include "core/settings/settings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/plan/names.h"
#include "core/plan/tune_file.h"
#include "core/plugins/tuner.h"

/* A piece of the text: not terminated. */
struct piece {
  const char *begin;
  size_t length;
};

/* Removes the piece up to `separator` from the front of *text and returns it. */
static struct piece piece_next(struct piece *text, char separator) {
  const char *end = (const char *)memchr(text->begin, separator, text->length);
  struct piece head = {text->begin, end ? (size_t)(end - text->begin) : text->length};
  const size_t taken = head.length + (end ? 1 : 0);
  text->begin += taken;
  text->length -= taken;
  while (head.length > 0 && *head.begin == ' ') head.begin++, head.length--;
  while (head.length > 0 && head.begin[head.length - 1] == ' ') head.length--;
  return head;
}

/* Index of a word, or -1. */
static int word_find(const char *const *words, uint32_t count, struct piece word) {
  return names_find(words, count, word.begin, word.length);
}

static ncclResult_t unknown_word(const char *variable, struct piece word, const char *const *words,
                                 uint32_t count) {
  char known[160];
  names_list(words, count, ~0u, known, sizeof known);
  return log_fail(ncclInvalidUsage,
                  "%s: '%.*s' is none of %s; write it as in \"ring\", \"^tree\" or "
                  "\"allreduce:ring;broadcast:^tree\"",
                  variable, (int)word.length, word.begin, known);
}

/* "ring,tree" or "^tree": the mask of one clause's list. */
static ncclResult_t mask_parse(const char *variable, struct piece list, const char *const *words,
                               uint32_t count, uint32_t *mask) {
  const struct piece whole = list;
  const bool excluding = list.length > 0 && *list.begin == '^';
  uint32_t found = 0;
  if (excluding) list.begin++, list.length--;
  while (list.length > 0) {
    const struct piece word = piece_next(&list, ',');
    const int index = word_find(words, count, word);
    if (index < 0) return unknown_word(variable, word, words, count);
    found |= 1u << index;
  }
  *mask = excluding ? ~found & ((1u << count) - 1) : found;
  if (*mask != 0) return ncclSuccess;
  return log_fail(ncclInvalidUsage, "%s: '%.*s' allows nothing at all; leave at least one word", variable,
                  (int)whole.length, whole.begin);
}

ncclResult_t settings_parse_list(const char *variable, const char *text, const char *const *words,
                                 uint32_t word_count, uint32_t masks[FUNC_COUNT]) {
  struct piece rest = {text, strlen(text)};
  while (rest.length > 0) {
    struct piece clause = piece_next(&rest, ';');
    uint32_t first = 0, last = FUNC_COUNT - 1, mask = 0;
    if (clause.length == 0) continue;
    if (memchr(clause.begin, ':', clause.length)) {
      const struct piece func = piece_next(&clause, ':');
      const int index = word_find(names_func, FUNC_COUNT, func);
      if (index < 0) return unknown_word(variable, func, names_func, FUNC_COUNT);
      first = last = (uint32_t)index;
    }
    TRY(mask_parse(variable, clause, words, word_count, &mask));
    for (uint32_t i = first; i <= last; i++) masks[i] = mask;
  }
  return ncclSuccess;
}

/* Ignores unknown words, which the parser of the list itself reports. */
static void list_parse_named(const char *text, const char *const *words, uint32_t word_count,
                             uint32_t named[FUNC_COUNT]) {
  struct piece rest = {text, strlen(text)};
  memset(named, 0, FUNC_COUNT * sizeof *named);
  while (rest.length > 0) {
    struct piece clause = piece_next(&rest, ';');
    uint32_t first = 0, last = FUNC_COUNT - 1, mask = 0;
    if (memchr(clause.begin, ':', clause.length)) {
      const int index = word_find(names_func, FUNC_COUNT, piece_next(&clause, ':'));
      if (index < 0) continue;
      first = last = (uint32_t)index;
    }
    if (clause.length == 0) continue;
    for (bool named_by = *clause.begin != '^'; clause.length > 0;) {
      const int index = word_find(words, word_count, piece_next(&clause, ','));
      if (named_by && index >= 0) mask |= 1u << index;
    }
    for (uint32_t i = first; i <= last; i++) named[i] = mask;
  }
}

void settings_parse_named(const char *text, uint32_t named[FUNC_COUNT]) {
  list_parse_named(text, names_proto, PROTO_COUNT, named);
}

static uint32_t power_of_two_down(uint32_t value) {
  uint32_t power = 1;
  while (power <= value / 2) power *= 2;
  return power;
}

static uint32_t clamp(uint32_t value, uint32_t lowest, uint32_t highest) {
  return value < lowest ? lowest : value > highest ? highest : value;
}

/* Computes the step from the user's FIFO size: its share of the slots, rounded to the protocol's lines. */
static void limits_take_buffer(struct plan_limits *limits, uint32_t proto, enum param_id param,
                               uint32_t unit) {
  if (!param_is_set(param)) return;
  const int64_t step = param_int(param) / limits->slots / unit * unit;
  limits->step_bytes[proto] = (uint32_t)(step < unit ? unit : step > (1 << 30) ? 1 << 30 : step);
}

/* Point-to-point uses no more channels than collectives may. */
static void limits_take_channels(struct plan_limits *limits, const ncclConfig_t *config) {
  const uint32_t lowest = (uint32_t)config->minCTAs, highest = (uint32_t)config->maxCTAs;
  uint32_t p2p = limits->p2p_channel_count;
  limits->channel_count = clamp(limits->channel_count, lowest, highest);
  if (param_is_set(PARAM_MIN_P2P_NCHANNELS))
    p2p = clamp(p2p, (uint32_t)param_int(PARAM_MIN_P2P_NCHANNELS), 64);
  if (param_is_set(PARAM_MAX_P2P_NCHANNELS))
    p2p = clamp(p2p, 1, (uint32_t)param_int(PARAM_MAX_P2P_NCHANNELS));
  limits->p2p_channel_count = power_of_two_down(clamp(p2p, 1, highest));
  limits->p2p_channels_per_peer =
      power_of_two_down(clamp(limits->p2p_channels_per_peer, 1, limits->p2p_channel_count));
}

static uint32_t chunk_param(enum param_id param) {
  const int64_t bytes = param_int(param) / 16 * 16;
  return (uint32_t)(bytes < 16 ? 16 : bytes > (1 << 30) ? 1 << 30 : bytes);
}

static void limits_take_params(struct plan_limits *limits, const ncclConfig_t *config) {
  limits_take_buffer(limits, PROTO_SIMPLE, PARAM_BUFFSIZE, 16);
  limits_take_buffer(limits, PROTO_LL, PARAM_LL_BUFFSIZE, 16);
  limits_take_buffer(limits, PROTO_LL128, PARAM_LL128_BUFFSIZE, 128);
  if (param_is_set(PARAM_P2P_NVL_CHUNKSIZE)) limits->p2p_chunk_bytes = chunk_param(PARAM_P2P_NVL_CHUNKSIZE);
  limits->p2p_chunk_bytes = clamp(limits->p2p_chunk_bytes, 0, limits->step_bytes[PROTO_SIMPLE]);
  if (param_is_set(PARAM_P2P_DIRECT_DISABLE) && param_int(PARAM_P2P_DIRECT_DISABLE) != 0)
    limits->direct = false;
  if (param_is_set(PARAM_CHUNK_SIZE) && param_int(PARAM_CHUNK_SIZE) > 0) {
    const uint32_t bytes =
        (uint32_t)(param_int(PARAM_CHUNK_SIZE) > (1 << 30) ? 1 << 30 : param_int(PARAM_CHUNK_SIZE));
    limits->chunk_bytes =
        limits->chunk_bytes != 0 && limits->chunk_bytes < bytes ? limits->chunk_bytes : bytes;
  }
  if (param_int(PARAM_ALLGATHERV_ENABLE) == 0) limits->algos &= ~PLAN_FUSES;
  limits->first_step = (uint32_t)param_int(PARAM_TUTTI_FIRST_STEP);
  limits->cluster_blocks = (uint32_t)config->cgaClusterSize;
  limits_take_channels(limits, config);
}

static bool is_emulated(const struct backend *ops) { return strcmp(ops->name, "emu") == 0; }

/* LEAK_CHECKS: the parameter is none of its words. */
static enum leak_check leak_check_read(const struct backend *ops) {
  static const char *const words[LEAK_CHECKS] = {"0", "1", "error"};
  const char *text = param_text(PARAM_TUTTI_LEAK_CHECK);
  int check = LEAK_CHECK_OFF;
  if (*text == '\0') return is_emulated(ops) ? LEAK_CHECK_ERROR : LEAK_CHECK_OFF;
  while (check < LEAK_CHECKS && strcasecmp(text, words[check]) != 0) check++;
  return (enum leak_check)check;
}

enum leak_check settings_leak_check(const struct backend *ops) {
  const enum leak_check check = leak_check_read(ops);
  return check == LEAK_CHECKS ? LEAK_CHECK_OFF : check;
}

static ncclResult_t checks_take(const struct backend *ops, struct settings *settings) {
  const char *mode = param_text(PARAM_CHECK_MODE);
  const bool local = strcasecmp(mode, "LOCAL") == 0, global = strcasecmp(mode, "GLOBAL") == 0;
  const bool usual = strcasecmp(mode, "DEFAULT") == 0;
  if (!local && !global && !usual)
    return log_fail(ncclInvalidUsage, "NCCL_CHECK_MODE: '%s' is not DEFAULT, LOCAL or GLOBAL", mode);
  if (leak_check_read(ops) == LEAK_CHECKS)
    return log_fail(ncclInvalidUsage, "TUTTI_LEAK_CHECK: '%s' is not 0, 1 or error",
                    param_text(PARAM_TUTTI_LEAK_CHECK));
  const bool emulated = is_emulated(ops);
  const int64_t pointers = param_int(PARAM_CHECK_POINTERS);
  settings->check_pointers = local || global || (pointers < 0 ? emulated : pointers != 0);
  settings->match_factors = global;
  settings->match_calls = global || (usual && emulated);
  return ncclSuccess;
}

/* Both launch modes are equal here: no launch waits for another communicator's kernel. */
static void launch_mode_note(void) {
  if (param_is_set(PARAM_LAUNCH_MODE))
    log_info(LOG_INIT, "NCCL_LAUNCH_MODE=%s: a group launches one kernel a communicator, in order of use",
             param_text(PARAM_LAUNCH_MODE));
}

bool settings_parse_thresholds(const char *text, uint32_t thread_bytes[2][PROTO_COUNT]) {
  memset(thread_bytes, 0, 2 * sizeof *thread_bytes);
  for (uint32_t index = 0; *(text += strspn(text, " ,")) != '\0'; index++) {
    char *end;
    errno = 0;
    const long number = strtol(text, &end, 10);
    const bool good = end != text && errno == 0 && (*end == '\0' || *end == ' ' || *end == ',');
    if (!good || index == 2 * PROTO_COUNT || number == 0 || (number < 0 && number != -2) ||
        number > 1 << 30) {
      memset(thread_bytes, 0, 2 * sizeof *thread_bytes);
      return false;
    }
    if (number > 0) thread_bytes[index / PROTO_COUNT][index % PROTO_COUNT] = (uint32_t)number;
    text = end;
  }
  return true;
}

static void threads_take_params(struct settings *settings) {
  const char *thresholds = param_text(PARAM_THREAD_THRESHOLDS);
  settings->plan.max_threads[PROTO_LL] = settings->plan.max_threads[PROTO_SIMPLE] =
      (uint32_t)param_int(PARAM_NTHREADS);
  settings->plan.max_threads[PROTO_LL128] = (uint32_t)param_int(PARAM_LL128_NTHREADS);
  if (settings_parse_thresholds(thresholds, settings->plan.thread_bytes)) return;
  log_visible(
      "NCCL_THREAD_THRESHOLDS: '%s' is not up to six numbers of bytes (LL, LL128, Simple of Tree, then of "
      "Ring; -2 to leave one alone); it is ignored",
      thresholds);
}

/* The cost model has no measured figures for switches that add, so their algorithms are used only on request.
 * If their variables are 1, they take part in every choice; if 0, in none; otherwise they are used if
 * NCCL_ALGO names them. */
static uint32_t switches_off(uint32_t algos, int64_t wanted, const uint32_t named[FUNC_COUNT],
                             uint32_t masks[FUNC_COUNT]) {
  uint32_t anywhere = 0;
  if (wanted == 1) return 0;
  for (uint32_t i = 0; i < FUNC_COUNT; i++) {
    const uint32_t kept = masks[i] & (~algos | named[i]);
    anywhere |= named[i];
    if (kept != 0) masks[i] = kept;
  }
  return wanted == 0 ? algos : algos & ~anywhere;
}

uint32_t settings_algos_off(const char *algos, bool collnet, uint32_t masks[FUNC_COUNT]) {
  static const uint32_t in_node = 1u << ALGO_NVLS | 1u << ALGO_NVLS_TREE;
  static const uint32_t in_network = 1u << ALGO_COLLNET_DIRECT | 1u << ALGO_COLLNET_CHAIN;
  const bool set = param_is_set(PARAM_COLLNET_ENABLE);
  uint32_t named[FUNC_COUNT];
  list_parse_named(algos, names_algo, ALGO_COUNT, named);
  return (param_int(PARAM_PAT_ENABLE) == 0 ? 1u << ALGO_PAT : 0) |
         switches_off(in_node, param_int(PARAM_NVLS_ENABLE), named, masks) |
         switches_off(in_network,
                      set       ? param_int(PARAM_COLLNET_ENABLE)
                      : collnet ? 1
                                : 2,
                      named, masks);
}

static ncclResult_t tune_file_take(struct settings *settings) {
  const char *path = param_text(PARAM_TUTTI_TUNE_FILE);
  if (*path == '\0') return ncclSuccess;
  TRY(tune_file_read(path, &settings->tune_file));
  settings->plan.tune_file = settings->tune_file;
  return ncclSuccess;
}

void settings_free(struct settings *settings) {
  os_free(settings->tune_file);
  settings->tune_file = NULL;
  settings->plan.tune_file = NULL;
}

/* Other words end at the first call (param_text.c). */
bool settings_rank_order(void) { return strcasecmp(param_text(PARAM_SUM_ORDER), "rank") == 0; }

bool settings_reads_slots(void) { return param_int(PARAM_P2P_READ_ENABLE) != 0; }

static void order_take(struct settings *settings) {
  settings->plan.rank_order = settings_rank_order();
  if (settings->plan.rank_order && param_is_set(PARAM_ALGO))
    log_info(LOG_TUNING, "TUTTI_SUM_ORDER=rank: NCCL_ALGO does not count for functions that reduce");
}

ncclResult_t settings_read(const struct backend *ops, const ncclConfig_t *config, struct settings *settings) {
  struct settings read;
  memset(&read, 0, sizeof read);
  TRY(ops->device->limits(&read.plan.limits));
  limits_take_params(&read.plan.limits, config);
  read.tuner = tuner_identity();
  for (uint32_t i = 0; i < FUNC_COUNT; i++) {
    read.plan.algo_mask[i] = (1u << ALGO_COUNT) - 1;
    read.plan.proto_mask[i] = (1u << PROTO_COUNT) - 1;
  }
  TRY(settings_parse_list("NCCL_ALGO", param_text(PARAM_ALGO), names_algo, ALGO_COUNT, read.plan.algo_mask));
  TRY(settings_parse_list("NCCL_PROTO", param_text(PARAM_PROTO), names_proto, PROTO_COUNT,
                          read.plan.proto_mask));
  settings_parse_named(param_text(PARAM_PROTO), read.plan.proto_named);
  threads_take_params(&read);
  read.plan.algos_off =
      settings_algos_off(param_text(PARAM_ALGO), config->collnetEnable == 1, read.plan.algo_mask);
  read.plan.p2p_ll_threshold = (size_t)param_int(PARAM_P2P_LL_THRESHOLD);
  read.plan.net_peer_channels = config->nChannelsPerNetPeer != NCCL_CONFIG_UNDEF_INT
                                    ? (uint32_t)config->nChannelsPerNetPeer
                                    : (uint32_t)param_int(PARAM_NCHANNELS_PER_NET_PEER);
  read.plan.reads_slots = settings_reads_slots();
  read.net_ll_for_all = param_int(PARAM_ALLOC_P2P_NET_LL_BUFFERS) != 0;
  read.p2p_net_chunk_bytes = chunk_param(PARAM_P2P_NET_CHUNKSIZE);
  order_take(&read);
  TRY(checks_take(ops, &read));
  launch_mode_note();
  TRY(tune_file_take(&read));
  *settings = read;
  return ncclSuccess;
}

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

void settings_agree(struct settings *settings, const struct settings *other) {
  struct plan_limits *limits = &settings->plan.limits;
  const struct plan_limits *with = &other->plan.limits;
  limits->channel_count = smaller(limits->channel_count, with->channel_count);
  limits->p2p_channel_count = smaller(limits->p2p_channel_count, with->p2p_channel_count);
  limits->p2p_channels_per_peer = smaller(limits->p2p_channels_per_peer, with->p2p_channels_per_peer);
}

uint64_t settings_digest(const struct settings *settings) {
  const struct plan_limits *limits = &settings->plan.limits;
  const uint32_t numbers[] = {limits->slots,
                              limits->chunk_bytes,
                              limits->p2p_chunk_bytes,
                              limits->flag_bits,
                              limits->first_step,
                              limits->direct,
                              limits->algos,
                              limits->links,
                              limits->protos,
                              limits->algos_last,
                              limits->cores,
                              limits->on_host,
                              settings->plan.algos_off,
                              settings->p2p_net_chunk_bytes,
                              limits->quick_protos,
                              settings->plan.net_peer_channels,
                              settings->net_ll_for_all,
                              settings->plan.rank_order,
                              settings->plan.reads_slots};
  uint64_t digest = hash_bytes(HASH_SEED, numbers, sizeof numbers);
  digest = hash_bytes(digest, limits->step_bytes, sizeof limits->step_bytes);
  digest = hash_bytes(digest, settings->plan.algo_mask, sizeof settings->plan.algo_mask);
  digest = hash_bytes(digest, settings->plan.proto_mask, sizeof settings->plan.proto_mask);
  digest = hash_bytes(digest, settings->plan.max_threads, sizeof settings->plan.max_threads);
  digest = hash_bytes(digest, settings->plan.thread_bytes, sizeof settings->plan.thread_bytes);
  if (settings->tuner != 0) digest = hash_mix(digest, settings->tuner);
  return hash_bytes(digest, &settings->plan.p2p_ll_threshold, sizeof settings->plan.p2p_ll_threshold);
}

static bool func_is_message(uint32_t func) {
  return func == FUNC_SEND_RECV || func == FUNC_SEND || func == FUNC_RECV || func == FUNC_SCATTER ||
         func == FUNC_GATHER;
}

bool settings_take_network(struct settings *settings, bool ll, uint32_t rank_count) {
  const uint32_t simple = 1u << PROTO_SIMPLE, carried = simple | (ll ? 1u << PROTO_LL : 0);
  bool named = false;
  for (uint32_t i = 0; i < FUNC_COUNT; i++) {
    uint32_t *mask = &settings->plan.proto_mask[i];
    if (!func_is_message(i)) {
      named = named || (settings->plan.proto_named[i] & ~carried) != 0;
      settings->plan.protos_torn |= *mask & ~carried;
    }
    *mask = (*mask & carried) != 0 ? *mask & carried : simple;
  }
  settings->plan.net_plain = rank_count > SETTINGS_NET_LL_RANKS && !settings->net_ll_for_all;
  if (settings->plan.limits.p2p_chunk_bytes > settings->p2p_net_chunk_bytes)
    settings->plan.limits.p2p_chunk_bytes = settings->p2p_net_chunk_bytes;
  return named;
}

ncclResult_t settings_add_path(const struct backend *ops, uint32_t from, uint32_t to,
                               struct settings_paths *paths) {
  struct device_path_info info;
  const ncclResult_t result = ops->device->path(from, to, &info);
  paths->peer_access = paths->peer_access && result == ncclSuccess && info.peer_access;
  paths->ll128 = paths->ll128 && result == ncclSuccess && info.ll128;
  return result;
}

bool settings_take_paths(struct settings *settings, const struct settings_paths *paths) {
  const uint32_t ll128 = 1u << PROTO_LL128;
  bool kept = false;
  if (!paths->peer_access) settings->plan.limits.direct = false;
  for (uint32_t i = 0; i < FUNC_COUNT && !paths->ll128; i++) {
    const bool wanted = (settings->plan.proto_named[i] & ll128) != 0 || settings->plan.proto_mask[i] == ll128;
    if (!wanted) settings->plan.proto_mask[i] &= ~ll128, settings->plan.protos_torn |= ll128;
    else kept = kept || (settings->plan.proto_mask[i] & ll128) != 0;
  }
  return kept;
}

/* No more channels than run at once. */
static void settings_take_devices(struct settings *settings, const struct settings_ranks *ranks) {
  struct plan_limits *limits = &settings->plan.limits;
  limits->shares_device = ranks->share_devices;
  if (ranks->blocks == 0) return;
  limits->channel_count = smaller(limits->channel_count, ranks->blocks);
  limits->p2p_channel_count = smaller(limits->p2p_channel_count, power_of_two_down(ranks->blocks));
  limits->p2p_channels_per_peer = smaller(limits->p2p_channels_per_peer, limits->p2p_channel_count);
}

struct settings_losses settings_settle(struct settings *settings, const struct settings_ranks *ranks) {
  struct settings_losses losses = {settings_take_paths(settings, &ranks->paths), false};
  settings->plan.limits.on_host = ranks->on_host || !ranks->paths.peer_access;
  settings_take_devices(settings, ranks);
  if (!ranks->networked) return losses;
  plan_limits_reserve(&settings->plan.limits);
  losses.named = settings_take_network(settings, ranks->net_ll, ranks->rank_count);
  return losses;
}
