/* test_sim.c: the simulator's internals: steps that agree at both ends of every connection, shares of links
 * computed by hand, times with a closed form, folded and unfolded nodes, and deadlocks. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "check/request.h"
#include "simulate/engine.h"
#include "simulate/flow.h"
#include "simulate/demand.h"
#include "simulate/fold.h"
#include "progress.h"
#include "random.h"

static struct check_setup setup;
static struct cluster cluster;
static struct sim_net net;

static int teardown(void **state) {
  (void)state;
  sim_net_free(&net);
  cluster_free(&cluster);
  check_setup_free(&setup);
  return os_alloc_live() != 0;
}

static void cluster_begin_over(uint32_t nodes, uint32_t gpus, double oversubscription) {
  struct cluster_spec spec;
  cluster_spec_begin(&spec);
  spec.nodes = nodes;
  spec.gpus = gpus;
  spec.fabric = (struct cluster_fabric){4, 0.6, oversubscription};
  cluster_free(&cluster);
  if (cluster_make(&spec, &cluster) != ncclSuccess) fail_msg("%s", log_last_error());
}

static void cluster_begin(uint32_t nodes, uint32_t gpus) { cluster_begin_over(nodes, gpus, 1); }

/* The network of a call on the cluster; false if no option carries the call. */
static bool net_begin(uint8_t func, uint32_t algos, uint32_t protos, size_t count, uint32_t channels) {
  struct check_call call;
  memset(&call, 0, sizeof call);
  call.func = func;
  call.dtype = ncclFloat32;
  call.rank_count = cluster.ranks;
  call.algo_mask = algos;
  call.proto_mask = protos;
  call.count = count;
  call.p2p_ll_threshold = 16384;
  call.graph = &cluster.graph;
  plan_limits_default(&call.limits);
  call.limits.channel_count = channels;
  sim_net_free(&net);
  if (check_setup_make(&setup, &call) != ncclSuccess) return false;
  assert_int_equal(sim_net_make(setup.plans, cluster.ranks, &net), ncclSuccess);
  return true;
}

static struct engine_report run(const struct sim_net *of, const struct fold *fold) {
  const struct engine_request request = {.cluster = &cluster, .net = of, .fold = fold};
  struct engine_report report;
  assert_int_equal(engine_run(&request, &report), ncclSuccess);
  return report;
}

/* ---- both ends of a connection ---- */

/* Slots and bytes as each end of a connection counts them. */
static void ends_add(uint64_t (*sums)[4]) {
  struct slices *slices = slices_open();
  const struct sim_slice *slice;
  assert_non_null(slices);
  for (uint32_t i = 0; i < net.lane_count; i++) {
    const struct sim_lane *lane = &net.lanes[i];
    const uint32_t recv_count = lane->work->recv_count;
    slices_begin(slices, &setup.plans[lane->rank].limits, lane->work);
    while ((slice = slices_next(slices)) != NULL) {
      for (uint32_t k = 0; k < recv_count; k++) {
        uint64_t *sum = sums[net.links[lane->first_link + k]];
        sum[0] += slice->frees >> k & 1;
        sum[1] += slice->moves[k].moved;
      }
      for (uint32_t k = 0; k < lane->work->send_count; k++) {
        uint64_t *sum = sums[net.links[lane->first_link + recv_count + k]];
        sum[2] += slice->announces >> k & 1;
        if (slice->announces >> k & 1) sum[3] += slice->moves[recv_count + k].held;
      }
    }
  }
  slices_close(slices);
}

static void assert_ends_agree(void) {
  uint64_t(*sums)[4] = (uint64_t(*)[4])os_alloc((net.conn_count + 1) * sizeof *sums);
  assert_non_null(sums);
  ends_add(sums);
  for (uint32_t conn = 0; conn < net.conn_count; conn++) {
    assert_int_equal(sums[conn][0], sums[conn][2]);
    assert_int_equal(sums[conn][1], sums[conn][3]);
    assert_true(sums[conn][0] > 0);
  }
  os_free(sums);
}

