/* tune.c: the ring's part of the cost model. Bandwidths are bus bandwidths in GB/s (1e9 bytes), latencies in
 * microseconds. */
#include "core/tune.h"

#include "base/log.h"
#include "core/rules.h"

/* By protocol: LL, LL128, Simple. Fitted to what bench/gpu.sh measured on four H200 over NVLink: the worst of
 * the five collectives is a fifth off, and the borders between protocols are where the measured times cross.
 */
static const double latency_base_us[PROTO_COUNT] = {4.3, 7.0, 8.0};
static const double latency_hop_us[PROTO_COUNT] = {0.95, 1.05, 6.6};
static const double channel_gbps = 11.2; /* what one channel of a ring moves, of 32 that share a link */
static const double ll_max_gbps = 141.0; /* half of the wire is flags, and stores are short */
static const double ll128_channel_gbps = 36.7;
static const double ll128_share = 0.65; /* 120 of 128 bytes, and every line is looked at twice */

size_t tune_bytes(uint8_t func, size_t count, uint32_t element_bytes, uint32_t rank_count) {
  const bool all = func == FUNC_ALL_GATHER || func == FUNC_REDUCE_SCATTER;
  return count * element_bytes * (all ? rank_count : 1);
}

/* Hops that follow one another in a ring. */
static uint32_t ring_hops(uint8_t func, uint32_t rank_count) {
  switch (func) {
    case FUNC_ALL_REDUCE: return 2 * (rank_count - 1);
    case FUNC_ALL_GATHER:
    case FUNC_REDUCE_SCATTER: return rank_count - 1;
    case FUNC_SEND:
    case FUNC_RECV: return 1;
    default: return rank_count;
  }
}

static double ring_bus_gbps(uint8_t proto, uint32_t channel_count) {
  const double all = channel_gbps * channel_count;
  const double ll = all / 2 < ll_max_gbps ? all / 2 : ll_max_gbps;
  const double ll128_channels = ll128_channel_gbps * channel_count;
  const double ll128 = ll128_share * all < ll128_channels ? ll128_share * all : ll128_channels;
  return proto == PROTO_LL ? ll : proto == PROTO_LL128 ? ll128 : all;
}

double tune_time_us(uint8_t func, uint8_t proto, size_t bytes, uint32_t rank_count, uint32_t channel_count) {
  const uint32_t hops = rank_count > 1 ? ring_hops(func, rank_count) : 1;
  const bool chain = func == FUNC_BROADCAST || func == FUNC_REDUCE || func == FUNC_SEND || func == FUNC_RECV;
  const double to_algorithm = chain || rank_count == 1 ? 1.0 : (double)rank_count / hops;
  const double gbps = ring_bus_gbps(proto, channel_count) * to_algorithm;
  return latency_base_us[proto] + hops * latency_hop_us[proto] + (double)bytes / (1000.0 * gbps);
}

uint8_t tune_proto(uint8_t func, size_t bytes, uint32_t rank_count, uint32_t channel_count,
                   uint32_t proto_mask) {
  uint8_t best = PROTO_SIMPLE;
  double best_us = -1;
  for (uint8_t proto = 0; proto < PROTO_COUNT; proto++) {
    if (((proto_mask >> proto) & 1) == 0) continue;
    const double time_us = tune_time_us(func, proto, bytes, rank_count, channel_count);
    if (best_us >= 0 && time_us >= best_us) continue;
    best = proto;
    best_us = time_us;
  }
  return best;
}

ncclResult_t tune_choose(const struct plan_request *request, uint8_t func, size_t bytes,
                         struct tune_choice *choice) {
  static const uint8_t order[] = {ALGO_RING, ALGO_TREE, ALGO_TWO_SHOT, ALGO_DIRECT, ALGO_PAT};
  choice->algo = ALGO_RING;
  choice->proto = PROTO_SIMPLE;
  if (request->rank_count == 1) return ncclSuccess;
  for (uint32_t i = 0; i < sizeof order; i++) {
    uint32_t protos = 0;
    for (uint8_t proto = 0; proto < PROTO_COUNT; proto++)
      if (rules_forbid(request, func, order[i], proto) == NULL) protos |= 1u << proto;
    if (protos == 0) continue;
    choice->algo = order[i];
    choice->proto = tune_proto(func, bytes, request->rank_count, request->limits.channel_count, protos);
    return ncclSuccess;
  }
  return log_fail(ncclInvalidUsage, "rank %u: NCCL_ALGO leaves no algorithm for this collective: %s",
                  request->rank, rules_forbid(request, func, ALGO_RING, PROTO_SIMPLE));
}