static void iterators_agree_at_both_ends(void **state) {
  static const uint8_t funcs[] = {FUNC_ALL_REDUCE, FUNC_ALL_GATHER, FUNC_REDUCE_SCATTER,
                                  FUNC_BROADCAST,  FUNC_REDUCE,     FUNC_ALL_TO_ALL,
                                  FUNC_GATHER,     FUNC_SCATTER,    FUNC_SEND_RECV};
  static const size_t counts[] = {1, 1000, 300007};
  uint32_t options = 0;
  (void)state;
  cluster_begin(3, 4);
  for (size_t f = 0; f < sizeof funcs; f++)
    for (uint32_t algo = 0; algo < ALGO_COUNT; algo++)
      for (uint32_t proto = 0; proto < PROTO_COUNT; proto++) {
        if (!net_begin(funcs[f], 1u << algo, 1u << proto, counts[(algo + proto) % 3], 3)) continue;
        assert_ends_agree();
        const struct engine_report report = run(&net, NULL);
        if (report.stalled) fail_msg("func %u algo %u proto %u: %s", funcs[f], algo, proto, report.text);
        assert_true(report.end_ps > 0);
        if (slices_count(&net) != report.slice_count)
          fail_msg("func %u algo %u proto %u: %" PRIu64 " slices", funcs[f], algo, proto, report.slice_count);
        options += 1;
      }
  assert_true(options > 20);
}

/* ---- shares of links ---- */

static uint64_t ends[64];
static void tell(void *context, uint32_t conn, uint64_t end_ps) {
  (void)context;
  ends[conn] = end_ps;
}

/* Links of 10, 10 and 100 GB/s. Transfer 0 takes the first two, 1 the first, 2 the second and is bound to 2,
 * 3 the second: the fair shares are 4 for 0 and 3, 6 for 1. */
static void shares_are_fair(void **state) {
  static const double gbps[] = {10, 10, 100};
  static const uint32_t both[] = {0, 1}, first[] = {0, 2}, second[] = {1};
  const struct flow_user users[] = {
      {both, NULL, 2, 50}, {first, NULL, 2, 50}, {second, NULL, 1, 2}, {second, NULL, 1, 50}};
  struct flow_set set;
  (void)state;
  assert_int_equal(flow_set_make(gbps, NULL, 3, users, 4, &set), ncclSuccess);
  assert_int_equal(set.link_count, 2); /* the third can never be full */
  for (uint32_t i = 0; i < 4; i++) {
    const uint64_t end_ps = flow_begin(&set, i, 1200, users[i].most_gbps, 1000);
    assert_true(end_ps == UINT64_MAX);
  }
  flow_settle(&set, 1000, tell, NULL);
  assert_int_equal(ends[0], 1000 + 300000);
  assert_int_equal(ends[1], 1000 + 200000);
  assert_int_equal(ends[2], 1000 + 600000);
  assert_int_equal(ends[3], 1000 + 300000);
  flow_end(&set, 0); /* 10 to 1, 8 to 3, from the middle on */
  flow_settle(&set, 101000, tell, NULL);
  assert_int_equal(ends[1], 101000 + 60000);
  assert_int_equal(ends[3], 101000 + 100000);
  flow_set_free(&set);
}

static void capacity_needs_no_event(void **state) {
  static const double gbps[] = {10};
  static const uint32_t link[] = {0};
  const struct flow_user users[] = {{link, NULL, 1, 6}, {link, NULL, 1, 6}};
  struct flow_set set;
  (void)state;
  assert_int_equal(flow_set_make(gbps, NULL, 1, users, 2, &set), ncclSuccess);
  assert_int_equal(flow_begin(&set, 0, 600, 6, 0), 100000);
  assert_true(flow_begin(&set, 1, 600, 6, 50000) == UINT64_MAX);
  flow_settle(&set, 50000, tell, NULL);
  assert_int_equal(ends[0], 50000 + 60000);
  assert_int_equal(ends[1], 50000 + 120000);
  flow_set_free(&set);
}

enum { RANDOM_LINKS = 12, RANDOM_FLOWS = 40, RANDOM_PATH = 3 };

/* Each transfer has its own maximum rate, or is on a full link on which no transfer has more. */
static bool is_fair(const struct flow_set *set, const struct flow *flow) {
  if (flow->bytes_a_ps >= flow->most_bytes_a_ps * (1 - 1e-6)) return true;
  for (uint32_t e = flow->first_entry; e < flow->first_entry + flow->entry_count; e++) {
    double load = 0, most = 0;
    for (uint32_t i = 0; i < set->entry_count; i++) {
      const struct flow *other = &set->flows[set->entry_flow[i]];
      if (set->entry_link[i] != set->entry_link[e] || !other->active) continue;
      load += set->entry_times[i] * other->bytes_a_ps;
      if (other->bytes_a_ps > most) most = other->bytes_a_ps;
    }
    const double gbps = set->links[set->entry_link[e]].bytes_a_ps;
    assert_true(load <= gbps * (1 + 1e-6));
    if (load >= gbps * (1 - 1e-6) && flow->bytes_a_ps >= most * (1 - 1e-6)) return true;
  }
  return false;
}

/* Transfers start and end at random; rates are max-min fair after each change. */
static void shares_stay_fair(void **state) {
  uint32_t paths[RANDOM_FLOWS][RANDOM_PATH], times[RANDOM_FLOWS][RANDOM_PATH];
  struct flow_user users[RANDOM_FLOWS];
  double gbps[RANDOM_LINKS];
  struct flow_set set;
  uint64_t seed = 1;
  (void)state;
  for (uint32_t i = 0; i < RANDOM_LINKS; i++) gbps[i] = 10 + random_below(&seed, 4) * 10;
  for (uint32_t i = 0; i < RANDOM_FLOWS; i++) {
    for (uint32_t k = 0; k < RANDOM_PATH; k++) {
      paths[i][k] = (random_below(&seed, RANDOM_LINKS / RANDOM_PATH)) * RANDOM_PATH + k;
      times[i][k] = 1 + random_below(&seed, 3);
    }
    users[i] = (struct flow_user){paths[i], times[i], RANDOM_PATH, 1 + random_below(&seed, 20)};
  }
  assert_int_equal(flow_set_make(gbps, NULL, RANDOM_LINKS, users, RANDOM_FLOWS, &set), ncclSuccess);
  for (uint32_t now = 0; now < 20000; now++) {
    for (uint32_t change = 0; change < 1 + now % 3; change++) {
      const uint32_t flow = random_below(&seed, RANDOM_FLOWS);
      if (set.flows[flow].active) flow_end(&set, flow);
      else flow_begin(&set, flow, 1e12, users[flow].most_gbps, now);
    }
    flow_settle(&set, now, tell, NULL);
    for (uint32_t i = 0; i < RANDOM_FLOWS; i++)
      if (set.flows[i].active && !is_fair(&set, &set.flows[i])) fail_msg("transfer %u at %u", i, now);
  }
  flow_set_free(&set);
}

/* ---- times ---- */

/* A ring of whole chunks: every hop takes a slice's time plus its post, and no rank waits for a slot. */
static void ring_has_a_closed_form(void **state) {
  const uint32_t ranks = 8;
  (void)state;
  cluster_begin(1, ranks);
  cluster.costs.lane_gbps[PROTO_LL] = 8; /* 125 ps per byte */
  assert_true(net_begin(FUNC_ALL_REDUCE, 1u << ALGO_RING, 1u << PROTO_LL, 64 * ranks, 1));
  const struct engine_report report = run(&net, NULL);
  const struct cluster_costs *costs = &cluster.costs;
  const double slice_us = costs->slice_us[PROTO_LL] + costs->move_us[PROTO_LL] + 256 * 125e-6;
  const double hop_us = slice_us + costs->post_us[TUNE_NVLINK][PROTO_LL];
  const double end_us = costs->launch_us[PROTO_LL] + (2 * ranks - 2) * hop_us + slice_us;
  assert_float_equal((double)report.end_ps / 1e6, end_us, 1e-4);
  assert_int_equal(report.message_count, ranks * (2 * ranks - 2));
  assert_int_equal(report.event_count, 0);
}

/* Under LogGP every hop over a network takes the overhead of both ends, its bytes (LL sends each twice) and
 * L. */
static void loggp_has_a_closed_form(void **state) {
  const uint32_t ranks = 5;
  struct cluster_spec spec;
  (void)state;
  cluster_spec_begin(&spec);
  spec.nodes = ranks;
  spec.gpus = 1;
  assert_null(cluster_loggp_set(&spec, "5,1,0.5,0.25"));
  cluster_free(&cluster);
  assert_int_equal(cluster_make(&spec, &cluster), ncclSuccess);
  assert_true(net_begin(FUNC_ALL_REDUCE, 1u << ALGO_RING, 1u << PROTO_LL, 64 * ranks, 1));
  const double end_us = (2 * ranks - 2) * (5 + 2 * 1 + 512 * 0.25e-3);
  assert_float_equal((double)run(&net, NULL).end_ps / 1e6, end_us, 1e-3);
}

static void costs_have_names(void **state) {
  struct cluster_spec spec;
  (void)state;
  cluster_spec_begin(&spec);
  assert_null(cluster_cost_set(&spec.costs, "launch_us.LL128=3.5"));
  assert_null(cluster_cost_set(&spec.costs, "pci_post_us=9"));
  assert_null(cluster_cost_set(&spec.costs, "link_share=0.5"));
  assert_float_equal(spec.costs.launch_us[PROTO_LL128], 3.5, 0);
  assert_float_equal(spec.costs.post_us[TUNE_PCI][PROTO_LL], 9, 0);
  assert_float_equal(spec.costs.post_us[TUNE_PCI][PROTO_SIMPLE], 9, 0);
  assert_float_equal(spec.costs.link_share, 0.5, 0);
  static const char *const bad[] = {"launch_us",    "launch_us=", "launch_us.LL64=1", "link_share.LL=1",
                                    "lane_gbps=0",  "side_us=-1", "side_us=nan",      "=1",
                                    "launch_us=1x", "launch=1",   "gap_us =1",        ""};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    if (!cluster_cost_set(&spec.costs, bad[i])) fail_msg("%s is taken", bad[i]);
  assert_non_null(cluster_loggp_set(&spec, "5,1,2"));
  assert_non_null(cluster_loggp_set(&spec, "5,1,2,0"));
  assert_non_null(cluster_loggp_set(&spec, "5,1,2,0.1,7"));
}

static void slow_ranks_and_links_cost(void **state) {
  char why[256];
  (void)state;
  cluster_begin(2, 4);
  assert_true(net_begin(FUNC_ALL_REDUCE, 1u << ALGO_RING, 1u << PROTO_SIMPLE, 1 << 22, 4));
  const uint64_t whole_ps = run(&net, NULL).end_ps;
  assert_int_equal(run(&net, NULL).end_ps, whole_ps);
  assert_true(cluster_fault(&cluster, "slow-rank:3:4", why, sizeof why));
  const uint64_t rank_ps = run(&net, NULL).end_ps;
  assert_true(rank_ps > whole_ps);
  cluster_begin(2, 4);
  assert_true(cluster_fault(&cluster, "slow-link:3:20", why, sizeof why));
  assert_true(run(&net, NULL).end_ps > whole_ps);
  assert_false(cluster_fault(&cluster, "slow-rank:8:2", why, sizeof why));
  assert_false(cluster_fault(&cluster, "slow-rank:3:0.5", why, sizeof why));
  assert_false(cluster_fault(&cluster, "nic:0:9:off", why, sizeof why));
  assert_non_null(strstr(why, "ranks 0-7"));
}

static void dead_nics_are_named(void **state) {
  char why[256];
  (void)state;
  cluster_begin(2, 4);
  assert_true(cluster_fault(&cluster, "nic:1:0:off", why, sizeof why));
  assert_true(net_begin(FUNC_ALL_REDUCE, 1u << ALGO_RING, 1u << PROTO_SIMPLE, 1 << 22, 4));
  const struct engine_report report = run(&net, NULL);
  assert_true(report.stalled);
  assert_non_null(strstr(report.text, "node 1 NIC 0"));
}

/* Every rank receives first, then sends: a deadlock. */
static void cycles_are_told(void **state) {
  (void)state;
  cluster_begin(1, 4);
  assert_true(net_begin(FUNC_SEND_RECV, ~0u, ~0u, 4, 1));
  for (uint32_t rank = 0; rank < 4; rank++) {
    struct plan *plan = &setup.plans[rank];
    assert_int_equal(plan->batch_count, 1);
    assert_int_equal(plan->batches[0].work_count, 2);
    if (plan->works[0].recv_count == 0) {
      const struct work sends = plan->works[0];
      plan->works[0] = plan->works[1];
      plan->works[1] = sends;
    }
    plan->batches[0].work_count = 1;
    plan->batches[1] = plan->batches[0];
    plan->batches[1].first_work = 1;
    plan->batch_count = 2;
  }
  sim_net_free(&net);
  assert_int_equal(sim_net_make(setup.plans, 4, &net), ncclSuccess);
  const struct engine_report report = run(&net, NULL);
  assert_true(report.stalled);
  assert_non_null(strstr(report.text, "waits for data from rank"));
}

/* ---- links that can be full ---- */

/* Of links in sequence at least one is kept, also if all have the same bandwidth, and few are kept. */
static void narrowest_links_stay(void **state) {
  const struct sim_conn conn = {.sender = 0, .receiver = 5, .proto = PROTO_SIMPLE, .sends = true};
  (void)state;
  for (uint32_t alike = 0; alike < 2; alike++) {
    struct cluster_spec spec;
    struct cluster_route route;
    struct demand demand;
    uint32_t full = 0;
    cluster_spec_begin(&spec);
    spec.nodes = 2;
    spec.gpus = 4;
    if (alike) spec.costs.links_gbps = 10;
    cluster_free(&cluster);
    assert_int_equal(cluster_make(&spec, &cluster), ncclSuccess);
    double *gbps = (double *)os_alloc((cluster.link_count + (size_t)1) * sizeof *gbps);
    assert_non_null(gbps);
    cluster_route_find(&cluster, &conn, &route);
    assert_true(route.link_count > 2);
    assert_true(demand_make(&cluster, &demand));
    for (uint32_t i = 0; i < 3; i++) assert_true(demand_add(&demand, &route, route.gbps));
    assert_true(demand_sum(&demand, gbps));
    for (uint32_t hop = 0; hop < route.link_count; hop++) {
      const double carries = cluster.link_gbps[route.links[hop]];
      if (gbps[route.links[hop]] <= carries * (1 + 1e-9)) continue;
      assert_true(carries <= route.gbps);
      assert_true(gbps[route.links[hop]] > 2.9 * route.gbps);
      full += 1;
    }
    assert_true(full >= 1 && full <= 2); /* a NIC of the sender, one of the receiver */
    demand_free(&demand);
    os_free(gbps);
  }
}

/* If all nodes are equally far apart, one node represents all, and the time is that of the longest path. */
static void leaves_as_one_fold(void **state) {
  struct fold fold;
  (void)state;
  cluster_begin(8, 2); /* two leaves */
  assert_true(net_begin(FUNC_ALL_TO_ALL, 1u << ALGO_RING, 1u << PROTO_SIMPLE, 1 << 12, 8));
  const struct engine_report apart = run(&net, NULL);
  assert_true(fold_make(&cluster, &net, NULL, &fold));
  const uint32_t lanes = fold.net.lane_count;
  fold_free(&fold);
  cluster.flat = true;
  assert_true(fold_make(&cluster, &net, NULL, &fold));
  assert_true(fold.net.lane_count < lanes);
  const struct engine_report some = run(&fold.net, &fold), all = run(&net, NULL);
  assert_true(some.end_ps <= all.end_ps + 100 && all.end_ps <= some.end_ps + 100);
  assert_true(all.end_ps >= apart.end_ps && all.end_ps < apart.end_ps + 3000000);
  fold_free(&fold);
}

/* ---- folds ---- */

static void folds_agree(void **state) {
  static const struct {
    uint8_t func, algo, proto;
    uint32_t nodes, gpus, channels;
    size_t count;
    double oversubscription;
  } rows[] = {{FUNC_ALL_REDUCE, ALGO_RING, PROTO_LL, 40, 4, 2, 160 * 64, 1},
              {FUNC_ALL_REDUCE, ALGO_RING, PROTO_SIMPLE, 36, 2, 2, 72 << 16, 1},
              {FUNC_ALL_GATHER, ALGO_RING, PROTO_LL128, 48, 2, 2, 5000, 1},
              {FUNC_REDUCE_SCATTER, ALGO_RING, PROTO_SIMPLE, 256, 1, 1, 1 << 12, 1},
              {FUNC_REDUCE_SCATTER, ALGO_PAT, PROTO_SIMPLE, 64, 1, 2, 1000, 1},
              {FUNC_ALL_REDUCE, ALGO_RING, PROTO_SIMPLE, 8, 8, 16, 1 << 22, 1},
              {FUNC_ALL_REDUCE, ALGO_RING, PROTO_SIMPLE, 16, 8, 16, 1 << 22, 4},
              {FUNC_ALL_REDUCE, ALGO_TREE, PROTO_LL, 32, 1, 1, 3000, 1},
              {FUNC_ALL_REDUCE, ALGO_TREE, PROTO_LL128, 19, 8, 16, 1 << 20, 1},
              {FUNC_ALL_REDUCE, ALGO_TREE, PROTO_SIMPLE, 8, 8, 16, 5 << 20, 1},
              {FUNC_ALL_REDUCE, ALGO_TREE, PROTO_SIMPLE, 16, 8, 16, 5 << 20, 8},
              {FUNC_SEND_RECV, ALGO_RING, PROTO_SIMPLE, 8, 4, 8, 1 << 18, 1},
              {FUNC_ALL_TO_ALL, ALGO_RING, PROTO_SIMPLE, 4, 8, 16, 1 << 14, 1}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct fold fold;
    cluster_begin_over(rows[i].nodes, rows[i].gpus, rows[i].oversubscription);
    assert_true(
        net_begin(rows[i].func, 1u << rows[i].algo, 1u << rows[i].proto, rows[i].count, rows[i].channels));
    if (!fold_make(&cluster, &net, NULL, &fold)) fail_msg("row %zu is not folded", i);
    const struct engine_report some = run(&fold.net, &fold), all = run(&net, NULL);
    assert_false(some.stalled);
    const uint64_t apart_ps = some.end_ps > all.end_ps ? some.end_ps - all.end_ps : all.end_ps - some.end_ps;
    if (apart_ps > 100) fail_msg("row %zu: %" PRIu64 " and %" PRIu64 " ps", i, some.end_ps, all.end_ps);
    assert_true(some.slice_count < all.slice_count);
    fold_free(&fold);
  }
}

/* If one rank is slow, or chunks are not whole, no rank represents another. */
static void folds_look_closely(void **state) {
  struct fold fold;
  char why[256];
  (void)state;
  cluster_begin(4, 2);
  assert_true(net_begin(FUNC_ALL_REDUCE, 1u << ALGO_RING, 1u << PROTO_LL, 8 * 64, 1));
  assert_true(fold_make(&cluster, &net, NULL, &fold));
  assert_int_equal(fold.net.lane_count, 2);
  fold_free(&fold);
  assert_true(cluster_fault(&cluster, "slow-rank:3:2", why, sizeof why));
  assert_false(fold_make(&cluster, &net, NULL, &fold));
  cluster_begin(4, 2);
  assert_true(net_begin(FUNC_ALL_REDUCE, 1u << ALGO_RING, 1u << PROTO_LL, 8 * 64 + 1, 1));
  assert_false(fold_make(&cluster, &net, NULL, &fold));
}

/* A rank that is alone has lanes without links: nothing of a fold is read or written for them, which the
 * sanitizers see. */
static void folds_of_one_rank(void **state) {
  static const uint8_t funcs[] = {FUNC_ALL_REDUCE, FUNC_SEND_RECV, FUNC_ALL_TO_ALL};
  (void)state;
  for (size_t i = 0; i < sizeof funcs; i++) {
    struct fold fold;
    cluster_begin(1, 1);
    assert_true(net_begin(funcs[i], 1u << ALGO_RING, 1u << PROTO_SIMPLE, 1000, 1));
    assert_int_equal(net.link_count, 0);
    if (!fold_make(&cluster, &net, NULL, &fold)) continue; /* it was made, and saved nothing */
    assert_int_equal(fold.net.link_count, 0);
    assert_int_equal(run(&fold.net, &fold).end_ps, run(&net, NULL).end_ps);
    fold_free(&fold);
  }
}

/* ---- progress output ---- */

/* Of 8 slices 2 are done after 1.5 s, and 6 after 3 s. */
static void progress_converges(void **state) {
  char text[512] = "";
  FILE *out = tmpfile();
  struct progress progress;
  (void)state;
  assert_non_null(out);
  progress_open(&progress, "sim", "slices", out, false, 0);
  assert_null(progress.out);
  progress_open(&progress, "sim", "slices", out, true, 0);
  progress_begin(&progress, "8 bytes", 0, 999999999); /* less than a second */
  progress_begin(&progress, "16 bytes", 8, 1000000000);
  progress_say(&progress, 1, 1500000000);
  progress_say(&progress, 2, 2500000000u);
  progress_say(&progress, 6, 4000000000u);
  progress_clear(&progress);
  rewind(out);
  text[fread(text, 1, sizeof text - 1, out)] = 0;
  fclose(out);
  assert_string_equal(text,
                      "tutti sim: 16 bytes\n"
                      "tutti sim: 16 bytes: 25.0 % of 8 slices, 4 s to go\n"
                      "tutti sim: 16 bytes: 75.0 % of 8 slices, 1 s to go\n");
}

/* ---- memory ---- */

static void memory_runs_out_cleanly(void **state) {
  (void)state;
  cluster_begin(2, 2);
  assert_true(net_begin(FUNC_ALL_REDUCE, 1u << ALGO_RING, 1u << PROTO_LL, 4096, 1));
  const uint64_t live = os_alloc_live();
  for (uint64_t k = 1;; k++) {
    const struct engine_request request = {.cluster = &cluster, .net = &net};
    struct engine_report report;
    os_alloc_fail_at(k);
    const uint64_t before = os_alloc_count();
    const ncclResult_t result = engine_run(&request, &report);
    os_alloc_fail_at(0);
    assert_int_equal(os_alloc_live(), live);
    if (os_alloc_count() - before < k) break;
    assert_int_equal(result, ncclSystemError);
  }
}

static void folds_without_memory_are_none(void **state) {
  (void)state;
  cluster_begin(4, 2);
  assert_true(net_begin(FUNC_ALL_REDUCE, 1u << ALGO_RING, 1u << PROTO_SIMPLE, 1 << 20, 8));
  const uint64_t live = os_alloc_live();
  bool folded = false;
  for (uint64_t k = 1; !folded; k++) {
    struct fold fold;
    os_alloc_fail_at(k);
    folded = fold_make(&cluster, &net, NULL, &fold);
    os_alloc_fail_at(0);
    if (folded) fold_free(&fold);
    assert_int_equal(os_alloc_live(), live);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(iterators_agree_at_both_ends, teardown),
      cmocka_unit_test_teardown(shares_are_fair, teardown),
      cmocka_unit_test_teardown(shares_stay_fair, teardown),
      cmocka_unit_test_teardown(capacity_needs_no_event, teardown),
      cmocka_unit_test_teardown(ring_has_a_closed_form, teardown),
      cmocka_unit_test_teardown(loggp_has_a_closed_form, teardown),
      cmocka_unit_test_teardown(costs_have_names, teardown),
      cmocka_unit_test_teardown(slow_ranks_and_links_cost, teardown),
      cmocka_unit_test_teardown(dead_nics_are_named, teardown),
      cmocka_unit_test_teardown(cycles_are_told, teardown),
      cmocka_unit_test_teardown(narrowest_links_stay, teardown),
      cmocka_unit_test_teardown(leaves_as_one_fold, teardown),
      cmocka_unit_test_teardown(folds_agree, teardown),
      cmocka_unit_test_teardown(folds_look_closely, teardown),
      cmocka_unit_test_teardown(folds_of_one_rank, teardown),
      cmocka_unit_test_teardown(progress_converges, teardown),
      cmocka_unit_test_teardown(memory_runs_out_cleanly, teardown),
      cmocka_unit_test_teardown(folds_without_memory_are_none, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
